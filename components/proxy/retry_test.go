package proxy

import (
	"log/slog"
	"testing"

	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"

	"hyperkube/components/proxy/rules"
	"hyperkube/internal/host/iptables"
)

// TestRemovedIsRemembered checks that UDP flows of a deleted service are deleted even if the first
// removal of its rules failed.
func TestRemovedIsRemembered(t *testing.T) {
	factory := informers.NewSharedInformerFactory(fake.NewClientset(), 0)
	log, m := slog.New(slog.DiscardHandler), newMetrics()
	p := &Proxy{
		cfg: Config{NodeName: "n", Log: log}, metrics: m, health: newHealth(Config{Log: log}, m),
		services: factory.Core().V1().Services().Informer(), slices: factory.Discovery().V1().EndpointSlices().Informer(),
		changed: map[string]bool{"default/gone": true}, removed: map[bool][]*rules.Port{},
		ports: map[bool]map[string][]*rules.Port{false: {"default/gone": {{Protocol: "udp", Service: "gone"}}}, true: {}},
	}
	guard := iptables.NewGuard(0, log)
	p.writers = map[bool]*writer{false: newWriter(false, nil, guard), true: newWriter(true, nil, guard)}
	p.writers[false].command = "no-such-program"
	for range 2 {
		if err := p.sync(t.Context()); err == nil {
			t.Fatal("written by a program that is not there")
		}
		if n := len(p.removed[false]); n != 1 {
			t.Errorf("%d ports of deleted services", n)
		}
	}
}
