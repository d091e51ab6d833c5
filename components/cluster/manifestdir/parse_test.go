package manifestdir

import (
	"fmt"
	"strings"
	"testing"
)

func TestParse(t *testing.T) {
	const (
		a = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n"
		b = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: b}\n"
	)
	for _, c := range []struct {
		name, text string
		want       string // names and lines, or the error
	}{
		{"a.yaml", a, "a:1"},
		{"two.yaml", "# comment\n---\n\n" + a + "---\n" + b, "a:4 b:8"},
		{"list.yaml", "apiVersion: v1\nkind: List\nitems:\n- {apiVersion: v1, kind: ConfigMap, metadata: {name: a}}\n", "a:1"},
		{"a.json", `{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}}`, "a:1"},
		{"empty.yaml", "---\n# nothing\n", "line 1: the file contains no objects: delete it to delete its former objects"},
		{"half.yaml", a + "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: ", "line 7: did not find expected node content"},
		{"indent.yaml", a + "---\n" + b + "data:\n  a: b\n c: d\n", "line 9: did not find expected key"},
		{"twice.yaml", a + "---\n" + a, "line 5: ConfigMap a is already defined at line 1"},
		{"key.yaml", "apiVersion: v1\nkind: ConfigMap\nkind: ConfigMap\n", `line 3: key "kind" already set in map`},
		{"kind.yaml", "---\nmetadata: {name: a}\n", "line 2: an object requires apiVersion and kind"},
		{"name.yaml", "apiVersion: v1\nkind: ConfigMap\n", "line 1: ConfigMap has no metadata.name"},
	} {
		objects, lines, err := parse(c.name, []byte(c.text))
		var parts []string
		for _, obj := range objects {
			parts = append(parts, fmt.Sprintf("%s:%d", obj.GetName(), lines[obj]))
		}
		got := strings.Join(parts, " ")
		if err != nil {
			got = err.Error()
		}
		if got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
}

func TestRejectRemote(t *testing.T) {
	for text, accepted := range map[string]bool{
		"resources: [a.yaml, ./base]":                          true,
		"resources: ['https://example.com/a.yaml']":            false,
		"resources: ['github.com/org/repo//dir?ref=v1']":       false,
		"components: ['git@example.com:org/repo.git']":         false,
		"images: [{name: a, newName: 'registry.example/a.b'}]": true,
	} {
		err := rejectRemote(unit{files: map[string][]byte{"app/kustomization.yaml": []byte(text)}})
		if (err == nil) != accepted {
			t.Errorf("%s: %v", text, err)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte("apiVersion: v1\nkind: List\nitems: [{apiVersion: v1, kind: ConfigMap, metadata: {name: a}}]\n---\nmetadata: 1\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		objects, lines, err := parse("a.yaml", data)
		for _, obj := range objects {
			if err == nil && (obj.GetKind() == "" || obj.GetName() == "" || lines[obj] < 1) {
				t.Errorf("incomplete object %v at line %d", obj, lines[obj])
			}
		}
	})
}
