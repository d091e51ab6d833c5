package metrics

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
)

// scrapeTimeout is the timeout of one scrape of a kubelet.
const scrapeTimeout = 10 * time.Second

// scraper reads the resource usage of all nodes from their kubelets, into a scrapeStore and the history.
type scraper struct {
	// kubelets authenticates as a user that may get nodes/stats.
	kubelets *http.Client
	nodes    corelisters.NodeLister
	scrapes  *scrapeStore
	history  recorder
	// synced report whether the caches of nodes and pods are complete.
	synced []cache.InformerSynced
	// interval is the interval between scrapes, for log messages.
	interval time.Duration
	log      *slog.Logger

	mu sync.Mutex // guards failing
	// failing contains the nodes whose last scrape failed.
	failing map[string]bool
}

// scrapeAll scrapes the kubelet of every node once, at most 32 at a time. It omits nodes whose kubelet has stopped to renew its
// lease, so that their condition Ready is Unknown. The first of consecutive failures of a node is logged, and the scrapes of that
// node remain as they are. Those of nodes that no longer exist are removed. The history keeps its samples for a day.
func (s *scraper) scrapeAll(ctx context.Context) {
	nodes, err := s.nodes.List(labels.Everything())
	if err != nil {
		s.log.Error("listing nodes failed; no kubelet is scraped and metrics become outdated, retrying after the interval", "interval", s.interval, "err", err)
		return
	}
	names := map[string]bool{}
	slots := make(chan struct{}, 32)
	var working sync.WaitGroup
	for _, n := range nodes {
		names[n.Name] = true
		if unreachable(n) {
			continue
		}
		slots <- struct{}{}
		working.Go(func() {
			defer func() { <-slots }()
			got, err := s.scrape(ctx, n)
			if ctx.Err() != nil {
				return
			}
			if first := s.failed(n.Name, err); first {
				s.log.Warn("scraping kubelet failed; metrics of its node and pods are missing or outdated, retrying after each interval without logging more failures", "node", n.Name, "interval", s.interval, "err", err)
			}
			if err != nil {
				return
			}
			s.scrapes.add(n.Name, samplesOf(got))
			s.history.record(time.Now(), n.Name, got)
		})
	}
	working.Wait()
	s.scrapes.retain(names)
	s.mu.Lock()
	maps.DeleteFunc(s.failing, func(name string, _ bool) bool { return !names[name] })
	s.mu.Unlock()
	s.history.recordControlPlane(time.Now())
	s.history.store.Expire(time.Now())
}

// failed records the result err of a scrape of a node, nil for success. It reports whether err is an error and the scrape
// before did not fail.
func (s *scraper) failed(node string, err error) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil {
		delete(s.failing, node)
		return false
	}
	before := s.failing[node]
	if s.failing == nil {
		s.failing = map[string]bool{}
	}
	s.failing[node] = true
	return !before
}

// unreachable reports whether the controllers have set the condition Ready of n to Unknown, because its kubelet has not
// reported for the grace period.
func unreachable(n *corev1.Node) bool {
	for i := range n.Status.Conditions {
		if c := &n.Status.Conditions[i]; c.Type == corev1.NodeReady {
			return c.Status == corev1.ConditionUnknown
		}
	}
	return false
}

// scrape reads and parses the summary of the kubelet of one node, at the first internal, otherwise external
// address or host name of the Node. It returns an error if the Node has no address or port, or if the kubelet
// does not respond with status 200.
func (s *scraper) scrape(ctx context.Context, n *corev1.Node) (*summary, error) {
	var address string
	for _, kind := range []corev1.NodeAddressType{corev1.NodeInternalIP, corev1.NodeExternalIP, corev1.NodeHostName} {
		for _, a := range n.Status.Addresses {
			if a.Type == kind && address == "" {
				address = a.Address
			}
		}
	}
	port := int(n.Status.DaemonEndpoints.KubeletEndpoint.Port)
	if address == "" || port == 0 {
		return nil, errors.New("the node status has no kubelet address or port")
	}
	url := "https://" + net.JoinHostPort(address, strconv.Itoa(port)) + "/stats/summary"
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	begin := time.Now()
	resp, err := s.kubelets.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s responded with %s", url, resp.Status)
	}
	return readSummary(resp.Body, begin, time.Now())
}
