package controlplane

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
	"hyperkube/internal/host/layout"
	"hyperkube/manifests"
)

// initPhase is a part of init that can run on its own. The names are those of kubeadm.
type initPhase struct {
	name, short string
	// parts are the names of its subphases; "all" runs all of them. It is nil if the phase has
	// none.
	parts []string
	run   func(ctx context.Context, m *controlPlaneNode, part string, out io.Writer) error
}

// initPhases returns the phases of `init phase`, in the order in which init runs them.
func initPhases() []initPhase {
	return []initPhase{
		{"preflight", "Run pre-flight checks", nil, func(_ context.Context, m *controlPlaneNode, _ string, out io.Writer) error {
			return ignoredChecks(nil).check(out, m.layout, m.ports(), m.settings.Ignored, m.settings.ProxyMode)
		}},
		{"certs", "Generate missing certificates, and those whose names have changed", []string{"all"}, func(_ context.Context, m *controlPlaneNode, _ string, _ io.Writer) error {
			_, err := m.setUpNode()
			return err
		}},
		{"kubeconfig", "Generate kubeconfig files of the control plane and the administrators", append([]string{"all", "kubelet"}, firstNodeKubeconfigs...), func(_ context.Context, m *controlPlaneNode, part string, _ io.Writer) error {
			options, err := m.setUpNode()
			if err != nil {
				return err
			}
			names := []string{part} // the kubelet's kubeconfig is always written
			if part == "all" {
				names = firstNodeKubeconfigs
			}
			return m.credentials().writeKubeconfigs(options, names...)
		}},
		{"etcd", "Generate static Pod manifest file for local etcd", []string{"local"}, func(_ context.Context, m *controlPlaneNode, _ string, _ io.Writer) error {
			return m.writeManifests("etcd")
		}},
		{"control-plane", "Generate static Pod manifest files for the control plane", []string{"all", "apiserver", "controller-manager", "scheduler"}, func(_ context.Context, m *controlPlaneNode, part string, _ io.Writer) error {
			if part == "all" {
				return m.writeManifests(slices.DeleteFunc(manifests.Components(), func(name string) bool { return name == "etcd" })...)
			}
			return m.writeManifests("kube-" + part)
		}},
		{"kubelet-start", "Start the node, which runs the kubelet and starts the control plane", nil, func(ctx context.Context, m *controlPlaneNode, _ string, _ io.Writer) error {
			return node.Start(ctx, m.layout, m.verbose, m.settings.Waits.controlPlane(), m.steps)
		}},
		{"wait-control-plane", "Wait for the control plane to start", nil, func(ctx context.Context, m *controlPlaneNode, _ string, _ io.Writer) error {
			_, err := m.setup().clients(ctx)
			return err
		}},
		{"upload-config", "Upload the kubeadm and kubelet configuration to ConfigMaps", []string{"all"}, func(ctx context.Context, m *controlPlaneNode, _ string, _ io.Writer) error {
			return m.setup().uploadConfig(ctx)
		}},
		{"upload-certs", "Upload control plane certificates to the kubeadm-certs Secret, and print the certificate key", nil, func(ctx context.Context, m *controlPlaneNode, _ string, out io.Writer) error {
			return m.setup().phaseUploadCerts(ctx, out)
		}},
		{"mark-control-plane", "Mark a node as a control plane", nil, func(ctx context.Context, m *controlPlaneNode, _ string, _ io.Writer) error {
			clients, err := m.setup().clients(ctx)
			if err != nil {
				return err
			}
			return m.setup().mark(ctx, clients)
		}},
		{"bootstrap-token", "Generate a bootstrap token used to join a node to a cluster, and print the join command", nil, func(ctx context.Context, m *controlPlaneNode, _ string, out io.Writer) error {
			return m.setup().phaseToken(ctx, out)
		}},
		{"addon", "Install add-ons", []string{"all"}, func(ctx context.Context, m *controlPlaneNode, _ string, _ io.Writer) error {
			clients, err := m.setup().clients(ctx)
			if err != nil {
				return err
			}
			return m.setup().installAddons(ctx, clients)
		}},
	}
}

// newInitPhases returns the command `init phase`.
func newInitPhases() *cobra.Command {
	all := &cobra.Command{Use: "phase", Short: "Invoke a single phase of the init workflow, with the settings of earlier runs of init", Args: cobra.NoArgs}
	for _, p := range initPhases() {
		all.AddCommand(phaseCommand(p.name, p.short, p.parts, p.fill))
	}
	return all
}

// phaseCommand returns the command of a phase of init or join. If the phase has parts, each part is a subcommand. fill
// adds the flags and the run function to the command of a part, which is "" for a phase without parts.
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

// fill adds the flags of init to cmd, the command of a phase, and makes it run this part of the phase on the control
// plane node of this machine.
func (p initPhase) fill(cmd *cobra.Command, part string) {
	o := &initOptions{}
	o.register(cmd.Flags())
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := command.RequireRoot(); err != nil {
			return err
		}
		out := cmd.OutOrStdout()
		m, err := o.newNode(command.Layout(o.root), out, cmd.Flags().Changed, p.name == "upload-certs")
		if err != nil {
			return err
		}
		began := time.Now()
		if err := p.run(cmd.Context(), m, part, out); err != nil {
			return err
		}
		if p.name != "upload-certs" { // its last line must be the key
			m.steps.Done(began, "%s", strings.TrimSpace(p.name+" "+part))
		}
		return nil
	}
}

// newNode returns the control plane node of this machine, which may be new or created earlier by init
// or join. Flags take precedence over stored settings.
func (o *initOptions) newNode(l layout.Node, out io.Writer, changed func(string) bool, uploadCerts bool) (*controlPlaneNode, error) {
	settings, err := o.settings(l, changed)
	if err != nil {
		return nil, command.ConfigError(err)
	}
	settings.UploadCerts = settings.UploadCerts || uploadCerts
	settings.Ignored = append(settings.Ignored, o.ignored...)
	m := &controlPlaneNode{layout: l, settings: settings, steps: progress.New(progress.Print(out)), verbose: o.verbose}
	stored, err := loadAdditionalNode(l)
	if err != nil {
		return nil, err
	}
	if stored == nil {
		return m, m.complete()
	}
	m.additional, m.identity, m.etcdMembers, m.joining = true, stored.Identity, stored.EtcdMembers, stored.Joining
	if err := m.completeCertificateKey(); err != nil {
		return nil, err
	}
	return m, m.completeAddresses()
}

// setUpNode creates missing keys and saves the settings of this node: like init on the first control plane node, and
// like join on an additional one.
func (m *controlPlaneNode) setUpNode() (*node.Options, error) {
	if m.additional {
		return m.member().setUpAdditional()
	}
	return m.setUpFirst()
}

// writeManifests writes the static pod manifests of the components, after it has created the keys and settings that
// they need. It returns an error on a machine whose join as a control plane node has not added the etcd member yet.
func (m *controlPlaneNode) writeManifests(components ...string) error {
	if _, err := m.setUpNode(); err != nil {
		return err
	}
	if m.additional && m.etcdMembers == "" {
		return command.PreflightError(errors.New("this machine is not a control plane node yet: run `hyperkube join` again"))
	}
	return m.writeStaticPods(components...)
}

// uploadConfig waits for the API server and applies the ConfigMaps with the cluster and kubelet configuration.
func (m clusterSetup) uploadConfig(ctx context.Context) error {
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

// phaseUploadCerts uploads the certificates and prints the same output as kubeadm: scripts read the
// key from the last line.
func (m clusterSetup) phaseUploadCerts(ctx context.Context, out io.Writer) error {
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

// phaseToken creates a bootstrap token and the objects that let machines join with it, and prints the join command.
func (m clusterSetup) phaseToken(ctx context.Context, out io.Writer) error {
	record, err := m.token()
	if err != nil {
		return command.ConfigError(err)
	}
	if err := m.credentials().ensureKeys(); err != nil {
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
