// Package up is a whole cluster in one process: `hyperkube up`. run.go composes it in the
// order in which its parts start, nodes.go adds further nodes on the same machine.
package up

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"hyperkube/components/cluster/command"
	"hyperkube/components/cluster/identity"
	"hyperkube/components/cluster/node"
	"hyperkube/components/cluster/pidlock"
	"hyperkube/components/cluster/preflight"
	"hyperkube/components/cluster/progress"
	"hyperkube/components/kubelet"
	"hyperkube/components/network"
	"hyperkube/internal/layout"
	"hyperkube/internal/logs"
	"hyperkube/internal/process"
	"hyperkube/internal/version"
	"hyperkube/manifests"
)

// upOptions are the flags of `up`.
type upOptions struct {
	root         string
	foreground   bool
	nodeName     string
	podCIDRs     []string
	serviceCIDRs []string
	domain       string
	noKubeconfig bool
	verbose      bool
	// config and configDir are the kubelet's.
	config, configDir string
	providers         node.Providers
	// nodes in all; zero: as many as there were.
	nodes int
	// with are optional add-ons.
	with []string
	// podNetwork is a network.Mode; empty: as it was.
	podNetwork string
	// nodeGrace is how long a node may be silent; zero: the default.
	nodeGrace time.Duration
}

// New makes the command `up`.
func New() *cobra.Command {
	var o upOptions
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Start a single-node cluster on this machine",
		Long: "Start a single-node cluster on this machine, or start again what was stopped.\n" +
			"It returns when the node is ready and DNS answers, and leaves the cluster running in the background.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd) },
	}
	flags := cmd.Flags()
	command.RootFlag(cmd.Flags(), &o.root)
	flags.BoolVar(&o.foreground, "foreground", false, "Stay in the foreground, for service managers; tells systemd when it is ready.")
	flags.StringVar(&o.nodeName, "node-name", "", "Name of the node at the first start; empty is the hostname.")
	flags.StringSliceVar(&o.podCIDRs, "cluster-cidr", nil, "Range of pod addresses at the first start, or one of each family; empty chooses a free one.")
	flags.StringSliceVar(&o.serviceCIDRs, "service-cidr", nil, "Range of service addresses at the first start, or one of each family; empty chooses a free one.")
	flags.SetNormalizeFunc(rangeNames)
	flags.StringVar(&o.domain, "cluster-domain", "", "Domain of the cluster at the first start; empty is cluster.local.")
	flags.BoolVar(&o.noKubeconfig, "no-kubeconfig", false, "Leave the user's kubeconfig alone.")
	flags.IntVar(&o.nodes, "nodes", 0, "Nodes in all, the further ones in network namespaces of this machine; 0 is as many as before, one at first.")
	flags.StringVar(&o.podNetwork, "pod-network", "", "How nodes reach each other's pods, from the next start of each: auto (routes within a subnet, else VXLAN), vxlan or direct.")
	flags.StringVar(&o.config, "kubelet-config", "", "Path of a KubeletConfiguration.")
	flags.StringVar(&o.configDir, "kubelet-config-dir", "", "Directory whose *.conf files change the KubeletConfiguration, in the order of their names.")
	o.providers.Register(flags)
	flags.DurationVar(&o.nodeGrace, "node-monitor-grace-period", 0, "How long a node may be silent before it is taken for lost; nodes report every 10 s. 0 is 50 s.")
	flags.StringSliceVar(&o.with, "with", nil, "Add-ons besides the usual ones, from then on at each start: "+strings.Join(manifests.Optional(), ", ")+".")
	flags.BoolVarP(&o.verbose, "verbose", "v", false, "Log debug messages, too.")
	return cmd
}

// rangeNames lets the ranges of addresses have the names that other programs
// have for them, too.
func rangeNames(_ *pflag.FlagSet, name string) pflag.NormalizedName {
	switch name {
	case "pod-cidr", "pod-network-cidr":
		name = "cluster-cidr"
	case "service-cluster-ip-range":
		name = "service-cidr"
	}
	return pflag.NormalizedName(name)
}

func (o *upOptions) run(cmd *cobra.Command) error {
	if err := command.NeedRoot(); err != nil {
		return err
	}
	l := command.Layout(o.root)
	if tell, ok := progress.ToStarter(); ok {
		return o.report(cmd.Context(), l, tell)
	}
	before, done, err := o.running(cmd, l)
	if err != nil || done {
		return err
	}
	show := progress.Print(cmd.OutOrStdout())
	if before.pid != 0 {
		fmt.Fprintf(cmd.OutOrStdout(), "process %d is of another build and makes way for this one, %s\n", before.pid, version.Get().GitVersion)
	}
	if o.foreground {
		return o.report(cmd.Context(), l, func(s progress.Step) {
			show(s)
			if s.Ready {
				progress.NotifySystemd("READY=1")
			}
		})
	}
	// The log is below the data: what keeps it from there is told as it is.
	if err := preflight.CheckDisk(l); err != nil {
		return command.PreflightError(err)
	}
	var env []string
	args := os.Args[1:]
	if before.pid != 0 {
		args = append(slices.Clip(args), before.flags(cmd)...)
		env = append(env, fmt.Sprintf("%s=%d", replaceEnv, before.pid))
	}
	return progress.StartBackground(cmd.Context(), args, l.Log(layout.MainProcess), show, env...)
}

// running does what is left to do if the cluster runs already, and tells whether
// it does. A main process that ends meanwhile does not count, and one of another
// build is returned, for it is to make way.
func (o *upOptions) running(cmd *cobra.Command, l layout.Node) (before predecessor, done bool, err error) {
	for {
		pid, err := pidlock.Holder(l.PIDFile(layout.MainProcess))
		if err != nil || pid == 0 {
			return before, false, err
		}
		h, err := process.Open(pid, 0)
		if errors.Is(err, process.ErrGone) {
			continue
		}
		if err != nil {
			return before, false, err
		}
		other, found, err := findPredecessor(pid)
		if found && !other.foreground && !o.foreground || errors.Is(err, process.ErrGone) {
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
		ended := make(chan bool, 1)
		go func() {
			select {
			case <-h.Done():
				cancel()
				ended <- true
			case <-ctx.Done():
				ended <- false
			}
		}()
		fmt.Fprintf(cmd.OutOrStdout(), "hyperkube is running already (process %d)\n", pid)
		if id, there, err := identity.Load(l); err == nil && there {
			for _, text := range o.unheeded(id) {
				fmt.Fprintln(cmd.OutOrStdout(), text)
			}
		}
		if found {
			fmt.Fprintf(cmd.OutOrStdout(), "it is of another build than this one, %s: restart the service that it is, or stop it\n", version.Get().GitVersion)
		}
		err = o.changeNodes(ctx, l, progress.New(progress.Print(cmd.OutOrStdout())))
		cancel()
		gone := <-ended
		h.Close()
		if !gone || err == nil {
			return before, true, err
		}
	}
}

// report runs the cluster and tells how that ended, if it was not by a signal.
func (o *upOptions) report(ctx context.Context, l layout.Node, tell func(progress.Step)) error {
	s := progress.New(tell)
	err := o.serve(ctx, l, s)
	progress.NotifySystemd("STOPPING=1")
	if err != nil {
		s.Fail(err)
	}
	return err
}

// serve runs the cluster until ctx ends.
func (o *upOptions) serve(ctx context.Context, l layout.Node, s *progress.Steps) error {
	// What can be refused is refused before anything ends.
	file, err := kubelet.LoadFiles(o.config, o.configDir, nil)
	if err != nil {
		return command.ConfigError(err)
	}
	if pid := replaced(); pid != 0 {
		if err := endReplaced(ctx, l, pid); err != nil {
			return err
		}
	}
	lock, err := pidlock.TakeMain(ctx, l)
	if err != nil {
		return err
	}
	defer lock.Release()
	level := slog.LevelInfo
	if o.verbose {
		level = slog.LevelDebug
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level}))
	logs.Own(log)

	began := time.Now()
	ports := []int{
		layout.PortAPIServer, layout.PortEtcdClient, layout.PortEtcdPeer,
		layout.PortKubelet, layout.PortProxyHealthz,
	}
	if err := preflight.Check(l, ports); err != nil {
		return err
	}
	for _, dir := range []string{l.Data, l.Run} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return fmt.Errorf("making directories: %w", err)
		}
	}
	id, further, err := o.decide(l)
	if err != nil {
		return err
	}
	for _, text := range o.unheeded(id) {
		s.Send(progress.Step{Text: text, Waiting: true})
	}
	s.Done(began, "this machine is fit for node %q", id.NodeName)
	c := &clusterRun{layout: l, identity: id, further: further, nodeGrace: o.nodeGrace, steps: s, log: log, mergeKubeconfig: !o.noKubeconfig, kubelet: file, providers: o.providers}
	return c.run(ctx, began)
}

// decide loads what was decided at the first start, or decides now, with the wishes for
// later starts. Nothing is kept of what is not good in all.
func (o *upOptions) decide(l layout.Node) (identity.Cluster, furtherNodes, error) {
	id, there, err := identity.Load(l)
	if err == nil && !there {
		id, err = identity.New(identity.Cluster{NodeName: o.nodeName, PodCIDRs: o.podCIDRs, ServiceCIDRs: o.serviceCIDRs, Domain: o.domain})
	}
	if err != nil {
		return id, furtherNodes{}, err
	}
	before := len(id.With)
	if err := id.Want(o.with); err != nil {
		return id, furtherNodes{}, err
	}
	further, err := wishFurtherNodes(l, o.nodes, network.Mode(o.podNetwork))
	if err == nil && (!there || len(id.With) != before) {
		err = id.Save(l)
	}
	return id, further, err
}

// unheeded says of flags for the first start that they come too late for the cluster.
func (o *upOptions) unheeded(id identity.Cluster) []string {
	var texts []string
	for _, c := range []struct{ flag, wish, is string }{
		{"node-name", o.nodeName, id.NodeName},
		{"cluster-cidr", strings.Join(o.podCIDRs, ","), strings.Join(id.PodCIDRs, ",")},
		{"service-cidr", strings.Join(o.serviceCIDRs, ","), strings.Join(id.ServiceCIDRs, ",")},
		{"cluster-domain", o.domain, id.Domain},
	} {
		if c.wish != "" && c.wish != c.is {
			texts = append(texts, fmt.Sprintf("--%s %s is not heeded: it is %s since the first start, and `hyperkube reset` takes that cluster away", c.flag, c.wish, c.is))
		}
	}
	return texts
}

// readyText is the last line that `up` prints, before its time.
func readyText(id identity.Cluster, nodes int) string {
	if nodes > 1 {
		return fmt.Sprintf("hyperkube %s is up, %d nodes are ready", version.Get().GitVersion, nodes)
	}
	return fmt.Sprintf("hyperkube %s is up, node %q is ready", version.Get().GitVersion, id.NodeName)
}

// encryptionFile is the EncryptionConfiguration that `up` makes.
func encryptionFile(l layout.Node) string { return filepath.Join(l.PKI(), "encryption.yaml") }
