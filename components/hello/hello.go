// Package hello implements a small web server for first applications and tests. It reports which
// pod answered, and can be made unhealthy, unready or crash on request.
package hello

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"hyperkube/internal/base/version"
)

// Config configures a Server.
type Config struct {
	// Address to listen on, such as ":8080".
	Address string
	// GRPCAddress is the listen address of the gRPC health service, which reports the same as
	// /healthz, and for the service "ready" the same as /readyz. If empty, it is not served.
	GRPCAddress string
	// Message is the first line of the response. Empty means "Hello".
	Message string
	// StartDelay is how long after startup the server becomes ready.
	StartDelay time.Duration
	// Drain is how long the server keeps serving requests after ctx is cancelled, while proxies
	// remove the endpoint.
	Drain time.Duration
	// Exit is called on POST /crash. Nil means os.Exit.
	Exit func(code int)
}

// Server is a web server that responds to every request with information about its pod and node.
type Server struct {
	cfg       Config
	started   time.Time
	unhealthy atomic.Bool
	unready   atomic.Bool
	draining  atomic.Bool
	requests  atomic.Int64
	ready     chan struct{}
}

// New validates cfg and returns a Server.
func New(cfg Config) (*Server, error) {
	if cfg.Address == "" {
		return nil, errors.New("hello: no address to listen on")
	}
	if cfg.Message == "" {
		cfg.Message = "Hello"
	}
	if cfg.Exit == nil {
		cfg.Exit = os.Exit
	}
	return &Server{cfg: cfg, ready: make(chan struct{})}, nil
}

// Ready returns a channel that is closed once the server listens.
func (s *Server) Ready() <-chan struct{} { return s.ready }

// Run serves until ctx is cancelled. Then it serves for the duration Drain longer, while it reports that it is
// not ready, and waits at most 10 seconds for requests in flight. It returns an error if it cannot listen,
// serving fails, or requests do not finish in time.
func (s *Server) Run(ctx context.Context) error {
	listener, err := net.Listen("tcp", s.cfg.Address)
	if err != nil {
		return fmt.Errorf("hello: %w", err)
	}
	s.started = time.Now()
	server := &http.Server{Handler: s.Handler(), ReadHeaderTimeout: 10 * time.Second}
	if s.cfg.GRPCAddress != "" {
		stop, err := s.serveGRPC()
		if err != nil {
			listener.Close()
			return err
		}
		defer stop()
	}
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(listener) }()
	close(s.ready)
	select {
	case err := <-failed:
		return fmt.Errorf("hello: %w", err)
	case <-ctx.Done():
	}
	s.draining.Store(true)
	time.Sleep(s.cfg.Drain)
	end, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := server.Shutdown(end); err != nil {
		return fmt.Errorf("hello: stopping: %w", err)
	}
	_ = <-failed // always http.ErrServerClosed
	return nil
}

// Handler serves:
//
//	/                information about the pod, as text, or as JSON if the client accepts it
//	/healthz         liveness; POST /healthz?ok=false makes it fail
//	/readyz          readiness; POST /readyz?ok=false makes it fail
//	POST /crash      exits the process with ?code= (default 1)
//	/env, /slow      the environment; a response after ?for= (default 1s)
func (s *Server) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/", s.whoami)
	mux.HandleFunc("/healthz", s.check(&s.unhealthy, func() bool { return true }))
	mux.HandleFunc("/readyz", s.check(&s.unready, s.acceptsRequests))
	mux.HandleFunc("POST /crash", func(w http.ResponseWriter, r *http.Request) {
		code, err := strconv.Atoi(r.FormValue("code"))
		if err != nil {
			code = 1
		}
		fmt.Fprintf(w, "crashing with exit code %d\n", code)
		_ = http.NewResponseController(w).Flush()
		s.cfg.Exit(code)
	})
	mux.HandleFunc("/env", func(w http.ResponseWriter, _ *http.Request) {
		env := os.Environ()
		slices.Sort(env)
		fmt.Fprintln(w, strings.Join(env, "\n"))
	})
	mux.HandleFunc("/slow", func(w http.ResponseWriter, r *http.Request) {
		wait, err := time.ParseDuration(r.FormValue("for"))
		if err != nil || wait < 0 {
			wait = time.Second
		}
		select {
		case <-time.After(wait):
			s.whoami(w, r)
		case <-r.Context().Done():
		}
	})
	return mux
}

// acceptsRequests reports whether the server is ready: the start delay has passed and the server is
// not shutting down.
func (s *Server) acceptsRequests() bool {
	return !s.draining.Load() && time.Since(s.started) >= s.cfg.StartDelay
}

// answer is the JSON response of /.
type answer struct {
	Message   string              `json:"message"`
	Pod       string              `json:"pod"`
	Namespace string              `json:"namespace"`
	Node      string              `json:"node"`
	Address   string              `json:"address,omitempty"`
	Version   string              `json:"version"`
	Uptime    string              `json:"uptime"`
	Requests  int64               `json:"requests"`
	Method    string              `json:"method"`
	Path      string              `json:"path"`
	Client    string              `json:"client"`
	Headers   map[string][]string `json:"headers"`
}

func (s *Server) whoami(w http.ResponseWriter, r *http.Request) {
	a := answer{
		Message:   s.cfg.Message,
		Pod:       cmp.Or(os.Getenv("POD_NAME"), hostname()),
		Namespace: cmp.Or(os.Getenv("POD_NAMESPACE"), ownNamespace()),
		Node:      os.Getenv("NODE_NAME"),
		Address:   os.Getenv("POD_IP"),
		Version:   version.Get().GitVersion,
		Uptime:    time.Since(s.started).Round(time.Millisecond).String(),
		Requests:  s.requests.Add(1),
		Method:    r.Method,
		Path:      r.URL.Path,
		Client:    r.RemoteAddr,
		Headers:   r.Header,
	}
	if strings.Contains(r.Header.Get("Accept"), "application/json") {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(a)
		return
	}
	fmt.Fprintf(w, "%s from pod %s, namespace %s, node %s\n", a.Message, a.Pod, cmp.Or(a.Namespace, "-"), cmp.Or(a.Node, "-"))
	fmt.Fprintf(w, "hyperkube %s, up %s, request %d from %s: %s %s\n", a.Version, a.Uptime, a.Requests, a.Client, a.Method, a.Path)
	names := make([]string, 0, len(a.Headers))
	for name := range a.Headers {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		fmt.Fprintf(w, "%s: %s\n", name, strings.Join(a.Headers[name], ", "))
	}
}

// check returns the handler of a health endpoint: GET succeeds unless broken is set or ready
// returns false, and POST ?ok=false sets broken.
func (s *Server) check(broken *atomic.Bool, ready func() bool) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			broken.Store(r.FormValue("ok") == "false")
		}
		if broken.Load() || !ready() {
			if r.Method != http.MethodPost {
				w.WriteHeader(http.StatusServiceUnavailable)
			}
			fmt.Fprintln(w, "not ok")
			return
		}
		fmt.Fprintln(w, "ok")
	}
}

func hostname() string {
	name, err := os.Hostname()
	if err != nil {
		return "unknown"
	}
	return name
}

// ownNamespace returns the namespace of the pod from its service account volume, or "".
func ownNamespace() string {
	data, err := os.ReadFile("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(data))
}
