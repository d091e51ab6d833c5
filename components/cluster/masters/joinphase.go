package masters

import (
	"context"
	"errors"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"hyperkube/components/cluster/command"
	"hyperkube/components/cluster/identity"
	"hyperkube/components/cluster/members"
	"hyperkube/components/cluster/progress"
	"hyperkube/components/cluster/trust"
	"hyperkube/internal/layout"
	"hyperkube/manifests"
)

// joinPhase is a part of join that can be run alone, under kubeadm's name.
type joinPhase struct {
	name, short string
	// parts are what it can be told to do of its work; nil: it is one.
	parts []string
	// masters alone have it.
	masters bool
	run     func(ctx context.Context, j *joining, part string) error
}

// joining is a run of one part of join.
type joining struct {
	*joinOptions
	layout    layout.Node
	steps     *progress.Steps
	bootstrap trust.Token
	out       io.Writer
}

// joinPhases are in the order in which join runs them. The manifests of a further master but
// that of etcd are good from when its member has a vote: who starts the node writes them anew.
func joinPhases() []joinPhase {
	return []joinPhase{
		{"preflight", "Look whether this machine can join, and whether the cluster is the one that is meant", nil, false, func(ctx context.Context, j *joining, _ string) error {
			if err := j.ignored.check(j.out, j.layout, j.ports(), nil); err != nil {
				return err
			}
			_, err := j.find(ctx, j.patience(j.steps))
			return err
		}},
		{"control-plane-prepare", "Write what a further master needs", []string{"all", "download-certs", "certs", "kubeconfig", "control-plane"}, true, func(ctx context.Context, j *joining, part string) error {
			return j.prepareMaster(ctx, part)
		}},
		{"etcd-join", "Make this machine's etcd a member, without a vote until it runs, and write its manifest", nil, true, func(ctx context.Context, j *joining, _ string) error {
			m, err := j.further(ctx)
			if err != nil {
				return err
			}
			return m.entering(ctx, func(context.Context, *members.Cluster) error { return m.staticPods("etcd") })
		}},
		{"kubelet-start", "Start the node; on a further master etcd gets its vote then, and the control plane starts", nil, false, func(ctx context.Context, j *joining, _ string) error {
			if j.asMaster {
				m, err := j.further(ctx)
				if err != nil {
					return err
				}
				if err := endNode(ctx, j.layout, j.steps); err != nil {
					return err
				}
				return m.entering(ctx, m.startWith)
			}
			c, err := j.find(ctx, j.patience(j.steps))
			if err != nil {
				return err
			}
			if err := j.prepare(ctx, j.layout, c, j.bootstrap); err != nil {
				return err
			}
			return j.start(ctx, j.layout, j.steps)
		}},
		{"control-plane-join", "Give the node the label and the taints of a master", []string{"all", "mark-control-plane"}, true, func(ctx context.Context, j *joining, _ string) error {
			m, err := j.further(ctx)
			if err != nil {
				return err
			}
			if err := m.markOwn(ctx); err != nil {
				return err
			}
			return m.joined()
		}},
		{"wait-control-plane", "Wait until this machine's API server is ready", nil, true, func(ctx context.Context, j *joining, _ string) error {
			m, err := j.further(ctx)
			if err != nil {
				return err
			}
			_, err = m.clients(ctx)
			return err
		}},
	}
}

func newJoinPhases() *cobra.Command {
	all := &cobra.Command{Use: "phase", Short: "Run one part of join alone", Args: cobra.NoArgs}
	for _, p := range joinPhases() {
		all.AddCommand(phaseCommand(p.name, p.short, p.parts, p.fill))
	}
	return all
}

// fill makes cmd run the part.
func (p joinPhase) fill(cmd *cobra.Command, part string) {
	o := &joinOptions{}
	o.register(cmd.Flags())
	cmd.Use += " [HOST:PORT]"
	cmd.Args = cobra.MaximumNArgs(1)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := command.NeedRoot(); err != nil {
			return err
		}
		if len(args) > 0 {
			o.discovery.Endpoint = args[0]
		}
		return p.runWith(cmd.Context(), o, part, cmd.OutOrStdout())
	}
}

func (p joinPhase) runWith(ctx context.Context, o *joinOptions, part string, out io.Writer) error {
	l := command.Layout(o.root)
	bootstrap, err := o.complete(ctx)
	if err != nil {
		return command.ConfigError(err)
	}
	if p.masters && !o.asMaster {
		// kubeadm's does nothing then, too, so that scripts are the same for all machines.
		return nil
	}
	if _, there, err := identity.Load(l); err != nil {
		return err
	} else if there {
		return command.PreflightError(errors.New("this machine has a cluster of its own: take it away with `hyperkube reset` first"))
	}
	j := &joining{joinOptions: o, layout: l, steps: progress.New(progress.Print(out)), bootstrap: bootstrap, out: out}
	began := time.Now()
	if err := p.run(ctx, j, part); err != nil {
		return err
	}
	j.steps.Done(began, "%s", strings.TrimSpace(p.name+" "+part))
	return nil
}

// further is the master that this machine becomes: as an earlier part has kept it, else by
// what the cluster says.
func (j *joining) further(ctx context.Context) (*master, error) {
	kept, err := loadFurtherMaster(j.layout)
	if err != nil {
		return nil, err
	}
	if kept != nil {
		m := &master{
			layout: j.layout, steps: j.steps, verbose: j.verbose, further: true,
			settings: kept.Settings, identity: kept.Identity, etcdMembers: kept.EtcdMembers, joining: kept.Joining,
		}
		if err := m.decideAddress(); err != nil {
			return nil, err
		}
		return m, m.keys()
	}
	if err := j.prepareMaster(ctx, "all"); err != nil {
		return nil, err
	}
	return j.further(ctx)
}

// prepareMaster writes a part of what a further master needs, with what that needs itself.
func (j *joining) prepareMaster(ctx context.Context, part string) error {
	c, err := j.find(ctx, j.patience(j.steps))
	if err != nil {
		return err
	}
	kube, err := enterWith(c, j.bootstrap, j.waits.call())
	if err != nil {
		return err
	}
	m := &master{layout: j.layout, steps: j.steps, verbose: j.verbose, joining: true}
	if err := j.become(ctx, m, kube); err != nil {
		return err
	}
	if part == "all" || part == "download-certs" {
		if err := j.sharedFiles(ctx, m, c, kube); err != nil {
			return err
		}
		if part == "download-certs" {
			return nil
		}
	}
	options, err := m.startKeys()
	if err != nil || part == "certs" {
		return err
	}
	if part != "control-plane" {
		if err := m.kubeconfigs(options, furtherKubeconfigs...); err != nil || part == "kubeconfig" {
			return err
		}
	}
	return m.staticPods(manifests.Components()[1:]...) // all but etcd
}
