package stream

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/url"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"hyperkube/internal/base/backoff"
)

// pageSize is the number of objects of each page of a list.
const pageSize = 500

// watchTimeout is the time after which the API server ends a watch, which then continues.
const watchTimeout = 10 * time.Minute

// watcher lists and watches one collection.
type watcher struct {
	client *http.Client
	url    url.URL
	query  url.Values // the selectors
	view   viewer
	queue  *queue
	log    *slog.Logger
	// version is the resource version of the last list or event. If it is empty, the objects must be listed.
	version string
}

func newWatcher(cfg Config, req request, q *queue) *watcher {
	w := &watcher{client: cfg.Client, url: *cfg.URL.JoinPath(req.Path), query: url.Values{}, view: views[req.View](), queue: q, log: cfg.Log}
	if req.Labels != "" {
		w.query.Set("labelSelector", req.Labels)
	}
	if req.Fields != "" {
		w.query.Set("fieldSelector", req.Fields)
	}
	return w
}

// statusError is a response of the API server that is not the requested one.
type statusError struct {
	code    int
	message string
}

func (e *statusError) Error() string { return e.message }

// permanent reports whether the same request will fail again until something else changes.
func (e *statusError) permanent() bool {
	return e.code >= 400 && e.code < 500 && e.code != http.StatusTooManyRequests && e.code != http.StatusRequestTimeout
}

// expired reports whether the API server no longer has the requested version.
func (e *statusError) expired() bool { return e.code == http.StatusGone }

// run lists and watches until ctx is canceled, or until the API server refuses the request.
func (w *watcher) run(ctx context.Context) {
	retry := backoff.Backoff{First: 500 * time.Millisecond, Max: 15 * time.Second, Jitter: 0.3}
	for ctx.Err() == nil {
		err := w.step(ctx)
		var status *statusError
		switch {
		case ctx.Err() != nil:
			return
		case err == nil:
			retry.Reset()
			continue
		case errors.As(err, &status) && status.expired():
			w.version = "" // list again
			if !retry.Started() {
				retry.Next() // wait only if the new list expires too
				continue
			}
		case errors.As(err, &status) && status.permanent():
			w.queue.fail(&Failure{Code: status.code, Message: status.message})
			return
		default:
			failure := &Failure{Message: err.Error(), Retries: true}
			if status != nil {
				failure.Code = status.code
			}
			w.queue.fail(failure)
			w.log.Debug("watch failed, it continues after a delay", "path", w.url.Path, "err", err)
		}
		if !retry.Pause(ctx) {
			return
		}
	}
}

// step lists the objects if they have to be listed, or watches them until the watch ends.
func (w *watcher) step(ctx context.Context) error {
	if w.version == "" {
		return w.list(ctx)
	}
	return w.watch(ctx)
}

// list sends all objects, in pages.
func (w *watcher) list(ctx context.Context) error {
	w.queue.startList()
	next := ""
	for {
		query := url.Values{"limit": {strconv.Itoa(pageSize)}}
		if next != "" {
			query.Set("continue", next)
		}
		body, err := w.get(ctx, query)
		if err != nil {
			return err
		}
		meta, err := w.view.list(body, w.queue)
		body.Close()
		if err != nil {
			return fmt.Errorf("reading the list: %w", err)
		}
		if next = meta.Continue; next == "" {
			w.version = meta.ResourceVersion
			w.queue.endList()
			return nil
		}
	}
}

// event is an event of a watch.
type event struct {
	Type   watch.EventType `json:"type"`
	Object json.RawMessage `json:"object"`
}

// watch sends the changes after w.version, until the API server ends the watch.
func (w *watcher) watch(ctx context.Context) error {
	body, err := w.get(ctx, url.Values{
		"watch": {"true"}, "allowWatchBookmarks": {"true"}, "resourceVersion": {w.version},
		"timeoutSeconds": {strconv.Itoa(int(watchTimeout / time.Second))},
	})
	if err != nil {
		return err
	}
	defer body.Close()
	w.queue.put() // clears an error
	decoder := json.NewDecoder(body)
	for {
		var e event
		if err := decoder.Decode(&e); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("reading the watch: %w", err)
		}
		if err := w.handle(e); err != nil {
			return err
		}
	}
}

func (w *watcher) handle(e event) error {
	if e.Type == watch.Error {
		return statusOf(0, e.Object)
	}
	if e.Type == watch.Bookmark {
		version, err := bookmark(e.Object)
		if err == nil && version != "" {
			w.version = version
		}
		return err
	}
	version, objects, err := w.view.event(e.Object)
	if err != nil {
		return fmt.Errorf("reading an event: %w", err)
	}
	if e.Type == watch.Deleted {
		for _, o := range objects {
			w.queue.delete(o.Key)
		}
	} else {
		w.queue.put(objects...)
	}
	if version != "" {
		w.version = version
	}
	return nil
}

// bookmark returns the resource version of the object of a bookmark.
func bookmark(raw json.RawMessage) (string, error) {
	var object struct {
		Metadata metav1.ObjectMeta `json:"metadata"`
	}
	if err := json.Unmarshal(raw, &object); err != nil {
		return "", fmt.Errorf("reading a bookmark: %w", err)
	}
	return object.Metadata.ResourceVersion, nil
}

// get sends a request with the query and the selectors, and returns the body of the response, which the caller must close.
func (w *watcher) get(ctx context.Context, query url.Values) (io.ReadCloser, error) {
	maps.Copy(query, w.query)
	u := w.url
	u.RawQuery = query.Encode()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", w.view.accept())
	resp, err := w.client.Do(req)
	if err != nil {
		if failed, ok := errors.AsType[*url.Error](err); ok {
			err = failed.Err // without the long URL
		}
		return nil, fmt.Errorf("connecting to the API server: %w", err)
	}
	if resp.StatusCode != http.StatusOK {
		defer resp.Body.Close()
		raw, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<20)) // the status code is enough
		return nil, statusOf(resp.StatusCode, raw)
	}
	return resp.Body, nil
}

// statusOf returns the error in the Status raw. code is the status code of the response, or 0 for that of the Status.
func statusOf(code int, raw []byte) error {
	var status metav1.Status
	_ = json.Unmarshal(raw, &status) // the response may come from a proxy
	e := &statusError{code: code, message: status.Message}
	if e.code == 0 {
		e.code = int(status.Code)
	}
	if e.message == "" {
		e.message = http.StatusText(e.code)
	}
	return e
}
