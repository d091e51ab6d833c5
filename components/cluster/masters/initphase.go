package masters

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"hyperkube/components/cluster/command"
	"hyperkube/components/cluster/node"
	"hyperkube/components/cluster/progress"
	"hyperkube/internal/layout"
	"hyperkube/manifests"
)

// initPhase is a part of init that can be run alone, under kubeadm's name.
type initPhase struct {
	name, short string
	// parts are what it can be told to do of its work; "all" is all. Nil: it is one.
	parts []string
	run   func(ctx context.Context, m *master, part string, out io.Writer) error
}

// initPhases are in the order in which init runs them.
func initPhases() []initPhase {
	return []initPhase{
		{"preflight", "Look whether this machine can be a master", nil, func(_ context.Context, m *master, _ string, out io.Writer) error {
			return ignored(nil).check(out, m.layout, m.ports(), m.settings.Ignored)
		}},
		{"certs", "Make what is missing of keys and certificates, or is for other names", []string{"all"}, func(_ context.Context, m *master, _ string, _ io.Writer) error {
			_, err := m.refound()
			return err
		}},
		{"kubeconfig", "Write kubeconfigs", append([]string{"all", "kubelet"}, masterKubeconfigs...), func(_ context.Context, m *master, part string, _ io.Writer) error {
			options, err := m.refound()
			if err != nil {
				return err
			}
			names := []string{part} // the kubelet's is always among them
			if part == "all" {
				names = masterKubeconfigs
			}
			return m.kubeconfigs(options, names...)
		}},
		{"etcd", "Write the manifest of etcd", []string{"local"}, func(_ context.Context, m *master, _ string, _ io.Writer) error {
			return m.rewrite("etcd")
		}},
		{"control-plane", "Write the manifests of the control plane", []string{"all", "apiserver", "controller-manager", "scheduler"}, func(_ context.Context, m *master, part string, _ io.Writer) error {
			if part == "all" {
				return m.rewrite(slices.DeleteFunc(manifests.Components(), func(name string) bool { return name == "etcd" })...)
			}
			return m.rewrite("kube-" + part)
		}},
		{"kubelet-start", "Start the node, which starts the control plane", nil, func(ctx context.Context, m *master, _ string, _ io.Writer) error {
			return node.Start(ctx, m.layout, m.verbose, m.settings.Waits.controlPlane(), m.steps)
		}},
		{"wait-control-plane", "Wait until the API server is ready", nil, func(ctx context.Context, m *master, _ string, _ io.Writer) error {
			_, err := m.clients(ctx)
			return err
		}},
		{"upload-config", "Keep in the cluster what it is like", []string{"all"}, func(ctx context.Context, m *master, _ string, _ io.Writer) error {
			return m.uploadConfig(ctx)
		}},
		{"upload-certs", "Upload the keys that all masters share, encrypted, and print the key", nil, func(ctx context.Context, m *master, _ string, out io.Writer) error {
			return m.phaseUploadCerts(ctx, out)
		}},
		{"mark-control-plane", "Give the node the label and the taints of a master", nil, func(ctx context.Context, m *master, _ string, _ io.Writer) error {
			clients, err := m.clients(ctx)
			if err != nil {
				return err
			}
			return m.mark(ctx, clients)
		}},
		{"bootstrap-token", "Make a token and what lets machines join with it, and print the command", nil, func(ctx context.Context, m *master, _ string, out io.Writer) error {
			return m.phaseToken(ctx, out)
		}},
		{"addon", "Apply the add-ons", []string{"all"}, func(ctx context.Context, m *master, _ string, _ io.Writer) error {
			clients, err := m.clients(ctx)
			if err != nil {
				return err
			}
			return m.installAddons(ctx, clients)
		}},
	}
}

func newInitPhases() *cobra.Command {
	all := &cobra.Command{Use: "phase", Short: "Run one part of init alone, with the settings that init was given before", Args: cobra.NoArgs}
	for _, p := range initPhases() {
		all.AddCommand(phaseCommand(p.name, p.short, p.parts, p.fill))
	}
	return all
}

// phaseCommand is the command of a phase, and of each of its parts where it has some, which
// fill has do their work.
func phaseCommand(name, short string, parts []string, fill func(cmd *cobra.Command, part string)) *cobra.Command {
	cmd := &cobra.Command{Use: name, Short: short, Args: cobra.NoArgs}
	if parts == nil {
		fill(cmd, "")
	}
	for _, part := range parts {
		sub := &cobra.Command{Use: part, Short: short + ": " + part, Args: cobra.NoArgs}
		fill(sub, part)
		cmd.AddCommand(sub)
	}
	return cmd
}

// fill makes cmd run the part.
func (p initPhase) fill(cmd *cobra.Command, part string) {
	o := &initOptions{}
	o.register(cmd.Flags())
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := command.NeedRoot(); err != nil {
			return err
		}
		out := cmd.OutOrStdout()
		m, err := o.again(command.Layout(o.root), out, cmd.Flags().Changed, p.name == "upload-certs")
		if err != nil {
			return err
		}
		began := time.Now()
		if err := p.run(cmd.Context(), m, part, out); err != nil {
			return err
		}
		if p.name != "upload-certs" { // whose last line is the key
			m.steps.Done(began, "%s", strings.TrimSpace(p.name+" "+part))
		}
		return nil
	}
}

// again is the master that init makes of this machine, or that it has become by init or
// join, with the flags over what was said before.
func (o *initOptions) again(l layout.Node, out io.Writer, given func(string) bool, uploadCerts bool) (*master, error) {
	settings, err := o.settings(l, given)
	if err != nil {
		return nil, command.ConfigError(err)
	}
	settings.UploadCerts = settings.UploadCerts || uploadCerts
	settings.Ignored = append(settings.Ignored, o.ignored...)
	m := &master{layout: l, settings: settings, steps: progress.New(progress.Print(out)), verbose: o.verbose}
	kept, err := loadFurtherMaster(l)
	if err != nil {
		return nil, err
	}
	if kept == nil {
		return m, m.decide()
	}
	m.further, m.identity, m.etcdMembers, m.joining = true, kept.Identity, kept.EtcdMembers, kept.Joining
	if err := m.decideCertificateKey(); err != nil {
		return nil, err
	}
	return m, m.decideAddress()
}

// refound is found, or what a further master has instead.
func (m *master) refound() (*node.Options, error) {
	if m.further {
		return m.startKeys()
	}
	return m.found()
}

// rewrite writes manifests with all that they need.
func (m *master) rewrite(components ...string) error {
	if _, err := m.refound(); err != nil {
		return err
	}
	if m.further && m.etcdMembers == "" {
		return command.PreflightError(errors.New("this machine has not become a master yet: run `hyperkube join` again"))
	}
	return m.staticPods(components...)
}

func (m *master) uploadConfig(ctx context.Context) error {
	clients, err := m.clients(ctx)
	if err != nil {
		return err
	}
	objects, err := m.configObjects()
	if err != nil {
		return err
	}
	return applyAll(ctx, clients, objects)
}

// phaseUploadCerts prints what kubeadm prints: scripts read the key from the last line.
func (m *master) phaseUploadCerts(ctx context.Context, out io.Writer) error {
	clients, err := m.clients(ctx)
	if err != nil {
		return err
	}
	if err := m.uploadCerts(ctx, clients); err != nil {
		return err
	}
	if !m.settings.HideKey {
		fmt.Fprintf(out, "[upload-certs] Using certificate key:\n%s\n", m.certificateKey)
	}
	return nil
}

func (m *master) phaseToken(ctx context.Context, out io.Writer) error {
	record, err := m.token()
	if err != nil {
		return command.ConfigError(err)
	}
	if err := m.keys(); err != nil {
		return err
	}
	clients, err := m.clients(ctx)
	if err != nil {
		return err
	}
	objects, err := m.joinObjects(record)
	if err != nil {
		return err
	}
	if err := applyAll(ctx, clients, objects); err != nil {
		return err
	}
	fmt.Fprintln(out, m.joinCommand(record.Token))
	return nil
}
