// Package stream sends changes of API objects to a page over one WebSocket. The page opens any number of watches on it.
//
// The page sends requests ({"op":"open","id":1,"path":"/api/v1/pods","view":"table"} and {"op":"close","id":1}), and
// receives batches of changes. The server lists the objects in pages, watches them, continues a watch that ends where it
// ended, and lists again when the API server no longer has the changes in between. It sends only what the page shows
// (View). Changes of an object that the connection was too slow to send are merged, so the memory of a connection is bounded
// by the number of objects.
package stream

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"path"
	"strings"
	"sync"
	"time"

	"github.com/gorilla/websocket"
)

// Protocol is the WebSocket subprotocol of the stream. A browser that offers subprotocols requires that the server selects
// one.
const Protocol = "v1.stream.dashboard.hyperkube.io"

const (
	// maxWatches is the number of watches that one page may open.
	maxWatches = 100
	// maxRequest is the size of a request of a page in bytes.
	maxRequest = 64 << 10
	// pingEvery is the interval of pings. Without an answer, the connection is closed after twice that time.
	pingEvery = 30 * time.Second
	// writeTimeout is the time in which a batch must be sent.
	writeTimeout = 30 * time.Second
	// minInterval is the shortest time between two batches. Changes in between are merged.
	minInterval = 50 * time.Millisecond
)

// Config configures the watches of a connection.
type Config struct {
	// Client sends requests to the API server with the credentials of the user.
	Client *http.Client
	// URL is the URL of the API server.
	URL *url.URL
	Log *slog.Logger
}

// request is a request of the page.
type request struct {
	// Op is open or close.
	Op string `json:"op"`
	// ID identifies a watch. The page chooses it.
	ID int `json:"id"`
	// Path is the path of a collection, such as /apis/apps/v1/namespaces/default/deployments.
	Path string `json:"path"`
	// Labels and Fields are selectors.
	Labels string `json:"labels"`
	Fields string `json:"fields"`
	View   View   `json:"view"`
}

// validate returns an error if the request does not open a watch of a collection.
func (r *request) validate() error {
	if !strings.HasPrefix(r.Path, "/api/") && !strings.HasPrefix(r.Path, "/apis/") || path.Clean(r.Path) != r.Path {
		return fmt.Errorf("%q is not the path of a collection", r.Path)
	}
	if _, ok := views[r.View]; !ok {
		return fmt.Errorf("%q is not a view", r.View)
	}
	return nil
}

// Serve serves the stream of a page on conn until ctx is canceled or the page closes the connection. It closes conn and
// waits until all watches have stopped.
func Serve(ctx context.Context, conn *websocket.Conn, cfg Config) {
	ctx, cancel := context.WithCancel(ctx)
	var tasks sync.WaitGroup
	defer tasks.Wait()
	defer func() { _ = conn.Close() }() // the goroutine below may have closed it
	defer cancel()
	out := newOutbox()
	tasks.Go(func() {
		defer cancel()
		send(ctx, conn, out)
		// The reader below returns when the connection is closed.
		_ = conn.Close()
	})
	conn.SetReadLimit(maxRequest)
	alive := func(string) error { return conn.SetReadDeadline(time.Now().Add(2 * pingEvery)) }
	conn.SetPongHandler(alive)
	_ = alive("")
	watches := map[int]context.CancelFunc{}
	for {
		var req request
		if err := conn.ReadJSON(&req); err != nil {
			return // the connection was closed, or the page sent something else than requests
		}
		_ = alive("")
		if stop := watches[req.ID]; stop != nil {
			stop()
			delete(watches, req.ID)
		}
		if req.Op != "open" {
			continue
		}
		queue := out.open(req.ID)
		err := req.validate()
		if err == nil && len(watches) >= maxWatches {
			err = fmt.Errorf("a page may open %d watches", maxWatches)
		}
		if err != nil {
			queue.fail(&Failure{Code: http.StatusBadRequest, Message: err.Error()})
			continue
		}
		watching, stop := context.WithCancel(ctx)
		watches[req.ID] = func() {
			stop()
			queue.close()
		}
		tasks.Go(func() { newWatcher(cfg, req, queue).run(watching) })
	}
}

// send writes the batches of out to conn, and pings, until ctx is canceled or the connection fails.
func send(ctx context.Context, conn *websocket.Conn, out *outbox) {
	pings := time.NewTicker(pingEvery)
	defer pings.Stop()
	pause := time.NewTimer(0)
	defer pause.Stop()
	for {
		select {
		case <-ctx.Done():
			closing := websocket.FormatCloseMessage(websocket.CloseGoingAway, "the dashboard is stopping, or the session has ended")
			_ = conn.WriteControl(websocket.CloseMessage, closing, time.Now().Add(time.Second)) // the page may have left
			return
		case <-pings.C:
			if conn.WriteControl(websocket.PingMessage, nil, time.Now().Add(writeTimeout)) != nil {
				return
			}
			continue
		case <-out.changed:
		}
		for batch := out.take(); len(batch) > 0; batch = out.take() {
			if err := write(conn, batch); err != nil {
				return
			}
		}
		pause.Reset(minInterval)
		select {
		case <-ctx.Done():
		case <-pause.C:
		}
	}
}

func write(conn *websocket.Conn, batch []message) error {
	data, err := json.Marshal(batch)
	if err != nil {
		return err
	}
	return errors.Join(conn.SetWriteDeadline(time.Now().Add(writeTimeout)), conn.WriteMessage(websocket.TextMessage, data))
}
