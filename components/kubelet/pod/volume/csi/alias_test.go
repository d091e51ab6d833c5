package csi

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"

	"hyperkube/internal/host/layout"
)

// TestAlias checks that a driver receives paths below the root directory that it knows, wherever
// the kubelet's real root directory is.
func TestAlias(t *testing.T) {
	f := newFixture(t, stages, csipb.NodeServiceCapability_RPC_GET_VOLUME_STATS)
	known := filepath.Join(filepath.Dir(f.root), "known")
	if err := os.Symlink(f.root, known); err != nil {
		t.Fatal(err)
	}
	f.alias = layout.Alias{Advertised: known, Actual: f.root}
	f.start()
	r := f.up("a")
	if !strings.HasPrefix(r.Path, f.root+"/") {
		t.Errorf("the pod has it at %s", r.Path)
	}
	if _, err := r.Measure(t.Context()); err != nil {
		t.Error(err)
	}
	f.down("a")
	paths := 0
	for _, c := range f.driver.Calls("vol-1") {
		for _, path := range []string{
			asked(c.Request, csipbStaging.GetStagingTargetPath), asked(c.Request, csipbTarget.GetTargetPath), asked(c.Request, csipbVolume.GetVolumePath),
		} {
			if path == "" {
				continue
			}
			if paths++; !strings.HasPrefix(path, known+"/") {
				t.Errorf("%s got path %s", c.Method, path)
			}
		}
	}
	if paths != 7 {
		t.Errorf("%d paths, want those of Stage 1, Publish 2, GetVolumeStats 2, Unpublish 1, Unstage 1", paths)
	}
}

type (
	csipbStaging interface{ GetStagingTargetPath() string }
	csipbTarget  interface{ GetTargetPath() string }
	csipbVolume  interface{ GetVolumePath() string }
)

// asked returns a field of a request, empty if the request does not have that field.
func asked[T any](request any, get func(T) string) string {
	if r, ok := request.(T); ok {
		return get(r)
	}
	return ""
}
