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

// How many requests are worked on at the same time when nobody says, as
// upstream.
const (
	defaultInFlight         = 400
	defaultMutatingInFlight = 200
)

// InFlight is how many requests are worked on at the same time.
type InFlight struct {
	// NoFairness counts requests without a look at who sends them.
	NoFairness bool
	// Reading and Mutating requests; with fairness only their sum counts.
	// Zero means 400 and 200, less than zero that there is no limit.
	Reading, Mutating int
}

func (f InFlight) orDefault() (reading, mutating int) {
	pick := func(n, otherwise int) int {
		if n == 0 {
			n = otherwise
		}
		return max(n, 0)
	}
	return pick(f.Reading, defaultInFlight), pick(f.Mutating, defaultMutatingInFlight)
}

// lateLimiter is filled before the server runs.
type lateLimiter struct{ filters.Limiter }

// Serve as filters.Limiter.
func (l *lateLimiter) Serve(w http.ResponseWriter, req *http.Request, info *apirequest.RequestInfo, u user.Info, next http.Handler) {
	l.Limiter.Serve(w, req, info, u, next)
}

// limit makes what decides when requests are worked on.
func (s *Server) limit(late *lateLimiter) error {
	reading, mutating := s.cfg.InFlight.orDefault()
	if s.cfg.InFlight.NoFairness || reading+mutating == 0 {
		late.Limiter = fairness.NewPlain(reading, mutating)
		return nil
	}
	reg := s.server.Registry()
	var err error
	s.fairness, err = fairness.New(fairness.Config{
		Informers: s.own.Informers, Client: s.own.Kube.FlowcontrolV1(), Seats: reading + mutating,
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

// limitOptions are the flags of what requests may take.
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

func (o *limitOptions) flags(f *pflag.FlagSet) {
	f.BoolVar(&o.fairness, "enable-priority-and-fairness", true, "Share the server's capacity by FlowSchemas and PriorityLevelConfigurations.")
	f.IntVar(&o.reading, "max-requests-inflight", defaultInFlight, "Requests that read and are worked on at the same time; 0: no limit. With fairness, this and --max-mutating-requests-inflight are added.")
	f.IntVar(&o.mutating, "max-mutating-requests-inflight", defaultMutatingInFlight, "Requests that write and are worked on at the same time; 0: no limit.")
	f.DurationVar(&o.request, "request-timeout", time.Minute, "How long a request may take that does not stream.")
	f.IntVar(&o.watch, "min-request-timeout", 1800, "Seconds that a watch lasts at least whose client does not say.")
	f.Int64Var(&o.streamBytes, "max-connection-bytes-per-sec", 0, "Bytes a second in each direction of a connection of exec, attach, port-forward or proxy; 0: as many as come.")
	f.IntVar(&o.streams, "http2-max-streams-per-connection", 0, "Requests of one HTTP/2 connection at the same time; 0: the default.")
	f.BoolVar(&o.noHTTP2, "disable-http2-serving", false, "Speak HTTP/1.1 alone.")
	f.Float64Var(&o.goAway, "goaway-chance", 0, "How likely a request ends its HTTP/2 connection, for clients to spread over servers; at most 0.02.")
	f.StringSliceVar(&o.origins, "cors-allowed-origins", nil, "Regular expressions of origins whose scripts may use the API; empty: none.")
	f.StringSliceVar(&o.transport, "strict-transport-security-directives", nil, "Directives of the header Strict-Transport-Security; empty: it is not sent.")
	f.DurationVar(&o.shutdownDelay, "shutdown-delay-duration", 0, "For how long the server goes on after it was told to stop, while it is not ready.")
	f.DurationVar(&o.livezGrace, "livez-grace-period", 0, "For how long after the start /livez does not mind what has not finished.")
}

// apply puts what the flags say into cfg.
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

// debugPaths shows the queues.
func (s *Server) debugPaths() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if s.fairness == nil || !strings.HasPrefix(req.URL.Path, fairness.DebugPath) {
			http.NotFound(w, req)
			return
		}
		s.fairness.Debug().ServeHTTP(w, req)
	})
}
