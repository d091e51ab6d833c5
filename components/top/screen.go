package top

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/term"

	"hyperkube/internal/serving/metricshistory"
)

// Control sequences of terminals.
const (
	enterScreen = "\x1b[?1049h\x1b[?25l" // the alternate screen, without a cursor
	leaveScreen = "\x1b[?25h\x1b[?1049l"
	moveHome    = "\x1b[H"
	clearLine   = "\x1b[K"
	clearBelow  = "\x1b[J"
)

// chartRange is the time that the charts in the rows cover.
const chartRange = 10 * time.Minute

// requestTimeout is the timeout of a request to the API server.
const requestTimeout = 10 * time.Second

// screen shows a view until the user quits.
type screen struct {
	view   *view
	source source
	style  style
	// out is the terminal. size returns its width and height in characters.
	out  io.Writer
	size func() (width, height int)
	// keys are the names of the keys that the user presses. It is closed if the terminal is.
	keys <-chan string
	// resized receives a value when the size of the terminal changes.
	resized <-chan os.Signal
}

// response is the result of a request for the data of a view. number is that of the request.
type response struct {
	number       int
	items        []metricshistory.History
	controlPlane *metricshistory.History
	err          error
}

// run shows the view, and requests new data after each sample, until the user quits, the terminal is closed or ctx is done.
func (s *screen) run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	var working sync.WaitGroup
	defer working.Wait()
	defer cancel()
	responses := make(chan response)
	number := 0
	load := func() {
		number++
		n, what := number, *s.view // the fields that load reads do not change
		working.Go(func() {
			select {
			case responses <- s.load(ctx, n, &what):
			case <-ctx.Done():
			}
		})
	}
	load()
	for {
		if err := s.draw(); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-s.resized:
		case <-time.After(untilSample(time.Now())):
			load()
		case r := <-responses:
			if r.number == number {
				s.show(r)
			}
		case key, ok := <-s.keys:
			if !ok {
				return nil
			}
			_, height := s.size()
			switch s.view.press(key, max(height-3, 1)) {
			case quit:
				return nil
			case reload:
				load()
			case redraw:
			}
		}
	}
}

// untilSample returns the time from now until the next sample is stored, which takes the servers up to 2 seconds.
func untilSample(now time.Time) time.Duration {
	const delay = 2 * time.Second
	return metricshistory.HourStep - time.Duration(now.Add(-delay).UnixNano()%int64(metricshistory.HourStep))
}

// load requests the data that the view v shows.
func (s *screen) load(ctx context.Context, number int, v *view) response {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	out := response{number: number}
	if o := v.detail; o != nil {
		var one metricshistory.History
		if one, out.err = s.source.get(ctx, o.resource, o.namespace, o.name, metricshistory.HourRange); out.err == nil {
			out.items = []metricshistory.History{one}
		}
		return out
	}
	namespace := v.namespace
	if v.resource == metricshistory.Nodes {
		namespace = ""
		// The header without the control plane is still useful, for example if the user may not read it.
		if list, err := s.source.list(ctx, metricshistory.ControlPlanes, "", metricshistory.HourStep*2); err == nil && len(list) > 0 {
			out.controlPlane = &list[0]
		}
	}
	out.items, out.err = s.source.list(ctx, v.resource, namespace, chartRange)
	return out
}

// show adds a response to the view. After an error, the previous data stays.
func (s *screen) show(r response) {
	if r.err != nil {
		s.view.problem = r.err.Error()
		return
	}
	s.view.problem, s.view.controlPlane = "", r.controlPlane
	s.view.setItems(r.items)
}

// draw writes the view to the terminal.
func (s *screen) draw() error {
	width, height := s.size()
	lines := s.view.render(s.style, width, height, time.Now())
	var out strings.Builder
	out.WriteString(moveHome)
	for i, line := range lines[:len(lines)-1] {
		if i > 0 {
			out.WriteString("\r\n")
		}
		out.WriteString(line + clearLine)
	}
	// The last line is at the bottom.
	fmt.Fprintf(&out, "%s\x1b[%d;1H%s%s", clearBelow, height, lines[len(lines)-1], clearLine)
	if _, err := io.WriteString(s.out, out.String()); err != nil {
		return fmt.Errorf("writing to the terminal: %w", err)
	}
	return nil
}

// runOnTerminal shows the view on the terminal of the process. It restores the terminal before it returns.
func runOnTerminal(ctx context.Context, v *view, from source, st style) (err error) {
	// The file is opened again, so that a read can be interrupted.
	tty, err := os.OpenFile("/dev/tty", os.O_RDWR|syscall.O_NONBLOCK, 0)
	if err != nil {
		return fmt.Errorf("opening the terminal, use --once without a terminal: %w", err)
	}
	// The method Fd would set the file to blocking mode, in which a read cannot be interrupted.
	fd := 0
	raw, err := tty.SyscallConn()
	if err == nil {
		err = raw.Control(func(n uintptr) { fd = int(n) })
	}
	if err != nil {
		_ = tty.Close()
		return fmt.Errorf("opening the terminal: %w", err)
	}
	before, err := term.MakeRaw(fd)
	if err != nil {
		_ = tty.Close()
		return fmt.Errorf("changing the mode of the terminal: %w", err)
	}
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGHUP, syscall.SIGQUIT)
	defer stop()
	resized := make(chan os.Signal, 1)
	signal.Notify(resized, syscall.SIGWINCH)
	defer signal.Stop(resized)
	keys := make(chan string)
	ctx, cancel := context.WithCancel(ctx)
	var reading sync.WaitGroup
	reading.Go(func() { readKeys(ctx, tty, keys) })
	_, err = io.WriteString(tty, enterScreen)
	defer func() {
		// Errors mean that the terminal is closed.
		_, _ = io.WriteString(tty, leaveScreen)
		_ = term.Restore(fd, before)
		cancel()
		_ = tty.Close()
		reading.Wait()
	}()
	if err != nil {
		return fmt.Errorf("writing to the terminal: %w", err)
	}
	s := &screen{view: v, source: from, style: st, out: tty, keys: keys, resized: resized, size: func() (int, int) {
		width, height, err := term.GetSize(fd)
		if err != nil || width < 1 || height < 1 {
			return 80, 24
		}
		return width, height
	}}
	return s.run(ctx)
}

// readKeys sends the keys that are read from tty until it is closed or ctx is done, and then closes keys.
func readKeys(ctx context.Context, tty io.Reader, keys chan<- string) {
	defer close(keys)
	buffer := make([]byte, 64)
	for {
		n, err := tty.Read(buffer)
		for _, key := range decodeKeys(buffer[:n]) {
			select {
			case keys <- key:
			case <-ctx.Done():
				return
			}
		}
		if err != nil {
			return
		}
	}
}
