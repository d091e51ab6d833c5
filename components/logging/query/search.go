package query

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"hyperkube/components/logging/store"
)

// Line is one line of a response: a record or a warning.
type Line struct {
	Time      time.Time `json:"time,omitzero"`
	Node      string    `json:"node,omitempty"`
	Namespace string    `json:"namespace,omitempty"`
	Pod       string    `json:"pod,omitempty"`
	UID       string    `json:"uid,omitempty"`
	Container string    `json:"container,omitempty"`
	File      string    `json:"file,omitempty"`
	Stream    string    `json:"stream,omitempty"`
	Text      string    `json:"text"`
	// Warning is a problem, for example a node that does not respond. The other fields are empty then.
	Warning string `json:"warning,omitempty"`
	// HistoryEnd separates the stored records from those that are sent as they appear. Only agents receive it.
	HistoryEnd bool `json:"historyEnd,omitempty"`

	live bool // after HistoryEnd
}

func newLine(e store.Entry) Line {
	s := e.Source
	return Line{
		Time: time.Unix(0, e.Time).UTC(), Node: s.Node, Namespace: s.Namespace, Pod: s.Pod, UID: s.UID, Container: s.Container, File: s.File,
		Stream: e.Stream.String(), Text: string(e.Text),
	}
}

// lineWriter writes lines to a response.
type lineWriter struct {
	buf *bufio.Writer
	enc *json.Encoder
	rc  *http.ResponseController
}

func (w *lineWriter) write(l Line) error { return w.enc.Encode(l) }

func (w *lineWriter) flush() error {
	if err := w.buf.Flush(); err != nil {
		return err
	}
	return w.rc.Flush()
}

// stream writes the response of a search, and reports its error in the last line.
func (h *Handler) stream(w http.ResponseWriter, r *http.Request, p Params, search func(context.Context, *lineWriter) error) {
	w.Header().Set("Content-Type", "application/x-ndjson")
	buf := bufio.NewWriterSize(w, 64<<10)
	out := &lineWriter{buf: buf, enc: json.NewEncoder(buf), rc: http.NewResponseController(w)}
	out.enc.SetEscapeHTML(false)
	if p.Follow {
		_ = out.flush() // so that the client receives the header
	}
	err := search(r.Context(), out)
	if err != nil && r.Context().Err() == nil {
		h.cfg.Log.Warn("search of logs failed; the response ends with a warning, no retry", "err", err)
		_ = out.write(Line{Warning: err.Error()})
	}
	_ = buf.Flush() // the client may have disconnected
}

// local calls emit for each line of the store of this node that p selects. It returns when all are sent or, if p.Follow is set, when ctx is done.
func (h *Handler) local(ctx context.Context, p Params, emit func(Line) error) error {
	q, err := p.query()
	if err != nil {
		return err
	}
	if p.Node != "" && p.Node != h.cfg.Node {
		return nil
	}
	next, err := h.history(ctx, q, emit)
	if err != nil || !p.Follow {
		return err
	}
	if err := emit(Line{HistoryEnd: true}); err != nil {
		return err
	}
	r := h.cfg.Store.NewReader(next)
	defer r.Close()
	for {
		batch, err := r.Next(ctx)
		if err != nil {
			return err
		}
		for _, e := range batch.Entries {
			if !q.MatchesEntry(e) {
				continue
			}
			l := newLine(e)
			l.live = true
			if err := emit(l); err != nil {
				return err
			}
		}
	}
}

// history calls emit for each stored record. It returns the sequence number behind them.
func (h *Handler) history(ctx context.Context, q store.Query, emit func(Line) error) (uint64, error) {
	select {
	case h.searching <- struct{}{}:
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	}
	defer func() { <-h.searching }()
	var emitErr error
	next, err := h.cfg.Store.Search(ctx, q, func(e store.Entry) bool {
		emitErr = emit(newLine(e))
		return emitErr == nil
	})
	return next, errors.Join(err, emitErr)
}

// part is the stream of lines of one node.
type part struct {
	lines chan Line // closed at the end
	head  *Line     // the next line, nil if it was not received yet
	ended bool      // the history has ended
}

// searchAll writes the lines of all nodes to out: first the stored ones, merged by time, and then, if p.Follow is set, the others as they appear.
func (h *Handler) searchAll(ctx context.Context, p Params, out *lineWriter) error {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	var parts []*part
	add := func(node string, search func(out chan<- Line) error) {
		s := &part{lines: make(chan Line, 64)}
		parts = append(parts, s)
		wg.Go(func() {
			defer close(s.lines)
			if err := search(s.lines); err != nil && ctx.Err() == nil {
				select {
				case s.lines <- Line{Warning: fmt.Sprintf("node %s: %v", node, err)}:
				case <-ctx.Done():
				}
			}
		})
	}
	add(h.cfg.Node, func(lines chan<- Line) error {
		return h.local(ctx, p, func(l Line) error {
			select {
			case lines <- l:
				return nil
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		})
	})
	peers, err := h.cfg.Peers.List(ctx)
	if err != nil {
		if err := out.write(Line{Warning: "logs of other nodes are missing: " + err.Error()}); err != nil {
			return err
		}
	}
	for _, peer := range peers {
		if p.Node == "" || p.Node == peer.Node() {
			add(peer.Node(), func(lines chan<- Line) error { return peer.Search(ctx, p, lines) })
		}
	}
	if err := merge(parts, p.Tail, out); err != nil {
		return err
	}
	if !p.Follow {
		return nil
	}
	return followAll(ctx, &wg, parts, out)
}

// merge writes the stored lines of all parts, sorted by time, and only the last ones if tail is positive.
func merge(parts []*part, tail int, out *lineWriter) error {
	var last []Line // a ring of the last lines, which begins at count%tail
	count := 0
	for {
		var first *part
		for _, s := range parts {
			for s.head == nil && !s.ended {
				l, ok := <-s.lines
				switch {
				case !ok || l.HistoryEnd:
					s.ended = true
				case l.Warning != "":
					if err := out.write(l); err != nil {
						return err
					}
				default:
					s.head = &l
				}
			}
			if s.head != nil && (first == nil || s.head.Time.Before(first.head.Time)) {
				first = s
			}
		}
		if first == nil {
			break
		}
		l := *first.head
		first.head = nil
		if tail > 0 {
			if len(last) < tail {
				last = append(last, l)
			} else {
				last[count%tail] = l
			}
			count++
			continue
		}
		if err := out.write(l); err != nil {
			return err
		}
	}
	for i := range last {
		if err := out.write(last[(count+i)%len(last)]); err != nil {
			return err
		}
	}
	return out.flush()
}

// followAll writes new lines of all parts until they end or ctx is done. wg waits for its goroutines.
func followAll(ctx context.Context, wg *sync.WaitGroup, parts []*part, out *lineWriter) error {
	all := make(chan Line)
	var open sync.WaitGroup
	for _, s := range parts {
		open.Add(1)
		wg.Go(func() {
			defer open.Done()
			for l := range s.lines {
				select {
				case all <- l:
				case <-ctx.Done():
					return
				}
			}
		})
	}
	wg.Go(func() {
		open.Wait()
		close(all)
	})
	for {
		select {
		case l, ok := <-all:
			if !ok {
				return nil
			}
			if err := errors.Join(out.write(l), out.flush()); err != nil {
				return err
			}
		case <-ctx.Done():
			return nil
		}
	}
}
