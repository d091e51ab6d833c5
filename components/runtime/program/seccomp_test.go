//go:build cgo && seccomp

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
	"k8s.io/client-go/tools/remotecommand"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// hasSeccomp reports whether this build supports seccomp.
const hasSeccomp = true

// probeName is the name under which the test binary acts as a program in a container. It prints the results of system
// calls.
const probeName = "seccomp-probe"

// probeCalls are the system calls of probe, in its order. Their arguments have no effect if a call is allowed.
var probeCalls = []struct {
	name      string
	number    uintptr
	arguments [3]uintptr
}{
	{"getpid", unix.SYS_GETPID, [3]uintptr{}},
	{"personality", unix.SYS_PERSONALITY, [3]uintptr{0xffffffff}},
	{"unshare", unix.SYS_UNSHARE, [3]uintptr{unix.CLONE_NEWUTS}},
	{"keyctl", unix.SYS_KEYCTL, [3]uintptr{unix.KEYCTL_GET_KEYRING_ID, ^uintptr(2), 1}}, // the session keyring
	{"bpf", unix.SYS_BPF, [3]uintptr{^uintptr(0)}},
	{"vsock", unix.SYS_SOCKET, [3]uintptr{unix.AF_VSOCK, unix.SOCK_STREAM}},
	{"clone3", unix.SYS_CLONE3, [3]uintptr{}},
	{"unknown", 10000, [3]uintptr{}},
}

func probe() {
	for _, c := range probeCalls {
		_, _, errno := unix.RawSyscall(c.number, c.arguments[0], c.arguments[1], c.arguments[2])
		if errno != 0 {
			fmt.Printf("%s %s\n", c.name, unix.ErrnoName(errno))
			continue
		}
		fmt.Printf("%s works\n", c.name)
	}
}

const (
	// confined is the output of probe with the default profile.
	confined = "getpid works\npersonality works\nunshare EPERM\nkeyctl EPERM\nbpf EPERM\nvsock EPERM\nclone3 ENOSYS\nunknown ENOSYS\n"
	// filtered is what a process with one seccomp filter sees: its state, and no inherited descriptors.
	filtered = "Seccomp:\t2\nSeccomp_filters:\t1\n0\n1\n2\n" + confined
	// probeScript prints filtered.
	probeScript = "grep Seccomp /proc/$$/status; ls -1 /proc/$$/fd; /probe/" + probeName
)

// withSeccomp configures a seccomp profile and mounts the probe.
func (n *node) withSeccomp(kind runtimeapi.SecurityProfile_ProfileType, file string) func(*runtimeapi.ContainerConfig) {
	n.t.Helper()
	dir := n.path("probe")
	if _, err := os.Stat(dir); err != nil {
		if err := os.Mkdir(dir, 0o755); err != nil {
			n.t.Fatal(err)
		}
		self, err := os.ReadFile("/proc/self/exe")
		if err != nil {
			n.t.Fatal(err)
		}
		for name, data := range map[string][]byte{probeName: self, "i386": elf386()} {
			if err := os.WriteFile(dir+"/"+name, data, 0o755); err != nil {
				n.t.Fatal(err)
			}
		}
	}
	return func(c *runtimeapi.ContainerConfig) {
		c.Linux.SecurityContext.Seccomp = &runtimeapi.SecurityProfile{ProfileType: kind, LocalhostRef: file}
		c.Mounts = append(c.Mounts, &runtimeapi.Mount{ContainerPath: "/probe", HostPath: dir, Readonly: true})
		// The test binary may be linked dynamically.
		for _, libraries := range []string{"/lib", "/lib64", "/usr/lib"} {
			if info, err := os.Stat(libraries); err == nil && info.IsDir() {
				c.Mounts = append(c.Mounts, &runtimeapi.Mount{ContainerPath: libraries, HostPath: libraries, Readonly: true})
			}
		}
	}
}

func (n *node) defaultSeccomp() func(*runtimeapi.ContainerConfig) {
	n.t.Helper()
	return n.withSeccomp(runtimeapi.SecurityProfile_RuntimeDefault, "")
}

// elf386 returns a program for 32-bit x86 that calls unshare(CLONE_NEWUTS), then a system call with an unknown number, and
// exits with the sum of the error numbers, EPERM and ENOSYS: 39.
func elf386() []byte {
	const base = 0x10000
	code := []byte{
		0xb8, 0x36, 0x01, 0, 0, // mov eax, 310 (unshare)
		0xbb, 0, 0, 0, 0x04, // mov ebx, CLONE_NEWUTS
		0xcd, 0x80, // int 0x80
		0x89, 0xc6, // mov esi, eax
		0xb8, 0x10, 0x27, 0, 0, // mov eax, 10000
		0xcd, 0x80, // int 0x80
		0x01, 0xc6, // add esi, eax
		0xf7, 0xde, // neg esi
		0x89, 0xf3, // mov ebx, esi
		0xb8, 1, 0, 0, 0, // mov eax, 1 (exit)
		0xcd, 0x80, // int 0x80
	}
	word := func(n int) []byte { return []byte{byte(n), byte(n >> 8), byte(n >> 16), byte(n >> 24)} }
	half := func(n int) []byte { return word(n)[:2] }
	const headers = 52 + 32
	return slices.Concat([]byte("\x7fELF\x01\x01\x01"), make([]byte, 9), half(2), half(3), word(1), word(base+headers), word(52), word(0), word(0),
		half(52), half(32), half(1), half(0), half(0), half(0),
		word(1), word(0), word(base), word(base), word(headers+len(code)), word(headers+len(code)), word(5), word(4096), code)
}

// TestSeccompFilter checks that the default profile applies to all kinds of containers, and equally to commands in them.
func TestSeccompFilter(t *testing.T) {
	n := newNode(t).imported()
	pod := n.run(n.pod("seccomp"))
	privileged := n.run(n.pod("seccomp-privileged", func(c *runtimeapi.PodSandboxConfig) { c.Linux.SecurityContext.Privileged = true }))
	mapped := n.run(n.pod("seccomp-mapped", inUserNS(65536*7)))
	type config = runtimeapi.ContainerConfig
	asUser := func(c *config) { c.Linux.SecurityContext.RunAsUser = &runtimeapi.Int64Value{Value: 1000} }
	fixed := func(c *config) { c.Linux.SecurityContext.NoNewPrivs = true }
	inPod := func(mode runtimeapi.NamespaceMode) func(*config) {
		return func(c *config) { c.Linux.SecurityContext.NamespaceOptions.Pid = mode }
	}
	free := strings.NewReplacer("unshare EPERM", "unshare works", "Seccomp:\t2", "Seccomp:\t0", "filters:\t1", "filters:\t0", "keyctl EPERM", "keyctl works",
		"bpf EPERM", "bpf EINVAL", "vsock EPERM", "vsock works", "clone3 ENOSYS", "clone3 EINVAL").Replace(filtered)
	for name, c := range map[string]struct {
		pod    string
		want   string
		change []func(*config)
	}{
		"root":                                  {pod, filtered, nil},
		"user":                                  {pod, filtered, []func(*config){asUser}},
		"root without new privileges":           {pod, filtered, []func(*config){fixed}},
		"user without new privileges":           {pod, filtered, []func(*config){asUser, fixed}},
		"without capabilities":                  {pod, filtered, []func(*config){dropAll, fixed}},
		"PID namespace of the host":             {pod, filtered, []func(*config){inPod(runtimeapi.NamespaceMode_NODE)}},
		"PID namespace of the host, user":       {pod, filtered, []func(*config){inPod(runtimeapi.NamespaceMode_NODE), asUser, fixed}},
		"user namespace":                        {mapped, filtered, nil},
		"user namespace and user":               {mapped, filtered, []func(*config){asUser}},
		"user namespace without new privileges": {mapped, filtered, []func(*config){asUser, fixed}},
		"capability": {pod, strings.NewReplacer("unshare EPERM", "unshare works", "clone3 ENOSYS", "clone3 EINVAL", "bpf EPERM", "bpf EINVAL").Replace(filtered),
			[]func(*config){func(c *config) {
				c.Linux.SecurityContext.Capabilities = &runtimeapi.Capability{AddCapabilities: []string{"SYS_ADMIN"}}
			}}},
		"privileged": {privileged, free, []func(*config){func(c *config) { c.Linux.SecurityContext.Privileged = true }}},
	} {
		t.Run(name, func(t *testing.T) {
			id := n.startContainer(c.pod, shell(strings.ReplaceAll(name, " ", "-"), probeScript+"; exec sleep 1000", append(c.change, n.defaultSeccomp())...))
			n.eventually("its output", func() bool { return strings.Contains(n.logText(id), "unknown ") })
			if got := n.logText(id); got != c.want {
				t.Errorf("the container has\n%s, want\n%s", got, c.want)
			}
			out, err := n.exec(id, 60, "sh", "-c", probeScript)
			if err != nil {
				t.Fatal(err)
			}
			if got := string(out.Stdout); got != c.want {
				t.Errorf("a command has\n%s%s, want\n%s", got, out.Stderr, c.want)
			}
			n.remove(id)
		})
	}
	t.Run("terminal", func(t *testing.T) {
		want := strings.ReplaceAll(filtered, "\n", "\r\n")
		id := n.startContainer(pod, shell("terminal", probeScript+"; exec sleep 1000", n.defaultSeccomp(), func(c *config) { c.Tty = true }))
		n.eventually("its output", func() bool { return strings.Contains(n.logText(id), "unknown ") })
		if got := n.logText(id); got != want {
			t.Errorf("the container has\n%s", got)
		}
		resp, err := n.Exec(context.Background(), &runtimeapi.ExecRequest{ContainerId: id, Tty: true, Stdout: true, Stdin: true, Cmd: []string{"sh", "-c", probeScript}})
		if err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		if err := stream(t, resp.Url, remotecommand.StreamOptions{Stdin: strings.NewReader(""), Stdout: &out, Tty: true}); err != nil {
			t.Error(err)
		}
		if out.String() != want {
			t.Errorf("a command has\n%s", out.String())
		}
	})
	t.Run("32 bits", func(t *testing.T) {
		if runtime.GOARCH != "amd64" {
			t.Skip("the program is for x86")
		}
		id := n.startContainer(pod, shell("bits", "exec sleep 1000", n.defaultSeccomp()))
		// A kernel may have been configured or started without support for 32-bit programs.
		if err := exec.Command(n.path("probe", "i386")).Run(); errors.Is(err, unix.ENOEXEC) {
			t.Skip("this kernel does not execute 32-bit programs")
		}
		out, err := n.exec(id, 60, "/probe/i386")
		if err != nil {
			t.Fatal(err)
		}
		if out.ExitCode != int32(unix.EPERM+unix.ENOSYS) {
			t.Errorf("it exits with %d", out.ExitCode)
		}
	})
}

func dropAll(c *runtimeapi.ContainerConfig) {
	c.Linux.SecurityContext.Capabilities = &runtimeapi.Capability{DropCapabilities: []string{"ALL"}}
}

// remove removes a container.
func (n *node) remove(id string) {
	n.t.Helper()
	if _, err := n.RemoveContainer(context.Background(), &runtimeapi.RemoveContainerRequest{ContainerId: id}); err != nil {
		n.t.Error(err)
	}
}

// TestSeccompFilterFile checks that containers share the file with the filter, that the next runtime process uses it, and
// that no command runs without it.
func TestSeccompFilterFile(t *testing.T) {
	n := newNode(t).imported()
	pod := n.run(n.pod("seccomp"))
	file := func(id string) string { return n.path("state", "libcontainer", id, "seccomp.bpf") }
	info := func(id string) os.FileInfo {
		t.Helper()
		i, err := os.Stat(file(id))
		if err != nil {
			t.Fatal(err)
		}
		return i
	}
	start := func(name string, change ...func(*runtimeapi.ContainerConfig)) string {
		t.Helper()
		return n.startContainer(pod, shell(name, "exec sleep 1000", append(change, n.defaultSeccomp())...))
	}
	probed := func(id string) {
		t.Helper()
		if out, err := n.exec(id, 60, "sh", "-c", probeScript); err != nil || string(out.Stdout) != filtered {
			t.Errorf("a command has\n%s%s%v", out.GetStdout(), out.GetStderr(), err)
		}
	}
	first, second, other := start("first"), start("second"), start("other", func(c *runtimeapi.ContainerConfig) {
		c.Linux.SecurityContext.Capabilities = &runtimeapi.Capability{AddCapabilities: []string{"SYS_TIME"}}
	})
	if !os.SameFile(info(first), info(second)) {
		t.Error("two containers with the same profile have different files")
	}
	if os.SameFile(info(first), info(other)) {
		t.Error("containers with different capabilities have the same file")
	}
	n.remove(first)
	third := start("third")
	if !os.SameFile(info(second), info(third)) {
		t.Error("a container does not share the file of a container that outlived the first one")
	}
	n.remove(second)
	n.remove(third)
	fourth := start("fourth") // the file was deleted
	probed(fourth)
	n.stop(syscall.SIGKILL)
	n.start()
	probed(fourth)
	fifth := start("fifth")
	probed(fifth)

	// Damaged filters.
	program, err := os.ReadFile(file(fifth))
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		data []byte
		want string
	}{
		"missing":   {nil, "no such file"},
		"empty":     {[]byte{}, "invalid size 0"},
		"truncated": {program[:len(program)-3], "invalid argument"},
		"invalid":   {make([]byte, len(program)), "loading seccomp filter: seccomp: Invalid argument"},
		"too long":  {make([]byte, 4097*8), "invalid size"},
	} {
		if err := os.Remove(file(fifth)); err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
		if c.data != nil {
			if err := os.WriteFile(file(fifth), c.data, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		out, err := n.exec(fifth, 60, "echo", "unconfined")
		if err == nil || len(out.GetStdout()) != 0 {
			t.Errorf("%s: a command runs: %s", name, out.GetStdout())
		} else if !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v", name, err)
		}
	}
	probed(fourth)
}

// TestLocalhostSeccomp checks that libcontainer loads profiles of the user.
func TestLocalhostSeccomp(t *testing.T) {
	n := newNode(t).imported()
	pod := n.run(n.pod("seccomp"))
	profile := n.path("profile.json")
	text := `{"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [{"names": ["keyctl"], "action": "SCMP_ACT_ERRNO", "errnoRet": 18}]}`
	if err := os.WriteFile(profile, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	const want = "Seccomp:\t2\nkeyctl EXDEV\n"
	const script = "grep Seccomp: /proc/$$/status; /probe/" + probeName + " | grep keyctl"
	id := n.startContainer(pod, shell("c", script+"; exec sleep 1000", n.withSeccomp(runtimeapi.SecurityProfile_Localhost, profile)))
	n.eventually("its output", func() bool { return n.logText(id) == want })
	out, err := n.exec(id, 60, "sh", "-c", script)
	if err != nil || string(out.Stdout) != want {
		t.Errorf("a command has %s, %v", out.GetStdout(), err)
	}
	if _, err := os.Stat(n.path("state", "libcontainer", id, "seccomp.bpf")); err == nil {
		t.Error("the profile was compiled ahead")
	}
}
