package controlplane

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"hyperkube/components/cluster/command"
	"hyperkube/components/cluster/joindiscovery"
	"hyperkube/internal/host/layout"
	"hyperkube/manifests"
)

// dryRunner executes the file operations of a command without changing the machine. Files are written to a temporary
// directory with copies of the machine's files, and the differences are printed.
type dryRunner struct {
	real layout.Node
	// staged is the layout of the temporary directory. It starts with copies of the keys,
	// kubeconfigs, manifests and settings of the machine.
	staged layout.Node
	root   string // of staged
	out    io.Writer
}

// newDryRunner starts a dry run of the layout. The caller must call cleanUp, which removes the
// temporary directory.
func newDryRunner(l layout.Node, out io.Writer) (*dryRunner, error) {
	root, err := os.MkdirTemp("", "hyperkube-dry-run-")
	if err != nil {
		return nil, fmt.Errorf("creating directory for the dry run: %w", err)
	}
	r := &dryRunner{real: l, staged: layout.Under(root), root: root, out: out}
	for _, dir := range r.dirs(l) {
		if err := r.copy(dir); err != nil {
			r.cleanUp()
			return nil, err
		}
	}
	return r, nil
}

// cleanUp removes the temporary directory.
func (r *dryRunner) cleanUp() { _ = os.RemoveAll(r.root) }

// dirs returns the directories of a layout that init, join and upgrade write to.
func (r *dryRunner) dirs(l layout.Node) []string {
	return []string{l.Etc, filepath.Join(l.Data, "kubeconfig-keys"), filepath.Join(l.Kubelet, "pki"), l.Data}
}

// copy copies the regular files of a directory, if it exists, to the directory of the dry run. In the copies, it
// replaces the path of the kubelet's directory by that of the dry run. Of the data directory it copies only the files
// at the top level, because the rest is large and is not written by these commands.
func (r *dryRunner) copy(dir string) error {
	to := filepath.Join(r.root, strings.TrimPrefix(dir, r.real.Root()))
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, os.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		if d.IsDir() && dir == r.real.Data && path != dir {
			return fs.SkipDir
		}
		target := filepath.Join(to, strings.TrimPrefix(path, dir))
		if d.IsDir() {
			return os.MkdirAll(target, 0o700)
		}
		// Symbolic links are followed, so that nothing is written outside of the temporary
		// directory. Anything but regular files is skipped.
		if info, err := os.Stat(path); errors.Is(err, os.ErrNotExist) || err == nil && !info.Mode().IsRegular() {
			return nil
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		// Kubeconfigs refer to files by their real paths.
		return os.WriteFile(target, bytes.ReplaceAll(data, []byte(r.real.Kubelet), []byte(r.staged.Kubelet)), 0o600)
	})
	if err != nil {
		return fmt.Errorf("copying existing files: %w", err)
	}
	return nil
}

// print prints which files the command would have written to the machine. Manifests are printed with their contents;
// keys and credentials only by name.
func (r *dryRunner) print() error {
	var paths []string
	for _, dir := range r.dirs(r.staged) {
		err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if errors.Is(err, os.ErrNotExist) {
				return nil
			}
			if err == nil && d.Type().IsRegular() && !slices.Contains(paths, path) {
				paths = append(paths, path)
			}
			return err
		})
		if err != nil {
			return fmt.Errorf("reading files of the dry run: %w", err)
		}
	}
	for _, path := range paths {
		data, err := os.ReadFile(path)
		if err != nil {
			return fmt.Errorf("reading files of the dry run: %w", err)
		}
		data = bytes.ReplaceAll(data, []byte(r.root), []byte(r.real.Root()))
		name := r.real.Root() + strings.TrimPrefix(path, r.root)
		if current, err := os.ReadFile(name); err == nil && bytes.Equal(current, data) {
			continue
		}
		if filepath.Dir(path) != r.staged.StaticPods() {
			fmt.Fprintf(r.out, "[dryrun] Would write file %q\n", name)
			continue
		}
		fmt.Fprintf(r.out, "[dryrun] Would write file %q with content:\n", name)
		r.indent(data)
	}
	return nil
}

// indent prints text with each line indented by a tab.
func (r *dryRunner) indent(text []byte) {
	for line := range bytes.Lines(text) {
		fmt.Fprintf(r.out, "\t%s", line)
	}
}

// printObjects prints the objects that the command would have applied to the cluster. The contents of Secrets are
// omitted.
func (r *dryRunner) printObjects(objects []*unstructured.Unstructured) error {
	for _, obj := range objects {
		name := strings.TrimPrefix(obj.GetNamespace()+"/"+obj.GetName(), "/")
		if obj.GetKind() == "Secret" {
			fmt.Fprintf(r.out, "[dryrun] Would apply %s %s\n", obj.GetKind(), name)
			continue
		}
		text, err := yaml.Marshal(obj.Object)
		if err != nil {
			return fmt.Errorf("encoding %s %s: %w", obj.GetKind(), name, err)
		}
		fmt.Fprintf(r.out, "[dryrun] Would apply %s %s:\n", obj.GetKind(), name)
		r.indent(bytes.ReplaceAll(text, []byte(r.root), []byte(r.real.Root())))
	}
	return nil
}

// printf prints a line with the prefix of dry runs.
func (r *dryRunner) printf(format string, args ...any) {
	fmt.Fprintf(r.out, "[dryrun] "+format+"\n", args...)
}

// printDryRun prints what init would do: the files that it would write and the objects that it would apply. running
// means that the node process already runs, so that init would not start it.
func (m *controlPlaneNode) printDryRun(out io.Writer, running bool) error {
	r, err := newDryRunner(m.layout, out)
	if err != nil {
		return err
	}
	defer r.cleanUp()
	m.layout = r.staged
	if err := m.prepare(); err != nil {
		return err
	}
	if err := r.print(); err != nil {
		return err
	}
	if !running {
		r.printf("Would start the node %q, which starts the control plane", m.identity.NodeName)
	}
	record, err := m.setup().token()
	if err != nil {
		return command.ConfigError(err)
	}
	objects, err := m.setup().objects(record)
	if err != nil {
		return err
	}
	if err := r.printObjects(objects); err != nil {
		return err
	}
	if m.certificateKey != nil {
		r.printf("Would upload the shared control plane certificates to the Secret kube-system/%s, encrypted", joindiscovery.CertsSecret)
	}
	if !m.settings.skips("mark-control-plane") {
		r.printf("Would mark the node %q as control plane by adding the label and taints", m.identity.NodeName)
	}
	if !m.settings.skips("addon") {
		r.printf("Would apply the add-ons")
	}
	r.printf("Finished dry-running; no changes were applied")
	return nil
}

// printDryRun prints what join would do with the cluster that was discovered.
func (o *joinOptions) printDryRun(ctx context.Context, out io.Writer, l layout.Node, c *joindiscovery.Cluster, token joindiscovery.Token) error {
	r, err := newDryRunner(l, out)
	if err != nil {
		return err
	}
	defer r.cleanUp()
	if o.asControlPlane {
		if err := o.printControlPlaneDryRun(ctx, r, c, token); err != nil {
			return err
		}
	} else {
		if err := o.prepare(ctx, r.staged, c, token); err != nil {
			return err
		}
		if err := r.print(); err != nil {
			return err
		}
		r.printf("Would request the client certificate of node %q and start the node", o.node.Name)
	}
	r.printf("Finished dry-running; no changes were applied")
	return nil
}

// printControlPlaneDryRun prints the files that join would write on an additional control plane node. It adds no etcd
// member, so the printed value of --initial-cluster may be incomplete.
func (o *joinOptions) printControlPlaneDryRun(ctx context.Context, r *dryRunner, c *joindiscovery.Cluster, token joindiscovery.Token) error {
	m := &controlPlaneNode{layout: r.staged}
	kube, err := joinClient(c, token, o.timeouts.call())
	if err != nil {
		return err
	}
	if err := o.configureNode(ctx, m, kube); err != nil {
		return err
	}
	if err := o.ensureSharedFiles(ctx, m, c, kube); err != nil {
		return err
	}
	peerURL := m.member().etcdURL(layout.PortEtcdPeer)
	if m.etcdMembers == "" {
		m.etcdMembers = m.identity.NodeName + "=" + peerURL
		r.printf("Would add the etcd member %s; --initial-cluster below does not contain the existing members", m.etcdMembers)
	}
	options, err := m.member().setUpAdditional()
	if err != nil {
		return err
	}
	if err := m.credentials().writeKubeconfigs(options, additionalNodeKubeconfigs...); err != nil {
		return err
	}
	if err := m.writeStaticPods(manifests.Components()...); err != nil {
		return err
	}
	if err := r.print(); err != nil {
		return err
	}
	r.printf("Would start the node %q, which starts the control plane, and mark it as control plane by adding the label and taints", m.identity.NodeName)
	return nil
}

// dryRunWrite calls write with a layout below a temporary directory instead of l, then calls report to
// print what write would have changed, and removes the directory.
func dryRunWrite(out io.Writer, l layout.Node, write func(layout.Node) error, report func(*dryRunner) error) error {
	r, err := newDryRunner(l, out)
	if err != nil {
		return err
	}
	defer r.cleanUp()
	if err := write(r.staged); err != nil {
		return err
	}
	return report(r)
}

// printUpgrade prints the files that an upgrade would write, and that the node and changed static pods would restart.
func printUpgrade(r *dryRunner) error {
	if err := r.print(); err != nil {
		return err
	}
	r.printf("Would restart the node, and each static pod whose manifest changes")
	r.printf("Finished dry-running; no changes were applied")
	return nil
}
