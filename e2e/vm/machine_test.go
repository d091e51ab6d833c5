package vm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"hyperkube/internal/testing/testimage"
	"hyperkube/internal/testing/testwait"
)

// stateDir contains what tests store for their next stage. requestFile contains the restart that a test requests.
const (
	stateDir    = "/var/lib/hyperkube-vm"
	requestFile = stateDir + "/request"
)

// restart is a way to restart the machine: a command of scripts/vm/machine.
type restart string

// The restarts. cut is a power cut.
const (
	reboot restart = "reboot"
	cut    restart = "cut"
)

// busybox is the name of the image with a shell.
const busybox = "docker.io/library/busybox:e2e"

// commandTimeout limits one command on an idle machine that is not emulated.
const commandTimeout = 30 * time.Second

// machine is the virtual machine in a test.
type machine struct {
	*testing.T
	// dir contains files of the test, which survive restarts.
	dir string
}

// newMachine returns the machine if it has one of the images, any if there are none, and skips the test otherwise. Without
// stages, or in the first stage, there is no cluster.
func newMachine(t *testing.T, images ...string) *machine {
	t.Helper()
	if image := os.Getenv(imageEnv); len(images) > 0 && !slices.Contains(images, image) {
		t.Skipf("needs a virtual machine with the image %s, not %s", strings.Join(images, " or "), image)
	}
	if os.Geteuid() != 0 {
		t.Fatal("needs root")
	}
	manager := "/run/systemd/system"
	if os.Getenv(imageEnv) == "openrc" {
		manager = "/run/openrc/softlevel"
	}
	for _, needed := range []string{manager, "/sys/fs/cgroup/cgroup.controllers"} {
		if _, err := os.Stat(needed); err != nil {
			t.Fatalf("needs the image's service manager and cgroup version 2: %v", err)
		}
	}
	m := &machine{T: t, dir: filepath.Join(stateDir, t.Name())}
	if err := os.MkdirAll(m.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("KUBECONFIG", filepath.Join(m.dir, "kubeconfig"))
	t.Cleanup(func() {
		if t.Failed() {
			m.printLogs()
			_, _ = m.command("hyperkube", "reset")
			_ = os.RemoveAll(m.dir)
		}
	})
	return m
}

// stage is a part of a test that ends with a restart of the machine.
type stage struct {
	name string
	run  func()
	// then restarts the machine after the stage. It is empty for the last stage.
	then restart
}

// stages runs the next stage of the test. It does not return if the test continues after a restart.
func (m *machine) stages(list ...stage) {
	m.Helper()
	file := filepath.Join(m.dir, "stage")
	done := 0
	if text, err := os.ReadFile(file); err == nil {
		if done, err = strconv.Atoi(string(text)); err != nil {
			m.Fatal(err)
		}
	}
	if err := os.Remove(requestFile); err != nil && !errors.Is(err, os.ErrNotExist) {
		m.Fatal(err)
	}
	current := list[done]
	m.Log("stage", current.name)
	current.run()
	if m.Failed() {
		m.FailNow()
	}
	if current.then == "" {
		if err := os.RemoveAll(m.dir); err != nil {
			m.Fatal(err)
		}
		return
	}
	m.write(file, strconv.Itoa(done+1))
	m.write(requestFile, string(current.then))
	m.Skip("the test continues after:", current.then)
}

// write writes a file and syncs it, so that it survives a power cut.
func (m *machine) write(path, text string) {
	m.Helper()
	f, err := os.Create(path)
	if err == nil {
		_, err = f.WriteString(text)
	}
	if err == nil {
		err = errors.Join(f.Sync(), f.Close())
	}
	if err != nil {
		m.Fatal(err)
	}
}

// command runs a command and returns its output.
func (m *machine) command(name string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), testwait.Scale(commandTimeout))
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	if err != nil {
		err = fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, out.String())
	}
	return strings.TrimSpace(out.String()), err
}

// run runs a command that must succeed, and returns its output.
func (m *machine) run(name string, args ...string) string {
	m.Helper()
	out, err := m.command(name, args...)
	if err != nil {
		m.Fatal(err)
	}
	return out
}

// up runs `hyperkube up` and imports the image busybox.
func (m *machine) up(args ...string) {
	m.Helper()
	began := time.Now()
	m.Log(m.run("hyperkube", append([]string{"up"}, args...)...))
	m.Logf("up took %s", time.Since(began).Round(time.Millisecond))
	m.importBusybox()
}

// importBusybox imports the image busybox.
func (m *machine) importBusybox() {
	m.Helper()
	archive := filepath.Join(m.dir, "busybox.tar")
	if err := testimage.WriteBusybox(archive, busybox); err != nil {
		m.Fatal(err)
	}
	m.run("hyperkube", "image", "import", archive)
}

// unreachable matches errors of kubectl when the machine is so slow that a request to the API server times out.
var unreachable = regexp.MustCompile("TLS handshake timeout|Unable to connect to the server|context deadline exceeded|request did not complete|i/o timeout")

// kubectl runs kubectl, which must succeed. It retries while the API server is too slow.
func (m *machine) kubectl(args ...string) string {
	m.Helper()
	var out string
	var failed error
	m.eventually("kubectl "+strings.Join(args, " "), func() (err error) {
		out, err = m.command("kubectl", args...)
		if err != nil && !unreachable.MatchString(err.Error()) {
			failed, err = err, nil
		}
		return err
	})
	if failed != nil {
		m.Fatal(failed)
	}
	return out
}

// wait runs `kubectl wait`. The timeout scales with the machine.
func (m *machine) wait(condition string, objects ...string) {
	m.Helper()
	args := append([]string{"wait", "--for=" + condition, "--timeout=" + testwait.Scale(10*time.Second).String()}, objects...)
	m.kubectl(args...)
}

// apply applies a manifest.
func (m *machine) apply(manifest string) {
	m.Helper()
	file := filepath.Join(m.dir, "manifest.yaml")
	m.write(file, manifest)
	m.kubectl("apply", "-f", file)
}

// eventually calls f until it returns nil.
func (m *machine) eventually(what string, f func() error) {
	m.Helper()
	testwait.Succeed(m, what, f)
}

// printLogs prints the end of the logs.
func (m *machine) printLogs() {
	for _, args := range [][]string{
		{"journalctl", "--no-pager", "-b", "-u", "hyperkube*", "-n", "60"},
		{"tail", "-n", "60", "/var/lib/hyperkube/logs/hyperkube.log"},
		{"tail", "-n", "30", "/var/lib/hyperkube/logs/runtime.log"},
	} {
		out, _ := m.command(args[0], args[1:]...) // a log may not exist
		m.Logf("--- %s\n%s", strings.Join(args, " "), out)
	}
}
