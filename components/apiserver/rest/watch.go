package rest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strconv"
	"time"

	"golang.org/x/net/websocket"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/util/flowcontrol"
	"k8s.io/streaming/pkg/httpstream/wsstream"

	"hyperkube/components/apiserver/metrics"
	"hyperkube/components/apiserver/negotiate"
	"hyperkube/components/apiserver/registry"
	"hyperkube/components/apiserver/request"
	"hyperkube/components/apiserver/wire"
	"hyperkube/internal/api"
	"hyperkube/internal/store"
)

// minWatch is the default minimum duration of watches whose client has set no timeout. The actual
// duration is random, up to twice as long, so that not all watches are closed at the same time.
const minWatch = 30 * time.Minute

// watchServer handles watch requests: it sends the changes of objects until the client disconnects
// or the watch times out.
type watchServer struct{ *call }

// watch handles a watch request: it checks the options, and sends events until the timeout, the client or the
// shutdown of the server terminates the watch. It returns an error if the watch cannot start.
//
// https://kubernetes.io/docs/reference/using-api/api-concepts/#efficient-detection-of-changes
func (c watchServer) watch() error {
	format, err := c.negotiator.Response(c.req, negotiate.Endpoint{
		Protobuf: c.res.HasProtobuf(), Metadata: true, Watch: true,
		Routed: c.res.Custom == nil, Streams: true,
	})
	if err != nil {
		return err
	}
	if format.As == negotiate.MetadataList {
		format.As = negotiate.Metadata
	}
	opts, err := request.ListOptions(c.query)
	if err != nil {
		return err
	}
	opts.Watch = true
	checked := *opts
	internalversion.SetListOptionsDefaults(&checked, true)
	if err := request.CheckListOptions(&checked); err != nil {
		return err
	}
	if format.As == negotiate.Table {
		if err := c.responder().checkInclude(); err != nil {
			return err
		}
	}
	if len(c.info.Parts) > 1 {
		// The deprecated form /api/v1/watch/namespaces/ns/pods/name.
		if f := opts.FieldSelector; f != nil && !f.Empty() {
			if name, ok := f.RequiresExactMatch("metadata.name"); !ok || name != c.name {
				return apierrors.NewBadRequest("fieldSelector metadata.name doesn't match requested name")
			}
		}
		opts.FieldSelector = fields.AndSelectors(opts.FieldSelector, fields.OneTermEqualSelector("metadata.name", c.name))
	}
	s, err := selectObjects(c.res, c.namespace, opts)
	if err != nil {
		return err
	}
	least := c.cfg.MinWatch
	timeout := least + rand.N(least)
	if opts.TimeoutSeconds != nil && *opts.TimeoutSeconds > 0 {
		timeout = seconds(*opts.TimeoutSeconds)
	}
	ctx, cancel := context.WithTimeout(c.ctx, timeout)
	defer cancel()
	if c.cfg.Stopping != nil {
		defer context.AfterFunc(c.cfg.Stopping, cancel)()
	}
	return c.follow(ctx, format, opts, s)
}

// seconds converts n seconds to a duration, limited to the maximum duration.
func seconds(n int64) time.Duration {
	const most = int64(1<<63-1) / int64(time.Second)
	return time.Duration(min(n, most)) * time.Second
}

// follow reads the objects that the watch starts with, unless the client starts it from a resource version, and then
// sends events until ctx is done or the client disconnects. It returns errors that occur before the response has
// started.
func (c watchServer) follow(ctx context.Context, format negotiate.Format, opts *internalversion.ListOptions, s selected) error {
	revision, err := request.ResourceVersion(opts.ResourceVersion)
	if err != nil {
		return err
	}
	initial := revision <= 0
	if opts.SendInitialEvents != nil {
		initial = *opts.SendInitialEvents
	}
	var page *store.Page
	since := revision
	switch {
	case initial:
		page, err = c.reader().listSoon(ctx, store.ListOptions{Prefix: s.listPrefix(), Match: s.listMatch(), Index: s.index, Value: s.value, Revision: revision})
		if errors.Is(err, store.ErrTooNew) {
			if opts.SendInitialEvents == nil {
				return c.reader().tooNew(revision)
			}
			// For a streaming list, the error is sent as an event.
			w := c.newEventWriter(format)
			w.begin()
			w.status(c.reader().tooNew(revision))
			w.flush()
			return nil
		}
		if err != nil {
			return c.storeError(err, "")
		}
		since = page.Revision
	case revision < 0 || revision == 0:
		// Start now.
		if since, err = c.res.Collection.Store().CurrentRevision(ctx); err != nil {
			return c.storeError(err, "")
		}
	}
	if wsstream.IsWebSocketRequest(c.req) {
		return c.followSocket(ctx, format, opts, s, page, since)
	}
	return c.events(ctx, c.newEventWriter(format), opts, s, page, since)
}

// followSocket is follow, after it has read the initial objects, for a client that has requested a WebSocket. Each
// event is one message. It always returns nil.
func (c watchServer) followSocket(ctx context.Context, format negotiate.Format, opts *internalversion.ListOptions, s selected, page *store.Page, since int64) error {
	websocket.Handler(func(conn *websocket.Conn) {
		defer func() { _ = conn.Close() }() // the client may have closed it first
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		go func() {
			// Clients send nothing. This returns when they disconnect.
			defer cancel()
			_, _ = io.Copy(io.Discard, conn)
		}()
		w := c.newEventWriter(format)
		w.socket = conn
		w.watchdog.deadline = conn
		if err := c.events(ctx, w, opts, s, page, since); err != nil {
			w.status(err)
		}
	}).ServeHTTP(c.w, c.req)
	return nil
}

// events sends the entries of page (nil for none) as ADDED events and then all changes after the revision since,
// until the watch is terminated. An expired revision is reported as an ERROR event. It returns an error if the watch
// cannot start for another reason.
func (c watchServer) events(ctx context.Context, w *eventWriter, opts *internalversion.ListOptions, s selected, page *store.Page, since int64) error {
	watcher, err := c.res.Collection.Watch(ctx, store.WatchOptions{Since: since, Prefix: s.prefix, Key: s.key, Match: s.match, Index: s.index, Value: s.value, Narrow: s.direct})
	if err != nil {
		if errors.Is(err, store.ErrTooOld) {
			// For a watch, the error is sent as an event.
			w.begin()
			w.status(apierrors.NewResourceExpired(tooOldMessage(since, err)))
			return nil
		}
		return c.storeError(err, "")
	}
	defer watcher.Close()

	w.begin()
	if page != nil {
		c.cfg.Metrics.Initial(c.info, len(page.Entries))
		for _, e := range page.Entries {
			w.entry(watch.Added, e, 0)
		}
		if opts.AllowWatchBookmarks {
			// A client that gets initial events without having requested them also gets the
			// bookmark that terminates them.
			w.bookmark(page.Revision, true)
		}
		if opts.SendInitialEvents != nil && opts.AllowWatchBookmarks {
			c.cfg.Metrics.Listed(c.info, time.Since(c.began))
		}
	}
	if !w.flush() {
		return nil
	}
	// From here on the watch is cheap, so release its seats.
	flowcontrol.WatchInitialized(ctx)
	if opts.AllowWatchBookmarks {
		defer callEvery(c.cfg.BookmarkEvery, watcher.RequestProgress)()
	}
	for {
		batch, err := watcher.Next(ctx)
		switch {
		case err == nil:
		case errors.Is(err, store.ErrTooOld):
			w.status(apierrors.NewResourceExpired(tooOldMessage(since, err)))
			w.flush()
			return nil
		default:
			return nil // timeout, disconnected client or shutdown
		}
		for i := range batch.Events {
			w.event(&batch.Events[i], s.match)
		}
		if len(batch.Events) == 0 && opts.AllowWatchBookmarks {
			w.bookmark(batch.Revision, false)
		}
		if !w.flush() {
			return nil
		}
	}
}

// tooOldMessage returns the message for a watch from a revision that is not available anymore.
func tooOldMessage(revision int64, err error) string {
	if old, ok := errors.AsType[*store.TooOldError](err); ok {
		return old.Error()
	}
	return fmt.Sprintf("too old resource version: %d", revision)
}

// eventWriter encodes the events of one watch and sends them. Once the stream has started, an error
// is reported to the client only by an ERROR event or by closing the stream.
type eventWriter struct {
	*call
	format  negotiate.Format
	flusher http.Flusher
	buf     []byte
	failed  bool
	// headers is true until the column definitions of tables have been sent.
	headers bool
	// socket receives each event as a message, if the client uses a WebSocket. Otherwise it is nil.
	socket *websocket.Conn
	// metrics counts the events.
	metrics metrics.Watch
	// watchdog disconnects a client that does not read.
	watchdog *watchdog
}

// newEventWriter returns the writer that encodes and sends the events of the request's watch.
func (c watchServer) newEventWriter(format negotiate.Format) *eventWriter {
	f, _ := c.w.(http.Flusher)
	return &eventWriter{call: c.call, format: format, flusher: f, headers: true, metrics: c.cfg.Metrics.Watch(c.info), watchdog: newWatchdog(c.w, c.cfg.SlowReader)}
}

// begin sends the response header, so that the client knows that the watch has started. On a WebSocket it does
// nothing.
func (w *eventWriter) begin() {
	if w.socket != nil {
		return
	}
	contentType := negotiate.TypeJSON
	if w.format.Media == negotiate.Protobuf {
		contentType = negotiate.TypeProtobuf + ";stream=watch"
	}
	w.w.Header().Set("Content-Type", contentType)
	w.w.Header().Set("Cache-Control", "no-cache, private")
	w.w.WriteHeader(http.StatusOK)
	if w.flusher != nil {
		w.flusher.Flush()
	}
}

// flush sends buffered events to the client. It returns false if the watch must be terminated
// because the client is disconnected or does not read.
func (w *eventWriter) flush() bool {
	w.send()
	if !w.failed && w.flusher != nil && w.socket == nil {
		w.watchdog.arm()
		w.flusher.Flush()
		w.failed = !w.watchdog.disarm()
	}
	return !w.failed
}

// send writes the buffered events to the connection or WebSocket, and empties the buffer. If that
// fails, or the watchdog aborts it because the client does not read, it sets w.failed.
func (w *eventWriter) send() {
	if len(w.buf) > 0 && !w.failed {
		var err error
		w.watchdog.arm()
		switch {
		case w.socket == nil:
			_, err = w.w.Write(w.buf)
		case w.format.Media == negotiate.Protobuf:
			// WebSocket messages have their own length.
			err = websocket.Message.Send(w.socket, w.buf[4:])
		default:
			err = websocket.Message.Send(w.socket, string(w.buf))
		}
		w.failed = !w.watchdog.disarm() || err != nil
	}
	if cap(w.buf) > pieceSize*4 {
		w.buf = nil
	}
	w.buf = w.buf[:0]
}

// event sends a change as ADDED, MODIFIED or DELETED, depending on whether the selector of the
// watch, match, selected the object before and after the change. It sends nothing if neither is the
// case.
func (w *eventWriter) event(ev *store.Event, match func(*store.Entry) bool) {
	now := ev.Current != nil && (match == nil || match(ev.Current))
	before := ev.Previous != nil && (match == nil || match(ev.Previous))
	switch {
	case now && before:
		w.entry(watch.Modified, ev.Current, 0)
	case now:
		w.entry(watch.Added, ev.Current, 0)
	case before:
		w.entry(watch.Deleted, ev.Previous, ev.Revision)
	}
}

// entry encodes an event with the object of an entry and adds it to the buffer. gone is the revision at which the
// object was deleted or no longer selected, or zero. If the object cannot be decoded, an ERROR event terminates the
// watch.
func (w *eventWriter) entry(event watch.EventType, e *store.Entry, gone int64) {
	if w.failed {
		return
	}
	before := len(w.buf)
	if err := w.append(event, e, gone); err != nil {
		w.cfg.Log.ErrorContext(w.ctx, "object in etcd cannot be decoded; watches that should report it end with an error event and lists that contain it fail, so clients and controllers do not see changes of this resource: restore its encryption key and restart the API server, or delete it with the delete option ignoreStoreReadErrorWithClusterBreakingPotential", "resource", w.res.GVR(), "key", e.Key(), "err", err)
		w.status(corruptEvent(err, gone != 0))
		w.failed = true
	} else {
		w.metrics.Event(len(w.buf) - before)
	}
	if w.socket != nil || len(w.buf) >= pieceSize {
		w.send()
	}
}

// append encodes an event and appends it to the buffer. gone is the revision at which the object of e was deleted or
// no longer selected, or 0. It returns an error if the object cannot be decoded.
func (w *eventWriter) append(event watch.EventType, e *store.Entry, gone int64) error {
	revision := e.Revision()
	if gone != 0 {
		revision = gone
	}
	metadata := w.format.As == negotiate.Metadata
	kind := w.res.Object
	if metadata {
		kind = partialKind(w.format.Version)
	}
	switch {
	case w.format.As == negotiate.Table:
		obj, err := w.res.Read(e)
		if err != nil {
			return err
		}
		return w.table(event, []tableRow{{obj: obj, entry: e, deletedRevision: gone}}, revision)
	case w.format.Media == negotiate.Protobuf:
		raw, err := w.responder().rawOf(e, metadata)
		if err != nil {
			return err
		}
		w.buf = kind.AppendProtoEvent(w.buf, string(event), raw, revision)
		return nil
	}
	var data []byte
	var err error
	switch {
	case metadata:
		data, err = w.res.MetadataJSON(e, gone)
	case gone != 0:
		data, err = w.res.DeletedJSON(e, gone)
	default:
		data, err = w.res.JSON(e)
	}
	if err != nil {
		return err
	}
	w.buf = kind.AppendJSONEvent(w.buf, string(event), data)
	return nil
}

// table appends an event that contains a table with the given rows. Only the first table of a watch
// contains the column definitions.
func (w *eventWriter) table(event watch.EventType, rows []tableRow, revision int64) error {
	table, err := w.responder().appendTable(nil, w.format, rows, tableMeta{revision: revision, remaining: -1}, w.headers)
	if err != nil {
		return err
	}
	w.headers = false
	w.buf = wire.AppendJSONEventObject(w.buf, string(event), table)
	return nil
}

// bookmark adds a BOOKMARK event to the buffer: the client has received all changes up to revision. initialEnd is set
// for the bookmark after the initial objects of a streaming list.
func (w *eventWriter) bookmark(revision int64, initialEnd bool) {
	obj := w.res.New()
	obj.GetObjectKind().SetGroupVersionKind(w.res.GVK())
	obj.SetResourceVersion(strconv.FormatInt(revision, 10))
	if initialEnd {
		obj.SetAnnotations(map[string]string{metav1.InitialEventsAnnotationKey: "true"})
	}
	if w.format.As == negotiate.Table {
		if err := w.table(watch.Bookmark, []tableRow{{obj: obj}}, revision); err != nil {
			w.failed = true
		}
		return
	}
	w.object(watch.Bookmark, obj)
}

// object encodes an event with obj, an object that is not in the store, and adds the event to the buffer. On a
// WebSocket, the event is sent immediately.
func (w *eventWriter) object(event watch.EventType, obj api.Object) {
	format := negotiate.Format{Media: w.format.Media}
	var data []byte
	var err error
	if w.format.As == negotiate.Metadata {
		partial := registry.PartialMetadata(obj)
		partial.SetGroupVersionKind(partialKind(w.format.Version).GroupVersionKind)
		data, err = encode(format, partial)
	} else {
		data, err = encode(format, obj)
	}
	if err != nil {
		w.failed = true
		return
	}
	w.frame(event, data)
	if w.socket != nil {
		w.send()
	}
}

// status sends an ERROR event with the Status of err to the client, after the buffered events. It is the last event
// of a watch.
func (w *eventWriter) status(err error) {
	s := statusOf(err)
	data, e := encode(negotiate.Format{Media: w.format.Media}, s)
	if e != nil {
		data, _ = json.Marshal(s)
	}
	w.frame(watch.Error, data)
	w.send()
}

// frame appends an event with an already encoded object to the buffer.
func (w *eventWriter) frame(event watch.EventType, data []byte) {
	if w.format.Media == negotiate.Protobuf {
		w.buf = wire.AppendProtoEventObject(w.buf, string(event), data)
		return
	}
	w.buf = wire.AppendJSONEventObject(w.buf, string(event), data)
}
