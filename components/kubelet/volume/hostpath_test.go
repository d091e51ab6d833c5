package volume

import (
	"os"
	"path/filepath"
	"testing"

	v1 "k8s.io/api/core/v1"

	"hyperkube/internal/layout"
)

// TestHostPathAlias: what pods mount of the kubelet's root directory by its usual
// path is that of their own node.
func TestHostPathAlias(t *testing.T) {
	own := t.TempDir()
	paths := HostPath{Alias: layout.Alias{Known: "/known/kubelet", Own: own}}
	kind := v1.HostPathDirectoryOrCreate
	for path, want := range map[string]string{
		"/known/kubelet/plugins/d": filepath.Join(own, "plugins/d"),
		"/known/kubelet":           own,
		t.TempDir():                "",
	} {
		if want == "" {
			want = path
		}
		r, err := paths.SetUp(t.Context(), Request{Volume: &v1.Volume{VolumeSource: v1.VolumeSource{HostPath: &v1.HostPathVolumeSource{Path: path, Type: &kind}}}})
		if err != nil || r.Path != want {
			t.Errorf("%s is %s %v, want %s", path, r.Path, err, want)
		}
		if info, err := os.Stat(want); err != nil || !info.IsDir() {
			t.Errorf("%s was not made: %v", want, err)
		}
	}
}
