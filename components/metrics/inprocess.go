package metrics

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
	metricsv1beta1 "k8s.io/metrics/pkg/apis/metrics/v1beta1"

	"hyperkube/components/metrics/history"
	"hyperkube/internal/base/lifecycle"
	"hyperkube/internal/serving/frontproxy"
	"hyperkube/internal/serving/metricshistory"
)

// GroupVersion is the group and version of the metrics API. HistoryGroupVersion is that of the history API.
func GroupVersion() schema.GroupVersion        { return metricsv1beta1.SchemeGroupVersion }
func HistoryGroupVersion() schema.GroupVersion { return metricshistory.GroupVersion() }

// Resources returns the resources of the metrics API for discovery. HistoryResources returns those of the history API.
func Resources() []metav1.APIResource        { return resources().APIResources }
func HistoryResources() []metav1.APIResource { return historyResources().APIResources }

// InProcessConfig configures an InProcess, the metrics API in the process of the API server.
type InProcessConfig struct {
	// Informers contain the nodes and pods. The caller starts them.
	Informers informers.SharedInformerFactory
	// Kubelets sends requests to kubelets, as a user that may get nodes/stats.
	Kubelets Transport
	// History is on while the history API is served. Kubelets are then scraped all the time.
	History *Switch
	// ControlPlane is the control plane of this process, and NodeName the name of its node.
	ControlPlane ControlPlane
	NodeName     string
	// Log must not be nil.
	Log *slog.Logger
}

// Transport is an HTTP transport whose idle connections can be closed, such as http.Transport.
type Transport interface {
	http.RoundTripper
	CloseIdleConnections()
}

// Intervals at which an InProcess reads resource usage from the kubelets, which is a scrape.
const (
	// firstWindow is the interval between the first two scrapes. CPU usage is a rate, so the first response
	// requires two scrapes.
	firstWindow = time.Second
	// resolution is the interval between later scrapes.
	resolution = metricshistory.HourStep
	// historyDelay is the time from the start, or from when the history API is served, until the first scrape for the history.
	// The start of a cluster is not delayed by it.
	historyDelay = 5 * time.Second
	// idleAfter is the time since the last request after which scraping stops. The autoscaler requests usage
	// every 15 seconds while there is a HorizontalPodAutoscaler, and so keeps scraping active.
	idleAfter = 5 * time.Minute
)

// InProcess serves the metrics API and the history API in the process of the API server. It scrapes kubelets while the history
// API is served. If only the metrics API is, it scrapes while clients request usage: the first request after a pause then waits
// for two scrapes, which takes a little more than a second. It is safe for concurrent use.
type InProcess struct {
	api        api
	historyAPI historyAPI
	scraper    *scraper
	history    *Switch
	// transport is that of the scraper.
	transport Transport
	mux       *http.ServeMux
	// requested wakes Run. It has a value if a client has made a request since Run has last been idle.
	requested chan struct{}

	mu sync.Mutex // guards the fields below
	// last is the time of the last request.
	last time.Time
	// usable is closed when two scrapes are stored. Run replaces it when it stops scraping.
	usable chan struct{}
}

// NewInProcess validates cfg and registers with the informers it needs. It returns an error if a field of cfg
// is missing.
func NewInProcess(cfg InProcessConfig) (*InProcess, error) {
	if cfg.Informers == nil || cfg.Kubelets == nil || cfg.History == nil || cfg.ControlPlane == nil || cfg.NodeName == "" || cfg.Log == nil {
		return nil, errors.New("metrics API: informers, a transport, a switch, the control plane with its name and a logger are required")
	}
	core, scrapes, store := cfg.Informers.Core().V1(), &scrapeStore{}, history.NewStore(history.Limit)
	s := &InProcess{
		api:        api{nodes: core.Nodes().Lister(), pods: core.Pods().Lister(), scrapes: scrapes},
		historyAPI: historyAPI{store: store, nodes: core.Nodes().Lister()},
		history:    cfg.History,
		scraper: &scraper{
			kubelets: &http.Client{Transport: cfg.Kubelets, Timeout: scrapeTimeout}, nodes: core.Nodes().Lister(), scrapes: scrapes, interval: resolution, log: cfg.Log,
			history: recorder{store: store, pods: core.Pods().Lister(), controlPlane: cfg.ControlPlane, nodeName: cfg.NodeName},
			synced:  []cache.InformerSynced{core.Nodes().Informer().HasSynced, core.Pods().Informer().HasSynced},
		},
		transport: cfg.Kubelets, mux: http.NewServeMux(),
		requested: make(chan struct{}, 1), usable: make(chan struct{}),
	}
	frontproxy.RegisterDiscovery(s.mux, func(h http.Handler) http.Handler { return h }, resources(), historyResources())
	s.api.registerResources(s.mux, s.waiting)
	s.historyAPI.register(s.mux, s.waiting)
	return s, nil
}

// ServeHTTP serves the paths of both APIs. The caller has authorized the request.
func (s *InProcess) ServeHTTP(w http.ResponseWriter, req *http.Request) { s.mux.ServeHTTP(w, req) }

// waiting wraps a handler so that its requests start scraping and wait for the first two scrapes. If the
// client gives up before, the response is empty.
func (s *InProcess) waiting(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		select {
		case <-s.use():
			h.ServeHTTP(w, req)
		case <-req.Context().Done():
		}
	})
}

// use records a request for usage, which starts the scraping of kubelets unless it runs. The returned channel
// is closed once two scrapes are complete, so that usage is known.
func (s *InProcess) use() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last = time.Now()
	select {
	case s.requested <- struct{}{}:
	default:
	}
	return s.usable
}

// Run scrapes kubelets while clients request usage or the history API is served, until ctx is done.
func (s *InProcess) Run(ctx context.Context) error {
	for {
		changed, start := s.history.next(), make(<-chan time.Time)
		if s.history.isOn() {
			start = time.After(historyDelay)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
			continue
		case <-start:
		case <-s.requested:
		}
		s.scrape(ctx)
		s.transport.CloseIdleConnections()
	}
}

// scrape scrapes all kubelets periodically until neither the history needs it, nor a client has requested usage for
// idleAfter, or until ctx is done. Requests are answered after the second scrape, because CPU usage is the difference between
// two. If no client needs usage any more, the scrapes are discarded.
func (s *InProcess) scrape(ctx context.Context) {
	if !cache.WaitForCacheSync(ctx.Done(), s.scraper.synced...) {
		return
	}
	s.scraper.scrapeAll(ctx)
	if !lifecycle.Pause(ctx, firstWindow) {
		return
	}
	s.scraper.scrapeAll(ctx)
	close(s.usable)
	for lifecycle.Pause(ctx, untilNext(time.Now(), resolution)) {
		if s.stopIfIdle() {
			return
		}
		s.scraper.scrapeAll(ctx)
	}
}

// untilNext returns the time from now until shortly after the next multiple of interval since 1970, so that each scrape is in
// another step of the history.
func untilNext(now time.Time, interval time.Duration) time.Duration {
	const after = 100 * time.Millisecond
	return interval - time.Duration(now.Add(-after).UnixNano()%int64(interval))
}

// stopIfIdle discards the scrapes and the history if the history API is not served and no client has requested usage for
// idleAfter. It reports whether it did.
func (s *InProcess) stopIfIdle() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.history.isOn() || time.Since(s.last) < idleAfter {
		return false
	}
	s.api.scrapes.clear()
	s.historyAPI.store.Clear()
	s.usable = make(chan struct{})
	select {
	case <-s.requested: // a request of the period that ends
	default:
	}
	return true
}
