// Package progress tells what happens to whoever waits for it: a terminal, the
// process that started this one in the background, or systemd.
package progress

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"hyperkube/components/cluster/command"
)

// Step is one thing that `up` has done, told as it happens.
type Step struct {
	// Text says what was done, e.g. "etcd is ready".
	Text string `json:"text"`
	// At is the time since the start.
	At time.Duration `json:"at"`
	// Took is how long the step itself took; zero: not known.
	Took time.Duration `json:"took,omitempty"`
	// Waiting: nothing was done, and Text says what is waited for.
	Waiting bool `json:"waiting,omitempty"`
	// Ready ends the steps: the cluster is up.
	Ready bool `json:"ready,omitempty"`
	// Error ends the steps: it is not going to be. Code is the exit code.
	Error string `json:"error,omitempty"`
	Code  int    `json:"code,omitempty"`
}

// Steps tells what happens to whoever waits: a terminal or the process that
// started this one. Safe for several goroutines.
type Steps struct {
	mu    sync.Mutex // guards tell
	tell  func(Step)
	start time.Time
}

// New tells steps from now on.
func New(tell func(Step)) *Steps { return &Steps{tell: tell, start: time.Now()} }

// Done tells of a step that began at the given time.
func (s *Steps) Done(began time.Time, format string, args ...any) {
	s.Send(Step{Text: fmt.Sprintf(format, args...), Took: time.Since(began)})
}

// Fail tells that it is not going to be, with the exit code of the error.
func (s *Steps) Fail(err error) {
	s.Send(Step{Error: err.Error(), Code: command.ExitCode(err)})
}

// Send tells a step, at this time.
func (s *Steps) Send(st Step) {
	s.mu.Lock()
	defer s.mu.Unlock()
	st.At = time.Since(s.start)
	s.tell(st)
}

// Print writes a step for people.
func Print(w io.Writer) func(Step) {
	return func(s Step) {
		switch {
		case s.Error != "":
		case s.Waiting:
			fmt.Fprintf(w, "  %s\n", s.Text)
		case s.Ready:
			fmt.Fprintf(w, "%s after %s\n", s.Text, human(s.At))
		default:
			fmt.Fprintf(w, "  %-58s %8s\n", s.Text, human(s.Took))
		}
	}
}

func human(d time.Duration) string {
	if d < time.Second {
		return fmt.Sprintf("%d ms", d.Milliseconds())
	}
	return fmt.Sprintf("%.2f s", d.Seconds())
}

// sendSteps writes steps as JSON lines. A reader that has gone away is no
// error: the cluster comes up all the same.
func sendSteps(f *os.File) func(Step) {
	enc := json.NewEncoder(f)
	return func(s Step) {
		_ = enc.Encode(s)
		if s.Ready || s.Error != "" {
			f.Close()
		}
	}
}

// receiveSteps calls tell for each step until one ends them. The error is that
// of the process, or tells that it ended without a word.
func receiveSteps(r io.Reader, tell func(Step)) error {
	scan := bufio.NewScanner(r)
	for scan.Scan() {
		var s Step
		if err := json.Unmarshal(scan.Bytes(), &s); err != nil {
			return fmt.Errorf("reading what the started process tells: %w", err)
		}
		tell(s)
		if s.Error != "" {
			return command.WithCode(fmt.Errorf("%s", s.Error), s.Code)
		}
		if s.Ready {
			return nil
		}
	}
	if err := scan.Err(); err != nil {
		return fmt.Errorf("reading what the started process tells: %w", err)
	}
	return io.ErrUnexpectedEOF
}
