package servicetest

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// OpenRC is a fake OpenRC for tests: programs rc-service and rc-update that record their calls, and empty directories in
// the place of /run and /etc.
type OpenRC struct {
	dir string
}

// notifyFile is the name of the file with what the fake rc-service sends to the socket for notifications of a service
// that it starts.
const notifyFile = "notify"

// RunFake runs a fake program of OpenRC and exits, if this process is one. Otherwise it returns. Call it first in TestMain of a package
// that uses NewOpenRC.
func RunFake() {
	switch name := filepath.Base(os.Args[0]); name {
	case "rc-service", "rc-update":
		if err := runFake(name, os.Args[1:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
}

// NewOpenRC hides /run and /etc of this machine until the test ends, and puts fake programs of OpenRC first in PATH. The
// machine does not run OpenRC before Boot. It skips the test without root or if it cannot mount. TestMain must call RunFake
// and testisolate.Main with testisolate.Mounts.
// The test must not run in parallel.
func NewOpenRC(t *testing.T) *OpenRC {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root to mount")
	}
	for _, dir := range []string{"/run", "/etc"} {
		if err := unix.Mount("none", dir, "tmpfs", 0, ""); err != nil {
			t.Skip("mounting:", err)
		}
		t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	o := &OpenRC{dir: t.TempDir()}
	for _, dir := range []string{"/etc/init.d", "/etc/runlevels/default"} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, program := range []string{"rc-service", "rc-update"} {
		if err := os.Symlink(self, filepath.Join(o.dir, program)); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", o.dir+":"+os.Getenv("PATH"))
	return o
}

// Boot makes the machine run OpenRC.
func (o *OpenRC) Boot(t *testing.T) {
	t.Helper()
	if err := os.MkdirAll("/run/openrc", 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile("/run/openrc/softlevel", []byte("default\n"), 0o600); err != nil {
		t.Fatal(err)
	}
}

// SetNotifications sets the notifications that services send after their start, one per message.
func (o *OpenRC) SetNotifications(t *testing.T, messages ...string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(o.dir, notifyFile), []byte(strings.Join(messages, "\x00")), 0o600); err != nil {
		t.Fatal(err)
	}
}

// SetMainPID sets the PID of the main process of a service.
func (o *OpenRC) SetMainPID(t *testing.T, service, pid string) {
	t.Helper()
	file := filepath.Join("/run/openrc/options", service, "child_pid")
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(pid), 0o600); err != nil {
		t.Fatal(err)
	}
}

// Calls returns the calls of the programs since the last call of Calls, for example "rc-service hyperkube start".
func (o *OpenRC) Calls() []string {
	file := filepath.Join(o.dir, "calls")
	data, _ := os.ReadFile(file) // missing if there was no call
	_ = os.Remove(file)
	return strings.FieldsFunc(string(data), func(r rune) bool { return r == '\n' })
}

// runFake records a call of a program, and does what the tests observe of it: rc-update adds and removes links of the
// runlevel, and rc-service sends notifications when it starts a service.
func runFake(program string, args []string) error {
	dir := filepath.Dir(os.Args[0])
	if !filepath.IsAbs(dir) { // started by its name in PATH
		dir = filepath.SplitList(os.Getenv("PATH"))[0]
	}
	calls, err := os.OpenFile(filepath.Join(dir, "calls"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer calls.Close()
	fmt.Fprintln(calls, program, strings.Join(args, " "))
	switch {
	case program == "rc-update" && args[0] == "add":
		return os.Symlink("/etc/init.d/"+args[1], "/etc/runlevels/"+args[2]+"/"+args[1])
	case program == "rc-update":
		return os.Remove("/etc/runlevels/" + args[2] + "/" + args[1])
	case args[1] != "start":
		return nil
	}
	messages, err := os.ReadFile(filepath.Join(dir, notifyFile))
	if err != nil {
		return err
	}
	conn, err := net.Dial("unixgram", "/run/"+args[0]+".notify")
	if err != nil {
		return err
	}
	defer conn.Close()
	for message := range strings.SplitSeq(string(messages), "\x00") {
		if _, err := conn.Write([]byte(message)); err != nil {
			return err
		}
	}
	return nil
}
