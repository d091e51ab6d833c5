package leakcheck_test

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"hyperkube/internal/testing/leakcheck"
	"hyperkube/internal/testing/testisolate"
)

// leakEnv is the environment variable that makes TestLeak leak a resource of that kind.
const leakEnv = "HYPERKUBE_TEST_LEAK"

func TestMain(m *testing.M) {
	if kind := os.Getenv(leakEnv); kind == "ignored goroutine" {
		leakcheck.Main(m, leakcheck.Ignore("hyperkube/internal/testing/leakcheck_test.leakGoroutine.func1"))
	}
	testisolate.Main(m, testisolate.Mounts|testisolate.Network)
}

// leakGoroutine starts a goroutine that never returns.
func leakGoroutine(*testing.T) error {
	go func() { select {} }()
	return nil
}

// leakedListener stays referenced, because otherwise the garbage collector would close it.
var leakedListener net.Listener

// kinds lists what tests can leak.
var kinds = map[string]struct {
	leak func(t *testing.T) error
	// report is a part of the report, or empty if none is expected.
	report string
	root   bool // leak needs root
}{
	"nothing":           {leak: func(*testing.T) error { return nil }},
	"goroutine":         {leak: leakGoroutine, report: "leakGoroutine.func1"},
	"ignored goroutine": {leak: leakGoroutine},
	"goroutines that return after the tests": {leak: func(*testing.T) error {
		for range 1000 {
			go func() { _, _ = os.Stat("/") }()
		}
		return nil
	}},
	"descriptor": {leak: func(*testing.T) error {
		_, err := unix.Open("/proc/self/status", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		return err
	}, report: "/status"},
	"socket": {leak: func(*testing.T) (err error) {
		leakedListener, err = net.Listen("tcp", "127.0.0.1:0")
		return err
	}, report: "(local address 127.0.0.1:"},
	"pipe":           {leak: func(*testing.T) error { return unix.Pipe2(make([]int, 2), unix.O_CLOEXEC) }, report: "-> pipe:["},
	"process":        {leak: func(*testing.T) error { return exec.Command("sleep", "1000").Start() }, report: "sleep 1000"},
	"exited process": {leak: func(*testing.T) error { return exec.Command("true").Start() }, report: "process "},
	"mount": {leak: func(*testing.T) error {
		return syscall.Mount("leak", os.TempDir(), "tmpfs", 0, "")
	}, report: "mount ", root: true},
	"link": {leak: func(*testing.T) error {
		out, err := exec.Command("ip", "link", "add", "leaked", "type", "bridge").CombinedOutput()
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	}, report: "link leaked", root: true},
	"cgroup": {leak: func(*testing.T) error { return os.Mkdir(cgroup(os.Getpid()), 0o755) }, report: "leakcheck-test-", root: true},
}

// cgroup returns the directory of the cgroup that the process with the ID leaks.
func cgroup(pid int) string {
	top := "/sys/fs/cgroup"
	if _, err := os.Stat(top + "/cgroup.procs"); err != nil {
		top += "/pids" // cgroups of version 1
	}
	return filepath.Join(top, fmt.Sprintf("leakcheck-test-%d", pid))
}

// TestReport checks that a test that passes and leaks a resource makes the program fail, and that
// the report names the resource.
func TestReport(t *testing.T) {
	// The programs run concurrently, because each leak is only reported after a timeout.
	for name, k := range kinds {
		if k.root && os.Geteuid() != 0 {
			continue
		}
		cmd := exec.Command("/proc/self/exe", "-test.run=^TestLeak$", "-test.v")
		cmd.Env = append(os.Environ(), leakEnv+"="+name, "TMPDIR="+t.TempDir())
		var out strings.Builder
		cmd.Stdout, cmd.Stderr = &out, &out
		// The process group includes the leaked process. The namespaces contain the leaked mount and link.
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		if os.Geteuid() == 0 {
			cmd.SysProcAttr.Unshareflags = testisolate.Mounts | testisolate.Network
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		defer func() {
			err := cmd.Wait()
			_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
			_ = os.Remove(cgroup(cmd.Process.Pid))
			switch report := out.String(); {
			case !strings.Contains(report, "--- PASS: TestLeak"):
				t.Errorf("%s: the test did not pass: %v: %s", name, err, report)
			case k.report == "" && err != nil:
				t.Errorf("%s: %v: %s", name, err, report)
			case k.report != "" && (err == nil || !strings.Contains(report, k.report)):
				t.Errorf("%s: %v, report does not contain %q: %s", name, err, k.report, report)
			}
		}()
	}
}

// TestLeak passes and leaks the resource that the environment specifies.
func TestLeak(t *testing.T) {
	name := os.Getenv(leakEnv)
	if name == "" {
		t.Skip("started by TestReport")
	}
	if err := kinds[name].leak(t); err != nil {
		t.Fatal(err)
	}
}
