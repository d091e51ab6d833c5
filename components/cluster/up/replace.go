package up

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"hyperkube/components/cluster/pidlock"
	"hyperkube/components/cluster/teardown"
	"hyperkube/internal/base/version"
	"hyperkube/internal/host/layout"
	"hyperkube/internal/host/process"
)

// replaceEnv is the environment variable with the PID of the main process that
// the new background process replaces.
const replaceEnv = "HYPERKUBE_REPLACE_PID"

// predecessor is a running main process of another build of this program, or with another configuration. A new main
// process replaces it, unless a service manager runs it.
type predecessor struct {
	pid int
	// args are its arguments after the command name.
	args []string
	// foreground is true if the process runs in the foreground. Its service manager then waits for
	// its exit and restarts it.
	foreground bool
	// changed are the kinds of the configuration documents that differ from those of the new process. It is empty if
	// the process is of another build.
	changed []string
}

// reason returns the text that `up` prints when it replaces the process.
func (p predecessor) reason() string {
	if len(p.changed) > 0 {
		return fmt.Sprintf("replacing process %d because %s changed; pods keep running", p.pid, listWithVerb(p.changed))
	}
	return fmt.Sprintf("replacing process %d of another build with this build, %s", p.pid, version.Get().GitVersion)
}

// listWithVerb returns "A has", or "A, B and C have".
func listWithVerb(names []string) string {
	last := len(names) - 1
	if last == 0 {
		return names[0] + " has"
	}
	return strings.Join(names[:last], ", ") + " and " + names[last] + " have"
}

// restartHint returns the text that `up` prints if it does not replace the process, because a service manager runs it.
func (p predecessor) restartHint() string {
	if len(p.changed) > 0 {
		return listWithVerb(p.changed) + " changed; restart the service of the running process to apply it, or stop it"
	}
	return fmt.Sprintf("the running process is another build than this one, %s; restart its service, or stop it", version.Get().GitVersion)
}

// findPredecessor reports whether the process is an `up` of another build, and returns it. It returns false for a
// process of this build, and process.ErrNotFound if the process has exited.
func findPredecessor(pid int) (p predecessor, found bool, err error) {
	same, err := sameProgram(fmt.Sprintf("/proc/%d/exe", pid), "/proc/self/exe")
	if err != nil || same {
		return p, false, err
	}
	return readPredecessor(pid)
}

// readPredecessor reads the command line of a process. It returns false if the process is not `hyperkube up`, and
// process.ErrNotFound if it has exited.
func readPredecessor(pid int) (p predecessor, found bool, err error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil {
		return p, false, notFoundOr(err)
	}
	words := strings.Split(strings.TrimSuffix(string(data), "\x00"), "\x00")
	if len(words) < 2 || words[1] != "up" {
		return p, false, nil
	}
	p = predecessor{pid: pid, args: words[2:]}
	p.foreground = slices.ContainsFunc(p.args, func(w string) bool {
		return w == "--foreground" || strings.HasPrefix(w, "--foreground=") && w != "--foreground=false"
	})
	return p, true, nil
}

// notFoundOr returns process.ErrNotFound if err, from reading a file of a process in /proc, shows that the process has
// exited. Otherwise it returns err with context.
func notFoundOr(err error) error {
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH) {
		return process.ErrNotFound
	}
	return fmt.Errorf("inspecting the running process: %w", err)
}

// sameProgram reports whether the program of a running process, /proc/PID/exe, has the same content as the file self.
// The binary may have been replaced on disk; the kernel still provides the old one in /proc. It returns
// process.ErrNotFound if the process has exited.
func sameProgram(running, self string) (bool, error) {
	a, err := os.Open(running)
	if err != nil {
		return false, notFoundOr(err)
	}
	defer a.Close()
	b, err := os.Open(self)
	if err != nil {
		return false, fmt.Errorf("opening the hyperkube binary: %w", err)
	}
	defer b.Close()
	ia, err := a.Stat()
	if err != nil {
		return false, notFoundOr(err)
	}
	ib, err := b.Stat()
	if err != nil {
		return false, fmt.Errorf("inspecting the hyperkube binary: %w", err)
	}
	if os.SameFile(ia, ib) {
		return true, nil
	}
	if ia.Size() != ib.Size() {
		return false, nil
	}
	const chunk = 1 << 18
	bufA, bufB := make([]byte, chunk), make([]byte, chunk)
	for {
		n, errA := io.ReadFull(a, bufA)
		m, errB := io.ReadFull(b, bufB)
		if n != m || !bytes.Equal(bufA[:n], bufB[:m]) {
			return false, nil
		}
		for _, err := range []error{errA, errB} {
			if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
				return false, fmt.Errorf("comparing the running program with the hyperkube binary: %w", err)
			}
		}
		if errA != nil {
			return true, nil
		}
	}
}

// flags returns the flags of the predecessor that are not set in cmd, as arguments, so that the cluster keeps its
// settings. It leaves out flags that this build does not have, and returns nil if the arguments cannot be parsed.
func (p predecessor) flags(cmd *cobra.Command) []string {
	previous := New()
	previous.FParseErrWhitelist.UnknownFlags = true // of a later version
	if err := previous.ParseFlags(p.args); err != nil {
		return nil
	}
	var out []string
	previous.Flags().Visit(func(f *pflag.Flag) {
		if current := cmd.Flags().Lookup(f.Name); current == nil || current.Changed {
			return
		}
		value := f.Value.String()
		if list, ok := f.Value.(pflag.SliceValue); ok {
			value = strings.Join(list.GetSlice(), ",")
		}
		out = append(out, "--"+f.Name+"="+value)
	})
	return out
}

// replacedPID returns the PID of the process that this one replaces, from the environment, from which it removes the
// variable. It returns 0 if there is none.
func replacedPID() int {
	pid, err := strconv.Atoi(os.Getenv(replaceEnv))
	_ = os.Unsetenv(replaceEnv) // fails only for an invalid name
	if err != nil {
		return 0
	}
	return pid
}

// terminateReplaced terminates the process pid, which this one replaces, and waits for its exit. It does nothing if the
// process is not the main process of the cluster at l anymore. It kills the process after teardown.StopTimeout.
func terminateReplaced(ctx context.Context, l layout.Node, pid int) error {
	ctx, cancel := context.WithTimeout(ctx, teardown.StopTimeout)
	defer cancel()
	if err := pidlock.Terminate(ctx, pid, func() (int, error) { return pidlock.Holder(l.PIDFile(layout.MainProcess)) }); err != nil {
		return fmt.Errorf("terminating process %d to replace it: %w", pid, err)
	}
	return nil
}
