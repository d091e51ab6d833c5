package progress

import (
	"bytes"
	"encoding/json"
	"io"
	"strings"
	"sync"
	"time"

	"hyperkube/components/cluster/command"
)

// JSON writes steps as JSON, one object per line. It is also a writer for text, of which each line becomes an object. It is
// safe for concurrent use.
type JSON struct {
	start time.Time

	mu       sync.Mutex // guards the fields below
	w        io.Writer
	rest     []byte // text without a newline yet
	finished bool   // the last step has been written
}

// event is an object in the output of JSON.
type event struct {
	// Step is the name of the step; the step "start" is the whole start.
	Step string `json:"step"`
	// State is started, waiting, done or failed, or info for a message.
	State   string `json:"state"`
	Message string `json:"message,omitempty"`
	// Elapsed is the time since the start, Duration that of the step, in seconds.
	Elapsed  float64 `json:"elapsedSeconds"`
	Duration float64 `json:"durationSeconds,omitempty"`
	// ExitCode is the exit code of the command, if the state is failed.
	ExitCode int `json:"exitCode,omitempty"`
	// Result is set in the last object of a successful start.
	Result *Result `json:"result,omitempty"`
}

// wholeStart is the name of the step that stands for the whole start.
const wholeStart = "start"

// NewJSON returns a JSON that writes to w. The start time is now.
func NewJSON(w io.Writer) *JSON { return &JSON{start: time.Now(), w: w} }

// Show writes a step. Pass it to New.
func (j *JSON) Show(s Step) {
	e := event{Step: s.Name, State: "done", Message: s.Text, Elapsed: s.At.Seconds(), Duration: s.Took.Seconds(), Result: s.Result}
	switch {
	case s.Error != "":
		e.Step, e.State, e.Message, e.ExitCode = wholeStart, "failed", s.Error, s.Code
	case s.Ready:
		e.Step, e.Duration = wholeStart, e.Elapsed
	case s.Started:
		e.State = "started"
	case s.Waiting:
		e.State = "waiting"
	}
	if e.Step == "" {
		e.Step = wholeStart
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.finished = j.finished || s.Error != "" || s.Ready
	j.write(e)
}

// Finish writes the last step, unless it has been written: err if it is not nil, and otherwise result.
func (j *JSON) Finish(result *Result, err error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.finished {
		return
	}
	j.finished = true
	e := event{Step: wholeStart, State: "done", Elapsed: time.Since(j.start).Seconds(), Result: result}
	if err != nil {
		e.State, e.Message, e.ExitCode, e.Result = "failed", err.Error(), command.ExitCode(err), nil
	}
	j.write(e)
}

// Write writes each line of text as a message.
func (j *JSON) Write(text []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.rest = append(j.rest, text...)
	for {
		line, rest, found := bytes.Cut(j.rest, []byte("\n"))
		if !found {
			return len(text), nil
		}
		j.rest = rest
		if message := strings.TrimSpace(string(line)); message != "" {
			j.write(event{Step: wholeStart, State: "info", Message: message, Elapsed: time.Since(j.start).Seconds()})
		}
	}
}

// write writes e. The caller must hold mu. Errors are ignored, because the start continues without a reader.
func (j *JSON) write(e event) { _ = json.NewEncoder(j.w).Encode(e) }
