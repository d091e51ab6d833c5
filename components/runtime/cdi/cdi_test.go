package cdi

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

func TestResolve(t *testing.T) {
	low, high := t.TempDir(), t.TempDir()
	put := func(dir, name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	put(low, "a.json", `{"cdiVersion":"0.6.0","kind":"vendor.com/gpu","containerEdits":{"env":["ALL=1"]},
		"devices":[{"name":"one","containerEdits":{"env":["ONE=1"],"deviceNodes":[{"path":"/dev/one","hostPath":"/dev/zero"}]}},
		{"name":"two","containerEdits":{"env":["TWO=1"],"mounts":[{"hostPath":"/etc","containerPath":"/two"}]}}]}`)
	put(high, "b.yaml", "cdiVersion: 0.6.0\nkind: vendor.com/gpu\ndevices:\n- name: two\n  containerEdits:\n    env: [TWO=high]\n")
	put(high, "c.yaml", "cdiVersion: 0.6.0\nkind: vendor.com/net\ndevices:\n- name: x\n  containerEdits: {additionalGids: [5]}\n")
	put(high, "d.yaml", "cdiVersion: 0.6.0\nkind: vendor.com/net\ndevices:\n- name: x\n")
	put(high, "bad.json", "{")
	put(high, "other.txt", "{")
	dirs := []string{low, high, filepath.Join(low, "none")}
	got, err := Resolve([]string{"vendor.com/gpu=one", "vendor.com/gpu=two"}, dirs)
	if want := (Edits{Env: []string{"ALL=1", "ONE=1", "TWO=high"}, DeviceNodes: []DeviceNode{{Path: "/dev/one", HostPath: "/dev/zero"}}}); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v, want %+v", got, err, want)
	}
	if got, err := Resolve(nil, dirs); err != nil || !reflect.DeepEqual(got, Edits{}) {
		t.Errorf("of nothing: %+v, %v", got, err)
	}
	for name, want := range map[string]string{
		"vendor.com/gpu=three": "unresolvable CDI devices vendor.com/gpu=three", "vendor.com/net=x": "conflicting device",
		"gpu": "invalid CDI device name", "a=b": "invalid CDI device name", "vendor.com/gpu=": "invalid CDI device name",
	} {
		if _, err := Resolve([]string{name}, dirs); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(`{"cdiVersion":"0.6.0","kind":"a/b","devices":[{"name":"x","containerEdits":{"hooks":[{"hookName":"createContainer","path":"/x"}]}}]}`))
	f.Add([]byte("kind: a/b\ncdiVersion: 1\ncontainerEdits: {deviceNodes: [{path: x}]}"))
	f.Fuzz(func(t *testing.T, data []byte) {
		got, err := parse(data)
		if err != nil {
			return
		}
		for _, d := range got.Devices {
			if d.Name == "" || d.Edits.check() != nil {
				t.Errorf("took %+v", d)
			}
		}
	})
}
