package masters

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
	"hyperkube/components/cluster/trust"
	"hyperkube/internal/layout"
	"hyperkube/manifests"
)

// rehearsal is a run that changes nothing: what would be written goes to a folder that is
// removed again, and what is different there from the machine is printed.
type rehearsal struct {
	real layout.Node
	// played is the layout to write to. It begins with what the real one has of keys,
	// kubeconfigs, manifests and settings.
	played layout.Node
	root   string // of played
	out    io.Writer
}

// rehearse begins one; end removes its folder.
func rehearse(l layout.Node, out io.Writer) (*rehearsal, error) {
	root, err := os.MkdirTemp("", "hyperkube-dry-run-")
	if err != nil {
		return nil, fmt.Errorf("making a folder for the dry run: %w", err)
	}
	r := &rehearsal{real: l, played: layout.Under(root), root: root, out: out}
	for _, dir := range r.dirs(l) {
		if err := r.copy(dir); err != nil {
			r.end()
			return nil, err
		}
	}
	return r, nil
}

func (r *rehearsal) end() { _ = os.RemoveAll(r.root) }

// dirs are those of a layout that init, join and upgrade write to.
func (r *rehearsal) dirs(l layout.Node) []string {
	return []string{l.Etc, filepath.Join(l.Data, "kubeconfig-keys"), filepath.Join(l.Kubelet, "pki"), l.Data}
}

// realRoot is what comes before the usual places.
func (r *rehearsal) realRoot() string { return strings.TrimSuffix(r.real.Data, layout.Default().Data) }

// copy takes a folder over; of the data only the files that are right there, for the rest
// is large and not what is written.
func (r *rehearsal) copy(dir string) error {
	to := filepath.Join(r.root, strings.TrimPrefix(dir, r.realRoot()))
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
		// What a symlink leads to is read, too; nothing is written to folders that are
		// elsewhere, nor to what is no file.
		if info, err := os.Stat(path); errors.Is(err, os.ErrNotExist) || err == nil && !info.Mode().IsRegular() {
			return nil
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		// A kubeconfig refers to files of the real places.
		return os.WriteFile(target, bytes.ReplaceAll(data, []byte(r.real.Kubelet), []byte(r.played.Kubelet)), 0o600)
	})
	if err != nil {
		return fmt.Errorf("looking at what is there: %w", err)
	}
	return nil
}

// print tells which files would be written: those of manifests with all that is in them,
// those of keys and credentials by name.
func (r *rehearsal) print() error {
	var paths []string
	for _, dir := range r.dirs(r.played) {
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
			return fmt.Errorf("looking at what would be written: %w", err)
		}
	}
	for _, path := range paths {
		data, err := os.ReadFile(path)
		if err != nil {
			return fmt.Errorf("looking at what would be written: %w", err)
		}
		data = bytes.ReplaceAll(data, []byte(r.root), []byte(r.realRoot()))
		name := r.realRoot() + strings.TrimPrefix(path, r.root)
		if there, err := os.ReadFile(name); err == nil && bytes.Equal(there, data) {
			continue
		}
		if filepath.Dir(path) != r.played.StaticPods() {
			fmt.Fprintf(r.out, "[dryrun] Would write file %q\n", name)
			continue
		}
		fmt.Fprintf(r.out, "[dryrun] Would write file %q with content:\n", name)
		r.indent(data)
	}
	return nil
}

func (r *rehearsal) indent(text []byte) {
	for line := range bytes.Lines(text) {
		fmt.Fprintf(r.out, "\t%s", line)
	}
}

// printObjects tells which objects would be applied; of Secrets not what is in them.
func (r *rehearsal) printObjects(objects []*unstructured.Unstructured) error {
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
		r.indent(bytes.ReplaceAll(text, []byte(r.root), []byte(r.realRoot())))
	}
	return nil
}

func (r *rehearsal) say(format string, args ...any) {
	fmt.Fprintf(r.out, "[dryrun] "+format+"\n", args...)
}

// rehearse tells what init would do.
func (m *master) rehearse(out io.Writer, running bool) error {
	r, err := rehearse(m.layout, out)
	if err != nil {
		return err
	}
	defer r.end()
	m.layout = r.played
	if err := m.prepare(); err != nil {
		return err
	}
	if err := r.print(); err != nil {
		return err
	}
	if !running {
		r.say("Would start the node %q, and with it the control plane", m.identity.NodeName)
	}
	record, err := m.token()
	if err != nil {
		return command.ConfigError(err)
	}
	objects, err := m.objects(record)
	if err != nil {
		return err
	}
	if err := r.printObjects(objects); err != nil {
		return err
	}
	if m.certificateKey != nil {
		r.say("Would upload the keys that all masters share to the Secret kube-system/%s, encrypted", trust.CertsSecret)
	}
	if !m.settings.skips("mark-control-plane") {
		r.say("Would give the node %q the label and the taints of a master", m.identity.NodeName)
	}
	if !m.settings.skips("addon") {
		r.say("Would apply the add-ons")
	}
	r.say("Nothing was changed")
	return nil
}

// rehearse tells what join would do of a cluster that was found.
func (o *joinOptions) rehearse(ctx context.Context, out io.Writer, l layout.Node, c *trust.Cluster, token trust.Token) error {
	r, err := rehearse(l, out)
	if err != nil {
		return err
	}
	defer r.end()
	if o.asMaster {
		if err := o.rehearseMaster(ctx, r, c, token); err != nil {
			return err
		}
	} else {
		if err := o.prepare(ctx, r.played, c, token); err != nil {
			return err
		}
		if err := r.print(); err != nil {
			return err
		}
		r.say("Would ask the cluster for the certificate of node %q, and start the node", o.node.Name)
	}
	r.say("Nothing was changed")
	return nil
}

func (o *joinOptions) rehearseMaster(ctx context.Context, r *rehearsal, c *trust.Cluster, token trust.Token) error {
	m := &master{layout: r.played}
	kube, err := enterWith(c, token, o.waits.call())
	if err != nil {
		return err
	}
	if err := o.become(ctx, m, kube); err != nil {
		return err
	}
	if err := o.sharedFiles(ctx, m, c, kube); err != nil {
		return err
	}
	own := m.etcdURL(layout.PortEtcdPeer)
	if m.etcdMembers == "" {
		m.etcdMembers = m.identity.NodeName + "=" + own
		r.say("Would enter etcd as the member %s, of which --initial-cluster below says only itself", m.etcdMembers)
	}
	options, err := m.startKeys()
	if err != nil {
		return err
	}
	if err := m.kubeconfigs(options, furtherKubeconfigs...); err != nil {
		return err
	}
	if err := m.staticPods(manifests.Components()...); err != nil {
		return err
	}
	if err := r.print(); err != nil {
		return err
	}
	r.say("Would start the node %q, and with it the control plane, and give it the label and the taints of a master", m.identity.NodeName)
	return nil
}

// rehearseWrite has write write to the layout of a rehearsal, and tell to say what of it
// there is to say.
func rehearseWrite(out io.Writer, l layout.Node, write func(layout.Node) error, tell func(*rehearsal) error) error {
	r, err := rehearse(l, out)
	if err != nil {
		return err
	}
	defer r.end()
	if err := write(r.played); err != nil {
		return err
	}
	return tell(r)
}

// tellUpgrade tells what an upgrade would write.
func tellUpgrade(r *rehearsal) error {
	if err := r.print(); err != nil {
		return err
	}
	r.say("Would start the node anew, and with it each static pod whose manifest is another")
	r.say("Nothing was changed")
	return nil
}
