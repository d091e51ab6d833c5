package proxy

import (
	"fmt"
	"net/netip"
	"testing"

	"hyperkube/components/proxy/rules"
	"hyperkube/internal/host/packetfilter"
	"hyperkube/internal/testing/testnetns"
)

// manyPorts returns the ports of n Services with three endpoints each.
func manyPorts(n int) []*rules.Port {
	ports := make([]*rules.Port, n)
	for i := range ports {
		ports[i] = onePort(i)
	}
	return ports
}

// onePort returns the port of the i-th Service.
func onePort(i int) *rules.Port {
	p := &rules.Port{
		Namespace: "default", Service: fmt.Sprintf("service-%05d", i), Protocol: "tcp", Port: 80, HasAny: true,
		ClusterIP: netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)}),
	}
	for j := range 3 {
		n := 3*i + j
		p.Endpoints = append(p.Endpoints, rules.Endpoint{Address: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 128 + byte(n>>16), byte(n >> 8), byte(n)}), 8080)})
	}
	return p
}

// BenchmarkRules measures, for a number of Services with three endpoints each, how long the first write of all rules
// takes (first), and the write of a new Service and its removal.
//
//	go test -run '^$' -bench BenchmarkRules ./components/proxy
func BenchmarkRules(b *testing.B) {
	for _, mode := range []packetfilter.Mode{packetfilter.IPTables, packetfilter.NFTables} {
		for _, size := range []int{1000, 10000, 30000} {
			ports := manyPorts(size)
			cfg := rules.Config{Pods: clusterPods, InlineMark: mode == packetfilter.NFTables}
			builder := &rules.Builder{}
			b.Run(fmt.Sprintf("%s/%d/first", mode, size), func(b *testing.B) {
				for b.Loop() {
					b.StopTimer()
					testnetns.Enter(b)
					writer := newWriter(Config{PacketFilter: mode})
					b.StartTimer()
					if err := writer.Sync(b.Context(), packetfilter.IPv4, new(rules.Builder).Build(cfg, ports)); err != nil {
						b.Fatal(err)
					}
				}
			})
			b.Run(fmt.Sprintf("%s/%d/service", mode, size), func(b *testing.B) {
				testnetns.Enter(b)
				writer := newWriter(Config{PacketFilter: mode})
				sync := func(ports []*rules.Port) {
					if err := writer.Sync(b.Context(), packetfilter.IPv4, builder.Build(cfg, ports)); err != nil {
						b.Fatal(err)
					}
				}
				sync(ports)
				more := append(ports[:len(ports):len(ports)], onePort(size))
				for b.Loop() {
					sync(more)
					b.StopTimer()
					sync(ports)
					b.StartTimer()
				}
			})
		}
	}
}
