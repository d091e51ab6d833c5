//go:build cgo

package initial

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// asInit is the environment variable that makes the test binary act as libcontainer's init code with a seccomp filter.
const asInit = "HYPERKUBE_TEST_AS_INIT"

// actAsInit answers each message on the sync socket, with the seccomp mode of the main thread. It returns false if the
// process is the test.
func actAsInit() bool {
	if os.Getenv(asInit) == "" {
		return false
	}
	runtime.LockOSThread()
	// Without it only root can load filters.
	err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
	if err == nil {
		err = useFilter(4)
	}
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	sock, _ := strconv.Atoi(os.Getenv(syncPipeEnv))
	buffer, control := make([]byte, 1<<20), make([]byte, unix.CmsgSpace(4))
	for {
		n, controls, _, _, err := unix.Recvmsg(sock, buffer, control, unix.MSG_CMSG_CLOEXEC)
		if n == 0 || err != nil {
			unix.Close(sock)
			runtime.Gosched()
			select {} // until the test kills it
		}
		if string(buffer[:n]) == "execute" {
			closeAndAnswer(sock + 1) // the other end of the socket, which the thread uses
		}
		if string(buffer[:n]) == "large" {
			_ = unix.Send(sock, bytes.Repeat([]byte("x"), 200_000), 0)
			continue
		}
		status, _ := os.ReadFile("/proc/thread-self/status")
		_, mode, _ := strings.Cut(string(status), "Seccomp:\t")
		_ = unix.Sendmsg(sock, fmt.Appendf(nil, "%s mode %.1s descriptors %t", buffer[:n], mode, controls > 0), nil, nil, 0)
	}
}

// closeAndAnswer closes the socket of the thread that forwards messages, as the init code does before it executes the
// container's program, and reports that to the test. When the thread has ended, it answers another message.
func closeAndAnswer(socket int) {
	const outer = 3
	before := threads()
	unix.Close(socket)
	_ = unix.Send(outer, []byte("closed"), 0)
	for now := threads(); !slices.ContainsFunc(before, func(id string) bool { return !slices.Contains(now, id) }); now = threads() {
		runtime.Gosched() // there is no event for the end of a detached thread
	}
	buffer := make([]byte, 100)
	if n, _, err := unix.Recvfrom(outer, buffer, 0); err == nil {
		_ = unix.Send(outer, append([]byte("received "), buffer[:n]...), 0)
	}
}

// threads returns the IDs of the threads of this process.
func threads() []string {
	entries, _ := os.ReadDir("/proc/self/task")
	var ids []string
	for _, e := range entries {
		ids = append(ids, e.Name())
	}
	return ids
}

// startInit starts actAsInit with a filter and returns the parent's end of the sync socket.
func startInit(t *testing.T, filter []byte) int {
	t.Helper()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	child := os.NewFile(uintptr(pair[1]), "sync")
	defer child.Close()
	file, err := os.CreateTemp(t.TempDir(), "filter")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if _, err := file.Write(filter); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), asInit+"=1", syncPipeEnv+"=3")
	cmd.ExtraFiles = []*os.File{child, file}
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		unix.Close(pair[0])
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return pair[0]
}

// allowAll is a filter that allows all system calls.
func allowAll() []byte {
	b := binary.NativeEndian.AppendUint16(nil, unix.BPF_RET|unix.BPF_K)
	return binary.NativeEndian.AppendUint32(append(b, 0, 0), 0x7fff0000)
}

func send(t *testing.T, sock int, message string, fds ...int) {
	t.Helper()
	var rights []byte
	if len(fds) > 0 {
		rights = unix.UnixRights(fds...)
	}
	if err := unix.Sendmsg(sock, []byte(message), rights, nil, unix.MSG_NOSIGNAL); err != nil {
		t.Fatal(err)
	}
}

func answer(t *testing.T, sock int) string {
	t.Helper()
	buffer := make([]byte, 1<<20)
	n, _, err := unix.Recvfrom(sock, buffer, 0)
	if err != nil {
		t.Fatal(err)
	}
	return string(buffer[:n])
}

// TestFilterIsLoaded checks that the filter is loaded when the init code may run the container's program, and not before.
func TestFilterIsLoaded(t *testing.T) {
	sock := startInit(t, allowAll())
	for _, step := range []struct {
		message, want string
		fds           []int
	}{
		{`{"type":"procHooksDone","flags":0}`, "mode 0 descriptors false", nil},
		{`{"type":"procMountFd","flags":1}`, "mode 0 descriptors false", nil},
		{"a file", "mode 0 descriptors true", []int{0}},
		{`{"type":"procRun","flags":0}`, "mode 2 descriptors false", nil},
	} {
		send(t, sock, step.message, step.fds...)
		if got := answer(t, sock); got != step.message+" "+step.want {
			t.Errorf("got %s, want %s", got, step.want)
		}
	}
	send(t, sock, "large", 0)
	if got := answer(t, sock); len(got) != 200_000 {
		t.Errorf("a message of %d bytes arrives", len(got))
	}
	if err := unix.Shutdown(sock, unix.SHUT_WR); err != nil {
		t.Fatal(err)
	}
	if got := answer(t, sock); got != "" {
		t.Errorf("got %s after the end", got)
	}
}

// TestClosedSocket checks that the process continues if the init code has closed the socket of the thread before the
// thread has ended, because it is about to execute the container's program.
func TestClosedSocket(t *testing.T) {
	sock := startInit(t, allowAll())
	// A message with a file descriptor is forwarded without a check.
	send(t, sock, "execute", 0)
	if got := answer(t, sock); got != "closed" {
		t.Fatalf("got %s", got)
	}
	// The thread receives at most the first message.
	send(t, sock, "a message", 0)
	send(t, sock, "a message", 0)
	if got := answer(t, sock); got != "received a message" {
		t.Errorf("got %s", got)
	}
}

// TestNoProcessWithoutFilter checks that the process ends if the filter cannot be loaded, or if a message is not known.
func TestNoProcessWithoutFilter(t *testing.T) {
	for name, c := range map[string]struct {
		filter        []byte
		message, want string
	}{
		"invalid filter":  {make([]byte, 8), `{"type":"procRun","flags":0}`, "loading seccomp filter: seccomp: Invalid argument"},
		"another order":   {allowAll(), `{"flags":0,"type":"procRun"}`, "loading seccomp filter: unexpected message: Protocol error"},
		"another message": {allowAll(), `{"type":"procStart"}`, "loading seccomp filter: unexpected message: Protocol error"},
	} {
		sock := startInit(t, c.filter)
		send(t, sock, c.message)
		if got, want := answer(t, sock), `{"type":"procError","flags":0,"arg":{"message":"`+c.want+`"}}`; got != want {
			t.Errorf("%s: got %s, want %s", name, got, want)
		}
		if got := answer(t, sock); got != "" {
			t.Errorf("%s: then got %s", name, got)
		}
	}
}

// TestBadFilterFiles checks that files which are not filters are refused.
func TestBadFilterFiles(t *testing.T) {
	t.Setenv(syncPipeEnv, "")
	for name, c := range map[string]struct {
		size int
		want string
	}{"empty": {0, "invalid size 0"}, "too long": {maxFilter + 8, "invalid size"}, "no sync socket": {8, "finding libcontainer's sync socket"}} {
		file, err := os.CreateTemp(t.TempDir(), "filter")
		if err != nil {
			t.Fatal(err)
		}
		if err := file.Truncate(int64(c.size)); err != nil {
			t.Fatal(err)
		}
		fd, err := unix.Dup(int(file.Fd()))
		file.Close()
		if err != nil {
			t.Fatal(err)
		}
		if err := useFilter(fd); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v", name, err)
		}
	}
}
