package manifestdir

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"hyperkube/components/cluster/applyset"
	"hyperkube/components/cluster/internal/testapi"
	"hyperkube/internal/testing/testwait"
)

// env is an API server and a directory of manifests.
type env struct {
	*testing.T
	*testapi.Server
	dir string
	// create is Config.CreateDir.
	create bool
}

func newEnv(t *testing.T) env {
	return env{T: t, Server: testapi.Start(t), dir: filepath.Join(t.TempDir(), "manifests")}
}

// run runs an Applier until the returned function is called or the test ends.
func (e env) run() func() {
	e.Helper()
	a, err := New(Config{
		Dir: e.dir + "/", CreateDir: e.create, Kube: e.Kube, Log: slog.New(slog.DiscardHandler),
		Client: &applyset.Client{Dynamic: e.Dynamic, Mapper: e.Mapper, FieldManager: FieldManager},
	})
	if err != nil {
		e.Fatal(err)
	}
	ctx, cancel := context.WithCancel(e.Context())
	done := make(chan error, 1)
	go func() { done <- a.Run(ctx) }()
	stopped := false
	stop := func() {
		if !stopped {
			stopped = true
			cancel()
			if err := <-done; err != nil {
				e.Error(err)
			}
		}
	}
	e.Cleanup(stop)
	return stop
}

// write writes a file below the directory.
func (e env) write(name, text string) {
	e.Helper()
	path := filepath.Join(e.dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		e.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		e.Fatal(err)
	}
}

func (e env) remove(name string) {
	e.Helper()
	if err := os.RemoveAll(filepath.Join(e.dir, name)); err != nil {
		e.Fatal(err)
	}
}

// configMaps returns the manifests of ConfigMaps in the namespace default.
func configMaps(names ...string) string {
	var docs []string
	for _, name := range names {
		docs = append(docs, "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: "+name+"}\n")
	}
	return strings.Join(docs, "---\n")
}

// has waits until the namespace default has ConfigMaps with these names.
func (e env) has(want ...string) {
	e.Helper()
	testwait.Succeed(e, fmt.Sprint("ConfigMaps ", want), func() error {
		list, err := e.Kube.CoreV1().ConfigMaps("default").List(e.Context(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		var got []string
		for i := range list.Items {
			got = append(got, list.Items[i].Name)
		}
		if !slices.Equal(got, want) {
			return fmt.Errorf("got %v", got)
		}
		return nil
	})
}

// problems waits until these problems are reported.
func (e env) problems(want ...string) {
	e.Helper()
	testwait.Succeed(e, fmt.Sprint("problems ", want), func() error {
		list, err := e.Kube.CoreV1().ConfigMaps(applyset.ParentNamespace).List(e.Context(), metav1.ListOptions{LabelSelector: Label})
		if err != nil {
			return err
		}
		var got []string
		for i := range list.Items {
			if text := Problem(list.Items[i].Data); text != "" {
				got = append(got, text)
			}
		}
		slices.Sort(got)
		if !slices.EqualFunc(got, want, strings.HasPrefix) {
			return fmt.Errorf("got %q", got)
		}
		return nil
	})
}

// TestFiles creates, changes and deletes files, also while the Applier does not run.
func TestFiles(t *testing.T) {
	e := newEnv(t)
	stop := e.run()
	e.has() // the directory does not exist
	e.write("one.yaml", configMaps("a", "b"))
	e.write("more/two.json", `{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}}`)
	e.write(".hidden.yaml", configMaps("hidden"))
	e.write("README.md", "text")
	e.has("a", "b", "c")
	e.write("one.yaml", configMaps("b", "d"))
	e.has("b", "c", "d")
	e.write("one.yaml", configMaps("b", "d")+"---\nkind: ")
	e.problems("manifest one.yaml: line 9: an object requires apiVersion and kind")
	testwait.Succeed(t, "event", func() error {
		events, err := e.Kube.CoreV1().Events(applyset.ParentNamespace).List(t.Context(), metav1.ListOptions{FieldSelector: "involvedObject.name=" + setOf(e.dir, "one.yaml").Name})
		if err == nil && (len(events.Items) != 1 || !strings.Contains(events.Items[0].Message, "one.yaml: line 9")) {
			err = fmt.Errorf("events %v", events.Items)
		}
		return err
	})
	e.has("b", "c", "d")
	e.write("one.yaml", configMaps("b"))
	e.problems()
	e.has("b", "c")
	stop()
	e.remove("more")
	e.write("one.yaml", configMaps("e"))
	stop = e.run()
	e.has("e")
	// A directory that is missing, for example because it is not mounted, deletes nothing.
	if err := os.Rename(e.dir, e.dir+".moved"); err != nil {
		t.Fatal(err)
	}
	stop()
	e.run()
	e.write("other.yaml", configMaps("f"))
	e.has("f") // now the directory exists without one.yaml
	e.remove("other.yaml")
	e.has()
	list, err := e.Kube.CoreV1().ConfigMaps(applyset.ParentNamespace).List(t.Context(), metav1.ListOptions{})
	if err != nil || len(list.Items) != 0 {
		t.Errorf("sets %v, %v", list.Items, err)
	}
}

// TestDirectories starts with another directory, which is created. The objects of the first one are kept until it is
// used again, except those of a file whose name exists in the other one: it is the same file in a moved directory.
func TestDirectories(t *testing.T) {
	e := newEnv(t)
	e.write("one.yaml", configMaps("a"))
	e.write("both.yaml", configMaps("b"))
	stop := e.run()
	e.write("broken.yaml", "kind: ")
	e.problems("manifest broken.yaml: line 1: an object requires apiVersion and kind")
	e.has("a", "b")
	stop()
	first := e.dir
	e.remove("one.yaml")
	e.dir, e.create = filepath.Join(t.TempDir(), "other"), true
	stop = e.run()
	testwait.Succeed(t, "directory", func() error {
		_, err := os.Stat(e.dir)
		return err
	})
	e.write("both.yaml", configMaps("c"))
	e.has("a", "c")
	e.problems()
	stop()
	e.dir = first
	e.run()
	e.has("b")
}

// TestForeign applies a file to an object that exists. It survives the file.
func TestForeign(t *testing.T) {
	e := newEnv(t)
	e.write("one.yaml", configMaps("a", "b"))
	own := []byte(`{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}}`)
	if err := e.Kube.CoreV1().RESTClient().Post().AbsPath("/api/v1/namespaces/default/configmaps").Body(own).Do(t.Context()).Error(); err != nil {
		t.Fatal(err)
	}
	e.run()
	e.has("a", "b")
	e.remove("one.yaml")
	e.has("a")
}

// TestErrors reports errors of the API with the line of the object.
func TestErrors(t *testing.T) {
	e := newEnv(t)
	e.run()
	e.write("bad.yaml", configMaps("a")+"---\napiVersion: v1\nkind: Service\nmetadata: {name: s}\nspec: {ports: [{port: 99999}]}\n")
	e.problems("manifest bad.yaml: line 5: applying Service default/s: ")
	e.has("a")
	e.write("bad.yaml", configMaps("a")+"---\napiVersion: example.com/v1\nkind: Widget\nmetadata: {name: w}\n")
	e.problems("manifest bad.yaml: line 5: applying Widget w: no matches for kind")
	// The definition is in another file.
	e.write("definition.yaml", testapi.Widgets+`---
apiVersion: example.com/v1
kind: Widget
metadata: {name: same-file}
`)
	e.problems()
	widgets := e.Dynamic.Resource(schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "widgets"}).Namespace("default")
	for _, name := range []string{"w", "same-file"} {
		if _, err := widgets.Get(t.Context(), name, metav1.GetOptions{}); err != nil {
			t.Error(err)
		}
	}
}

// TestKustomization applies a kustomization and follows its files.
func TestKustomization(t *testing.T) {
	e := newEnv(t)
	e.write("app/kustomization.yaml", "namePrefix: my-\nresources: [base]\n")
	e.write("app/base/kustomization.yaml", "resources: [a.yaml]\n")
	e.write("app/base/a.yaml", configMaps("a"))
	e.run()
	e.has("my-a")
	e.write("app/base/a.yaml", configMaps("b"))
	e.has("my-b")
	e.write("app/kustomization.yaml", "resources: ['https://example.com/a.yaml']\n")
	e.problems("manifest app: app/kustomization.yaml: resources: files on other machines are not supported")
	e.write("app/kustomization.yaml", "resources: [missing.yaml]\n")
	e.problems("manifest app: accumulating resources")
	e.has("my-b")
	e.remove("app")
	e.has()
}

// TestSecurity rejects files that users other than root can change, and links that leave the directory.
func TestSecurity(t *testing.T) {
	e := newEnv(t)
	outside := filepath.Join(t.TempDir(), "outside.yaml")
	if err := os.WriteFile(outside, []byte(configMaps("outside")), 0o600); err != nil {
		t.Fatal(err)
	}
	e.write("a.yaml", configMaps("a"))
	e.write("b.yaml", configMaps("b"))
	if err := errors.Join(
		os.Symlink(outside, filepath.Join(e.dir, "link.yaml")),
		os.Symlink("a.yaml", filepath.Join(e.dir, ".inside")),
		os.Chmod(filepath.Join(e.dir, "b.yaml"), 0o666), //nolint:gosec // the mode under test
	); err != nil {
		t.Fatal(err)
	}
	e.run()
	e.has("a")
	e.problems("manifest b.yaml: b.yaml is writable by other users than root", "manifest link.yaml: openat link.yaml: path escapes from parent")
	e.remove("link.yaml")
	if err := os.Chmod(filepath.Join(e.dir, "b.yaml"), 0o644); err != nil { //nolint:gosec // the mode under test
		t.Fatal(err)
	}
	e.has("a", "b")
	e.problems()
	if err := os.Chmod(e.dir, 0o777); err != nil { //nolint:gosec // the mode under test
		t.Fatal(err)
	}
	e.write("c.yaml", configMaps("c"))
	e.problems("manifest .: . is writable by other users than root")
	if err := os.Chmod(e.dir, 0o755); err != nil { //nolint:gosec // the mode under test
		t.Fatal(err)
	}
	e.has("a", "b", "c")
	e.problems()
}
