package masters

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"hyperkube/internal/atomicfile"
	"hyperkube/internal/layout"
	"hyperkube/manifests"
)

// settings are those of the configuration file, or else of the last run, with the
// flags that were given over them.
func (o *initOptions) settings(l layout.Node, given func(string) bool) (masterSettings, error) {
	s, err := o.before(l)
	if err != nil {
		return s, err
	}
	g := &o.given
	for flag, take := range map[string]func(){
		"node-name":                   func() { s.NodeName = g.NodeName },
		"apiserver-advertise-address": func() { s.Advertise = g.Advertise },
		"apiserver-bind-port":         func() { s.Port = g.Port },
		"control-plane-endpoint":      func() { s.Endpoint = g.Endpoint },
		"apiserver-cert-extra-sans":   func() { s.SANs = g.SANs },
		"pod-network-cidr":            func() { s.PodCIDRs = g.PodCIDRs },
		"service-cidr":                func() { s.ServiceCIDRs = g.ServiceCIDRs },
		"service-dns-domain":          func() { s.Domain = g.Domain },
		"token":                       func() { s.Token = g.Token },
		"token-ttl":                   func() { s.TokenTTL = g.TokenTTL },
		"certificate-key":             func() { s.CertificateKey = g.CertificateKey },
	} {
		if given(flag) {
			take()
		}
	}
	s.UploadCerts, s.HideKey, s.With = g.UploadCerts, g.HideKey, g.With
	return s, nil
}

// before are the settings that flags go over.
func (o *initOptions) before(l layout.Node) (masterSettings, error) {
	if o.config != "" {
		data, err := os.ReadFile(o.config)
		if err != nil {
			return masterSettings{}, fmt.Errorf("--config: %w", err)
		}
		s, err := decodeInit(data)
		if err != nil {
			return s, fmt.Errorf("--config %s: %w", o.config, err)
		}
		return s, nil
	}
	s := o.given
	data, err := os.ReadFile(settingsFile(l))
	if errors.Is(err, os.ErrNotExist) {
		return s, nil
	}
	if err == nil {
		s = masterSettings{}
		err = json.Unmarshal(data, &s)
	}
	if err != nil {
		return s, fmt.Errorf("reading with which settings this master was made: %w", err)
	}
	s.TokenTTL = o.given.TokenTTL
	return s, nil
}

// settingsFile is where init keeps what it was told, so that run again it need not be
// told anew.
func settingsFile(l layout.Node) string { return filepath.Join(l.Data, "init.json") }

// keepSettings keeps them but for what is for one run.
func (m *master) keepSettings() error {
	s := m.settings
	s.Token, s.TokenTTL, s.CertificateKey, s.UploadCerts, s.HideKey, s.With = "", 0, "", false, false, nil
	data, err := json.MarshalIndent(s, "", "  ")
	if err == nil {
		err = atomicfile.Write(atomicfile.File{Path: settingsFile(m.layout), Data: append(data, '\n'), Mode: 0o600})
	}
	if err != nil {
		return fmt.Errorf("keeping the settings of this master: %w", err)
	}
	return nil
}

// masterSettings are what a person may say of a master.
type masterSettings struct {
	NodeName               string
	Advertise              string
	Port                   int
	Endpoint               string
	SANs                   []string
	PodCIDRs, ServiceCIDRs []string
	Domain                 string
	Token                  string
	TokenTTL               time.Duration
	// Taints of the node, as key=value:effect; nil is that of masters.
	Taints []string
	// UploadCerts: further masters get the keys that all share from the cluster,
	// encrypted with CertificateKey, which is printed unless HideKey.
	UploadCerts    bool
	CertificateKey string
	HideKey        bool
	// With are optional add-ons.
	With []string
	// Extra are further flags of the components.
	Extra map[string][]manifests.Flag
}
