package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

const (
	// writes per second, and the duration of writing
	writeRate = 500
	writing   = 5 * time.Second
	// perConnection is the number of watches that share a connection.
	perConnection = 100
	// everything is the number of watchers without a selector.
	everything = 10
)

// client returns a client with a separate connection.
func (m *measure) client() (kubernetes.Interface, error) {
	cfg := rest.CopyConfig(m.rest)
	// A proxy function prevents client-go from sharing the connection.
	cfg.Proxy = http.ProxyFromEnvironment
	return kubernetes.NewForConfig(cfg)
}

// follower contains the measurements of one watcher.
type follower struct {
	seen atomic.Int64
	mu   sync.Mutex
	took []time.Duration
}

// watch measures writes of pods with many watchers, of which all but a few select the pods of one node. It returns an
// error if a watcher without a selector has missed an event.
func (m *measure) watch(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	before, err := usageOf(m.api.Process.Pid)
	if err != nil {
		return err
	}
	var narrow, wide follower
	var kube kubernetes.Interface
	start := make(chan error, m.watchers)
	follow := func(f *follower, query string) {
		c := kube
		running.Go(func() { m.follow(ctx, c, query, f, start) })
	}
	for i := range m.watchers {
		if i%perConnection == 0 {
			if kube, err = m.client(); err != nil {
				return err
			}
		}
		if i < everything {
			follow(&wide, "")
		} else {
			follow(&narrow, fmt.Sprintf("spec.nodeName=node-%04d", i%max(1, m.pods/perNode)))
		}
	}
	for range m.watchers {
		if err := <-start; err != nil {
			return err
		}
	}
	open, err := usageOf(m.api.Process.Pid)
	if err != nil {
		return err
	}
	m.printLine(fmt.Sprintf("%d watchers, each", m.watchers), "%d kB anonymous, %.2f ms of CPU to begin",
		(open.anonymous-before.anonymous)/1000/m.watchers, (open.cpu-before.cpu).Seconds()*1e3/float64(m.watchers))

	took, err := m.write(ctx)
	if err != nil {
		return err
	}
	time.Sleep(time.Second)
	after, err := usageOf(m.api.Process.Pid)
	if err != nil {
		return err
	}
	m.printLine(fmt.Sprintf("%d writes/s, the writers", writeRate), "%d writes, %s, server CPU %.2f ms", len(took), spread(took),
		(after.cpu-open.cpu).Seconds()*1e3/float64(len(took)))
	for name, f := range map[string]*follower{"by node": &narrow, "of everything": &wide} {
		f.mu.Lock()
		if len(f.took) > 0 {
			m.printLine("from a write to watchers "+name, "%d events, %s", len(f.took), spread(f.took))
		}
		f.mu.Unlock()
	}
	if want := int64(len(took) * min(everything, m.watchers)); wide.seen.Load() != want {
		return fmt.Errorf("watchers without selector received %d events of %d", wide.seen.Load(), want)
	}
	err = m.memory("memory after that", settle)
	return err
}

// mark is the prefix of the timestamp in written values.
var mark = []byte("written-at-")

// follow watches pods until ctx is done, and records in f how long after their write the written values are received.
// selector is a field selector; "" selects all pods. It sends the result of the request to started.
func (m *measure) follow(ctx context.Context, kube kubernetes.Interface, selector string, f *follower, started chan<- error) {
	req := kube.CoreV1().RESTClient().Get().Namespace(namespace).Resource("pods").
		SetHeader("Accept", "application/vnd.kubernetes.protobuf;stream=watch").Param("watch", "1").Param("sendInitialEvents", "false").
		Param("resourceVersionMatch", "NotOlderThan")
	if selector != "" {
		req = req.Param("fieldSelector", selector)
	}
	stream, err := req.Stream(ctx)
	started <- err
	if err != nil {
		return
	}
	defer stream.Close()
	events := newFrames(stream)
	for {
		frame, err := events.next()
		if err != nil {
			return
		}
		i := bytes.Index(frame, mark)
		if i < 0 {
			continue
		}
		const digits = 19
		at, err := strconv.ParseInt(string(frame[i+len(mark):][:digits]), 10, 64)
		if err != nil {
			continue
		}
		f.seen.Add(1)
		f.mu.Lock()
		f.took = append(f.took, time.Since(time.Unix(0, at)))
		f.mu.Unlock()
	}
}

// write patches the status of pods at a constant rate for the duration writing. It returns the durations of the
// requests, and an error if one failed.
func (m *measure) write(ctx context.Context) ([]time.Duration, error) {
	const workers = 16
	ticks := make(chan int)
	var mu sync.Mutex
	var took []time.Duration
	var failed error
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for i := range ticks {
				began := time.Now()
				// Consecutive writes are to pods of different nodes.
				name := fmt.Sprintf("pod-%06d", i*perNode%m.pods+i*perNode/m.pods%perNode)
				patch := fmt.Appendf(nil, `{"status":{"message":"%s%d"}}`, mark, began.UnixNano())
				_, err := m.kube.CoreV1().Pods(namespace).Patch(ctx, name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
				mu.Lock()
				took, failed = append(took, time.Since(began)), errors.Join(failed, err)
				mu.Unlock()
			}
		})
	}
	ticker := time.NewTicker(time.Second / writeRate)
	defer ticker.Stop()
	for i := range int(writing.Seconds() * writeRate) {
		<-ticker.C
		ticks <- i
	}
	close(ticks)
	wg.Wait()
	return took, failed
}

// slow measures a watcher that does not read while pods are written. It returns an error if the API server does not
// close the connection of the watcher.
func (m *measure) slow(ctx context.Context) error {
	before, err := usageOf(m.api.Process.Pid)
	if err != nil {
		return err
	}
	w, err := m.open(ctx, map[string]string{"watch": "1"})
	if err != nil {
		return err
	}
	defer w.Close()
	took, err := m.write(ctx)
	if err != nil {
		return err
	}
	after, err := usageOf(m.api.Process.Pid)
	if err != nil {
		return err
	}
	m.printLine("writes with a watcher that does not read", "%s, memory %+d kB", spread(took), (after.anonymous-before.anonymous)/1000)
	const cut = 75 * time.Second
	time.Sleep(cut)
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	context.AfterFunc(ctx, func() { w.Close() })
	events := newFrames(w)
	n := 0
	for ; err == nil; n++ {
		_, err = events.next()
	}
	if ctx.Err() != nil {
		return errors.New("the connection of a watcher that does not read was not closed")
	}
	m.printLine("that watcher", "was disconnected after %d events", n)
	return nil
}
