package progress

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"hyperkube/components/cluster/command"
)

// TestJSON checks the objects that `up -o json` prints for steps, messages and results.
func TestJSON(t *testing.T) {
	for _, c := range []struct {
		name string
		run  func(j *JSON)
		want string
	}{
		{"success", func(j *JSON) {
			s := New(j.Show)
			step := s.Begin("etcd")
			time.Sleep(time.Second)
			step.Done("etcd is %s", "ready")
			s.Send(Step{Text: "waiting for DNS", Waiting: true})
			s.Send(Step{Text: "up", Ready: true, Result: &Result{Kubeconfig: "/k", Server: "https://s"}})
			j.Finish(nil, nil)
		}, `{"step":"etcd","state":"started","elapsedSeconds":0}
{"step":"etcd","state":"done","message":"etcd is ready","elapsedSeconds":1,"durationSeconds":1}
{"step":"start","state":"waiting","message":"waiting for DNS","elapsedSeconds":1}
{"step":"start","state":"done","message":"up","elapsedSeconds":1,"durationSeconds":1,"result":{"kubeconfig":"/k","server":"https://s"}}
`},
		{"failure of a step", func(j *JSON) {
			err := command.PreflightError(errors.New("port in use"))
			New(j.Show).Fail(err)
			j.Finish(nil, err)
		}, `{"step":"start","state":"failed","message":"port in use","elapsedSeconds":0,"exitCode":2}` + "\n"},
		{"failure before the first step", func(j *JSON) { j.Finish(&Result{}, errors.New("no luck")) },
			`{"step":"start","state":"failed","message":"no luck","elapsedSeconds":0,"exitCode":1}` + "\n"},
		{"already running", func(j *JSON) {
			fmt.Fprintln(j, "hyperkube is already running")
			fmt.Fprint(j, "in ")
			fmt.Fprint(j, "parts\nrest")
			j.Finish(&Result{Node: "n"}, nil)
		}, `{"step":"start","state":"info","message":"hyperkube is already running","elapsedSeconds":0}
{"step":"start","state":"info","message":"in parts","elapsedSeconds":0}
{"step":"start","state":"done","elapsedSeconds":0,"result":{"kubeconfig":"","server":"","node":"n"}}
`},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var out bytes.Buffer
				c.run(NewJSON(&out))
				if out.String() != c.want {
					t.Errorf("got\n%s\nwant\n%s", out.String(), c.want)
				}
			})
		})
	}
}

// TestSpansAsText checks that the start of a step is not printed as text, and passes between processes.
func TestSpansAsText(t *testing.T) {
	var out, sent bytes.Buffer
	enc := json.NewEncoder(&sent)
	s := New(func(st Step) {
		if err := enc.Encode(st); err != nil {
			t.Error(err)
		}
	})
	s.Begin("etcd").Done("etcd is ready")
	s.Send(Step{Text: "up", Ready: true, Result: &Result{Node: "n"}})
	var last Step
	print := Print(&out)
	if err := receiveSteps(&sent, func(st Step) { print(st); last = st }); err != nil || last.Result == nil || last.Result.Node != "n" {
		t.Errorf("%+v, %v", last, err)
	}
	if lines := strings.Count(out.String(), "\n"); lines != 2 || !strings.HasPrefix(out.String(), "  etcd is ready") {
		t.Errorf("%q", out.String())
	}
}

func TestBar(t *testing.T) {
	for _, c := range []struct {
		done, total int64
		width       int
		want        string
	}{
		{0, 0, 80, "importing app.tar 0.0 MB, 0.0 MB/s"},
		{25e6, 100e6, 80, "importing app.tar [######                  ]  25 % of 100.0 MB, 8.3 MB/s"},
		{200e6, 100e6, 80, "importing app.tar [########################] 100 % of 100.0 MB, 66.7 MB/s"},
		{25e6, 100e6, 50, "importing app.tar  25 % of 100.0 MB, 8.3 MB/s"},
		{25e6, 100e6, 35, "import  25 % of 100.0 MB, 8.3 MB/s"},
	} {
		got := barText("importing app.tar", c.done, c.total, 3*time.Second, c.width)
		if got != c.want || len(got) > c.width {
			t.Errorf("%d of %d, width %d: %q", c.done, c.total, c.width, got)
		}
	}
	// Other outputs than terminals get a line after each interval, and nothing before the first.
	var out bytes.Buffer
	bar := NewBar(&out, "x", 3)
	if n, err := io.Copy(io.Discard, bar.Reader(strings.NewReader("abc"))); n != 3 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
	bar.Set(3, 0)
	bar.Close()
	if out.Len() > 0 || bar.done != 3 {
		t.Errorf("%q after %d bytes", out.String(), bar.done)
	}
	bar = NewBar(&out, "x", 1e6)
	bar.start, bar.shown = bar.start.Add(-lineInterval), bar.shown.Add(-lineInterval)
	bar.Set(5e5, 0)
	bar.Set(6e5, 0)
	bar.Close()
	bar.Set(7e5, 0)
	if want := "x [############            ]  50 % of 1.0 MB, 0.1 MB/s\n"; out.String() != want {
		t.Errorf("without a terminal: %q, want %q", out.String(), want)
	}
}
