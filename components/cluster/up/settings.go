package up

import (
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"

	"github.com/spf13/pflag"

	"hyperkube/components/cluster/clusterconfig"
	"hyperkube/components/cluster/pidlock"
	"hyperkube/components/cluster/upconfig"
	"hyperkube/components/controllers/loadbalancer/addresspool"
	"hyperkube/components/network"
	"hyperkube/internal/host/layout"
	"hyperkube/manifests"
)

// pathFlags are the flags whose values are paths and that can be set in a configuration file. The paths must be
// absolute, because the cluster runs in another working directory.
var pathFlags = []string{"manifests", "kubelet-config", "kubelet-config-dir", "image-credential-provider-config", "image-credential-provider-bin-dir"}

// makePathsAbsolute makes the paths that are set on the command line absolute. It returns these flags as arguments for
// a background process, which has another working directory.
func makePathsAbsolute(flags *pflag.FlagSet) (args []string, err error) {
	for _, name := range append([]string{"config"}, pathFlags...) {
		f := flags.Lookup(name)
		if !f.Changed || f.Value.String() == "" {
			continue
		}
		path, err := filepath.Abs(f.Value.String())
		if err != nil {
			return nil, fmt.Errorf("--%s: %w", name, err)
		}
		if err := f.Value.Set(path); err != nil {
			return nil, fmt.Errorf("--%s: %w", name, err)
		}
		args = append(args, "--"+name+"="+path)
	}
	return args, nil
}

// newFlags returns a new set of the flags of `up` with their defaults.
func newFlags() *pflag.FlagSet { return newCommand(&upOptions{}).Flags() }

// loadSettings reads the configuration files and applies them to flags that are not set on the command line. If the
// cluster runs in another process, it first sets the flags of that process that are not set, except with --foreground.
// It returns additional arguments for a process in the background: these flags, and absolute paths.
func (o *upOptions) loadSettings(flags *pflag.FlagSet, l layout.Node) (args []string, err error) {
	if args, err = makePathsAbsolute(flags); err != nil {
		return nil, err
	}
	running, err := upconfig.LoadRunning(l)
	if err != nil {
		return nil, err
	}
	if len(running.Args) > 0 && !o.foreground {
		if pid, err := pidlock.Holder(l.PIDFile(layout.MainProcess)); err == nil && pid != 0 {
			args = append(args, upconfig.Keep(flags, running.Args)...)
		}
	}
	return args, o.readSettings(flags, l)
}

// readSettings reads the configuration files into o.settings, applies them to flags that are not set, and validates the
// result. Relative paths in the files are errors.
func (o *upOptions) readSettings(flags *pflag.FlagSet, l layout.Node) error {
	settings, err := upconfig.Load(l, o.file, newFlags)
	if err != nil {
		return err
	}
	o.settings = *settings
	if err := o.settings.ApplyTo(flags); err != nil {
		return err
	}
	for _, name := range append([]string{"audit-log-path"}, pathFlags...) {
		if path := flags.Lookup(name).Value.String(); path != "" && !filepath.IsAbs(path) {
			return fmt.Errorf("%s: %q is not an absolute path: the cluster runs in another working directory", o.settings.Position(name), path)
		}
	}
	if _, err := o.settings.KubeletConfiguration(o.kubeletConfig, o.kubeletConfigDir); err != nil {
		return err
	}
	return o.validate()
}

// validate reports invalid flags and keys that would otherwise be detected only after the cluster has begun to start.
// The error names the position in the file.
func (o *upOptions) validate() error {
	var errs []error
	check := func(flag string, err error) {
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", o.settings.Position(flag), err))
		}
	}
	check("pod-network", network.Mode(o.podNetwork).Validate())
	check("proxy-mode", o.proxyMode.Validate())
	if o.nodeName != "" {
		check("node-name", clusterconfig.CheckNodeName(o.nodeName))
	}
	if o.nodes < 0 || o.nodes > maxLocalNodes {
		check("nodes", fmt.Errorf("must be from 1 to %d, or 0 to keep the current number", maxLocalNodes))
	}
	// ChooseRanges modifies the slices.
	pods := clusterconfig.Cluster{PodCIDRs: slices.Clone(o.podCIDRs)}
	if err := pods.ChooseRanges(nil); err != nil {
		check("cluster-cidr", err)
	} else {
		both := clusterconfig.Cluster{PodCIDRs: slices.Clone(o.podCIDRs), ServiceCIDRs: slices.Clone(o.serviceCIDRs)}
		check("service-cidr", both.ChooseRanges(nil))
	}
	_, err := addresspool.Parse(o.loadBalancerPool)
	if err == nil && len(o.loadBalancerPool) > 0 && o.cloudProvider.IsExternal() {
		err = errors.New("with --cloud-provider=external, the cloud controller manager assigns the addresses of Services: remove one of the settings")
	}
	check("load-balancer-pool", err)
	for _, name := range o.addons {
		_, err := manifests.FindAddon(name)
		check("with", err)
	}
	return errors.Join(errs...)
}

// saveRunning stores the configuration of this process, with which later calls of `up` compare theirs.
func (o *upOptions) saveRunning(flags *pflag.FlagSet, l layout.Node) error {
	text, err := o.settings.Text(flags, true)
	if err != nil {
		return err
	}
	return upconfig.Running{Args: upconfig.KeptArgs(flags), Text: text}.Save(l)
}

// findChanged returns the process pid as a predecessor if its configuration differs from that of o. It returns false if
// they are the same, or if the process is not `hyperkube up`.
func (o *upOptions) findChanged(flags *pflag.FlagSet, l layout.Node, pid int) (p predecessor, found bool, err error) {
	changed, err := o.changedKinds(flags, l)
	if err != nil || len(changed) == 0 {
		return p, false, err
	}
	if p, found, err = readPredecessor(pid); found {
		p.changed = changed
	}
	return p, found, err
}

// changedKinds returns the kinds of configuration documents that differ from those of the running process; none if
// nothing has changed for which the process must be replaced.
func (o *upOptions) changedKinds(flags *pflag.FlagSet, l layout.Node) ([]string, error) {
	running, err := upconfig.LoadRunning(l)
	if err != nil {
		return nil, err
	}
	text, err := o.settings.Text(flags, true)
	if err != nil {
		return nil, err
	}
	return upconfig.ChangedKinds(running.Text, text)
}

// apiServerPort returns the port of the API server.
func (o *upOptions) apiServerPort() int { return int(apiServerAddress(&o.settings).Port()) }

// apiServerAddress returns the address and port at which the API server listens. The address is unspecified if it
// listens on all, which is the default.
func apiServerAddress(settings *upconfig.Config) netip.AddrPort {
	if settings.Components.APIServer == nil {
		return netip.AddrPortFrom(netip.IPv4Unspecified(), layout.PortAPIServer)
	}
	return settings.Components.APIServer.Address()
}
