package main

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
	"time"
)

// measure is a measurement with a number of pods.
type measure struct {
	*bench
	*servers
	// pods is the number of pods, encoded the total size of their values in bytes.
	pods, encoded int
}

// all runs the parts of the measurement. The start and the memory at rest are always measured.
func (m *measure) all(ctx context.Context) error {
	fmt.Printf("%d pods of %d bytes, API server alone\n", m.pods, m.encoded/m.pods)
	for _, part := range []struct {
		name string
		run  func(context.Context) error
	}{
		{"start", m.warmStart}, {"list", m.listPages}, {"select", m.selected}, {"informers", m.informers},
		{"watch", m.watch}, {"slow", m.slow}, {"rest", m.atRest},
	} {
		if part.name != "start" && part.name != "rest" && !m.wants(part.name) {
			continue
		}
		if err := part.run(ctx); err != nil {
			return fmt.Errorf("%s: %w", part.name, err)
		}
	}
	return nil
}

// printLine prints one line of the result: what was measured, and a formatted value.
func (m *measure) printLine(what, format string, args ...any) {
	fmt.Printf("  %-44s %s\n", what, fmt.Sprintf(format, args...))
}

// usage is the resource usage of a process.
type usage struct {
	anonymous, pss int // in bytes
	cpu            time.Duration
}

// String returns the anonymous memory as text.
func (u usage) String() string { return fmt.Sprintf("%d MB anonymous", u.anonymous/1e6) }

// usageOf returns the memory and the CPU time of a process.
func usageOf(pid int) (usage, error) {
	var u usage
	rollup, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if err != nil {
		return u, err
	}
	for line := range strings.SplitSeq(string(rollup), "\n") {
		fields := strings.Fields(line)
		if len(fields) != 3 {
			continue
		}
		kb, _ := strconv.Atoi(fields[1])
		switch fields[0] {
		case "Anonymous:":
			u.anonymous = kb << 10
		case "Pss:":
			u.pss = kb << 10
		}
	}
	u.cpu = cpuOf(pid)
	return u, nil
}

// cpuOf returns the CPU time that a process has used so far, or zero if it cannot be read.
func cpuOf(pid int) time.Duration {
	stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	i := bytes.LastIndexByte(stat, ')')
	if i < 0 {
		return 0
	}
	fields := strings.Fields(string(stat[i+1:]))
	user, _ := strconv.Atoi(fields[11])
	system, _ := strconv.Atoi(fields[12])
	return time.Duration(user+system) * 10 * time.Millisecond
}

// settle is the delay before the memory of a server is measured.
const settle = 5 * time.Second

// resting is the delay after which a server is idle.
const resting = 30 * time.Second

// memory prints the memory usage of the API server after a delay.
func (m *measure) memory(what string, after time.Duration) error {
	time.Sleep(after)
	u, err := usageOf(m.api.Process.Pid)
	if err != nil {
		return err
	}
	m.printLine(what, "%v, %.2f times the encoded pods", u, float64(u.anonymous)/float64(m.encoded))
	return m.heap(what)
}

// heap writes a heap profile of the API server to the working directory, if -profile is set.
func (m *measure) heap(what string) error {
	if !m.profile {
		return nil
	}
	data, err := m.kube.CoreV1().RESTClient().Get().AbsPath("/debug/pprof/heap").DoRaw(context.Background())
	if err != nil {
		return err
	}
	return os.WriteFile(fmt.Sprintf("heap-%d-%s.pprof", m.pods, strings.ReplaceAll(what, " ", "-")), data, 0o644)
}

// page requests one page of a list of pods with query parameters and discards it. It returns the duration, the continue
// token, and the size in bytes.
func (m *measure) page(ctx context.Context, query map[string]string) (took time.Duration, next string, size int, err error) {
	req := m.kube.CoreV1().RESTClient().Get().Namespace(namespace).Resource("pods")
	for k, v := range query {
		req = req.Param(k, v)
	}
	began := time.Now()
	data, err := req.DoRaw(ctx)
	took = time.Since(began)
	if err != nil {
		return 0, "", 0, err
	}
	next, err = continueOf(data)
	return took, next, len(data), err
}

// warmStart starts the API server with the existing data, and measures the time until it is ready and has returned the
// first page of a list.
func (m *measure) warmStart(ctx context.Context) error {
	began := time.Now()
	if err := m.startAPI(ctx); err != nil {
		return err
	}
	ready := time.Since(began)
	if _, _, _, err := m.page(ctx, map[string]string{"limit": "500"}); err != nil {
		return err
	}
	m.printLine("start with existing data: ready, first page", "%v, %v, CPU %v", ready.Round(time.Millisecond),
		time.Since(began).Round(time.Millisecond), cpuOf(m.api.Process.Pid))
	err := m.memory("memory after the start", settle)
	return err
}

// atRest measures the memory after an idle period.
func (m *measure) atRest(context.Context) error {
	err := m.memory("memory at rest", resting)
	return err
}

// listPages lists all pods in pages of 500 and measures each.
func (m *measure) listPages(ctx context.Context) error {
	for _, accept := range []string{"protobuf"} {
		var took []time.Duration
		before := cpuOf(m.api.Process.Pid)
		query := map[string]string{"limit": "500"}
		pages := 0
		for {
			t, next, _, err := m.page(ctx, query)
			if err != nil {
				return err
			}
			took = append(took, t)
			pages++
			if next == "" {
				break
			}
			query["continue"] = next
		}
		cpu := cpuOf(m.api.Process.Pid) - before
		m.printLine("LIST in pages of 500, "+accept, "%s, server CPU %.2f ms a page", spread(took), cpu.Seconds()*1e3/float64(pages))
	}
	err := m.memory("memory after that", settle)
	return err
}

// selected measures lists of pods with field selectors, such as those of kubelets: each up to 50 times or for ten
// seconds.
func (m *measure) selected(ctx context.Context) error {
	for _, selector := range []string{"spec.nodeName=node-0007", "spec.nodeName=node-0007,status.phase=Pending", "status.phase=Running"} {
		var took []time.Duration
		size := 0
		before := cpuOf(m.api.Process.Pid)
		const times = 50
		began := time.Now()
		for range times {
			t, _, n, err := m.page(ctx, map[string]string{"fieldSelector": selector})
			if err != nil {
				return err
			}
			took, size = append(took, t), n
			if time.Since(began) > 10*time.Second {
				break
			}
		}
		cpu := cpuOf(m.api.Process.Pid) - before
		m.printLine("LIST by "+selector, "%d kB, %s, server CPU %.2f ms", size/1000, spread(took), cpu.Seconds()*1e3/float64(len(took)))
	}
	return nil
}

// spread returns the 50th and 99th percentile of durations as text. It sorts them.
func spread(took []time.Duration) string {
	slices.Sort(took)
	at := func(p int) time.Duration {
		return took[min(len(took)*p/100, len(took)-1)].Round(100 * time.Microsecond)
	}
	return fmt.Sprintf("p50 %v, p99 %v", at(50), at(99))
}

// informers measures ten clients that sync concurrently, like after a restart of the API server.
func (m *measure) informers(ctx context.Context) error {
	const n = 10
	before, err := usageOf(m.api.Process.Pid)
	if err != nil {
		return err
	}
	stop := make(chan struct{})
	peak := make(chan int)
	go func() {
		most := 0
		for {
			select {
			case <-stop:
				peak <- most
				return
			case <-time.After(20 * time.Millisecond):
				if u, err := usageOf(m.api.Process.Pid); err == nil {
					most = max(most, u.anonymous)
				}
			}
		}
	}()
	began := time.Now()
	done := make(chan error, n)
	for range n {
		go func() { done <- m.sync(ctx) }()
	}
	for range n {
		err = errors.Join(err, <-done)
	}
	took := time.Since(began)
	close(stop)
	most := <-peak
	if err != nil {
		return err
	}
	after, err := usageOf(m.api.Process.Pid)
	if err != nil {
		return err
	}
	m.printLine("ten concurrent informer syncs", "%v, server CPU %v, peak memory %+.1f %% (%d MB)", took.Round(time.Millisecond),
		(after.cpu - before.cpu).Round(time.Millisecond), 100*float64(most-before.anonymous)/float64(before.anonymous), most/1e6)
	err = m.memory("memory after that", settle)
	return err
}

// sync reads the initial events of a watch, like an informer, and discards them.
func (m *measure) sync(ctx context.Context) error {
	w, err := m.open(ctx, map[string]string{
		"watch": "1", "sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan", "allowWatchBookmarks": "true",
	})
	if err != nil {
		return err
	}
	defer w.Close()
	frames := newFrames(w)
	for {
		frame, err := frames.next()
		if err != nil {
			return err
		}
		if eventType(frame) == "BOOKMARK" {
			return nil
		}
	}
}

// open starts a watch of pods over a separate connection.
func (m *measure) open(ctx context.Context, query map[string]string) (io.ReadCloser, error) {
	kube, err := m.client()
	if err != nil {
		return nil, err
	}
	req := kube.CoreV1().RESTClient().Get().Namespace(namespace).Resource("pods").
		SetHeader("Accept", "application/vnd.kubernetes.protobuf;stream=watch")
	for k, v := range query {
		req = req.Param(k, v)
	}
	return req.Stream(ctx)
}
