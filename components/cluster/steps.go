package cluster

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"
)

// step is one thing that `up` has done, told as it happens.
type step struct {
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

// steps tells what happens to whoever waits: a terminal or the process that
// started this one. Safe for several goroutines.
type steps struct {
	mu    sync.Mutex // guards tell
	tell  func(step)
	start time.Time
}

func newSteps(tell func(step)) *steps { return &steps{tell: tell, start: time.Now()} }

// done tells of a step that began at the given time.
func (s *steps) done(began time.Time, format string, args ...any) {
	s.send(step{Text: fmt.Sprintf(format, args...), Took: time.Since(began)})
}

// fail tells that it is not going to be, with the exit code of the error.
func (s *steps) fail(err error) {
	code := ExitGeneral
	if coded, ok := errors.AsType[codedError](err); ok {
		code = coded.code
	}
	s.send(step{Error: err.Error(), Code: code})
}

func (s *steps) send(st step) {
	s.mu.Lock()
	defer s.mu.Unlock()
	st.At = time.Since(s.start)
	s.tell(st)
}

// printStep writes a step for people.
func printStep(w io.Writer) func(step) {
	return func(s step) {
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
func sendSteps(f *os.File) func(step) {
	enc := json.NewEncoder(f)
	return func(s step) {
		_ = enc.Encode(s)
		if s.Ready || s.Error != "" {
			f.Close()
		}
	}
}

// receiveSteps calls tell for each step until one ends them. The error is that
// of the process, or tells that it ended without a word.
func receiveSteps(r io.Reader, tell func(step)) error {
	scan := bufio.NewScanner(r)
	for scan.Scan() {
		var s step
		if err := json.Unmarshal(scan.Bytes(), &s); err != nil {
			return fmt.Errorf("reading what the started process tells: %w", err)
		}
		tell(s)
		if s.Error != "" {
			return codedError{fmt.Errorf("%s", s.Error), s.Code}
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
