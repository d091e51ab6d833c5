package proxy

import (
	"errors"

	"github.com/spf13/pflag"

	"hyperkube/internal/host/packetfilter"
)

// Flags are flags of kube-proxy and a KubeProxyConfiguration that change the configuration of a proxy in the process of another
// program. That program determines the clients, the node name, the pod CIDRs and the log, so it must refuse the flags for these.
type Flags struct {
	options *options
	set     *pflag.FlagSet
}

// NewFlags adds the flags of kube-proxy to set, which the caller parses. document is a KubeProxyConfiguration in YAML or JSON; it may
// be empty. Unlike in the command kube-proxy, flags take precedence over it.
func NewFlags(set *pflag.FlagSet, document []byte) (*Flags, error) {
	f := &Flags{options: &options{config: defaults()}, set: set}
	f.options.flags(set)
	if len(document) == 0 {
		return f, nil
	}
	c := f.options.config
	if err := decode(document, c); err != nil {
		return nil, err
	}
	switch {
	case c.ClientConnection.Kubeconfig != "":
		return nil, errors.New("clientConnection.kubeconfig: the proxy reaches the API server in its process")
	case c.HostnameOverride != "":
		return nil, errors.New("hostnameOverride: the name of the node is set elsewhere (nodeName)")
	}
	return f, nil
}

// Validate reports invalid values.
func (f *Flags) Validate() error {
	_, err := f.Apply(Config{})
	return err
}

// Mode returns how packet filter rules are written; empty if it is not set. f may be nil.
func (f *Flags) Mode() packetfilter.Mode {
	if f == nil {
		return ""
	}
	if f.set.Changed("proxy-mode") {
		return packetfilter.Mode(f.options.mode)
	}
	return packetfilter.Mode(f.options.config.Mode)
}

// Apply returns the configuration of the document and the flags. It takes from base what the program determines, and the
// addresses and pod CIDRs unless they are set.
func (f *Flags) Apply(base Config) (Config, error) {
	o := *f.options
	file := *o.config
	o.config = &file
	o.applyFlags(f.set.Changed)
	cfg := base
	if err := apply(o.config, &cfg); err != nil {
		return cfg, err
	}
	cfg.NodeName, cfg.Conntrack = base.NodeName, file.Conntrack
	usual := defaults()
	if file.HealthzBindAddress == usual.HealthzBindAddress {
		cfg.HealthzAddress = base.HealthzAddress
	}
	if file.MetricsBindAddress == usual.MetricsBindAddress {
		cfg.MetricsAddress = base.MetricsAddress
	}
	return cfg, nil
}
