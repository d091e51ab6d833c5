// Package up runs a cluster in one process: `hyperkube up`. run.go starts the components in order,
// nodes.go manages additional nodes on the same machine.
package up

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	kubeletv1beta1 "k8s.io/kubelet/config/v1beta1"

	"hyperkube/components/cluster/clusterconfig"
	"hyperkube/components/cluster/command"
	"hyperkube/components/cluster/node"
	"hyperkube/components/cluster/pidlock"
	"hyperkube/components/cluster/podsunit"
	"hyperkube/components/cluster/preflight"
	"hyperkube/components/cluster/progress"
	"hyperkube/components/cluster/upconfig"
	"hyperkube/components/network"
	"hyperkube/internal/base/cloudprovider"
	"hyperkube/internal/base/logging"
	"hyperkube/internal/base/version"
	"hyperkube/internal/host/layout"
	"hyperkube/internal/host/logfile"
	"hyperkube/internal/host/packetfilter"
	"hyperkube/internal/host/process"
	"hyperkube/manifests"
)

// upOptions are the flags of `up`.
//
// Size: one field for each flag.
type upOptions struct {
	root       string
	foreground bool
	// service is true if a service of systemd or OpenRC shall run the cluster.
	service      bool
	nodeName     string
	podCIDRs     []string
	serviceCIDRs []string
	domain       string
	noKubeconfig bool
	verbose      bool
	// output is the format of the output.
	output command.Output
	// file is the path of the configuration file; empty means the default file, if it exists.
	file string
	// kubeletConfig and kubeletConfigDir are the paths of the KubeletConfiguration and its drop-in files.
	kubeletConfig, kubeletConfigDir string
	credentialProviders             node.CredentialProviders
	noSeccompDefault                bool
	auditLog                        string
	// nodes is the total number of nodes; 0 keeps the current number.
	nodes int
	// addons are add-ons to enable.
	addons []string
	// manifests is the directory of manifests; empty means that in the data directory.
	manifests string
	// podNetwork is a network.Mode; empty keeps the current one.
	podNetwork string
	// proxyMode is how packet filter rules are written; empty means as the KubeProxyConfiguration specifies, or auto.
	proxyMode packetfilter.Mode
	// cloudProvider is External if a cloud controller manager initializes the nodes.
	cloudProvider cloudprovider.Setting
	// loadBalancerPool are the addresses of Services of type LoadBalancer; those of the nodes if empty.
	loadBalancerPool []string
	// nodeMonitorGracePeriod is how long a node may not report its status; 0 means the default.
	nodeMonitorGracePeriod time.Duration
	// bindAddress is the address of the servers of the controller manager and the scheduler.
	bindAddress netip.Addr
	// settings are the content of the configuration file. Its keys have been applied to the fields above.
	settings upconfig.Config
}

// New returns the command `up`.
func New() *cobra.Command {
	return newCommand(&upOptions{})
}

// newCommand returns the command `up`, whose flags set the fields of o.
func newCommand(o *upOptions) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Start a local Kubernetes cluster on this machine",
		Long: "Start a local Kubernetes cluster on this machine, or restart a stopped one.\n" +
			"The command returns when the node and DNS are ready, and leaves the cluster running in the background.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.runWithOutput(cmd) },
	}
	flags := cmd.Flags()
	o.output.Flag(cmd)
	flags.Lookup(outputFlag).Usage = "Output format. One of: json, which prints one object per line for each step, and the result in the last one. Text if empty."
	command.RootFlag(cmd.Flags(), &o.root)
	flags.StringVar(&o.file, "config", "", "Path to a configuration file, whose drop-in files are *.yaml in the directory of the same name with the suffix .d. Flags take precedence. Defaults to /etc/hyperkube/config.yaml, which may be missing.")
	flags.BoolVar(&o.foreground, "foreground", false, "Run in the foreground, for service managers. Notifies systemd when the cluster is ready.")
	flags.BoolVar(&o.service, "service", false, "Run the cluster as a service of systemd or OpenRC that starts at boot. The service stays until --service=false, which removes it.")
	flags.StringVar(&o.nodeName, "node-name", "", "Name of the node. Only used at the first start. Defaults to the hostname.")
	flags.StringSliceVar(&o.podCIDRs, "cluster-cidr", nil, "CIDR for pod IPs, or a comma-separated dual-stack pair. Only used at the first start. By default, an unused CIDR is chosen.")
	flags.StringSliceVar(&o.serviceCIDRs, "service-cidr", nil, "CIDR for service IPs, or a comma-separated dual-stack pair. Only used at the first start. By default, an unused CIDR is chosen.")
	flags.SetNormalizeFunc(normalizeFlagName)
	flags.StringVar(&o.domain, "cluster-domain", "", "DNS domain of the cluster. Only used at the first start. Defaults to cluster.local.")
	flags.BoolVar(&o.noKubeconfig, "no-kubeconfig", false, "Do not add the cluster to the user's kubeconfig file.")
	flags.IntVar(&o.nodes, "nodes", 0, "Total number of nodes. Additional nodes run in network namespaces on this machine. 0 keeps the current number, which is 1 at the first start.")
	flags.StringVar(&o.podNetwork, "pod-network", "", "How pod traffic between nodes is sent: auto (routes within a subnet, otherwise VXLAN), vxlan, direct or wireguard (encrypted; the same for all nodes).")
	flags.StringSliceVar(&o.loadBalancerPool, "load-balancer-pool", nil, "Unused addresses of the network of the nodes for Services of type LoadBalancer, which the nodes announce: CIDRs or ranges such as 192.0.2.10-192.0.2.20, comma-separated. By default, Services have the addresses of the nodes.")
	flags.StringVar(&o.kubeletConfig, "kubelet-config", "", "Path to a KubeletConfiguration file.")
	flags.StringVar(&o.kubeletConfigDir, "kubelet-config-dir", "", "Path to a directory of drop-in files (*.conf) for the KubeletConfiguration, applied in the order of their names.")
	node.RegisterProxyMode(flags, &o.proxyMode)
	node.RegisterCloudProvider(flags, &o.cloudProvider)
	o.credentialProviders.Register(flags)
	node.RegisterSeccompDefault(flags, &o.noSeccompDefault)
	flags.StringVar(&o.auditLog, "audit-log-path", "", "If set, the metadata of requests to the API server is logged to this file, which is rotated. The policy is audit-policy.yaml in the data directory.")
	flags.DurationVar(&o.nodeMonitorGracePeriod, "node-monitor-grace-period", 0, "Amount of time which a node may be unresponsive before it is marked unhealthy. Nodes report every 10s. 0 means 50s.")
	flags.TextVar(&o.bindAddress, "bind-address", netip.AddrFrom4([4]byte{127, 0, 0, 1}), "IP address on which the controller manager and the scheduler serve health and metrics. 0.0.0.0 means all interfaces.")
	flags.StringSliceVar(&o.addons, "with", nil, "Add-ons to enable, also for later starts: "+strings.Join(manifests.AddonNames(), ", ")+".")
	flags.StringVar(&o.manifests, "manifests", "", "Directory of manifests and kustomizations that are applied to the cluster, now and when they change. Defaults to manifests in the data directory.")
	flags.BoolVarP(&o.verbose, "verbose", "v", false, "Also log debug messages.")
	return cmd
}

// normalizeFlagName maps the flag names that kubeadm and other programs use for CIDRs to those of `up`.
func normalizeFlagName(_ *pflag.FlagSet, name string) pflag.NormalizedName {
	switch name {
	case "pod-cidr", "pod-network-cidr":
		name = "cluster-cidr"
	case "service-cluster-ip-range":
		name = "service-cidr"
	}
	return pflag.NormalizedName(name)
}

// outputFlag is the name of the flag for the format of the output.
const outputFlag = "output"

// runWithOutput runs the command with output in the selected format. Messages that are no steps become objects in JSON.
func (o *upOptions) runWithOutput(cmd *cobra.Command) error {
	switch o.output {
	case "":
		return o.run(cmd, progress.Print(cmd.OutOrStdout()))
	case "json":
		out := progress.NewJSON(cmd.OutOrStdout())
		cmd.SetOut(out)
		err := o.run(cmd, out.Show)
		out.Finish(savedResult(command.Layout(o.root)), err)
		return err
	}
	return o.output.Write(nil, nil, nil) // the error of an unknown format
}

// run is the command `up`. In the process that the user starts, it starts the cluster in a background process or a
// service, or updates a running cluster. In the background process and with --foreground, it runs the cluster.
// show reports the steps to the user.
func (o *upOptions) run(cmd *cobra.Command, show func(progress.Step)) error {
	if err := command.RequireRoot(); err != nil {
		return err
	}
	l := command.Layout(o.root)
	extra, settingsErr := o.loadSettings(cmd.Flags(), l)
	from, isResumed, err := resumed()
	if err != nil {
		return err
	}
	if send, ok := progress.ParentSteps(); ok {
		if settingsErr != nil { // the files have changed after the parent process has read them
			progress.New(send).Fail(settingsErr)
			return command.ConfigError(settingsErr)
		}
		return o.runWithProgress(cmd, l, from, send)
	}
	if settingsErr != nil {
		return command.ConfigError(settingsErr)
	}
	if isResumed && !o.foreground {
		return o.runWithProgress(cmd, l, from, func(progress.Step) {})
	}
	notify := func(s progress.Step) {
		show(s)
		if s.Ready {
			progress.NotifySystemd("READY=1")
		}
	}
	if isResumed {
		return o.runWithProgress(cmd, l, from, notify)
	}
	if done, err := o.manageService(cmd, l); err != nil || done {
		return err
	}
	before, done, err := o.handleRunning(cmd, l, show)
	if err != nil || done {
		return err
	}
	if before.pid != 0 {
		fmt.Fprintln(cmd.OutOrStdout(), before.reason())
	}
	if o.foreground {
		return o.runWithProgress(cmd, l, from, notify)
	}
	// The log file is on the same disk, so report a full disk before opening it.
	if err := preflight.CheckDisk(l); err != nil {
		return command.PreflightError(err)
	}
	var env []string
	args := slices.Concat(os.Args[1:], extra)
	if before.pid != 0 {
		if len(before.changed) == 0 {
			args = append(args, before.flags(cmd)...)
		}
		env = append(env, fmt.Sprintf("%s=%d", replaceEnv, before.pid))
	}
	return progress.StartBackground(cmd.Context(), args, l.Log(layout.MainProcess), show, env...)
}

// handleRunning handles a cluster that already runs. It returns a main process of another build or configuration, which
// the caller must replace. If there is none, or if a service manager runs it or --foreground is set, it updates the
// number of nodes and returns true, because nothing is left to do. It returns false if no main process runs, and checks
// again if one exits in the meantime. show reports changes of additional nodes to the user.
func (o *upOptions) handleRunning(cmd *cobra.Command, l layout.Node, show func(progress.Step)) (before predecessor, done bool, err error) {
	for {
		pid, err := pidlock.Holder(l.PIDFile(layout.MainProcess))
		if err != nil || pid == 0 {
			return before, false, err
		}
		h, err := process.Open(pid, 0)
		if errors.Is(err, process.ErrNotFound) {
			continue
		}
		if err != nil {
			return before, false, err
		}
		other, found, err := findPredecessor(pid)
		if !found && err == nil {
			if other, found, err = o.findChanged(cmd.Flags(), l, pid); err != nil && !errors.Is(err, process.ErrNotFound) {
				h.Close()
				return before, false, err
			}
		}
		if found && !other.foreground && !o.foreground || errors.Is(err, process.ErrNotFound) {
			h.Close()
			if found {
				return other, false, nil
			}
			continue
		}
		if err != nil {
			h.Close()
			return before, false, err
		}
		ctx, cancel := context.WithCancel(cmd.Context())
		exited := make(chan bool, 1)
		go func() {
			select {
			case <-h.Done():
				cancel()
				exited <- true
			case <-ctx.Done():
				exited <- false
			}
		}()
		fmt.Fprintf(cmd.OutOrStdout(), "hyperkube is already running (PID %d)\n", pid)
		if id, exists, err := clusterconfig.Load(l); err == nil && exists {
			for _, text := range o.ignoredFlags(id) {
				fmt.Fprintln(cmd.OutOrStdout(), text)
			}
		}
		if found {
			fmt.Fprintln(cmd.OutOrStdout(), other.restartHint())
		}
		err = o.updateNodes(ctx, l, progress.New(show))
		cancel()
		hasExited := <-exited
		h.Close()
		if !hasExited || err == nil {
			return before, true, err
		}
	}
}

// runWithProgress runs the cluster, and reports its error to send and its exit to systemd. A stop by a signal is not an
// error.
func (o *upOptions) runWithProgress(cmd *cobra.Command, l layout.Node, from resumption, send func(progress.Step)) error {
	s := progress.New(send)
	err := o.serve(cmd, l, from, s)
	progress.NotifySystemd("STOPPING=1")
	if err != nil {
		s.Fail(err)
	}
	return err
}

// serve runs the cluster until the context of cmd is done. Before, it terminates the process that this one replaces,
// becomes the main process of the cluster, and waits for disk space if the disk was full. After a full disk, or
// a change of the machine's addresses, it executes this program again instead of returning.
func (o *upOptions) serve(cmd *cobra.Command, l layout.Node, from resumption, s *progress.Steps) error {
	ctx := cmd.Context()
	// Validate the configuration before stopping another process.
	file, err := o.settings.KubeletConfiguration(o.kubeletConfig, o.kubeletConfigDir)
	if err != nil {
		return command.ConfigError(err)
	}
	if pid := replacedPID(); pid != 0 {
		if err := terminateReplaced(ctx, l, pid); err != nil {
			return err
		}
	}
	lock, err := acquireMain(ctx, l, from)
	if err != nil {
		return err
	}
	defer lock.Release() // released earlier if the cluster was started
	level := slog.LevelInfo
	if o.verbose {
		level = slog.LevelDebug
	}
	log := slog.New(slog.NewTextHandler(logfile.Stderr(l.Log(layout.MainProcess), logfile.Defaults()), &slog.HandlerOptions{Level: level}))
	logging.SetDefault(log)

	_, exists, err := clusterconfig.Load(l)
	if err != nil {
		return err
	}
	if err := o.saveRunning(cmd.Flags(), l); err != nil {
		log.Warn("saving the configuration of this process failed; the next `up` compares its own with an outdated one and may replace this process needlessly or miss a change, no retry", "err", err)
	}
	r := newResumer(l, lock, log, s, from, o.foreground && exists)
	if !r.wait(ctx) {
		return nil
	}
	err = r.resume(ctx, o.start(ctx, l, file, r))
	lock.Release()
	pidlock.ReapChildren(l)
	return err
}

// acquireMain makes this process the main process of the cluster: it locks the PID file, or adopts the lock that this
// process held before it executed itself.
func acquireMain(ctx context.Context, l layout.Node, from resumption) (*pidlock.Lock, error) {
	if from != (resumption{}) {
		return pidlock.Adopt(l.PIDFile(layout.MainProcess), from.LockFD)
	}
	return pidlock.AcquireMain(ctx, l)
}

// start runs the preflight checks, loads or creates the configuration of the cluster, and runs the cluster until ctx is
// canceled.
func (o *upOptions) start(ctx context.Context, l layout.Node, file *kubeletv1beta1.KubeletConfiguration, r *resumer) error {
	s := r.steps
	step := s.Begin("preflight")
	ports := []int{
		o.apiServerPort(), layout.PortEtcdClient, layout.PortEtcdPeer,
		layout.PortKubelet, layout.PortProxyHealthz,
	}
	if err := preflight.Check(l, ports, o.packetFilter()); err != nil {
		return err
	}
	for _, dir := range []string{l.Data, l.Run} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return fmt.Errorf("creating directories: %w", err)
		}
	}
	l, err := podsunit.Layout(l)
	if err != nil {
		return err
	}
	id, additional, err := o.loadOrCreateConfig(l)
	if err != nil {
		return err
	}
	pool, err := newPool(o.loadBalancerPool, id, additional)
	if err != nil {
		return command.ConfigError(fmt.Errorf("%s: %w", o.settings.Position("load-balancer-pool"), err))
	}
	for _, text := range o.ignoredFlags(id) {
		s.Send(progress.Step{Text: text, Waiting: true})
	}
	step.Done("preflight checks passed for node %q", id.NodeName)
	c := &clusterRun{layout: l, cluster: id, additional: additional, objects: objectOptions{enable: o.addons, manifests: o.manifests}, loadBalancerPool: pool, nodeMonitorGracePeriod: o.nodeMonitorGracePeriod, bindAddress: o.bindAddress, resumer: r, steps: s, log: r.log, mergeKubeconfig: !o.noKubeconfig, kubeletConfig: file, credentialProviders: o.credentialProviders, noSeccompDefault: o.noSeccompDefault, auditLog: o.auditLog, settings: o.settings, proxyMode: o.packetFilter(), cloudProvider: o.cloudProvider}
	return c.run(ctx)
}

// packetFilter returns the setting how packet filter rules are written: that of the flag or, without it, of kube-proxy.
func (o *upOptions) packetFilter() packetfilter.Mode {
	return cmp.Or(o.proxyMode, o.settings.Components.Proxy.Mode())
}

// loadOrCreateConfig loads the configuration of the cluster, or creates it at the first start, and applies the options
// that can change later: add-ons, number of nodes and network mode. It saves nothing if any option is invalid.
func (o *upOptions) loadOrCreateConfig(l layout.Node) (clusterconfig.Cluster, additionalNodes, error) {
	id, exists, err := clusterconfig.Load(l)
	if err == nil && !exists {
		id, err = clusterconfig.New(clusterconfig.Cluster{NodeName: o.nodeName, PodCIDRs: o.podCIDRs, ServiceCIDRs: o.serviceCIDRs, Domain: o.domain})
	}
	if err != nil {
		return id, additionalNodes{}, err
	}
	before := len(id.Addons)
	if err := id.EnableAddons(o.addons); err != nil {
		return id, additionalNodes{}, err
	}
	additional, err := updateAdditionalNodes(l, o.nodes, network.Mode(o.podNetwork))
	if err == nil && (!exists || len(id.Addons) != before) {
		err = id.Save(l)
	}
	return id, additional, err
}

// ignoredFlags returns a message for each flag that only has an effect at the first start and differs from the saved
// configuration.
func (o *upOptions) ignoredFlags(id clusterconfig.Cluster) []string {
	var texts []string
	for _, c := range []struct{ flag, wish, is string }{
		{"node-name", o.nodeName, id.NodeName},
		{"cluster-cidr", strings.Join(o.podCIDRs, ","), strings.Join(id.PodCIDRs, ",")},
		{"service-cidr", strings.Join(o.serviceCIDRs, ","), strings.Join(id.ServiceCIDRs, ",")},
		{"cluster-domain", o.domain, id.Domain},
	} {
		if c.wish != "" && c.wish != c.is {
			texts = append(texts, fmt.Sprintf("--%s %s is ignored: the cluster was created with %s; to change this, delete the cluster with `hyperkube reset`", c.flag, c.wish, c.is))
		}
	}
	return texts
}

// readyText returns the last line that `up` prints, without its duration.
func readyText(id clusterconfig.Cluster, nodes int) string {
	if nodes > 1 {
		return fmt.Sprintf("hyperkube %s is up, %d nodes are ready", version.Get().GitVersion, nodes)
	}
	return fmt.Sprintf("hyperkube %s is up, node %q is ready", version.Get().GitVersion, id.NodeName)
}

// encryptionFile returns the path of the EncryptionConfiguration that `up` creates.
func encryptionFile(l layout.Node) string { return filepath.Join(l.PKI(), "encryption.yaml") }
