// Package server serves the kubelet's HTTPS API: logs, exec, attach, port-forward, pods, stats and
// metrics. The API server authenticates and authorizes its clients.
package server

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	statsv1alpha1 "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"hyperkube/components/kubelet/pod/podlogs"
	"hyperkube/components/kubelet/pod/podstate"
	"hyperkube/components/kubelet/server/nodelogs"
	"hyperkube/components/kubelet/telemetry"
	"hyperkube/internal/serving/tlsdefaults"
	"hyperkube/internal/serving/zpages"
)

// Backend provides the data that the Server serves. Its methods are safe for concurrent use. The Server
// responds with status 404 to errors that wrap ErrNotFound.
type Backend interface {
	// Pods returns the pods of this node with their latest status.
	Pods() []*v1.Pod
	// RunningPods returns the pods with a ready sandbox in the runtime, and their running containers.
	RunningPods(ctx context.Context) ([]*v1.Pod, error)
	// Container returns a pod and the latest attempt of one of its containers or, with previous, the one
	// before. uid may be empty.
	Container(namespace, pod string, uid types.UID, container string, previous bool) (*v1.Pod, podstate.Container, error)
	// Exited returns a channel that is closed when the container has exited. The caller must call
	// CancelExited when the channel is not needed any more.
	Exited(ctx context.Context, id string) <-chan struct{}
	CancelExited(id string, ch <-chan struct{})
	// Exec, Attach and PortForward return the URL of the runtime's streaming server.
	Exec(ctx context.Context, id string, o StreamOptions) (*url.URL, error)
	Attach(ctx context.Context, id string, o StreamOptions) (*url.URL, error)
	PortForward(ctx context.Context, namespace, pod string, uid types.UID, ports []int32) (*url.URL, error)
	// Checkpoint writes a checkpoint of a container to a file of that name, and returns its path.
	// timeout is in seconds; 0 means the runtime's default.
	Checkpoint(ctx context.Context, id, file string, timeout int64) (string, error)
	// Run runs a command in a container and returns its output.
	Run(ctx context.Context, id string, cmd []string) ([]byte, error)
	// Summary returns the resource usage of pods and the node.
	Summary(ctx context.Context) (*statsv1alpha1.Summary, error)
	// Configz returns the configuration for JSON encoding.
	Configz() any
	// Healthy returns an error if the kubelet is not healthy.
	Healthy() error
	// Metrics returns the gatherer of a path: /metrics, /metrics/resource, /metrics/cadvisor or
	// /metrics/probes.
	Metrics(which string) prometheus.Gatherer
}

// ErrNotFound is wrapped by errors of a Backend for pods and containers that do not exist on this
// node.
var ErrNotFound = errors.New("not found")

// StreamOptions are the command and the streams of a request for exec or attach. Attach has no command.
type StreamOptions struct {
	Command                    []string
	TTY, Stdin, Stdout, Stderr bool
}

// Config is the configuration of a Server.
type Config struct {
	// Listener is the listener of the HTTPS server. Serve closes it.
	Listener net.Listener
	// Certificate returns the serving certificate. It is called for each connection.
	Certificate func() (*tls.Certificate, error)
	// ClientCA verifies client certificates. If it is nil, none is accepted.
	ClientCA *x509.CertPool
	// Auth authenticates and authorizes requests. If it is nil, all requests are allowed, for
	// tests.
	Auth *Auth
	// NodeLogs is the directory served at /logs/; empty for none. NodeLogQuery also enables log
	// queries there.
	NodeLogs     string
	NodeLogQuery bool
	// NoDebug disables logs, profiles, the change of the log level, and all access to containers except
	// checkpoints. NoProfiling disables profiles.
	NoDebug, NoProfiling bool
	// Flags are the kubelet's command line flags. It may be nil.
	Flags zpages.Flags
	// Level is the log level that /debug/flags/v changes, unless NoDebug is set. If it is nil, the
	// level cannot be changed.
	Level *slog.LevelVar
	// MinVersion and CipherSuites configure TLS. The zero values mean TLS 1.2 and
	// tlsdefaults.CipherSuites.
	MinVersion   uint16
	CipherSuites []uint16
	// Curves are the key exchange mechanisms. Empty means Go's default.
	Curves []tls.CurveID
	// StreamIdle is the idle timeout of streams. 0 means no timeout.
	StreamIdle time.Duration
	// ReadOnly is the listener of the read-only server without TLS and authentication. If it is
	// nil, that server is disabled.
	ReadOnly net.Listener
	Backend  Backend
	// Wrap, if not nil, wraps the handler of the HTTPS server.
	Wrap func(http.Handler) http.Handler
	// Metrics counts requests. It may be nil.
	Metrics *telemetry.Requests
	Log     *slog.Logger
}

// Server serves the kubelet's HTTPS API and, if configured, the read-only port without TLS and
// authentication.
type Server struct {
	cfg      Config
	http     *http.Server
	readOnly *http.Server
}

// New returns a Server with the configuration. It serves nothing before Serve.
func New(cfg Config) *Server {
	s := &Server{cfg: cfg}
	suites := cfg.CipherSuites
	if suites == nil {
		suites = tlsdefaults.CipherSuites()
	}
	handler := s.handler()
	if cfg.Wrap != nil {
		handler = cfg.Wrap(handler)
	}
	s.http = &http.Server{
		Handler:           cfg.Metrics.InstrumentHandler(handler, "readwrite"),
		ReadHeaderTimeout: 30 * time.Second,
		IdleTimeout:       90 * time.Second,
		ErrorLog:          slog.NewLogLogger(cfg.Log.Handler(), slog.LevelDebug),
		TLSConfig: &tls.Config{
			MinVersion:       max(cfg.MinVersion, tls.VersionTLS12),
			CipherSuites:     suites,
			CurvePreferences: cfg.Curves,
			ClientAuth:       tls.RequestClientCert,
			// Upgrades to SPDY and WebSocket require HTTP/1.1. Other requests may use HTTP/2.
			NextProtos:     []string{"h2", "http/1.1"},
			GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return cfg.Certificate() },
		},
	}
	s.readOnly = &http.Server{Handler: cfg.Metrics.InstrumentHandler(s.readOnlyHandler(), "readonly"), ReadHeaderTimeout: 30 * time.Second, IdleTimeout: 90 * time.Second, ErrorLog: s.http.ErrorLog}
	return s
}

// Serve serves requests on the listeners of the configuration until ctx is done. Requests in progress have a
// second to finish. It returns an error if the HTTPS listener fails; a failure of the read-only server is
// only logged.
func (s *Server) Serve(ctx context.Context) error {
	if s.cfg.ReadOnly != nil {
		served := make(chan struct{})
		go func() {
			defer close(served)
			if err := s.readOnly.Serve(s.cfg.ReadOnly); !errors.Is(err, http.ErrServerClosed) {
				s.cfg.Log.Error("serving the read-only port of the kubelet failed; its clients cannot connect, the HTTPS port is not affected: restart the kubelet", "address", s.cfg.ReadOnly.Addr(), "err", err)
			}
		}()
		defer func() { s.readOnly.Close(); <-served }()
	}
	stopped := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(stopped)
		short, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		if err := s.http.Shutdown(short); err != nil {
			s.http.Close()
		}
	})
	err := s.http.ServeTLS(s.cfg.Listener, "", "")
	if !stop() {
		<-stopped
	}
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

// readOnlyHandler returns the handler of the endpoints for health, pods, statistics and metrics, which do not
// expose the contents of containers.
func (s *Server) readOnlyHandler() *http.ServeMux {
	mux := http.NewServeMux()
	b := s.cfg.Backend
	mux.HandleFunc("/healthz", Healthz(b.Healthy))
	for _, check := range []string{"ping", "log"} {
		mux.HandleFunc("/healthz/"+check, Healthz(func() error { return nil }))
	}
	mux.HandleFunc("/healthz/syncloop", Healthz(b.Healthy))
	mux.HandleFunc("GET /pods", func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, podList(b.Pods())) })
	summary := func(w http.ResponseWriter, r *http.Request) {
		sum, err := b.Summary(r.Context())
		if err != nil {
			fail(w, err)
			return
		}
		writeJSON(w, sum)
	}
	mux.HandleFunc("GET /stats/summary", summary)
	mux.HandleFunc("POST /stats/summary", summary)
	for _, which := range []string{"/metrics", "/metrics/resource", "/metrics/cadvisor", "/metrics/probes"} {
		mux.Handle("GET "+which, promhttp.HandlerFor(b.Metrics(which), promhttp.HandlerOpts{}))
	}
	return mux
}

// handler returns the handler of all endpoints of the HTTPS server, with authentication and authorization.
func (s *Server) handler() http.Handler {
	mux := s.readOnlyHandler()
	b := s.cfg.Backend
	running := func(w http.ResponseWriter, r *http.Request) {
		pods, err := b.RunningPods(r.Context())
		if err != nil {
			fail(w, err)
			return
		}
		writeJSON(w, podList(pods))
	}
	mux.HandleFunc("GET /runningpods", running)
	mux.HandleFunc("GET /runningpods/{$}", running)
	mux.HandleFunc("GET /configz", func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, map[string]any{"kubeletconfig": b.Configz()})
	})
	known := []string{"/flagz", "/healthz", "/metrics", "/pods", "/runningpods", "/configz", "/stats", "/statusz"}
	mux.HandleFunc("POST /checkpoint/{namespace}/{pod}/{container}", s.checkpoint)
	if !s.cfg.NoDebug {
		s.debug(mux)
		known = append(known, "/containerLogs", "/debug", "/exec", "/attach", "/run", "/portForward", "/logs")
	}
	mux.Handle("GET /flagz", zpages.Flagz("kubelet", s.cfg.Flags))
	mux.Handle("GET /statusz", zpages.Statusz("kubelet", known...))
	return s.authenticated(mux)
}

// debug adds the endpoints that access containers, node logs, profiles and the log level to mux. Node logs,
// profiles and the log level are omitted if the configuration disables them.
func (s *Server) debug(mux *http.ServeMux) {
	mux.HandleFunc("GET /containerLogs/{namespace}/{pod}/{container}", s.logs)
	for _, at := range []string{"/exec/{namespace}/{pod}/{container}", "/exec/{namespace}/{pod}/{uid}/{container}"} {
		mux.HandleFunc(at, s.stream(false))
	}
	for _, at := range []string{"/attach/{namespace}/{pod}/{container}", "/attach/{namespace}/{pod}/{uid}/{container}"} {
		mux.HandleFunc(at, s.stream(true))
	}
	for _, at := range []string{"/run/{namespace}/{pod}/{container}", "/run/{namespace}/{pod}/{uid}/{container}"} {
		mux.HandleFunc("POST "+at, s.run)
	}
	for _, at := range []string{"/portForward/{namespace}/{pod}", "/portForward/{namespace}/{pod}/{uid}"} {
		mux.HandleFunc(at, s.portForward)
	}
	if s.cfg.NodeLogs != "" {
		logs := nodelogs.Files(s.cfg.NodeLogs)
		if s.cfg.NodeLogQuery {
			logs = nodelogs.Queries(s.cfg.NodeLogs, nodelogs.Journalctl)
		}
		mux.Handle("GET /logs/", http.StripPrefix("/logs/", logs))
	}
	if !s.cfg.NoProfiling {
		for path, page := range zpages.Profiles() {
			mux.Handle(path, page)
		}
	}
	if s.cfg.Level != nil {
		for path, page := range zpages.DebugFlags(s.cfg.Level) {
			mux.Handle(path, page)
		}
	}
}

// authenticated returns a handler that authenticates and authorizes requests before mux serves them.
func (s *Server) authenticated(mux *http.ServeMux) http.Handler {
	if s.cfg.Auth == nil {
		return mux
	}
	return s.cfg.Auth.wrap(mux, s.cfg.ClientCA)
}

// Healthz returns a health check handler that responds with status 500 and the error if check returns one. With ?verbose, a
// successful response has the lines of upstream's checks ping, log and syncloop instead of "ok".
func Healthz(check func() error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		if err := check(); err != nil {
			http.Error(w, "[-]syncloop failed: "+err.Error()+"\nhealthz check failed", http.StatusInternalServerError)
			return
		}
		if _, verbose := r.URL.Query()["verbose"]; verbose {
			fmt.Fprint(w, "[+]ping ok\n[+]log ok\n[+]syncloop ok\nhealthz check passed\n")
			return
		}
		fmt.Fprint(w, "ok")
	}
}

// podList returns the pods as an API list.
func podList(pods []*v1.Pod) *v1.PodList {
	list := &v1.PodList{Items: []v1.Pod{}}
	list.Kind, list.APIVersion = "PodList", "v1"
	for _, p := range pods {
		list.Items = append(list.Items, *p)
	}
	return list
}

// writeJSON writes v as a JSON response.
func writeJSON(w http.ResponseWriter, v any) {
	raw, err := json.Marshal(v)
	if err != nil {
		fail(w, err)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(raw)
}

// fail writes an error response: status 404 if err wraps ErrNotFound, otherwise 500.
func fail(w http.ResponseWriter, err error) {
	code := http.StatusInternalServerError
	if errors.Is(err, ErrNotFound) {
		code = http.StatusNotFound
	}
	http.Error(w, err.Error(), code)
}

// logs serves /containerLogs, which the API server calls for `kubectl logs`. It responds with status 404 for a
// pod or container that does not exist, 400 for a container without logs, and 422 for invalid parameters. An
// error after the first output is not reported.
func (s *Server) logs(w http.ResponseWriter, r *http.Request) {
	o, previous, stream, err := logOptions(r.URL.Query(), time.Now())
	if err != nil {
		http.Error(w, err.Error(), http.StatusUnprocessableEntity)
		return
	}
	_, c, err := s.cfg.Backend.Container(r.PathValue("namespace"), r.PathValue("pod"), "", r.PathValue("container"), previous)
	if err != nil {
		code := http.StatusBadRequest
		if errors.Is(err, ErrNotFound) {
			code = http.StatusNotFound
		}
		http.Error(w, err.Error(), code)
		return
	}
	if o.Follow && c.State == podstate.Running {
		done := s.cfg.Backend.Exited(r.Context(), c.ID)
		defer s.cfg.Backend.CancelExited(c.ID, done)
		o.Done = done
	}
	w.Header().Set("Content-Type", "text/plain")
	out := &flushing{w: w, flush: o.Follow}
	if f, ok := w.(http.Flusher); ok && o.Follow {
		f.Flush()
	}
	stdout, stderr := out, out
	switch stream {
	case "Stdout":
		stderr = nil
	case "Stderr":
		stdout = nil
	}
	err = podlogs.Read(r.Context(), c.LogPath, o, stdout.orNil(), stderr.orNil())
	if err != nil && r.Context().Err() == nil && !out.wrote {
		http.Error(w, err.Error(), http.StatusInternalServerError)
	}
}

// flushing writes to a response and, if flush is set, sends each write immediately. wrote is true after the
// first write.
type flushing struct {
	w     http.ResponseWriter
	flush bool
	wrote bool
}

// Write writes p to the response and, if flush is set, sends it to the client immediately.
func (f *flushing) Write(p []byte) (int, error) {
	f.wrote = true
	n, err := f.w.Write(p)
	if f.flush {
		if fl, ok := f.w.(http.Flusher); ok {
			fl.Flush()
		}
	}
	return n, err
}

// orNil returns f, or a nil interface if f is nil. Assigning a nil *flushing directly would yield a writer that is
// not nil, so that Read would write to it.
func (f *flushing) orNil() interface{ Write([]byte) (int, error) } {
	if f == nil {
		return nil
	}
	return f
}

// logOptions parses the parameters of a log request. previous requests the log of the attempt before the
// latest. stream is "All", "Stdout" or "Stderr". now is the reference of sinceSeconds. Invalid values are an
// error, and so is tailLines with a single stream.
func logOptions(q url.Values, now time.Time) (o podlogs.Options, previous bool, stream string, err error) {
	o.Tail = -1
	flag := func(name string) bool {
		v := q.Get(name)
		return v == "true" || v == "1"
	}
	number := func(name string) (int64, bool) {
		v := q.Get(name)
		if v == "" {
			return 0, false
		}
		n, convErr := strconv.ParseInt(v, 10, 64)
		if convErr != nil || n < 0 {
			err = fmt.Errorf("invalid %s: %q", name, v)
		}
		return n, true
	}
	o.Follow, o.Timestamps, previous = flag("follow"), flag("timestamps"), flag("previous")
	if v := q.Get("tailLines"); v != "" && v != "all" {
		o.Tail, _ = number("tailLines")
	}
	if n, ok := number("limitBytes"); ok {
		if n < 1 {
			err = errors.New("limitBytes must be greater than 0")
		}
		o.Limit = n
	}
	if n, ok := number("sinceSeconds"); ok {
		o.Since = now.Add(-time.Duration(n) * time.Second)
	}
	if v := q.Get("sinceTime"); v != "" {
		t, parseErr := time.Parse(time.RFC3339, v)
		if parseErr != nil {
			err = fmt.Errorf("invalid sinceTime: %w", parseErr)
		}
		o.Since = t
	}
	stream = q.Get("stream")
	switch stream {
	case "":
		stream = "All"
	case "All":
	case "Stdout", "Stderr":
		if o.Tail >= 0 {
			err = errors.New("`tailLines` and specific `stream` are mutually exclusive for now")
		}
	default:
		err = fmt.Errorf("invalid stream %q: want All, Stdout or Stderr", stream)
	}
	return o, previous, stream, err
}

// run serves /run: it runs the command in the parameter cmd, split at spaces, in a container, and responds with
// its output.
func (s *Server) run(w http.ResponseWriter, r *http.Request) {
	_, c, err := s.cfg.Backend.Container(r.PathValue("namespace"), r.PathValue("pod"), types.UID(r.PathValue("uid")), r.PathValue("container"), false)
	if err != nil {
		fail(w, err)
		return
	}
	out, err := s.cfg.Backend.Run(r.Context(), c.ID, strings.Split(r.URL.Query().Get("cmd"), " "))
	if err != nil {
		fail(w, err)
		return
	}
	w.Header().Set("Content-Type", "text/plain")
	_, _ = w.Write(out)
}
