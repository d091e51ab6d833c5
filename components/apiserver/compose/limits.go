package compose

import (
	"net/http"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"

	"hyperkube/components/apiserver"
	"hyperkube/components/apiserver/fairness"
	"hyperkube/components/apiserver/filters"
)

// Default limits of concurrent requests, as in upstream.
const (
	defaultInFlight         = 400
	defaultMutatingInFlight = 200
)

// InFlight limits the number of requests that are handled concurrently. Long-running ones, such as watches, do not
// count.
type InFlight struct {
	// NoFairness disables API Priority and Fairness (--enable-priority-and-fairness=false):
	// requests are limited without regard to their user.
	NoFairness bool
	// Reading and Mutating limit the requests that read and that change something, respectively. With API Priority
	// and Fairness only their sum is used. Zero means 400 and 200, a negative value means no limit.
	Reading, Mutating int
}

// orDefault returns the effective limits of concurrent reading and mutating requests: zero in f selects the default,
// and a negative number means no limit, for which the result is zero.
func (f InFlight) orDefault() (reading, mutating int) {
	pick := func(n, otherwise int) int {
		if n == 0 {
			n = otherwise
		}
		return max(n, 0)
	}
	return pick(f.Reading, defaultInFlight), pick(f.Mutating, defaultMutatingInFlight)
}

// lateLimiter is a limiter that is passed to the HTTP server before the actual limiter exists. The
// actual one is set before the server runs.
type lateLimiter struct{ filters.Limiter }

// Serve implements filters.Limiter. It calls the actual limiter.
func (l *lateLimiter) Serve(w http.ResponseWriter, req *http.Request, info *apirequest.RequestInfo, u user.Info, next http.Handler) {
	l.Limiter.Serve(w, req, info, u, next)
}

// limit creates the request limiter and sets it in late. It is API Priority and Fairness, unless
// that is disabled or there is no limit. It is a part of New.
func (s *Server) limit(late *lateLimiter) error {
	reading, mutating := s.cfg.InFlight.orDefault()
	if s.cfg.InFlight.NoFairness || reading+mutating == 0 {
		late.Limiter = fairness.NewPlain(reading, mutating)
		return nil
	}
	reg := s.server.Registry()
	var err error
	s.fairness, err = fairness.New(fairness.Config{
		Informers: s.ownClients.Informers, Client: s.ownClients.Kube.FlowcontrolV1(), Seats: reading + mutating,
		Queued: s.server.Metrics().Queued,
		Stats: func(gr schema.GroupResource) (int, int, bool) {
			c := reg.Collection(gr)
			if c == nil {
				return 0, 0, false
			}
			return c.Stats()
		},
		Log: s.cfg.Log,
	})
	if err != nil {
		return err
	}
	late.Limiter = s.fairness
	return nil
}

// limitOptions contains the values of the flags that limit requests and connections.
type limitOptions struct {
	fairness                  bool
	reading, mutating         int
	request                   time.Duration
	watch, streams            int
	streamBytes               int64
	noHTTP2                   bool
	goAway                    float64
	origins, transport        []string
	shutdownDelay, livezGrace time.Duration
}

// flags adds to f the flags of kube-apiserver that limit requests and connections, which set the fields of o.
func (o *limitOptions) flags(f *pflag.FlagSet) {
	f.BoolVar(&o.fairness, "enable-priority-and-fairness", true, "If true, replace the max-in-flight handler with an enhanced one that queues and dispatches with priority and fairness.")
	f.IntVar(&o.reading, "max-requests-inflight", defaultInFlight, "The maximum number of non-mutating requests in flight at a given time, 0 for no limit. If --enable-priority-and-fairness is true, this and --max-mutating-requests-inflight are summed to determine the server's total concurrency limit.")
	f.IntVar(&o.mutating, "max-mutating-requests-inflight", defaultMutatingInFlight, "The maximum number of mutating requests in flight at a given time, 0 for no limit.")
	f.DurationVar(&o.request, "request-timeout", time.Minute, "The duration a handler must keep a request open before timing it out. This is the default for requests that are not long-running.")
	f.IntVar(&o.watch, "min-request-timeout", 1800, "The minimum number of seconds a watch handler must keep a watch open before timing it out, unless the client specifies a timeout.")
	f.Int64Var(&o.streamBytes, "max-connection-bytes-per-sec", 0, "If non-zero, throttle each user connection of long-running requests (exec, attach, port-forward, proxy) to this number of bytes/sec in each direction.")
	f.IntVar(&o.streams, "http2-max-streams-per-connection", 0, "The limit that the server gives to clients for the maximum number of streams in an HTTP/2 connection. Zero means to use the default.")
	f.BoolVar(&o.noHTTP2, "disable-http2-serving", false, "If true, HTTP2 serving will be disabled.")
	f.Float64Var(&o.goAway, "goaway-chance", 0, "To prevent HTTP/2 clients from getting stuck on a single apiserver, randomly close a connection (GOAWAY). The argument sets the fraction of requests that will be sent a GOAWAY. Min is 0 (off), Max is .02 (1/50 requests).")
	f.StringSliceVar(&o.origins, "cors-allowed-origins", nil, "List of allowed origins for CORS, comma separated. An allowed origin can be a regular expression to support subdomain matching. If this list is empty CORS will not be enabled.")
	f.StringSliceVar(&o.transport, "strict-transport-security-directives", nil, "List of directives for HSTS, comma separated. If this list is empty, then HSTS directives will not be added.")
	f.DurationVar(&o.shutdownDelay, "shutdown-delay-duration", 0, "Time to delay the termination. During that time the server keeps serving requests normally, but /readyz returns failure.")
	f.DurationVar(&o.livezGrace, "livez-grace-period", 0, "The maximum amount of time it should take for apiserver to complete its startup sequence and become live. Until then /livez ignores unfinished post-start hooks.")
}

// apply validates the flags and sets the corresponding fields of cfg. The value zero of the flags means no limit of
// requests in flight, which Config represents by a negative number.
func (o *limitOptions) apply(cfg *Config) error {
	none := func(n int) int {
		if n == 0 {
			return -1
		}
		return n
	}
	cfg.InFlight = InFlight{NoFairness: !o.fairness, Reading: none(o.reading), Mutating: none(o.mutating)}
	cfg.TLS.NoHTTP2 = o.noHTTP2
	guard, err := filters.NewGuard(o.origins, o.transport, o.goAway)
	if err != nil {
		return err
	}
	cfg.Limits = apiserver.Limits{
		Request: o.request, Watch: time.Duration(o.watch) * time.Second, Streams: o.streams, StreamBytes: o.streamBytes,
		ShutdownDelay: o.shutdownDelay, LivezGrace: o.livezGrace, Guard: guard,
	}
	return nil
}

// debugPaths returns a handler for the debug pages of API Priority and Fairness. It responds with 404 if API Priority
// and Fairness is disabled.
func (s *Server) debugPaths() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if s.fairness == nil || !strings.HasPrefix(req.URL.Path, fairness.DebugPath) {
			http.NotFound(w, req)
			return
		}
		s.fairness.Debug().ServeHTTP(w, req)
	})
}
