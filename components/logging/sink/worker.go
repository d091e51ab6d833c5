// Package sink sends the records of a log store to servers and files.
//
// Each sink has a cursor, the sequence number of the next record to send, which is stored after the server has acknowledged the records before it.
// So every record is sent at least once, and the log store is the buffer while a server is unavailable. If the store removes records that were not
// sent, they are counted.
package sink

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"hyperkube/components/logging/record"
	"hyperkube/components/logging/settings"
	"hyperkube/components/logging/store"
	"hyperkube/internal/base/backoff"
	"hyperkube/internal/base/lifecycle"
	"hyperkube/internal/host/atomicfile"
)

// sender sends records.
type sender interface {
	// send sends the entries and returns after they were acknowledged. rejected is the number of entries that the server will never accept. A
	// retryError has the time after which the server asks to retry.
	send(ctx context.Context, entries []store.Entry) (rejected int, err error)
	// close releases resources.
	close()
}

// retryError is an error of a server that is unavailable for a while.
type retryError struct {
	after time.Duration // 0 if the server has not specified it
	cause error
}

func (e *retryError) Error() string { return e.cause.Error() }
func (e *retryError) Unwrap() error { return e.cause }

// Config configures a Worker.
type Config struct {
	Settings settings.Sink
	// Dir is the directory of the cursors of all sinks, and of the files of file sinks. It must exist.
	Dir   string
	Store *store.Store
	// FirstRetry and LastRetry are the delays before a request is repeated, which double with each failure. Zero means 1 second and 1 minute.
	FirstRetry, LastRetry time.Duration
	// Log receives warnings. Nil means slog's default.
	Log *slog.Logger
}

// Stats are the counters and the lag of a sink.
type Stats struct {
	// Sent counts acknowledged records, Rejected those that the server does not accept, and Removed those that the store has removed before they
	// were sent. Failures counts failed requests.
	Sent, Rejected, Removed, Failures uint64
	// LagBytes is the size of the stored records that were not sent. LagSeconds is the age of the oldest one of a request that is not acknowledged.
	LagBytes   uint64
	LagSeconds float64
}

// Worker sends records to one sink.
type Worker struct {
	cfg    Config
	sender sender
	path   string // of the cursor

	mu     sync.Mutex // guards the fields below
	cursor cursor
	stats  Stats
	oldest int64 // time of the first record of the current request, 0 if there is none
}

// cursor is how far a sink has sent the records of the store.
type cursor struct {
	Next     uint64 `json:"next"`
	NextByte uint64 `json:"nextByte"`
}

// New validates cfg and returns a Worker. A sink without a cursor begins with the next record.
func New(cfg Config) (*Worker, error) {
	if cfg.Store == nil || cfg.Dir == "" {
		return nil, errors.New("log sink: a store and a directory are required")
	}
	if cfg.FirstRetry == 0 {
		cfg.FirstRetry = time.Second
	}
	if cfg.LastRetry == 0 {
		cfg.LastRetry = time.Minute
	}
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	w := &Worker{cfg: cfg, path: filepath.Join(cfg.Dir, cfg.Settings.Name+".cursor")}
	if err := w.loadCursor(); err != nil {
		return nil, err
	}
	var err error
	if cfg.Settings.Type == settings.File {
		w.sender, err = newFile(filepath.Join(cfg.Dir, cfg.Settings.Name+".jsonl"), cfg.Settings.MaxBytes)
	} else {
		w.sender, err = newHTTP(cfg.Settings)
	}
	if err != nil {
		return nil, fmt.Errorf("log sink %s: %w", cfg.Settings.Name, err)
	}
	return w, nil
}

// loadCursor reads the cursor, or creates it.
func (w *Worker) loadCursor() error {
	end := w.cfg.Store.Stats()
	data, err := os.ReadFile(w.path)
	if err == nil {
		err = json.Unmarshal(data, &w.cursor)
	}
	switch {
	case err == nil && w.cursor.Next <= end.NextSeq:
		return nil
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		w.cfg.Log.Warn("cursor of a log sink is damaged; records are sent again from the oldest stored one, no retry", "sink", w.cfg.Settings.Name, "err", err)
		w.cursor = cursor{}
	case err == nil: // the store was deleted
		w.cursor = cursor{}
	default:
		w.cursor = cursor{Next: end.NextSeq, NextByte: end.NextByte}
	}
	return w.saveCursor(w.cursor)
}

func (w *Worker) saveCursor(c cursor) error {
	data, err := json.Marshal(c)
	if err == nil {
		// After a power failure, the records since the last cursor on the disk are sent again.
		err = atomicfile.Write(atomicfile.File{Path: w.path, Data: data, Mode: 0o600, SkipSync: true})
	}
	if err != nil {
		return fmt.Errorf("writing cursor of log sink %s: %w", w.cfg.Settings.Name, err)
	}
	return nil
}

// Stats returns the counters. It is safe for concurrent use.
func (w *Worker) Stats() Stats {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := w.stats
	out.LagBytes = w.cfg.Store.Behind(w.cursor.NextByte)
	if w.oldest > 0 {
		out.LagSeconds = max(0, time.Since(time.Unix(0, w.oldest)).Seconds())
	}
	return out
}

// Name returns the name of the sink.
func (w *Worker) Name() string { return w.cfg.Settings.Name }

// Run sends records until ctx is done.
func (w *Worker) Run(ctx context.Context) error {
	defer w.sender.close()
	r := w.cfg.Store.NewReader(w.cursor.Next)
	defer r.Close()
	selected := map[*record.Source]bool{}
	var entries []store.Entry
	for {
		batch, err := r.Next(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			w.cfg.Log.Error("reading the log store failed; no records are sent to the sink, retrying in "+w.cfg.LastRetry.String(), "sink", w.Name(), "err", err)
			if !lifecycle.Pause(ctx, w.cfg.LastRetry) {
				return nil
			}
			continue
		}
		if len(selected) > 1000 {
			clear(selected) // sources of deleted pods
		}
		entries = entries[:0]
		for _, e := range batch.Entries {
			ok, known := selected[e.Source]
			if !known {
				ok = w.cfg.Settings.Selects(e.Source)
				selected[e.Source] = ok
			}
			if ok {
				entries = append(entries, e)
			}
		}
		if !w.deliver(ctx, batch, entries) {
			return nil
		}
	}
}

// deliver sends entries, the selected records of the batch, until the sink has acknowledged them, and stores the cursor. It returns false if ctx is
// done before.
func (w *Worker) deliver(ctx context.Context, batch store.Batch, entries []store.Entry) bool {
	w.mu.Lock()
	w.stats.Removed += batch.Removed
	w.mu.Unlock()
	if batch.Removed > 0 {
		w.cfg.Log.Error("log store has removed records that were not sent to the sink; the sink does not receive them, no retry: make the sink faster or the store larger", "sink", w.Name(), "records", batch.Removed)
	}
	if len(entries) > 0 && !w.send(ctx, entries) {
		return false
	}
	c := cursor{Next: batch.Next, NextByte: batch.NextByte}
	retry := backoff.Backoff{First: w.cfg.FirstRetry, Max: w.cfg.LastRetry}
	for {
		err := w.saveCursor(c)
		if err == nil {
			break
		}
		if !retry.Started() {
			w.cfg.Log.Error("storing the cursor of a log sink failed; no more records are sent, and the last ones are sent again if the agent restarts, retrying with back-off", "sink", w.Name(), "err", err)
		}
		if !retry.Pause(ctx) {
			return false
		}
	}
	w.mu.Lock()
	w.cursor, w.oldest = c, 0
	w.mu.Unlock()
	return true
}

// send sends entries until the sink has acknowledged them. It returns false if ctx is done before.
func (w *Worker) send(ctx context.Context, entries []store.Entry) bool {
	w.mu.Lock()
	w.oldest = entries[0].Time
	w.mu.Unlock()
	retry := backoff.Backoff{First: w.cfg.FirstRetry, Max: w.cfg.LastRetry, Jitter: 0.2}
	for {
		rejected, err := w.sender.send(ctx, entries)
		w.mu.Lock()
		if err == nil {
			w.stats.Sent += uint64(len(entries) - rejected)
			w.stats.Rejected += uint64(rejected)
		} else {
			w.stats.Failures++
		}
		w.mu.Unlock()
		if err == nil {
			if rejected > 0 {
				w.cfg.Log.Error("log sink does not accept some records; it does not receive them, no retry", "sink", w.Name(), "records", rejected)
			}
			if retry.Started() {
				w.cfg.Log.Info("log sink is available again", "sink", w.Name())
			}
			return true
		}
		if ctx.Err() != nil {
			return false
		}
		if !retry.Started() {
			w.cfg.Log.Warn("sending records to a log sink failed; they wait in the log store, retrying with back-off", "sink", w.Name(), "err", err)
		}
		delay := retry.Next()
		if asked, ok := errors.AsType[*retryError](err); ok {
			delay = max(delay, min(asked.after, w.cfg.LastRetry))
		}
		if !lifecycle.Pause(ctx, delay) {
			return false
		}
	}
}
