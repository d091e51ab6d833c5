package metrics

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
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

// scraper reads the resource usage of all nodes from their kubelets into a scrapeStore.
type scraper struct {
	// kubelets authenticates as a user that may get nodes/metrics.
	kubelets *http.Client
	nodes    corelisters.NodeLister
	scrapes  *scrapeStore
	// synced report whether the caches of nodes and pods are complete.
	synced []cache.InformerSynced
	// interval is the interval between scrapes, for log messages.
	interval time.Duration
	log      *slog.Logger
}

// scrapeAll scrapes the kubelet of every node once, at most 32 at a time. A failure is logged, and the scrapes
// of that node remain as they are. Those of nodes that no longer exist are removed.
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
		slots <- struct{}{}
		working.Go(func() {
			defer func() { <-slots }()
			got, err := s.scrape(ctx, n)
			if err != nil {
				if ctx.Err() == nil {
					s.log.Warn("scraping kubelet failed; metrics of its node and pods are missing or outdated, retrying after the interval", "node", n.Name, "interval", s.interval, "err", err)
				}
				return
			}
			s.scrapes.add(n.Name, got)
		})
	}
	working.Wait()
	s.scrapes.retain(names)
}

// scrape reads and parses the metrics of the kubelet of one node, at the first internal, otherwise external
// address or host name of the Node. It returns an error if the Node has no address or port, or if the kubelet
// does not respond with status 200.
func (s *scraper) scrape(ctx context.Context, n *corev1.Node) (scrape, error) {
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
	url := "https://" + net.JoinHostPort(address, strconv.Itoa(port)) + "/metrics/resource"
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	resp, err := s.kubelets.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s responded with %s", url, resp.Status)
	}
	return parse(resp.Body, time.Now())
}
