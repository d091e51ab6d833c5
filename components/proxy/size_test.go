package proxy

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"runtime"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"hyperkube/components/proxy/rules"
	"hyperkube/internal/host/packetfilter"
)

// sizedPort returns the port of the i-th Service with three endpoints.
func sizedPort(i int) *rules.Port {
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

// BenchmarkServices measures, with a number of Services with three endpoints each:
//
//   - first: the time until all rules are written for the first time, from the ports of the Services. heap-MB is the memory
//     that the ports, the translator and the writer use afterwards;
//   - service: the time from a new Service until a TCP connection to it is open. write-ms is the part of it until the rules
//     are written. The endpoints are sockets of this host;
//   - idle: the time of the CPU that the guard of the rules uses while nothing changes, in percent of a core;
//   - connection: the time to open a TCP connection to a Service, whose first packet the rules translate. direct-us is the
//     time without the Service.
//
// Run it with
//
//	go test -run '^$' -bench BenchmarkServices -benchtime 20x ./components/proxy
func BenchmarkServices(b *testing.B) {
	for _, mode := range []packetfilter.Mode{packetfilter.NFTables, packetfilter.IPTables} {
		for _, size := range []int{1000, 10000, 30000} {
			b.Run(fmt.Sprintf("%s/%d", mode, size), func(b *testing.B) { benchmarkServices(b, mode, size) })
		}
	}
}

func benchmarkServices(b *testing.B, mode packetfilter.Mode, size int) {
	node := newBench(b, mode)
	namespace, err := unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		b.Fatal(err)
	}
	defer unix.Close(namespace)
	before := heap()
	translator := rules.NewTranslator(mode)
	for i := range size {
		translator.Replace(nil, []*rules.Port{sizedPort(i)})
	}
	write := func() {
		if err := node.writer.Sync(b.Context(), packetfilter.IPv4, translator.Build(rules.Config{Pods: clusterPods})); err != nil {
			b.Fatal(err)
		}
	}
	// Sub-benchmarks run on other threads, so each enters the network namespace of the node.
	inNode := func(name string, run func(*testing.B)) {
		b.Run(name, func(b *testing.B) {
			runtime.LockOSThread() // never unlocked, so the thread exits with its goroutine
			if err := unix.Setns(namespace, unix.CLONE_NEWNET); err != nil {
				b.Fatal(err)
			}
			run(b)
		})
	}
	inNode("first", func(b *testing.B) {
		for b.Loop() {
			b.StopTimer()
			node.writer = newWriter(Config{PacketFilter: mode})
			b.StartTimer()
			write()
		}
		b.ReportMetric(float64(heap()-before)/(1<<20), "heap-MB")
	})
	inNode("idle", func(b *testing.B) {
		guard := newWriter(Config{PacketFilter: mode}).Guard
		if err := guard.Listen(); err != nil {
			b.Fatal(err)
		}
		ctx, cancel := context.WithCancel(b.Context())
		var running sync.WaitGroup
		running.Go(func() { guard.Run(ctx, make(chan struct{}, 1)) })
		<-guard.Ready()
		const period = 3 * time.Second
		before := processorTime()
		time.Sleep(period)
		used := processorTime() - before
		cancel()
		running.Wait()
		b.ReportMetric(100*used.Seconds()/period.Seconds(), "%CPU")
	})
	service := sizedPort(size)
	for i := range service.Endpoints {
		service.Endpoints[i].Address = netip.MustParseAddrPort([]string{here, elsewhere, here}[i] + ":8080")
	}
	address := netip.AddrPortFrom(service.ClusterIP, service.Port).String()
	inNode("service", func(b *testing.B) {
		var writing time.Duration
		for b.Loop() {
			began := time.Now()
			translator.Replace(nil, []*rules.Port{service})
			write()
			writing += time.Since(began)
			connect(b, address)
			b.StopTimer()
			translator.Replace([]*rules.Port{service}, nil)
			write()
			b.StartTimer()
		}
		b.ReportMetric(writing.Seconds()*1e3/float64(b.N), "write-ms")
	})
	translator.Replace(nil, []*rules.Port{service})
	write()
	inNode("connection", func(b *testing.B) {
		var direct time.Duration
		for range 200 {
			connect(b, address)
		}
		for b.Loop() {
			connect(b, address)
			b.StopTimer()
			began := time.Now()
			connect(b, here+":8080")
			direct += time.Since(began)
			b.StartTimer()
		}
		b.ReportMetric(float64(direct.Microseconds())/float64(b.N), "direct-us")
	})
}

// connect opens a TCP connection to an address and reads the response.
func connect(b *testing.B, address string) {
	conn, err := net.DialTimeout("tcp", address, time.Minute)
	if err != nil {
		b.Fatal(err)
	}
	defer conn.Close()
	if _, err := io.ReadAll(conn); err != nil {
		b.Fatal(err)
	}
}

// processorTime returns the time that this process has used the CPU.
func processorTime() time.Duration {
	var usage unix.Rusage
	_ = unix.Getrusage(unix.RUSAGE_SELF, &usage)
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// heap returns the size in bytes of the objects on the heap that are in use.
func heap() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
