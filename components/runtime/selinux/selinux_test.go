package selinux

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// fake is a policy with the given types.
type fake struct {
	types string
	files map[string]string
	fail  error
}

func (f *fake) check(label string) error {
	c, err := parse(label)
	if err != nil || !strings.Contains(f.types, c.kind) || strings.Contains(c.level, "bad") {
		return errUnknown
	}
	return nil
}

func (f *fake) setFile(path, label string) error {
	f.files[path] = label
	return f.fail
}

func (f *fake) relabel(path, label string) error { return f.setFile(path, label) }

func host(t *testing.T) (*Host, *fake) {
	t.Helper()
	f := &fake{types: "container_t container_file_t spc_t", files: map[string]string{}}
	h, err := newHost(f, "system_u:system_r:container_t:s0:c1,c2", "system_u:object_r:container_file_t:s0:c1,c2", "system_u:object_r:container_ro_file_t:s0")
	if err != nil {
		t.Fatal(err)
	}
	return h, f
}

func pod(t *testing.T, h *Host, sc *runtimeapi.LinuxSandboxSecurityContext) *Labels {
	t.Helper()
	l, err := h.Pod(sc)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func level(t *testing.T, label string) string {
	t.Helper()
	c, err := parse(label)
	if err != nil {
		t.Fatal(err)
	}
	return c.level
}

func TestPodsHaveUniqueLevels(t *testing.T) {
	h, _ := host(t)
	seen := map[string]bool{}
	for range 500 {
		l := pod(t, h, nil)
		own := level(t, l.Process)
		if seen[own] {
			t.Fatalf("two pods have level %s", own)
		}
		seen[own] = true
		if want := "system_u:system_r:container_t:" + own; l.ForProcess() != want {
			t.Fatalf("process label %q, want %q", l.ForProcess(), want)
		}
		if want := "system_u:object_r:container_file_t:" + own; l.ForMount() != want {
			t.Fatalf("mount label %q, want %q", l.ForMount(), want)
		}
	}
}

func TestLevelsRunOut(t *testing.T) {
	h, _ := host(t)
	h.levels = newLevels(16)
	free := "s0:c7,c9"
	for i := range h.levels.pairs {
		if l := pair(i); l != free {
			h.levels.acquire(l)
		}
	}
	l := pod(t, h, nil)
	if got := level(t, l.Process); got != free {
		t.Fatalf("got level %s, want the only free one, %s", got, free)
	}
	if _, err := h.Pod(nil); err == nil {
		t.Fatal("a level in use was allocated")
	}
	h.Release(l)
	if got := level(t, pod(t, h, nil).Process); got != free {
		t.Fatalf("got level %s, want %s, which was released", got, free)
	}
}

func TestAdoptedLevelsAreTaken(t *testing.T) {
	h, _ := host(t)
	h.levels = newLevels(16)
	for i := range h.levels.pairs {
		h.Adopt(&Labels{Process: "system_u:system_r:container_t:" + pair(i)})
	}
	if _, err := h.Pod(nil); err == nil {
		t.Fatal("a level was given that an adopted pod has")
	}
}

func TestPairs(t *testing.T) {
	seen := map[string]bool{}
	const categories = 64
	for i := range newLevels(categories).pairs {
		l := pair(i)
		var low, high int
		if _, err := fmt.Sscanf(l, "s0:c%d,c%d", &low, &high); err != nil || low >= high || high >= categories || seen[l] || canonical(l) != l {
			t.Fatalf("pair %d is %q (%v)", i, l, err)
		}
		seen[l] = true
	}
	for in, want := range map[string]string{
		"s0:c9,c7": "s0:c7,c9", "s0:c7.c8": "s0:c7,c8", "s0:c7.c9": "s0:c7.c9", "s0": "s0", "s0:c1": "s0:c1", "s0-s0:c1,c2": "s0-s0:c1,c2", "s0:x1,c2": "s0:x1,c2",
	} {
		if got := canonical(in); got != want {
			t.Errorf("canonical(%q) = %q, want %q", in, got, want)
		}
	}
}

func TestOptions(t *testing.T) {
	h, _ := host(t)
	l := pod(t, h, &runtimeapi.LinuxSandboxSecurityContext{SelinuxOptions: &runtimeapi.SELinuxOption{User: "u", Role: "r", Type: "spc_t", Level: "s0:c5,c6"}})
	if l.Process != "u:r:spc_t:s0:c5,c6" || l.Mount != "u:object_r:container_file_t:s0:c5,c6" {
		t.Fatalf("labels %+v", l)
	}
	// A level may be requested again. It is in use until both are released.
	again := pod(t, h, &runtimeapi.LinuxSandboxSecurityContext{SelinuxOptions: &runtimeapi.SELinuxOption{Level: "s0:c6,c5"}})
	h.Release(l)
	if h.levels.inUse["s0:c5,c6"] != 1 {
		t.Fatalf("levels taken: %v", h.levels.inUse)
	}
	h.Release(again)
	if len(h.levels.inUse) != 0 {
		t.Fatalf("levels taken: %v", h.levels.inUse)
	}
	for _, o := range []*runtimeapi.SELinuxOption{{Type: "nonsense_t"}, {Level: "bad"}} {
		_, err := h.Pod(&runtimeapi.LinuxSandboxSecurityContext{SelinuxOptions: o})
		if err == nil || !strings.Contains(err.Error(), "invalid SELinux options") {
			t.Errorf("options %v: error %v", o, err)
		}
	}
	if len(h.levels.inUse) != 0 {
		t.Fatalf("refused pods have kept levels: %v", h.levels.inUse)
	}
}

func TestContainers(t *testing.T) {
	h, _ := host(t)
	node := &runtimeapi.NamespaceOption{Pid: runtimeapi.NamespaceMode_NODE}
	p := pod(t, h, &runtimeapi.LinuxSandboxSecurityContext{Privileged: true})
	if p.ForProcess() != "" || p.Process == "" {
		t.Fatalf("a privileged pod has labels %+v", p)
	}
	own := level(t, p.Process)
	for _, test := range []struct {
		name    string
		sc      *runtimeapi.LinuxContainerSecurityContext
		process string
		mount   string
	}{
		{"as the pod", nil, "system_u:system_r:container_t:" + own, "system_u:object_r:container_file_t:" + own},
		{"privileged", &runtimeapi.LinuxContainerSecurityContext{Privileged: true}, "", "system_u:object_r:container_file_t:" + own},
		{"a type keeps the level", &runtimeapi.LinuxContainerSecurityContext{SelinuxOptions: &runtimeapi.SELinuxOption{Type: "spc_t"}},
			"system_u:system_r:spc_t:" + own, "system_u:object_r:container_file_t:" + own},
		{"a level", &runtimeapi.LinuxContainerSecurityContext{SelinuxOptions: &runtimeapi.SELinuxOption{Level: "s0:c1,c9"}},
			"system_u:system_r:container_t:s0:c1,c9", "system_u:object_r:container_file_t:s0:c1,c9"},
		{"the host's processes", &runtimeapi.LinuxContainerSecurityContext{NamespaceOptions: node}, "", "system_u:object_r:container_file_t:" + own},
		{"the host's processes, and a type", &runtimeapi.LinuxContainerSecurityContext{NamespaceOptions: node, SelinuxOptions: &runtimeapi.SELinuxOption{Type: "spc_t"}},
			"system_u:system_r:spc_t:" + own, "system_u:object_r:container_file_t:" + own},
	} {
		l, err := h.Container(p, test.sc)
		if err != nil || l.ForProcess() != test.process || l.ForMount() != test.mount {
			t.Errorf("%s: labels %q, %q (%v), want %q, %q", test.name, l.ForProcess(), l.ForMount(), err, test.process, test.mount)
		}
		h.Release(l)
	}
	h.Release(p)
	if len(h.levels.inUse) != 0 {
		t.Fatalf("levels taken at the end: %v", h.levels.inUse)
	}
	if l, err := h.Container(nil, nil); l != nil || err != nil {
		t.Fatalf("a pod without labels gives its container %+v (%v)", l, err)
	}
}

func TestNoSELinux(t *testing.T) {
	var h *Host
	l, err := h.Pod(&runtimeapi.LinuxSandboxSecurityContext{SelinuxOptions: &runtimeapi.SELinuxOption{Level: "bad"}})
	if l != nil || err != nil || l.ForProcess() != "" || l.ForMount() != "" || MountOption(l.ForMount()) != "" {
		t.Fatalf("labels %+v (%v)", l, err)
	}
	h.Adopt(l)
	h.Release(l)
	if err := errors.Join(h.Label("/nowhere", &Labels{Mount: "x"}), h.LabelForAll("/nowhere"), h.Relabel("/nowhere", &Labels{Mount: "x"})); err != nil {
		t.Fatal(err)
	}
}

func TestFiles(t *testing.T) {
	h, f := host(t)
	l := &Labels{Process: "system_u:system_r:container_t:s0:c1,c2", Mount: "system_u:object_r:container_file_t:s0:c1,c2"}
	if err := errors.Join(h.Label("/a", l), h.LabelForAll("/b"), h.Relabel("/c", l), h.Label("/d", &Labels{}), h.Relabel("/d", nil)); err != nil {
		t.Fatal(err)
	}
	if f.files["/a"] != l.Mount || f.files["/b"] != "system_u:object_r:container_ro_file_t:s0" || f.files["/c"] != l.Mount || len(f.files) != 3 {
		t.Fatalf("labelled: %v", f.files)
	}
	if got := MountOption(l.Mount); got != `,context="system_u:object_r:container_file_t:s0:c1,c2"` {
		t.Fatalf("mount option %s", got)
	}
	f.fail = &unixError{unix.ENOTSUP}
	if err := errors.Join(h.Relabel("/c", l), h.Label("/a", l), h.LabelForAll("/b")); err != nil {
		t.Fatalf("a file system without labels: %v", err)
	}
	f.fail = errors.New("SELinux relabeling of /etc is not allowed")
	if err := h.Relabel("/etc", l); err == nil || !strings.Contains(err.Error(), "not allowed") {
		t.Fatalf("relabelling /etc: %v", err)
	}
}

// unixError wraps a kernel error.
type unixError struct{ error }

func (e *unixError) Unwrap() error { return e.error }
