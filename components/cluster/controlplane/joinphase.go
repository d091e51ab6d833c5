package controlplane

import (
	"context"
	"errors"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"hyperkube/components/cluster/clusterconfig"
	"hyperkube/components/cluster/command"
	"hyperkube/components/cluster/etcdmembers"
	"hyperkube/components/cluster/joindiscovery"
	"hyperkube/components/cluster/progress"
	"hyperkube/internal/host/layout"
	"hyperkube/manifests"
)

// joinPhase is a part of join that can run on its own. The names are those of kubeadm.
type joinPhase struct {
	name, short string
	// parts are the names of its subphases. It is nil if the phase has none.
	parts []string
	// controlPlaneOnly phases do nothing on workers.
	controlPlaneOnly bool
	run              func(ctx context.Context, j *joinRun, part string) error
}

// joinRun is one run of the command `join phase`: the options of join, the paths of the node, and the bootstrap token.
type joinRun struct {
	*joinOptions
	layout    layout.Node
	steps     *progress.Steps
	bootstrap joindiscovery.Token
	out       io.Writer
}

// joinPhases returns the phases in the order in which join runs them. On an additional control
// plane node, all manifests except that of etcd are valid only after the etcd member is promoted;
// therefore the phase that starts the node writes them again.
func joinPhases() []joinPhase {
	return []joinPhase{
		{"preflight", "Run join pre-flight checks, and verify the cluster", nil, false, func(ctx context.Context, j *joinRun, _ string) error {
			if err := j.ignored.check(j.out, j.layout, j.ports(), nil, j.node.ProxyMode); err != nil {
				return err
			}
			_, err := j.discover(ctx, j.waitOptions(j.steps))
			return err
		}},
		{"control-plane-prepare", "Prepare the machine for serving a control plane", []string{"all", "download-certs", "certs", "kubeconfig", "control-plane"}, true, func(ctx context.Context, j *joinRun, part string) error {
			return j.prepareControlPlane(ctx, part)
		}},
		{"etcd-join", "Join etcd as a learner, and generate its static Pod manifest file", nil, true, func(ctx context.Context, j *joinRun, _ string) error {
			m, err := j.additionalNode(ctx)
			if err != nil {
				return err
			}
			return m.member().withEtcdMember(ctx, func(context.Context, *etcdmembers.Cluster) error { return m.writeStaticPods("etcd") })
		}},
		{"kubelet-start", "Start the node, which runs the kubelet; on a control plane node also promote the etcd member and start the control plane", nil, false, func(ctx context.Context, j *joinRun, _ string) error {
			if j.asControlPlane {
				m, err := j.additionalNode(ctx)
				if err != nil {
					return err
				}
				if err := stopNode(ctx, j.layout, j.steps); err != nil {
					return err
				}
				return m.member().withEtcdMember(ctx, m.member().startAndPromote)
			}
			c, err := j.discover(ctx, j.waitOptions(j.steps))
			if err != nil {
				return err
			}
			if err := j.prepare(ctx, j.layout, c, j.bootstrap); err != nil {
				return err
			}
			return j.start(ctx, j.layout, j.steps)
		}},
		{"control-plane-join", "Join a machine as a control plane instance: mark the node as a control plane", []string{"all", "mark-control-plane"}, true, func(ctx context.Context, j *joinRun, _ string) error {
			m, err := j.additionalNode(ctx)
			if err != nil {
				return err
			}
			if err := m.member().markSelf(ctx); err != nil {
				return err
			}
			return m.saveJoined()
		}},
		{"wait-control-plane", "Wait for the control plane to start", nil, true, func(ctx context.Context, j *joinRun, _ string) error {
			m, err := j.additionalNode(ctx)
			if err != nil {
				return err
			}
			_, err = m.setup().clients(ctx)
			return err
		}},
	}
}

// newJoinPhases returns the command `join phase`.
func newJoinPhases() *cobra.Command {
	all := &cobra.Command{Use: "phase", Short: "Invoke a single phase of the join workflow", Args: cobra.NoArgs}
	for _, p := range joinPhases() {
		all.AddCommand(phaseCommand(p.name, p.short, p.parts, p.fill))
	}
	return all
}

// fill adds the flags of join to cmd, the command of a phase, and makes it run this part of the phase on this machine.
func (p joinPhase) fill(cmd *cobra.Command, part string) {
	o := &joinOptions{}
	o.register(cmd.Flags())
	cmd.Use += " [HOST:PORT]"
	cmd.Args = cobra.MaximumNArgs(1)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := command.RequireRoot(); err != nil {
			return err
		}
		if len(args) > 0 {
			o.discovery.Endpoint = args[0]
		}
		return p.runWith(cmd.Context(), o, part, cmd.OutOrStdout())
	}
}

// runWith runs a part of the phase with the flags o. It does nothing on a worker if the phase is only for control
// plane nodes. It returns an error if the machine already has a cluster.
func (p joinPhase) runWith(ctx context.Context, o *joinOptions, part string, out io.Writer) error {
	l := command.Layout(o.root)
	bootstrap, err := o.complete(ctx)
	if err != nil {
		return command.ConfigError(err)
	}
	if p.controlPlaneOnly && !o.asControlPlane {
		// Like in kubeadm, the phase is skipped, so that the same script works on all machines.
		return nil
	}
	if _, exists, err := clusterconfig.Load(l); err != nil {
		return err
	} else if exists {
		return command.PreflightError(errors.New("this machine already has a cluster: delete it with `hyperkube reset` first"))
	}
	j := &joinRun{joinOptions: o, layout: l, steps: progress.New(progress.Print(out)), bootstrap: bootstrap, out: out}
	began := time.Now()
	if err := p.run(ctx, j, part); err != nil {
		return err
	}
	j.steps.Done(began, "%s", strings.TrimSpace(p.name+" "+part))
	return nil
}

// additionalNode returns the additional control plane node that this machine becomes. It loads the state
// that an earlier phase saved, or else creates it from the configuration of the cluster.
func (j *joinRun) additionalNode(ctx context.Context) (*controlPlaneNode, error) {
	stored, err := loadAdditionalNode(j.layout)
	if err != nil {
		return nil, err
	}
	if stored != nil {
		m := &controlPlaneNode{
			layout: j.layout, steps: j.steps, verbose: j.verbose, additional: true,
			settings: stored.Settings, identity: stored.Identity, etcdMembers: stored.EtcdMembers, joining: stored.Joining,
		}
		if err := m.completeAddresses(); err != nil {
			return nil, err
		}
		return m, m.credentials().ensureKeys()
	}
	if err := j.prepareControlPlane(ctx, "all"); err != nil {
		return nil, err
	}
	return j.additionalNode(ctx)
}

// prepareControlPlane runs a part of the phase control-plane-prepare: it downloads the shared certificates, or creates
// certificates, kubeconfigs or manifests. It first discovers the cluster and runs the steps that the part requires.
func (j *joinRun) prepareControlPlane(ctx context.Context, part string) error {
	c, err := j.discover(ctx, j.waitOptions(j.steps))
	if err != nil {
		return err
	}
	kube, err := joinClient(c, j.bootstrap, j.timeouts.call())
	if err != nil {
		return err
	}
	m := &controlPlaneNode{layout: j.layout, steps: j.steps, verbose: j.verbose, joining: true}
	if err := j.configureNode(ctx, m, kube); err != nil {
		return err
	}
	if part == "all" || part == "download-certs" {
		if err := j.ensureSharedFiles(ctx, m, c, kube); err != nil {
			return err
		}
		if part == "download-certs" {
			return nil
		}
	}
	options, err := m.member().setUpAdditional()
	if err != nil || part == "certs" {
		return err
	}
	if part != "control-plane" {
		if err := m.credentials().writeKubeconfigs(options, additionalNodeKubeconfigs...); err != nil || part == "kubeconfig" {
			return err
		}
	}
	return m.writeStaticPods(manifests.Components()[1:]...) // all but etcd
}
