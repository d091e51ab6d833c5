package kubeconfig

import (
	"os"
	"path/filepath"
	"testing"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/client-go/tools/clientcmd"
)

// FuzzMerge merges into files with arbitrary content and removes the entries again, and checks that
// foreign entries are unchanged.
func FuzzMerge(f *testing.F) {
	f.Add(foreign)
	f.Add("")
	f.Add("{current-context: hyperkube, contexts: [{name: hyperkube, context: {cluster: x, extensions: [{name: hyperkube.previous-context, extension: 1}]}}]}")
	f.Add("{clusters: [{name: a, cluster: null}], users: [{}], contexts: null}")
	f.Fuzz(func(t *testing.T, text string) {
		target := Target{Path: filepath.Join(t.TempDir(), "config")}
		if err := os.WriteFile(target.Path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		before, err := clientcmd.LoadFromFile(target.Path)
		if err != nil {
			return
		}
		if target.Merge(ours) != nil {
			return
		}
		if err := target.Remove(""); err != nil {
			t.Fatalf("%q: merged, but not removed: %v", text, err)
		}
		after, err := clientcmd.LoadFromFile(target.Path)
		if os.IsNotExist(err) {
			after, err = clientcmd.Load(nil)
		}
		if err != nil {
			t.Fatalf("%q: unreadable afterwards: %v", text, err)
		}
		for name, was := range before.Contexts {
			is := after.Contexts[name]
			if name == ours.name() {
				continue
			}
			if is == nil || is.Cluster != was.Cluster || is.AuthInfo != was.AuthInfo || is.Namespace != was.Namespace {
				t.Errorf("%q: context %q was %+v and is %+v", text, name, was, is)
			}
		}
		for name, was := range before.Clusters {
			is := after.Clusters[name]
			if is == nil {
				continue // only used by the context with our name
			}
			if name != ours.name() && !equality.Semantic.DeepEqual(is.Server, was.Server) {
				t.Errorf("%q: cluster %q was %+v and is %+v", text, name, was, is)
			}
		}
	})
}
