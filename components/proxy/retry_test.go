package proxy

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"testing"

	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"

	"hyperkube/components/proxy/rules"
	"hyperkube/internal/host/packetfilter"
)

// brokenBackend cannot read or change any rules.
type brokenBackend struct{}

func (brokenBackend) Read(context.Context, packetfilter.Family) (*packetfilter.State, error) {
	return nil, errors.New("broken")
}

func (brokenBackend) Apply(context.Context, packetfilter.Family, packetfilter.Change) error {
	return errors.New("broken")
}

// TestRemovedIsRemembered checks that UDP flows of a deleted service are deleted even if the first
// removal of its rules failed.
func TestRemovedIsRemembered(t *testing.T) {
	factory := informers.NewSharedInformerFactory(fake.NewClientset(), 0)
	log, m := slog.New(slog.DiscardHandler), newMetrics()
	p := &Proxy{
		cfg: Config{NodeName: "n", Log: log}, metrics: m, health: newHealth(Config{Log: log}, m),
		services: factory.Core().V1().Services().Informer(), slices: factory.Discovery().V1().EndpointSlices().Informer(),
		changed: map[string]bool{"default/gone": true}, removed: map[bool][]*rules.Port{},
		translators: newTranslators(packetfilter.IPTables),
		ports:       map[bool]map[string][]*rules.Port{false: {"default/gone": {{Protocol: "udp", Service: "gone"}}}, true: {}},
	}
	p.writer = packetfilter.NewWriter(packetfilter.Config{Objects: rules.ServiceChains(), Log: log, Backend: brokenBackend{}})
	for range 2 {
		if err := p.sync(t.Context(), new(sync.WaitGroup)); err == nil {
			t.Fatal("written by a broken backend")
		}
		if n := len(p.removed[false]); n != 1 {
			t.Errorf("%d ports of deleted services", n)
		}
	}
}
