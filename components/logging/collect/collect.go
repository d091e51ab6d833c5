// Package collect moves log records from the log files of a node to its log store: it joins lines, adds the metadata of pods, and applies the
// rules of the configuration.
//
// One goroutine does this. It stops reading while the store cannot be written, so the log files are the buffer then.
package collect

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"regexp"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"

	"hyperkube/components/logging/follow"
	"hyperkube/components/logging/record"
	"hyperkube/components/logging/settings"
	"hyperkube/components/logging/store"
	"hyperkube/internal/base/backoff"
)

// StartAnnotation is the annotation of pods with a regular expression for the first line of each record.
const StartAnnotation = "logging.hyperkube.io/multiline-start"

// Pods finds the pods of the node.
type Pods interface {
	// Pod returns a pod, or nil if it is not known. The caller must not modify it.
	Pod(namespace, name string) *corev1.Pod
}

// Config configures a Collector.
type Config struct {
	// Node is the name of the node.
	Node string
	// PodLogs and NodeLogs are the directories to read, see follow.Config.
	PodLogs  string
	NodeLogs []string
	// Store receives the records. Only the Collector writes to it.
	Store *store.Store
	// Pods finds pods. Nil means that records have no labels.
	Pods Pods
	// Settings returns the current rules. A new pointer means that they have changed.
	Settings func() *settings.Settings
	// FlushInterval is the longest time for which records are in memory only. Zero means a second.
	FlushInterval time.Duration
	// Log receives warnings. Nil means slog's default.
	Log *slog.Logger
}

// joinTimeout is how long an incomplete record waits for its next line.
const joinTimeout = 2 * time.Second

// Collector moves records from log files to the store.
type Collector struct {
	cfg     Config
	follow  *follow.Follower
	sources map[string]*source // by key
	records []record.Record    // reused
	joining map[*source]bool   // with an incomplete record
	counts  counts
}

type counts struct{ sources, read, dropped, malformed atomic.Uint64 }

// Counts are counters of a Collector.
type Counts struct {
	// Sources is the number of sources now.
	Sources uint64
	// Read is the number of bytes read from log files. Dropped is the number of records that rules have dropped, and Malformed that of lines in
	// another format than that of the CRI, which are stored unchanged.
	Read, Dropped, Malformed uint64
}

// source is what the Collector stores about a source.
type source struct {
	follow   *follow.Source
	stored   *record.Source
	pod      *corev1.Pod // from which stored was made
	settings *settings.Settings
	pipeline *settings.Pipeline
	joiner   *record.Joiner
	end      record.Position // behind the last line
}

// New validates cfg and returns a Collector, which continues where the records in the store end.
func New(cfg Config) (*Collector, error) {
	if cfg.Store == nil || cfg.Settings == nil {
		return nil, errors.New("collecting logs: a store and settings are required")
	}
	if cfg.FlushInterval == 0 {
		cfg.FlushInterval = time.Second
	}
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	f, err := follow.New(follow.Config{PodLogs: cfg.PodLogs, NodeLogs: cfg.NodeLogs, Positions: cfg.Store.Positions(), Log: cfg.Log})
	if err != nil {
		return nil, err
	}
	return &Collector{cfg: cfg, follow: f, sources: map[string]*source{}, joining: map[*source]bool{}}, nil
}

// Counts returns the counters. It is safe for concurrent use.
func (c *Collector) Counts() Counts {
	return Counts{Sources: c.counts.sources.Load(), Read: c.counts.read.Load(), Dropped: c.counts.dropped.Load(), Malformed: c.counts.malformed.Load()}
}

// Run collects records until ctx is done. Records that are in memory then are read again by the next Collector, unless the caller flushes the store.
func (c *Collector) Run(ctx context.Context) error {
	defer c.follow.Close()
	var deadline time.Time // of the next flush; zero if there is nothing in memory
	for {
		chunk, err := c.next(ctx, deadline)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil && !errors.Is(err, context.DeadlineExceeded) {
			return err
		}
		if err == nil {
			c.add(chunk)
		}
		now := time.Now()
		c.expire(now)
		size, positions := c.cfg.Store.Pending()
		switch {
		case size == 0 && positions == 0 && len(c.joining) == 0:
			deadline = time.Time{}
		case size >= store.BlockBytes || !deadline.IsZero() && !now.Before(deadline):
			c.flush(ctx)
			deadline = time.Time{}
			if len(c.joining) > 0 {
				deadline = now.Add(c.cfg.FlushInterval)
			}
		case deadline.IsZero():
			deadline = now.Add(c.cfg.FlushInterval)
		}
	}
}

// next returns the next chunk, or context.DeadlineExceeded at the deadline.
func (c *Collector) next(ctx context.Context, deadline time.Time) (follow.Chunk, error) {
	if !deadline.IsZero() {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, deadline)
		defer cancel()
	}
	return c.follow.Next(ctx)
}

// flush writes the store, and repeats it until it succeeds or ctx is done.
func (c *Collector) flush(ctx context.Context) {
	retry := backoff.Backoff{First: 100 * time.Millisecond, Max: 10 * time.Second}
	for {
		err := c.cfg.Store.Flush()
		if err == nil {
			if retry.Started() {
				c.cfg.Log.Info("log store is written again; logs are collected from where the collection stopped")
			}
			return
		}
		if !retry.Started() {
			c.cfg.Log.Error("writing the log store failed; logs are not collected and wait in the files of the containers, where the kubelet removes the oldest at its limit, retrying with back-off: free disk space", "err", err)
		}
		if !retry.Pause(ctx) {
			return
		}
	}
}

// add adds the lines of a chunk to the store.
func (c *Collector) add(chunk follow.Chunk) {
	s := c.source(chunk.Source)
	if chunk.Deleted {
		c.records = s.joiner.Expire(c.records[:0], 1<<63-1)
		c.append(s)
		delete(c.sources, s.follow.Key)
		delete(c.joining, s)
		c.counts.sources.Store(uint64(len(c.sources)))
		c.cfg.Store.Forget(s.follow.Key)
		return
	}
	c.counts.read.Add(uint64(len(chunk.Data)))
	now := time.Now().UnixNano()
	at := chunk.Position
	for rest := chunk.Data; len(rest) > 0; {
		line, after, complete := bytes.Cut(rest, []byte{'\n'})
		var e record.Entry
		if s.stored.File != "" {
			e = record.ParsePlain(line, now)
		} else if parsed, err := record.ParseCRI(line); err == nil {
			e = parsed
		} else {
			c.counts.malformed.Add(1)
			e = record.Entry{Record: record.Record{Time: now, Text: line}}
		}
		c.records = s.joiner.Add(c.records[:0], e, at, now)
		c.append(s)
		at.Offset += int64(len(line))
		if complete {
			at.Offset++
		}
		rest = after
	}
	s.end = at
	c.advance(s)
}

// append applies the rules to c.records and appends them to the store.
func (c *Collector) append(s *source) {
	for _, r := range c.records {
		text, ok := s.pipeline.Apply(r.Text)
		if !ok {
			c.counts.dropped.Add(1)
			continue
		}
		r.Text = text
		c.cfg.Store.Append(s.stored, r)
	}
}

// advance sets the position of a source: where its first incomplete record begins or, if there is none, behind its last line.
func (c *Collector) advance(s *source) {
	at, pending := s.joiner.Pending()
	if pending {
		c.joining[s] = true
	} else {
		at = s.end
		delete(c.joining, s)
	}
	c.cfg.Store.Advance(s.follow.Key, at)
}

// expire completes records that have waited too long for their next line.
func (c *Collector) expire(now time.Time) {
	for s := range c.joining {
		c.records = s.joiner.Expire(c.records[:0], now.Add(-joinTimeout).UnixNano())
		c.append(s)
		c.advance(s)
	}
}

// source returns what is stored about a source, according to its pod and the settings as they are now.
func (c *Collector) source(f *follow.Source) *source {
	s := c.sources[f.Key]
	if s == nil {
		s = &source{follow: f}
		c.sources[f.Key] = s
		c.counts.sources.Store(uint64(len(c.sources)))
	}
	pod := s.pod
	if c.cfg.Pods != nil && f.Pod != "" {
		if current := c.cfg.Pods.Pod(f.Namespace, f.Pod); current != nil && owns(current, f.UID) {
			pod = current
		}
	}
	if now := c.cfg.Settings(); s.stored == nil || !sameMetadata(pod, s.pod) || now != s.settings {
		c.describe(s, pod, now)
	}
	s.pod = pod
	return s
}

// owns reports whether the pod has the UID that a log directory is named after. Those of static pods are named after the hash of their manifest.
func owns(pod *corev1.Pod, uid string) bool {
	return string(pod.UID) == uid || pod.Annotations["kubernetes.io/config.hash"] == uid
}

// sameMetadata reports whether records of both pods have the same labels and rules.
func sameMetadata(a, b *corev1.Pod) bool {
	if a == b {
		return true
	}
	if a == nil || b == nil {
		return false
	}
	if len(a.Labels) != len(b.Labels) || a.Annotations[StartAnnotation] != b.Annotations[StartAnnotation] {
		return false
	}
	for k, v := range a.Labels {
		if w, ok := b.Labels[k]; !ok || v != w {
			return false
		}
	}
	return true
}

// describe sets the metadata and rules of a source.
func (c *Collector) describe(s *source, pod *corev1.Pod, rules *settings.Settings) {
	f := s.follow
	src := &record.Source{Node: c.cfg.Node, Namespace: f.Namespace, Pod: f.Pod, UID: f.UID, Container: f.Container, File: f.File}
	var start *regexp.Regexp
	if pod != nil {
		src.Labels = pod.Labels
		if expr := pod.Annotations[StartAnnotation]; expr != "" {
			var err error
			if start, err = regexp.Compile(expr); err != nil {
				c.cfg.Log.Warn("annotation of a pod is not a regular expression; the lines of its messages are not joined, no retry: correct the annotation "+StartAnnotation, "pod", f.Namespace+"/"+f.Pod, "err", err)
			}
		}
	}
	s.stored, s.settings = src, rules
	s.pipeline = rules.For(src, start)
	if s.joiner != nil {
		c.records = s.joiner.Expire(c.records[:0], 1<<63-1)
		c.append(s)
	}
	s.joiner = record.NewJoiner(s.pipeline.Start())
}
