//go:build linux

// Command bench measures the data plane of the gateway beside nginx, haproxy and Caddy, and prints the table that
// docs/development/performance.md contains:
//
//	make bench-gateway
//
// All proxies forward to the same nginx. Each proxy runs on CPU 0, with one worker; its backend and its clients run on the
// other CPUs. The proxies are measured in turns, one at a time, and the table has the median of the rounds.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"
)

func main() {
	b := bench{}
	flag.StringVar(&b.caddy, "caddy", "bin/caddy", "Path to Caddy.")
	flag.DurationVar(&b.duration, "duration", 5*time.Second, "Duration of one measurement.")
	flag.IntVar(&b.rounds, "rounds", 3, "Number of measurements of each proxy and case.")
	proxies := flag.String("proxies", "gateway,nginx,haproxy,caddy", "Comma-separated list of proxies.")
	cases := flag.String("cases", "", "Comma-separated list of cases; empty means all.")
	flag.StringVar(&b.profile, "profile", "", "File for a CPU profile of the gateway.")
	serve := flag.String("serve-gateway", "", "Run the gateway with the ports and the certificate that this file describes. The benchmark starts itself with this flag.")
	flag.Parse()
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer cancel()
	var err error
	if *serve != "" {
		err = serveGateway(ctx, *serve, b.profile)
	} else {
		b.proxies, b.cases = strings.Split(*proxies, ","), allCases()
		if *cases != "" {
			b.cases = slices.DeleteFunc(b.cases, func(c benchCase) bool { return !slices.Contains(strings.Split(*cases, ","), c.name) })
		}
		err = b.run(ctx)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1) //nolint:gocritic // the context of the signal needs no cancellation at exit
	}
}

// bench measures proxies. Its fields are the flags of the command.
type bench struct {
	caddy, profile string
	duration       time.Duration
	rounds         int
	proxies        []string
	cases          []benchCase
}

// benchCase is what the clients of a measurement do.
type benchCase struct {
	name string
	// tls selects the proxy's port with TLS.
	tls bool
	// command returns the client's program and arguments. log is a file that the client may write.
	command func(url string, duration time.Duration, log string) []string
	path    string
	// parse reads the client's output, and what it has written to log.
	parse func(output, log string) (result, error)
}

// allCases returns the cases in the order of the table.
func allCases() []benchCase {
	seconds := func(d time.Duration) string { return fmt.Sprintf("%ds", int(d.Seconds())) }
	return []benchCase{
		{name: "http1", path: "/", parse: parseWrk, command: func(url string, d time.Duration, _ string) []string {
			return []string{"wrk", "-t1", "-c32", "-d" + seconds(d), "--latency", url}
		}},
		{name: "http2", tls: true, path: "/", parse: parseH2load, command: func(url string, d time.Duration, log string) []string {
			return []string{"h2load", "-c4", "-m8", "-t1", "-D" + seconds(d), "--log-file=" + log, url}
		}},
		{name: "handshakes", tls: true, path: "/", parse: parseWrk, command: func(url string, d time.Duration, _ string) []string {
			return []string{"wrk", "-t1", "-c16", "-d" + seconds(d), "-HConnection: close", "--latency", url}
		}},
		{name: "1MB", path: "/1m", parse: parseWrk, command: func(url string, d time.Duration, _ string) []string {
			return []string{"wrk", "-t1", "-c8", "-d" + seconds(d), "--latency", url}
		}},
	}
}

// result is the result of one measurement.
type result struct {
	requests int
	elapsed  time.Duration
	p99      time.Duration
	cpu      time.Duration // of the proxy
}

// run measures all cases and prints the table.
func (b *bench) run(ctx context.Context) (err error) {
	dir, err := os.MkdirTemp("", "gateway-bench-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	e, err := newEnvironment(dir, b.caddy, b.profile)
	if err != nil {
		return err
	}
	defer e.close()
	if err := e.startBackend(ctx); err != nil {
		return err
	}
	for _, name := range b.proxies {
		if err := e.startProxy(ctx, name); err != nil {
			return err
		}
	}
	fmt.Println("| Case | Proxy | Requests per second | p99 | CPU per request |\n|---|---|---|---|---|")
	for i := range b.cases {
		c := &b.cases[i]
		results := map[string][]result{}
		for range b.rounds {
			for _, name := range b.proxies {
				r, err := e.measure(ctx, name, c, b.duration)
				if err != nil {
					return fmt.Errorf("measuring %s with the case %s: %w", name, c.name, err)
				}
				results[name] = append(results[name], r)
			}
		}
		for _, name := range b.proxies {
			list := results[name]
			fmt.Printf("| %s | %s | %.0f | %.2f ms | %.1f µs |\n", c.name, name,
				median(list, func(r result) float64 { return float64(r.requests) / r.elapsed.Seconds() }),
				median(list, func(r result) float64 { return float64(r.p99.Microseconds()) / 1000 }),
				median(list, func(r result) float64 { return float64(r.cpu.Microseconds()) / float64(r.requests) }))
		}
	}
	return nil
}

// median returns the median of a figure of several results.
func median(results []result, of func(result) float64) float64 {
	figures := make([]float64, 0, len(results))
	for _, r := range results {
		figures = append(figures, of(r))
	}
	slices.Sort(figures)
	return figures[len(figures)/2]
}
