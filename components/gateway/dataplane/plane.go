// Package dataplane serves a model.Config: it accepts connections, finds the route of each request, and forwards the
// request to an endpoint of the route's backend.
//
// # Design
//
// A configuration is compiled into an immutable table, which one atomic swap replaces. Requests use the table without
// locks, and a request that is being served keeps what it has found. Endpoints are not part of the table: each backend has a
// pool, whose list of endpoints is replaced in the same way. So a change of endpoints costs nothing but that list.
//
// Requests are served by net/http's server and httputil.ReverseProxy, over TLS with HTTP/2 of internal/serving/h2. Package http1
// sends them to backends. The modules of Caddy were the alternative. They bring their own configuration language, module
// registry and certificate store, are configured by replacing the whole server, and use more CPU time.
package dataplane

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"hyperkube/components/gateway/model"
	"hyperkube/internal/serving/rawconn"
)

// Limits protect the gateway and its backends. Zero values mean no limit.
type Limits struct {
	// HeaderBytes is the size of a request header.
	HeaderBytes int
	// HeaderTimeout is the time in which a request header or a TLS handshake must be complete.
	HeaderTimeout time.Duration
	// BodyBytes is the size of a request body.
	BodyBytes int64
	// IdleTimeout closes connections without a request, and forwarded connections without data.
	IdleTimeout time.Duration
	// Connections is the number of simultaneous connections of a port. Others wait until one is closed.
	Connections int
}

// Config configures a Plane, the data plane of the gateway.
type Config struct {
	Limits Limits
	// ProxyProtocol is true if a load balancer in front of the gateway sends the address of the client in a PROXY
	// protocol header. Connections without the header are closed.
	ProxyProtocol bool
	// Host is the address to listen on. Empty means all addresses.
	Host string
	// AccessLog receives a JSON object for each request. Nil disables the log.
	AccessLog io.Writer
	// Metrics is where the metrics are registered.
	Metrics prometheus.Registerer
	// DrainTimeout is the time that requests have to complete when a port is closed.
	DrainTimeout time.Duration
	Log          *slog.Logger
}

// Plane is the data plane: it serves the ports of a configuration, and replaces the configuration without interrupting
// requests. Its methods are safe for concurrent use.
type Plane struct {
	cfg       Config
	log       *slog.Logger
	discard   *log.Logger // of net/http, whose messages about clients are not useful
	table     atomic.Pointer[table]
	metrics   *metrics
	accessLog *accessLog
	buffers   buffers
	mirrors   chan struct{} // slots of mirrored requests
	sockets   rawconn.MonitorWaker

	mu      sync.Mutex // guards the fields below
	pools   map[model.BackendKey]*pool
	servers map[model.PortID]*server
	closed  bool
	// background are mirrored requests and servers that are being closed.
	background sync.WaitGroup
}

// New validates cfg and returns a Plane that serves nothing. It returns an error if cfg has no registry for metrics or
// no logger, or if a limit is negative.
func New(cfg Config) (*Plane, error) {
	if cfg.Metrics == nil || cfg.Log == nil {
		return nil, errors.New("the data plane requires a registry for metrics and a logger")
	}
	if cfg.Limits.HeaderBytes < 0 || cfg.Limits.BodyBytes < 0 || cfg.Limits.Connections < 0 {
		return nil, errors.New("limits must not be negative")
	}
	p := &Plane{
		cfg: cfg, log: cfg.Log, discard: log.New(io.Discard, "", 0), metrics: newMetrics(cfg.Metrics),
		mirrors: make(chan struct{}, 256), pools: map[model.BackendKey]*pool{}, servers: map[model.PortID]*server{},
	}
	if cfg.AccessLog != nil {
		p.accessLog = newAccessLog(cfg.AccessLog)
	}
	p.table.Store(&table{})
	return p, nil
}

// SetEndpoints replaces the endpoints of a backend. It may be called before the first Config refers to the backend.
func (p *Plane) SetEndpoints(b *model.Backend, endpoints []model.Endpoint) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pool(b).set(endpoints)
}

// pool returns the pool of a backend, and creates it if necessary. The caller holds p.mu.
func (p *Plane) pool(b *model.Backend) *pool {
	out := p.pools[b.Key]
	if out == nil {
		out = newPool(b, p.sockets.Dialer(0))
		p.pools[b.Key] = out
	}
	return out
}

// Apply serves a configuration from now on. listen contains the local port for each port of the configuration; ports
// that it does not contain are not served. Pools of backends that are not in backends are removed. It returns an
// error for each port that cannot be opened; the others are served. After Close it does nothing.
func (p *Plane) Apply(c *model.Config, backends map[model.BackendKey]*model.Backend, listen map[model.PortID]int32) map[model.PortID]error {
	began := time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil
	}
	t := compile(c, p.pool, p.metrics.route, p.table.Load())
	p.table.Store(t)
	p.metrics.retain(t.routes())
	failed := map[model.PortID]error{}
	for id, s := range p.servers {
		if pt := t.ports[id]; pt == nil || listen[id] != s.number || classOf(pt.kind) != s.class {
			delete(p.servers, id)
			p.background.Go(s.stop)
			s.closeListener() // the port may be needed by the next server
		}
	}
	for id, pt := range t.ports {
		if listen[id] == 0 || p.servers[id] != nil {
			continue
		}
		s, err := p.startServer(id, classOf(pt.kind), listen[id])
		if err != nil {
			failed[id] = err
			continue
		}
		p.servers[id] = s
	}
	for key, pool := range p.pools {
		if backends[key] == nil {
			pool.close()
			delete(p.pools, key)
		}
	}
	p.metrics.applied(time.Since(began))
	return failed
}

// Stop closes all ports and waits until their requests are complete, for DrainTimeout at most.
func (p *Plane) Stop() {
	p.mu.Lock()
	p.closed = true
	servers := p.servers
	p.servers = map[model.PortID]*server{}
	p.mu.Unlock()
	var stopping sync.WaitGroup
	for s := range maps.Values(servers) {
		stopping.Go(s.stop)
	}
	stopping.Wait()
	p.background.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, pool := range p.pools {
		pool.close()
	}
	if p.accessLog != nil {
		p.accessLog.close()
	}
}

// Drain makes clients close their connections: responses over HTTP/1.1 have the header "Connection: close".
func (p *Plane) Drain() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range p.servers {
		if s.http != nil {
			s.http.SetKeepAlivesEnabled(false)
		}
	}
}

// mirror sends a copy of a request to a backend in the background and discards the response. It drops the copy if too
// many are in flight or the backend has no endpoints.
func (p *Plane) mirror(to *pool, r *http.Request) {
	e := to.pick()
	if e == nil {
		return
	}
	select {
	case p.mirrors <- struct{}{}:
	default:
		return
	}
	p.background.Go(func() {
		defer func() { <-p.mirrors }()
		ctx, cancel := context.WithTimeout(context.Background(), mirrorTimeout)
		defer cancel()
		r.URL.Host = e.address
		res, err := e.transport.RoundTrip(r.WithContext(ctx))
		if err != nil {
			p.log.Debug("copy of a request for a mirror backend (RequestMirror filter) failed; the original request and its response are not affected, no retry", "endpoint", e.address, "err", err)
			return
		}
		_, _ = io.Copy(io.Discard, res.Body) // the response is of no interest
		_ = res.Body.Close()
	})
}

// listenAddress returns the address of a local port.
func (p *Plane) listenAddress(number int32) string {
	return net.JoinHostPort(p.cfg.Host, strconv.Itoa(int(number)))
}

// errorOf adds the port to an error.
func errorOf(id model.PortID, err error) error {
	return fmt.Errorf("serving port %d of Service %s: %w", id.Number, id.Frontend, err)
}
