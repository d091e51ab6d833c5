package top

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"math"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"hyperkube/internal/serving/metricshistory"
)

// rewrite makes TestTranscript write testdata instead of comparing it.
var rewrite = flag.Bool("rewrite", false, "write testdata")

// fakeSource has histories that depend on the time. It is safe for concurrent use.
type fakeSource struct {
	mu  sync.Mutex
	err error
	// namespaces are those of the requests.
	namespaces []string
}

func (f *fakeSource) fail(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.err = err
}

// wave returns n samples between 0 and most.
func wave(n int, most float64) metricshistory.Values {
	out := metricshistory.Values{}
	for i := range n {
		out = append(out, float32(most*(1+math.Sin(float64(i)/3))/2))
	}
	return out
}

func usage(name, namespace string, cpu, memory float64) metricshistory.History {
	h := metricshistory.History{StepSeconds: 15, Series: map[string]metricshistory.Series{
		metricshistory.CPU: {Values: append(wave(39, cpu), float32(cpu))}, metricshistory.Memory: {Values: append(wave(39, memory), float32(memory))},
		metricshistory.NetworkReceive: {Values: wave(40, 5000)}, metricshistory.NetworkTransmit: {Values: wave(40, 2e6)},
	}}
	h.Name, h.Namespace, h.Start.Time = name, namespace, time.Now().Add(-10*time.Minute)
	return h
}

func (f *fakeSource) list(_ context.Context, resource, namespace string, _ time.Duration) ([]metricshistory.History, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err != nil {
		return nil, f.err
	}
	f.namespaces = append(f.namespaces, namespace)
	switch resource {
	case metricshistory.Nodes:
		var out []metricshistory.History
		for i, name := range []string{"node-1", "node-2"} {
			h := usage(name, "", 0.5+float64(i), 2e9)
			h.Capacity = map[string]float64{metricshistory.CPU: 2, metricshistory.Memory: 4e9}
			h.Series[metricshistory.FilesystemUsed] = metricshistory.Series{Values: metricshistory.Values{9e9}}
			h.Series[metricshistory.FilesystemCapacity] = metricshistory.Series{Values: metricshistory.Values{1e10}}
			out = append(out, h)
		}
		return out, nil
	case metricshistory.ControlPlanes:
		h := usage("node-1", "", 0.01, 130e6)
		h.Series[metricshistory.Requests] = metricshistory.Series{Values: metricshistory.Values{4.25}}
		h.Series[metricshistory.Latency] = metricshistory.Series{Values: metricshistory.Values{0.0012}}
		h.Series[metricshistory.DatabaseSize] = metricshistory.Series{Values: metricshistory.Values{5e6}}
		return []metricshistory.History{h}, nil
	}
	var out []metricshistory.History
	for i := range 12 {
		one := usage(fmt.Sprintf("web-%d", i), "default", 0.1+float64(i)/100, float64(1200-100*i)*1e6)
		one.Series[metricshistory.Restarts] = metricshistory.Series{Values: metricshistory.Values{float32(i)}}
		out = append(out, one)
	}
	deleted := usage("deleted", "default", 9, 9e9)
	nan := float32(math.NaN())
	for name, s := range deleted.Series {
		deleted.Series[name] = metricshistory.Series{Values: append(s.Values, nan, nan)}
	}
	out = append(out, deleted, usage("dns", "kube-system", 0.002, 3e7))
	return slices.DeleteFunc(out, func(h metricshistory.History) bool { return namespace != "" && h.Namespace != namespace }), nil
}

func (f *fakeSource) get(ctx context.Context, resource, namespace, name string, length time.Duration) (metricshistory.History, error) {
	list, err := f.list(ctx, resource, namespace, length)
	for i := range list {
		if list[i].Name == name {
			return list[i], nil
		}
	}
	return metricshistory.History{}, errors.Join(err, errors.New("not found"))
}

// terminal shows the last frame as text.
type terminal struct {
	mu     sync.Mutex
	frame  string
	width  int
	height int
}

func (t *terminal) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.frame = string(p)
	return len(p), nil
}

func (t *terminal) size() (int, int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.width, t.height
}

func (t *terminal) resize(width, height int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.width, t.height = width, height
}

// text returns the frame without control sequences. The selected row is in brackets.
func (t *terminal) text() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	text := regexp.MustCompile("\x1b\\[7m(.*?)\x1b\\[0m").ReplaceAllString(t.frame, "[$1]")
	text = regexp.MustCompile("\x1b\\[[0-9;]*H").ReplaceAllString(text, "\n")
	text = strings.ReplaceAll(regexp.MustCompile("\x1b\\[[0-9;?]*[a-zA-Z]").ReplaceAllString(text, ""), "\r", "")
	var out []string
	for line := range strings.SplitSeq(strings.TrimPrefix(text, "\n"), "\n") {
		out = append(out, strings.TrimRight(line, " "))
	}
	return strings.Join(out, "\n")
}

// TestTranscript runs keys against a screen with a fake clock, and compares the screens with testdata/transcript.txt.
func TestTranscript(t *testing.T) {
	var got strings.Builder
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(20 * time.Second)
		from := &fakeSource{}
		term := &terminal{width: 100, height: 10}
		keys, resized := make(chan string), make(chan os.Signal)
		s := &screen{
			view: &view{resource: metricshistory.Nodes, order: byCPU}, source: from, style: style{glyphs: newGlyphs(true)},
			out: term, size: term.size, keys: keys, resized: resized,
		}
		done := make(chan error, 1)
		go func() { done <- s.run(t.Context()) }()
		show := func(what string) {
			synctest.Wait()
			fmt.Fprintf(&got, "=== %s\n%s\n\n", what, term.text())
		}
		press := func(names ...string) {
			for _, name := range names {
				keys <- name
			}
			show("press " + strings.Join(names, " "))
		}
		show("start")
		press("?")
		press("x")
		press("p")
		press("down", "j", "pagedown")
		press("s")
		press("s")
		press("G")
		press("enter")
		press("esc")
		press("n", "k", "u", "b", "_", "e", "x", "backspace", "-", "s", "y")
		press("esc")
		press("n", "d", "e", "f", "a", "u", "l", "t", "enter")
		from.fail(errors.New("connection refused"))
		time.Sleep(15 * time.Second)
		show("15 seconds later, without an API server")
		from.fail(nil)
		time.Sleep(15 * time.Second)
		show("15 seconds later")
		term.resize(40, 6)
		resized <- os.Interrupt
		show("resize to 40 by 6")
		term.resize(130, 8)
		resized <- os.Interrupt
		show("resize to 130 by 8")
		keys <- "q"
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	const file = "testdata/transcript.txt"
	if *rewrite {
		if err := os.WriteFile(file, []byte(got.String()), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil || got.String() != string(want) {
		t.Errorf("the screens differ from %s (%v), run the test with -rewrite and review the difference:\n%s", file, err, got.String())
	}
}

// TestQuit checks each way in which a screen ends: a key, a closed terminal, a canceled context, a failed write.
func TestQuit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		run := func(out interface{ Write([]byte) (int, error) }, act func(keys chan string, cancel func())) error {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			keys := make(chan string)
			s := &screen{
				view: &view{resource: metricshistory.Pods, order: byName}, source: &fakeSource{}, style: style{glyphs: newGlyphs(false), color: true},
				out: out, size: func() (int, int) { return 1, 1 }, keys: keys,
			}
			done := make(chan error, 1)
			go func() { done <- s.run(ctx) }()
			synctest.Wait()
			act(keys, cancel)
			return <-done
		}
		for name, act := range map[string]func(keys chan string, cancel func()){
			"ctrl+c":             func(keys chan string, _ func()) { keys <- "ctrl+c" },
			"ctrl+c in a prompt": func(keys chan string, _ func()) { keys <- "n"; keys <- "ctrl+c" },
			"closed terminal":    func(keys chan string, _ func()) { close(keys) },
			"canceled":           func(_ chan string, cancel func()) { cancel() },
		} {
			if err := run(&terminal{}, act); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		broken, err := os.Open(os.DevNull)
		if err != nil {
			t.Fatal(err)
		}
		defer broken.Close()
		if err := run(broken, func(chan string, func()) {}); err == nil {
			t.Error("a failed write is not an error")
		}
	})
}

func TestOnce(t *testing.T) {
	for _, test := range []struct {
		view *view
		want string
	}{
		{&view{resource: metricshistory.Nodes, order: byCPU}, `NAME     CPU    CPU%   MEMORY   MEMORY%   DISK    DISK%   RECEIVE    SEND
node-2   1.50   75%    1.9Gi    50%       8.4Gi   90%     3.5Ki/s    1.4Mi/s
node-1   500m   25%    1.9Gi    50%       8.4Gi   90%     3.5Ki/s    1.4Mi/s
`},
		{&view{resource: metricshistory.Pods, namespace: "kube-system", order: byCPU}, `NAMESPACE     NAME   CPU   MEMORY   RECEIVE   SEND      RESTARTS
kube-system   dns    2m    29Mi     3.5Ki/s   1.4Mi/s   -
`},
		{&view{resource: metricshistory.Pods, order: byCPU, detail: &object{metricshistory.Pods, "default", "web-3"}}, `METRIC     NOW       MAXIMUM
CPU        130m      130m
Memory     858Mi     858Mi
Received   3.5Ki/s   4.9Ki/s
Sent       1.4Mi/s   1.9Mi/s
Restarts   3         3
`},
	} {
		var out bytes.Buffer
		if err := printOnce(t.Context(), &out, test.view, &fakeSource{}); err != nil {
			t.Fatal(err)
		}
		if strings.Join(strings.Fields(out.String()), " ") != strings.Join(strings.Fields(test.want), " ") {
			t.Errorf("got\n%s", out.String())
		}
	}
	if err := printOnce(t.Context(), &bytes.Buffer{}, &view{resource: metricshistory.Pods, detail: &object{metricshistory.Pods, "default", "none"}}, &fakeSource{}); err == nil {
		t.Error("an unknown pod is not an error")
	}
}

func TestDecodeKeys(t *testing.T) {
	for input, want := range map[string]string{
		"q": "q", "jk": "j k", "\x1b[A\x1bOB": "up down", "\x1b": "esc", "\x1b[5~\x1b[6~": "pageup pagedown", "\r": "enter", "\x7f": "backspace",
		"\x03": "ctrl+c", "\x1b[1;5C": "", "\x1b[": "", "ä": "ä", "\x01": "",
	} {
		if got := strings.Join(decodeKeys([]byte(input)), " "); got != want {
			t.Errorf("%q: got %q, want %q", input, got, want)
		}
	}
}

func TestFormat(t *testing.T) {
	nan := float32(math.NaN())
	for got, want := range map[string]string{
		formatCPU(0.0004): "0m", formatCPU(0.25): "250m", formatCPU(0.9999): "1.00", formatCPU(12.345): "12.35", formatCPU(nan): "-",
		formatBytes(0): "0", formatBytes(999): "999", formatBytes(1000): "1.0Ki", formatBytes(1.5 * 1024 * 1024): "1.5Mi", formatBytes(2e15): "1819Ti", formatBytes(nan) + "": "-",
		formatRate(2048): "2Ki/s", formatSeconds(0.0012): "1.2ms", formatSeconds(2): "2s", formatPercent(1, 4): "25%", formatPercent(1, 0) + "": "-",
		newGlyphs(true).bar(0.5, 4): "██··", newGlyphs(false).bar(2, 4): "####", newGlyphs(true).bar(nan, 2): "  ",
		newGlyphs(true).sparkline(metricshistory.Values{0, 1, nan, 8}, 6, 0): "  ▁▁ █", newGlyphs(true).sparkline(metricshistory.Values{1, 2, 3, 4}, 2, 4): "▄█",
	} {
		if got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	for env, want := range map[string]bool{"": true, "LANG=C": false, "LANG=en_US.UTF-8": true, "LC_ALL=C LANG=en_US.utf8": false} {
		getenv := func(name string) string {
			for setting := range strings.FieldsSeq(env) {
				if key, value, _ := strings.Cut(setting, "="); key == name {
					return value
				}
			}
			return ""
		}
		if got := usesUTF8(getenv); got != want {
			t.Errorf("%q: got %t", env, got)
		}
	}
}
