// Package progress reports the progress of a start to a terminal, to the process that started this
// one in the background, or to systemd.
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

// Step is a progress message about the start of a node, usually that a step has completed.
type Step struct {
	// Name identifies the step for programs, e.g. "etcd". It may be empty.
	Name string `json:"name,omitempty"`
	// Text describes the step, e.g. "etcd is ready".
	Text string `json:"text"`
	// Started means that the step begins. Text is empty.
	Started bool `json:"started,omitempty"`
	// At is the time since the start.
	At time.Duration `json:"at"`
	// Took is the duration of the step; 0 if unknown.
	Took time.Duration `json:"took,omitempty"`
	// Waiting means that Text describes what the start is waiting for, not a completed step.
	Waiting bool `json:"waiting,omitempty"`
	// Ready marks the last step of a successful start. Result is set then; it may be nil.
	Ready  bool    `json:"ready,omitempty"`
	Result *Result `json:"result,omitempty"`
	// Error marks the last step of a failed start. Code is the exit code.
	Error string `json:"error,omitempty"`
	Code  int    `json:"code,omitempty"`
}

// Result describes how to access a cluster that has started.
type Result struct {
	// Kubeconfig is the path of the administrator's kubeconfig, Server the URL of the API server.
	Kubeconfig string `json:"kubeconfig"`
	Server     string `json:"server"`
	// Node is the name of the node.
	Node string `json:"node,omitempty"`
}

// Steps reports steps to a terminal or to the process that started this one. It is safe for
// concurrent use.
type Steps struct {
	mu    sync.Mutex // serializes calls of send
	send  func(Step)
	start time.Time
}

// New returns Steps that pass each step to send. The start time is now.
func New(send func(Step)) *Steps { return &Steps{send: send, start: time.Now()} }

// Done reports a completed step, whose formatted text is its description. began is the time at which the step started.
func (s *Steps) Done(began time.Time, format string, args ...any) {
	s.Send(Step{Text: fmt.Sprintf(format, args...), Took: time.Since(began)})
}

// Begin reports that the step called name begins, and returns it.
func (s *Steps) Begin(name string) Span {
	s.Send(Step{Name: name, Started: true})
	return Span{s, name, time.Now()}
}

// Span is a step that has begun.
type Span struct {
	steps *Steps
	name  string
	began time.Time
}

// Done reports that the step has completed. The formatted text is its description.
func (s Span) Done(format string, args ...any) {
	s.steps.Send(Step{Name: s.name, Text: fmt.Sprintf(format, args...), Took: time.Since(s.began)})
}

// Fail reports that the start has failed with err, as the last step.
func (s *Steps) Fail(err error) {
	s.Send(Step{Error: err.Error(), Code: command.ExitCode(err)})
}

// Send sets st.At to the time since the start and passes st to the function that New has received.
func (s *Steps) Send(st Step) {
	s.mu.Lock()
	defer s.mu.Unlock()
	st.At = time.Since(s.start)
	s.send(st)
}

// Print returns a function for New that writes each step as a line of text to w. It does not write errors, which the
// command prints.
func Print(w io.Writer) func(Step) {
	return func(s Step) {
		switch {
		case s.Error != "", s.Started:
		case s.Waiting:
			fmt.Fprintf(w, "  %s\n", s.Text)
		case s.Ready:
			fmt.Fprintf(w, "%s after %s\n", s.Text, formatDuration(s.At))
		default:
			fmt.Fprintf(w, "  %-58s %8s\n", s.Text, formatDuration(s.Took))
		}
	}
}

// formatDuration formats a duration in milliseconds or, from one second on, in seconds.
func formatDuration(d time.Duration) string {
	if d < time.Second {
		return fmt.Sprintf("%d ms", d.Milliseconds())
	}
	return fmt.Sprintf("%.2f s", d.Seconds())
}

// sendSteps returns a function that writes steps as JSON lines to f. Write errors are ignored,
// because the start continues without a reader.
func sendSteps(f *os.File) func(Step) {
	enc := json.NewEncoder(f)
	return func(s Step) {
		_ = enc.Encode(s)
		if s.Ready || s.Error != "" {
			f.Close()
		}
	}
}

// receiveSteps calls send for each step until the last one. It returns the error of a failed start,
// or io.ErrUnexpectedEOF if the process exited without a last step.
func receiveSteps(r io.Reader, send func(Step)) error {
	scan := bufio.NewScanner(r)
	for scan.Scan() {
		var s Step
		if err := json.Unmarshal(scan.Bytes(), &s); err != nil {
			return fmt.Errorf("reading the steps of the background process: %w", err)
		}
		send(s)
		if s.Error != "" {
			return command.WithCode(fmt.Errorf("%s", s.Error), s.Code)
		}
		if s.Ready {
			return nil
		}
	}
	if err := scan.Err(); err != nil {
		return fmt.Errorf("reading the steps of the background process: %w", err)
	}
	return io.ErrUnexpectedEOF
}
