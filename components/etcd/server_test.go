package etcd

import (
	"context"
	"fmt"
	"net"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// freeURLs returns n URLs that nobody listens on right now.
func freeURLs(t testing.TB, scheme string, n int) []string {
	t.Helper()
	var urls []string
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		urls = append(urls, fmt.Sprintf("%s://%s", scheme, l.Addr()))
	}
	return urls
}

// start runs a member until stop.
func start(t testing.TB, cfg Config) (s *Server, stop func()) {
	t.Helper()
	s, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	select {
	case <-s.Ready():
	case err := <-ended:
		t.Fatal(err)
	}
	return s, func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}

func localConfig(t testing.TB) Config {
	urls := freeURLs(t, "http", 2)
	return Config{DataDir: t.TempDir(), ListenClientURLs: urls[:1], ListenPeerURLs: urls[1:]}
}

func BenchmarkStartEmpty(b *testing.B) {
	for range b.N {
		b.StopTimer()
		cfg := localConfig(b)
		b.StartTimer()
		_, stop := start(b, cfg)
		b.StopTimer()
		stop()
	}
}

func BenchmarkStartAgain(b *testing.B) {
	cfg := localConfig(b)
	s, stop := start(b, cfg)
	for i := range 200 {
		if _, err := s.Client().Put(context.Background(), fmt.Sprint("k", i), "v"); err != nil {
			b.Fatal(err)
		}
	}
	stop()
	for b.Loop() {
		_, stop := start(b, cfg)
		b.StopTimer()
		stop()
		b.StartTimer()
	}
}

func BenchmarkPut(b *testing.B) {
	s, stop := start(b, localConfig(b))
	defer stop()
	for b.Loop() {
		if _, err := s.Client().Put(context.Background(), "key", "value"); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkGet(b *testing.B) {
	s, stop := start(b, localConfig(b))
	defer stop()
	for b.Loop() {
		if _, err := s.Client().Get(context.Background(), "key", clientv3.WithKeysOnly()); err != nil {
			b.Fatal(err)
		}
	}
}

