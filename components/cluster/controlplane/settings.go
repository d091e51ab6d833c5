package controlplane

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

	"hyperkube/components/cluster/clusterconfig"
	"hyperkube/components/cluster/kubeadmapi"
	"hyperkube/internal/base/cloudprovider"
	"hyperkube/internal/host/atomicfile"
	"hyperkube/internal/host/layout"
	"hyperkube/internal/host/packetfilter"
	"hyperkube/manifests"
)

// settings returns the settings of the configuration file or, without a file, those that the last run has stored.
// Flags take precedence; changed reports whether a flag is set.
func (o *initOptions) settings(l layout.Node, changed func(string) bool) (controlPlaneSettings, error) {
	s, err := o.baseSettings(l)
	if err != nil {
		return s, err
	}
	g := &o.flags
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
		"seccomp-default":             func() { s.NoSeccompDefault = g.NoSeccompDefault },
		"proxy-mode":                  func() { s.ProxyMode = g.ProxyMode },
		"cloud-provider":              func() { s.setCloudProvider(g.CloudProvider) },
	} {
		if changed(flag) {
			take()
		}
	}
	s.UploadCerts, s.HideKey, s.HideToken, s.With = g.UploadCerts, g.HideKey, g.HideToken, g.With
	if err := kubeadmapi.CheckVersion(o.version); err != nil {
		return s, fmt.Errorf("--kubernetes-version: %w", err)
	}
	if s.Patches, err = absolutePath(s.Patches); err != nil {
		return s, err
	}
	return s, s.checkSkip()
}

// baseSettings returns the settings before flags are applied: those of the configuration file or, without a file,
// those that the last run of init or join on this machine has stored, or else the defaults.
func (o *initOptions) baseSettings(l layout.Node) (controlPlaneSettings, error) {
	if o.config != "" {
		return readInit(o.config)
	}
	stored, err := loadAdditionalNode(l)
	if err != nil {
		return controlPlaneSettings{}, err
	}
	if stored != nil {
		stored.Settings.TokenTTL = o.flags.TokenTTL
		return stored.Settings, nil
	}
	s := o.flags
	data, err := os.ReadFile(settingsFile(l))
	if errors.Is(err, os.ErrNotExist) {
		return s, nil
	}
	if err == nil {
		s = controlPlaneSettings{}
		err = json.Unmarshal(data, &s)
	}
	if err != nil {
		return s, fmt.Errorf("reading settings of this control plane node: %w", err)
	}
	s.TokenTTL = o.flags.TokenTTL
	return s, nil
}

// setCloudProvider sets who initializes this node, and the flag of kube-controller-manager for it. Control plane nodes that
// join get the flag from the ClusterConfiguration.
func (s *controlPlaneSettings) setCloudProvider(provider cloudprovider.Setting) {
	const component, flag = "kube-controller-manager", "cloud-provider"
	s.CloudProvider = provider
	args := slices.DeleteFunc(slices.Clone(s.Extra[component]), func(f manifests.Flag) bool { return f.Name == flag })
	if provider != "" {
		args = append(args, manifests.Flag{Name: flag, Value: provider.String()})
	}
	put(&s.Extra, component, args)
}

// skippablePhases are the phases of init that the flag --skip-phases may name.
var skippablePhases = []string{"preflight", "mark-control-plane", "addon", "show-join-command"}

// checkSkip returns an error for phases that cannot be skipped, so that a user does not assume that they were.
func (s *controlPlaneSettings) checkSkip() error {
	for _, name := range s.Skip {
		switch {
		case slices.Contains(skippablePhases, name):
		case name == "addon/kube-proxy":
			return errors.New("skip-phases: addon/kube-proxy: the service proxy is part of the node, not an add-on")
		default:
			return fmt.Errorf("skip-phases: %s cannot be skipped: supported are %s", name, strings.Join(skippablePhases, ", "))
		}
	}
	return nil
}

// skips reports whether a phase of init is skipped.
func (s *controlPlaneSettings) skips(phase string) bool { return slices.Contains(s.Skip, phase) }

// checkUnchanged returns an error if the settings contain a change, for example of the pod CIDRs, that the existing
// cluster with the identity id cannot apply.
func (s *controlPlaneSettings) checkUnchanged(id clusterconfig.Cluster) error {
	var errs []error
	for _, c := range []struct{ flag, requested, current string }{
		{"node-name", s.NodeName, id.NodeName},
		{"pod-network-cidr", strings.Join(s.PodCIDRs, ","), strings.Join(id.PodCIDRs, ",")},
		{"service-cidr", strings.Join(s.ServiceCIDRs, ","), strings.Join(id.ServiceCIDRs, ",")},
		{"service-dns-domain", s.Domain, id.Domain},
	} {
		if c.requested != "" && c.requested != c.current {
			errs = append(errs, fmt.Errorf("--%s: the cluster has %s, which cannot change to %s: delete the cluster with `hyperkube reset` first", c.flag, c.current, c.requested))
		}
	}
	return errors.Join(errs...)
}

// absolutePath returns the absolute form of path, for processes with another working directory. It
// returns "" for "".
func absolutePath(path string) (string, error) {
	if path == "" {
		return "", nil
	}
	return filepath.Abs(path)
}

// readInit returns the settings in the configuration file of init at path.
func readInit(path string) (controlPlaneSettings, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return controlPlaneSettings{}, fmt.Errorf("--config: %w", err)
	}
	s, err := decodeInit(data)
	if err != nil {
		return s, fmt.Errorf("--config %s: %w", path, err)
	}
	return s, nil
}

// defaultClusterName is the name of a cluster whose configuration specifies none, as in kubeadm.
const defaultClusterName = "kubernetes"

// clusterName returns the name of the cluster in kubeconfigs.
func (s *controlPlaneSettings) clusterName() string { return cmp.Or(s.ClusterName, defaultClusterName) }

// settingsFile returns the path of the file in which init stores its settings for later runs.
func settingsFile(l layout.Node) string { return filepath.Join(l.Data, "init.json") }

// saveSettings stores the settings for later runs of init, except those that apply to a single run, such as the token.
func (m *controlPlaneNode) saveSettings() error {
	s := m.settings
	s.Token, s.TokenTTL, s.TokenDescription, s.TokenUsages, s.TokenGroups = "", 0, "", nil, nil
	s.CertificateKey, s.UploadCerts, s.HideKey, s.HideToken, s.With = "", false, false, false, nil
	data, err := json.MarshalIndent(s, "", "  ")
	if err == nil {
		err = atomicfile.Write(atomicfile.File{Path: settingsFile(m.layout), Data: append(data, '\n'), Mode: 0o600})
	}
	if err != nil {
		return fmt.Errorf("saving settings of this control plane node: %w", err)
	}
	return nil
}

// controlPlaneSettings are the settings of a control plane node. They are stored as JSON, so that field
// names cannot change.
//
// Size: one field for each setting of a file format.
type controlPlaneSettings struct {
	NodeName               string
	Advertise              string
	Port                   int
	Endpoint               string
	SANs                   []string
	PodCIDRs, ServiceCIDRs []string
	Domain                 string
	// ClusterName is the name of the cluster in kubeconfigs. If it is empty, defaultClusterName is
	// used.
	ClusterName string `json:",omitempty"`
	// Token is the first bootstrap token. If it is empty, a token is generated. The other fields
	// have the defaults of kubeadm.
	Token                    string
	TokenTTL                 time.Duration
	TokenDescription         string   `json:",omitempty"`
	TokenUsages, TokenGroups []string `json:",omitempty"`
	// Taints of the node, as key=value:effect. If nil, the node has the taint of control plane
	// nodes.
	Taints []string
	// UploadCerts uploads the shared certificates and keys for additional control plane nodes. They
	// are encrypted with CertificateKey, which is printed unless HideKey is set.
	UploadCerts    bool
	CertificateKey string
	HideKey        bool
	// HideToken omits the token from the printed join command.
	HideToken bool `json:",omitempty"`
	// With lists optional add-ons.
	With []string
	// Extra contains extra flags of the components, Volumes the extra host path volumes of their
	// pods, and Envs their extra environment variables.
	Extra   map[string][]manifests.Flag
	Volumes map[string][]manifests.Volume `json:",omitempty"`
	Envs    map[string][]corev1.EnvVar    `json:",omitempty"`
	// Skip lists phases of init to skip, which must be in skippablePhases.
	Skip []string `json:",omitempty"`
	// Waits are the timeouts.
	Waits nodeTimeouts `json:",omitzero"`
	// DryRun means that nothing is changed.
	DryRun bool `json:"-"`
	// Ignored lists preflight checks, from the configuration file, whose errors are reported as
	// warnings.
	Ignored []string `json:"-"`
	// NoSeccompDefault is the inverse of --seccomp-default.
	NoSeccompDefault bool `json:",omitempty"`
	// ProxyMode is how packet filter rules are written.
	ProxyMode packetfilter.Mode `json:",omitempty"`
	// CloudProvider is External if a cloud controller manager initializes this node.
	CloudProvider cloudprovider.Setting `json:",omitempty"`
	// Patches is the directory of patches of the static pods. It may be empty.
	Patches string `json:",omitempty"`
}
