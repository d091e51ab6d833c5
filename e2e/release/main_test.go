package release

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"hyperkube/internal/testing/leakcheck"
)

// dir is the directory of the release.
var dir string

func TestMain(m *testing.M) {
	if dir = os.Getenv("HYPERKUBE_RELEASE"); dir == "" {
		fmt.Println("release: $HYPERKUBE_RELEASE is not set: nothing is tested (make release-test)")
		os.Exit(0)
	}
	leakcheck.Main(m)
}

// find returns the path of the one file of the release that matches a pattern.
func find(t *testing.T, pattern string) string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, pattern))
	if err != nil || len(files) != 1 {
		t.Fatalf("%d files match %s, want 1: %v", len(files), pattern, err)
	}
	return files[0]
}

// archs returns the architectures of the release.
func archs(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "hyperkube-*-linux-*.tar.gz"))
	if err != nil || len(files) == 0 {
		t.Fatalf("there is no archive in %s: %v", dir, err)
	}
	var list []string
	for _, f := range files {
		name := strings.TrimSuffix(filepath.Base(f), ".tar.gz")
		list = append(list, name[strings.LastIndexByte(name, '-')+1:])
	}
	return list
}

// hostArchive returns the path of the archive for this machine.
func hostArchive(t *testing.T) string {
	t.Helper()
	return find(t, "hyperkube-*-linux-"+runtime.GOARCH+".tar.gz")
}
