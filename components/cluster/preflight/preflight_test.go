package preflight

import (
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"hyperkube/components/cluster/clusterconfig"
	"hyperkube/internal/host/layout"
)

func TestPortInUse(t *testing.T) {
	listener, err := net.Listen("tcp", ":0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	port := listener.Addr().(*net.TCPAddr).Port
	problems := checkPorts([]int{port})
	if len(problems) != 1 || !strings.Contains(problems[0].Error(), "process "+strconv.Itoa(os.Getpid())) {
		t.Errorf("problems %v", problems)
	}
	listener.Close()
	if problems := checkPorts([]int{port}); len(problems) > 0 {
		t.Errorf("problems %v with a free port", problems)
	}
}

// TestIgnored checks that problems of ignored checks are warnings instead of errors.
func TestIgnored(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	listener, err := net.Listen("tcp", ":0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	port := listener.Addr().(*net.TCPAddr).Port
	l := layout.Under(t.TempDir())
	config := filepath.Join(l.Kubelet, "config.yaml")
	if err := os.MkdirAll(l.Kubelet, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(config, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	inUse, other := "Port-"+strconv.Itoa(port), "FileAvailable-"+strings.ReplaceAll(config, "/", "-")
	for _, c := range []struct{ ignored, wrong []string }{
		{nil, []string{inUse, other}},
		{[]string{strings.ToLower(inUse), "Swap"}, []string{other}},
		{[]string{other}, []string{inUse}},
		{[]string{"ALL"}, nil},
	} {
		var warned []string
		err := CheckIgnoring(l, []int{port}, "", c.ignored, func(problem error) { warned = append(warned, CheckName(problem)) })
		for _, name := range []string{inUse, other} {
			wrong := slices.Contains(c.wrong, name)
			if found := err != nil && strings.Contains(err.Error(), "\t[ERROR "+name+"]: "); found != wrong || slices.Contains(warned, name) == wrong {
				t.Errorf("ignoring %v: %v, warned of %v; want %s wrong: %v", c.ignored, err, warned, name, wrong)
			}
		}
	}
}

func TestOtherCluster(t *testing.T) {
	l := layout.Under(t.TempDir())
	if found := otherCluster(l); len(found) > 0 {
		t.Errorf("%s on an empty machine", found)
	}
	config := filepath.Join(l.Kubelet, "config.yaml")
	if err := os.MkdirAll(l.Kubelet, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(config, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	manifest := filepath.Join(l.StaticPods(), "etcd.yaml")
	if err := os.MkdirAll(l.StaticPods(), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(manifest, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if found := otherCluster(l); !slices.Equal(found, []string{config, manifest}) {
		t.Errorf("found %q", found)
	}
	// The files of this installation are no problem.
	if err := os.MkdirAll(l.Data, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := (clusterconfig.Cluster{NodeName: "n"}).Save(l); err != nil {
		t.Fatal(err)
	}
	if found := otherCluster(l); len(found) > 0 {
		t.Errorf("%s although the cluster is ours", found)
	}
}

// TestDisk checks that the first start requires more free disk space than later ones.
func TestDisk(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("mounting needs root")
	}
	for _, c := range []struct {
		size         string
		first, again bool // whether the check succeeds
	}{
		{"size=600m", true, true},
		{"size=256m", false, true},
		{"size=32m", false, false},
	} {
		l := layout.Under(t.TempDir())
		root := filepath.Dir(filepath.Dir(filepath.Dir(l.Data)))
		if err := unix.Mount("none", root, "tmpfs", 0, c.size); err != nil {
			t.Skip("mounting:", err)
		}
		t.Cleanup(func() { _ = unix.Unmount(root, unix.MNT_DETACH) })
		check := func(when string, fine bool) {
			t.Helper()
			err := CheckDisk(l)
			if (err == nil) != fine || err != nil && !strings.Contains(err.Error(), "MiB are required") {
				t.Errorf("%s, %s: %v", c.size, when, err)
			}
		}
		check("first", c.first)
		if err := os.MkdirAll(l.Data, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := (clusterconfig.Cluster{NodeName: "n"}).Save(l); err != nil {
			t.Fatal(err)
		}
		check("again", c.again)
		if err := unix.Mount("", root, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
			t.Fatal(err)
		}
		if err := CheckDisk(l); err == nil || c.again && !strings.Contains(err.Error(), "is mounted read-only") {
			t.Errorf("%s is read-only: %v", c.size, err)
		}
	}
}

// TestSupportsOverlay mounts an overlay, which does not support another overlay.
func TestSupportsOverlay(t *testing.T) {
	if supportsOverlay("/proc/self") {
		t.Error("procfs is reported to support overlays")
	}
	if os.Geteuid() != 0 {
		t.Skip("mounting needs root")
	}
	dir := t.TempDir()
	sub := func(name string) string { return filepath.Join(dir, name) }
	for _, name := range []string{"lower", "upper", "work", "merged"} {
		if err := os.MkdirAll(sub(name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	options := "lowerdir=" + sub("lower") + ",upperdir=" + sub("upper") + ",workdir=" + sub("work")
	if err := unix.Mount("overlay", sub("merged"), "overlay", 0, options); err != nil {
		t.Skipf("no overlay can be mounted here: %v", err)
	}
	defer func() {
		if err := unix.Unmount(sub("merged"), 0); err != nil {
			t.Error(err)
		}
	}()
	if supportsOverlay(sub("merged")) {
		t.Error("an overlay is reported to support overlays")
	}
	if err := checkOverlay(sub("merged")); err == nil || !strings.Contains(err.Error(), "choose another directory with --root") {
		t.Errorf("overlay on an overlay: %v", err)
	}
	if err := checkOverlay(dir); err != nil {
		t.Error(err)
	}
}

// TestMemory checks that the error contains the required memory.
func TestMemory(t *testing.T) {
	if err := checkMemory(minMemory - 1); err == nil || !strings.Contains(err.Error(), "minimum 256 MiB") {
		t.Errorf("one byte too little: %v", err)
	}
	if err := checkMemory(minMemory); err != nil {
		t.Error(err)
	}
}

// TestSwap checks that enabled swap is a warning.
func TestSwap(t *testing.T) {
	list := filepath.Join(t.TempDir(), "swaps")
	for text, want := range map[string]int{
		"Filename\tType\tSize\n":                           0,
		"Filename\tType\tSize\n/dev/sda2\tpartition\t99\n": 1,
	} {
		if err := os.WriteFile(list, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if found := warnings(list); len(found) != want || want > 0 && CheckName(found[0]) != "Swap" {
			t.Errorf("%q: %v", text, found)
		}
	}
}
