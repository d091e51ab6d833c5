package masters

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"hyperkube/components/cluster/identity"
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
		"skip-phases":                 func() { s.Skip = g.Skip },
		"patches":                     func() { s.Patches = g.Patches },
	} {
		if given(flag) {
			take()
		}
	}
	s.UploadCerts, s.HideKey, s.HideToken, s.With = g.UploadCerts, g.HideKey, g.HideToken, g.With
	if err := checkVersion(o.version); err != nil {
		return s, fmt.Errorf("--kubernetes-version: %w", err)
	}
	if s.Patches, err = absolute(s.Patches); err != nil {
		return s, err
	}
	return s, s.checkSkip()
}

// before are the settings that flags go over.
func (o *initOptions) before(l layout.Node) (masterSettings, error) {
	if o.config != "" {
		return readInit(o.config)
	}
	kept, err := loadFurtherMaster(l)
	if err != nil {
		return masterSettings{}, err
	}
	if kept != nil {
		kept.Settings.TokenTTL = o.given.TokenTTL
		return kept.Settings, nil
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

// skippable are the phases that a master can do without.
var skippable = []string{"preflight", "mark-control-plane", "addon", "show-join-command"}

// checkSkip refuses phases that cannot be left out, for nobody is to believe that they
// were.
func (s *masterSettings) checkSkip() error {
	for _, name := range s.Skip {
		switch {
		case slices.Contains(skippable, name):
		case name == "addon/kube-proxy":
			return errors.New("skip-phases: addon/kube-proxy: the service proxy is a part of the node, not an add-on")
		default:
			return fmt.Errorf("skip-phases: %s cannot be left out: %s can", name, strings.Join(skippable, ", "))
		}
	}
	return nil
}

func (s *masterSettings) skips(phase string) bool { return slices.Contains(s.Skip, phase) }

// checkKept refuses what a cluster that is there cannot become any more.
func (s *masterSettings) checkKept(id identity.Cluster) error {
	var errs []error
	for _, c := range []struct{ flag, wish, is string }{
		{"node-name", s.NodeName, id.NodeName},
		{"pod-network-cidr", strings.Join(s.PodCIDRs, ","), strings.Join(id.PodCIDRs, ",")},
		{"service-cidr", strings.Join(s.ServiceCIDRs, ","), strings.Join(id.ServiceCIDRs, ",")},
		{"service-dns-domain", s.Domain, id.Domain},
	} {
		if c.wish != "" && c.wish != c.is {
			errs = append(errs, fmt.Errorf("--%s: it is %s and cannot become %s: `hyperkube reset` takes the cluster away", c.flag, c.is, c.wish))
		}
	}
	return errors.Join(errs...)
}

// absolute is path for whoever runs elsewhere; "" stays.
func absolute(path string) (string, error) {
	if path == "" {
		return "", nil
	}
	return filepath.Abs(path)
}

// readInit reads a configuration file of init.
func readInit(path string) (masterSettings, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return masterSettings{}, fmt.Errorf("--config: %w", err)
	}
	s, err := decodeInit(data)
	if err != nil {
		return s, fmt.Errorf("--config %s: %w", path, err)
	}
	return s, nil
}

// defaultClusterName is kubeadm's.
const defaultClusterName = "kubernetes"

func (s *masterSettings) clusterName() string { return cmp.Or(s.ClusterName, defaultClusterName) }

// settingsFile is where init keeps what it was told, so that run again it need not be
// told anew.
func settingsFile(l layout.Node) string { return filepath.Join(l.Data, "init.json") }

// keepSettings keeps them but for what is for one run.
func (m *master) keepSettings() error {
	s := m.settings
	s.Token, s.TokenTTL, s.TokenDescription, s.TokenUsages, s.TokenGroups = "", 0, "", nil, nil
	s.CertificateKey, s.UploadCerts, s.HideKey, s.HideToken, s.With = "", false, false, false, nil
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
	// ClusterName is what kubeconfigs call the cluster; empty is defaultClusterName.
	ClusterName string `json:",omitempty"`
	// Token is the first with which machines join; empty is a new one. What else is not
	// said of it is as kubeadm has it.
	Token                    string
	TokenTTL                 time.Duration
	TokenDescription         string   `json:",omitempty"`
	TokenUsages, TokenGroups []string `json:",omitempty"`
	// Taints of the node, as key=value:effect; nil is that of masters.
	Taints []string
	// UploadCerts: further masters get the keys that all share from the cluster,
	// encrypted with CertificateKey, which is printed unless HideKey.
	UploadCerts    bool
	CertificateKey string
	HideKey        bool
	// HideToken: the token is not printed.
	HideToken bool `json:",omitempty"`
	// With are optional add-ons.
	With []string
	// Extra are further flags of the components, Volumes and Envs what else their pods
	// have of the host and in their environment.
	Extra   map[string][]manifests.Flag
	Volumes map[string][]manifests.Volume `json:",omitempty"`
	Envs    map[string][]corev1.EnvVar    `json:",omitempty"`
	// Skip are phases of init that are left out, of skippable.
	Skip []string `json:",omitempty"`
	// Waits are how long is waited.
	Waits waits `json:",omitzero"`
	// DryRun: nothing is to be changed.
	DryRun bool `json:"-"`
	// Ignored are checks, by name, whose problems are only told; those of a file.
	Ignored []string `json:"-"`
	// Patches is a folder of changes to the static pods; empty: none.
	Patches string `json:",omitempty"`
}
