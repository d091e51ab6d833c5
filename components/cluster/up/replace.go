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
	"hyperkube/internal/layout"
	"hyperkube/internal/process"
)

// replaceEnv names the main process, of another build, whose place the one that
// is started in the background is to take.
const replaceEnv = "HYPERKUBE_REPLACE_PID"

// predecessor is a main process that another build of this program is.
type predecessor struct {
	pid int
	// args are what it was started with, after the command's name.
	args []string
	// foreground: whoever started it waits for its end, and starts it again.
	foreground bool
}

// findPredecessor tells whether the process is an `up` of another build. It
// returns process.ErrGone when it has ended.
func findPredecessor(pid int) (p predecessor, found bool, err error) {
	same, err := sameProgram(fmt.Sprintf("/proc/%d/exe", pid), "/proc/self/exe")
	if err != nil || same {
		return p, false, err
	}
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil {
		return p, false, goneOr(err)
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

// goneOr is process.ErrGone for what cannot be read of a process that has ended.
func goneOr(err error) error {
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH) {
		return process.ErrGone
	}
	return fmt.Errorf("looking at the process that runs: %w", err)
}

// sameProgram tells whether two files have the same content. A program that runs
// may have been replaced on the disk; the kernel has it nevertheless.
func sameProgram(running, self string) (bool, error) {
	a, err := os.Open(running)
	if err != nil {
		return false, goneOr(err)
	}
	defer a.Close()
	b, err := os.Open(self)
	if err != nil {
		return false, fmt.Errorf("opening this program: %w", err)
	}
	defer b.Close()
	ia, err := a.Stat()
	if err != nil {
		return false, goneOr(err)
	}
	ib, err := b.Stat()
	if err != nil {
		return false, fmt.Errorf("looking at this program: %w", err)
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
				return false, fmt.Errorf("comparing with the program that runs: %w", err)
			}
		}
		if errA != nil {
			return true, nil
		}
	}
}

// flags are those that the predecessor was started with and cmd was not: the
// cluster is to go on as it was.
func (p predecessor) flags(cmd *cobra.Command) []string {
	before := New()
	before.FParseErrWhitelist.UnknownFlags = true // of a later version
	if err := before.ParseFlags(p.args); err != nil {
		return nil
	}
	var out []string
	before.Flags().Visit(func(f *pflag.Flag) {
		if now := cmd.Flags().Lookup(f.Name); now == nil || now.Changed {
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

// replaced returns the process whose place this one is to take, and 0 if there
// is none.
func replaced() int {
	pid, err := strconv.Atoi(os.Getenv(replaceEnv))
	_ = os.Unsetenv(replaceEnv) // fails for a name that is none
	if err != nil {
		return 0
	}
	return pid
}

// endReplaced ends the main process of another build, unless it is not the one
// of the cluster at l any more.
func endReplaced(ctx context.Context, l layout.Node, pid int) error {
	ctx, cancel := context.WithTimeout(ctx, teardown.StopTimeout)
	defer cancel()
	if err := pidlock.End(ctx, pid, func() (int, error) { return pidlock.Holder(l.PIDFile(layout.MainProcess)) }); err != nil {
		return fmt.Errorf("ending process %d to take its place: %w", pid, err)
	}
	return nil
}
