package etcd

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"hyperkube/internal/testing/leakcheck"
	"hyperkube/internal/testing/testport"
)

// freeURLs returns n URLs with ports that stay reserved for the test.
func freeURLs(t testing.TB, scheme string, n int) []string {
	t.Helper()
	var urls []string
	for range n {
		urls = append(urls, scheme+"://"+testport.Address(t))
	}
	return urls
}

// start runs a member. The caller must call stop.
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
	return Config{DataDir: filepath.Join(t.TempDir(), "data"), ListenClientURLs: urls[:1], ListenPeerURLs: urls[1:]}
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

func BenchmarkCurrentRevision(b *testing.B) {
	s, stop := start(b, localConfig(b))
	defer stop()
	kv := s.Client().KV.(*inProcessKV)
	for b.Loop() {
		if _, err := kv.CurrentRevision(context.Background()); err != nil {
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

func TestMain(m *testing.M) {
	if dir := os.Getenv("ETCD_TEST_WRITE"); dir != "" {
		os.Exit(writeUntilKilled(dir))
	}
	if dir := os.Getenv("ETCD_TEST_START"); dir != "" {
		os.Exit(startAndExit(dir))
	}
	if dir := os.Getenv("ETCD_TEST_READ"); dir != "" {
		os.Exit(readAndExit(dir))
	}
	if dir := os.Getenv("ETCD_TEST_FULL"); dir != "" {
		os.Exit(startFull(dir))
	}
	leakcheck.Main(m)
}

func TestRunTwice(t *testing.T) {
	cfg := localConfig(t)
	s, stop := start(t, cfg)
	if _, err := s.Client().Put(context.Background(), "k", "v"); err != nil {
		t.Fatal(err)
	}
	current, err := s.Client().KV.(*inProcessKV).CurrentRevision(context.Background())
	if err != nil || current != 2 {
		t.Errorf("current revision: %d %v", current, err)
	}
	// This client connects over the network.
	remote, err := Dial(DialConfig{Servers: cfg.ListenClientURLs})
	if err != nil {
		t.Fatal(err)
	}
	resp, err := remote.Get(context.Background(), "k")
	if err != nil || resp.Count != 1 {
		t.Errorf("over the network: %v %v", resp, err)
	}
	if err := remote.Close(); err != nil {
		t.Error(err)
	}
	stop()

	s, stop = start(t, cfg)
	defer stop()
	resp, err = s.Client().Get(context.Background(), "k")
	if err != nil || resp.Count != 1 || string(resp.Kvs[0].Value) != "v" {
		t.Errorf("after a restart: %v %v", resp, err)
	}
}

func TestPortTaken(t *testing.T) {
	cfg := localConfig(t)
	_, stop := start(t, cfg)
	defer stop()
	cfg.DataDir = t.TempDir()
	s, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Run(context.Background()); err == nil || !strings.Contains(err.Error(), "address already in use") {
		t.Errorf("two members on one port: %v", err)
	}
}

func TestTLS(t *testing.T) {
	dir := t.TempDir()
	ca, caKey := certificate(t, dir, "ca", nil, nil)
	certificate(t, dir, "server", ca, caKey)
	certificate(t, dir, "client", ca, caKey)
	file := func(name string) string { return filepath.Join(dir, name) }
	urls := freeURLs(t, "https", 2)
	cfg := Config{
		DataDir: filepath.Join(dir, "data"), ListenClientURLs: urls[:1], ListenPeerURLs: urls[1:],
		ClientTLS: TLS{CertFile: file("server.crt"), KeyFile: file("server.key"), TrustedCAFile: file("ca.crt"), ClientCertAuth: true},
		PeerTLS:   TLS{CertFile: file("server.crt"), KeyFile: file("server.key"), TrustedCAFile: file("ca.crt"), ClientCertAuth: true},
	}
	_, stop := start(t, cfg)
	defer stop()
	get := func(timeout time.Duration, dial DialConfig) error {
		dial.Servers = urls[:1]
		client, err := Dial(dial)
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		ctx, cancel := context.WithTimeout(context.Background(), timeout)
		defer cancel()
		_, err = client.Get(ctx, "k")
		return err
	}
	if err := get(time.Minute, DialConfig{CAFile: file("ca.crt"), CertFile: file("client.crt"), KeyFile: file("client.key")}); err != nil {
		t.Errorf("with a certificate: %v", err)
	}
	// The client retries, so the call fails by its timeout.
	if err := get(3*time.Second, DialConfig{CAFile: file("ca.crt")}); err == nil {
		t.Error("a client without a certificate was served")
	}
}

// TestHTTPApart checks that the client URLs serve gRPC only if there are separate URLs for HTTP.
func TestHTTPApart(t *testing.T) {
	dir := t.TempDir()
	ca, caKey := certificate(t, dir, "ca", nil, nil)
	certificate(t, dir, "server", ca, caKey)
	file := func(name string) string { return filepath.Join(dir, name) }
	urls := freeURLs(t, "https", 2)
	plain := freeURLs(t, "http", 1)
	_, stop := start(t, Config{
		DataDir: filepath.Join(dir, "data"), ListenClientURLs: urls[:1], ListenClientHTTPURLs: urls[1:], ListenPeerURLs: plain,
		ClientTLS: TLS{CertFile: file("server.crt"), KeyFile: file("server.key"), TrustedCAFile: file("ca.crt"), ClientCertAuth: true},
	})
	defer stop()
	own := DialConfig{Servers: urls[:1], CAFile: file("ca.crt"), CertFile: file("server.crt"), KeyFile: file("server.key")}
	client, err := Dial(own)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	// The watch never completes, and shutdown does not wait for it.
	events := client.Watch(t.Context(), "k")
	if _, err := client.Put(t.Context(), "k", "v"); err != nil {
		t.Error(err)
	}
	<-events
	pair, err := tls.LoadX509KeyPair(own.CertFile, own.KeyFile)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(ca)
	health := func(url string, certificates ...tls.Certificate) (int, error) {
		web := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, Certificates: certificates}}
		defer web.CloseIdleConnections()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url+"/health", nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := web.RoundTrip(req)
		if err != nil {
			return 0, err
		}
		return resp.StatusCode, resp.Body.Close()
	}
	if status, err := health(urls[1], pair); status != http.StatusOK || err != nil {
		t.Errorf("health by HTTP: %d, %v", status, err)
	}
	if status, err := health(urls[1]); err == nil {
		t.Errorf("health without a certificate: %d", status)
	}
	if status, err := health(urls[0], pair); status == http.StatusOK {
		t.Errorf("health on a gRPC-only URL: %d, %v", status, err)
	}
}

// certificate creates a key and a certificate for 127.0.0.1, signed by ca, or self-signed if ca is
// nil.
func certificate(t testing.TB, dir, name string, ca *x509.Certificate, caKey *ecdsa.PrivateKey) (*x509.Certificate, *ecdsa.PrivateKey) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(int64(len(name))), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	if ca == nil {
		template.IsCA, template.BasicConstraintsValid = true, true
		template.KeyUsage |= x509.KeyUsageCertSign
		template.ExtKeyUsage = nil
		ca, caKey = template, key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, ca, &key.PublicKey, caKey)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for ext, block := range map[string]*pem.Block{
		".crt": {Type: "CERTIFICATE", Bytes: der}, ".key": {Type: "EC PRIVATE KEY", Bytes: keyDER},
	} {
		if err := os.WriteFile(filepath.Join(dir, name+ext), pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return cert, key
}

func TestConfigErrors(t *testing.T) {
	for name, test := range map[string]struct {
		cfg  Config
		want string
	}{
		"no directory":   {Config{}, "no data directory"},
		"half a pair":    {Config{DataDir: "d", ClientTLS: TLS{CertFile: "c"}}, "both a certificate and a key"},
		"auth, no CA":    {Config{DataDir: "d", PeerTLS: TLS{CertFile: "c", KeyFile: "k", ClientCertAuth: true}}, "trusted CA"},
		"not a URL":      {Config{DataDir: "d", ListenClientURLs: []string{"localhost"}}, "not a URL"},
		"HTTP, no URL":   {Config{DataDir: "d", ListenClientHTTPURLs: []string{"localhost"}}, "client HTTP URL"},
		"plain with TLS": {Config{DataDir: "d", ListenClientURLs: []string{"http://127.0.0.1:1"}, ClientTLS: TLS{CertFile: "c", KeyFile: "k"}}, "scheme"},
		"TLS, no files":  {Config{DataDir: "d", ListenPeerURLs: []string{"https://127.0.0.1:1"}}, "scheme"},
		"bad metrics":    {Config{DataDir: "d", Metrics: "some"}, "basic or extensive"},
		"bad log level":  {Config{DataDir: "d", LogLevel: "loud"}, "log level"},
		"bad mode":       {Config{DataDir: "d", AutoCompactionMode: "odd", AutoCompactionRetention: "1"}, "auto-compaction-mode"},
		"bad state":      {Config{DataDir: "d", InitialClusterState: "odd"}, "unexpected clusterState"},
		"hasty election": {Config{DataDir: "d", HeartbeatInterval: time.Second, ElectionTimeout: time.Second}, "election"},
	} {
		_, err := New(test.cfg)
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v, want %q", name, err, test.want)
		}
	}
}

func TestCommandFlags(t *testing.T) {
	cmd := NewCommand()
	for _, flag := range strings.Fields(`data-dir name listen-client-urls listen-client-http-urls advertise-client-urls listen-peer-urls
		initial-advertise-peer-urls initial-cluster initial-cluster-state cert-file key-file trusted-ca-file
		client-cert-auth auto-compaction-mode auto-compaction-retention max-request-bytes force-new-cluster metrics logger log-level config-file peer-cert-file peer-key-file peer-trusted-ca-file peer-client-cert-auth snapshot-count
		heartbeat-interval election-timeout quota-backend-bytes listen-metrics-urls`) {
		if cmd.Flags().Lookup(flag) == nil {
			t.Errorf("no flag --%s", flag)
		}
	}
	urls := freeURLs(t, "http", 2)
	cmd.SetArgs([]string{"--data-dir", t.TempDir(), "--listen-client-urls", urls[0], "--listen-peer-urls", urls[1], "--unsafe-no-fsync=true"})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- cmd.ExecuteContext(ctx) }()
	client, err := Dial(DialConfig{Servers: urls[:1]})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	_, err = client.Put(ctx, "k", "v")
	if err != nil {
		t.Error(err)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestLog(t *testing.T) {
	var out strings.Builder
	silent := new(atomic.Bool)
	log := zapLogger(slog.New(slog.NewTextHandler(&out, nil)), zap.WarnLevel, silent, nil)
	log.With(zap.String("member", "m")).Warn("slow", zap.Duration("took", time.Second), zap.Error(errors.New("why")))
	log.Info("dropped: below warning")
	log.Warn("simple token is not cryptographically signed")
	silent.Store(true)
	log.Warn("dropped while silent")
	if got := out.String(); !strings.Contains(got, "level=WARN msg=slow member=m error=why took=1s") ||
		strings.Count(got, "\n") != 1 {
		t.Errorf("got %q", got)
	}
}

// runMember starts a member that runs as long as the process, and returns when it is ready.
func runMember(dir string) (*Server, error) {
	s, err := New(Config{
		DataDir: dir, ListenClientURLs: []string{"http://127.0.0.1:0"}, ListenPeerURLs: []string{"http://127.0.0.1:0"},
	})
	if err != nil {
		return nil, err
	}
	ended := make(chan error, 1)
	go func() { ended <- s.Run(context.Background()) }()
	select {
	case <-s.Ready():
		return s, nil
	case err := <-ended:
		return nil, err
	}
}

// writeUntilKilled runs in the child process of TestKill: it writes numbers and prints each one
// after it is acknowledged.
func writeUntilKilled(dir string) int {
	s, err := runMember(dir)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	for i := 0; ; i++ {
		if _, err := s.Client().Put(context.Background(), fmt.Sprintf("k%06d", i), "v"); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		fmt.Println(i)
	}
}

func TestKill(t *testing.T) {
	dir := t.TempDir()
	child := exec.Command(os.Args[0])
	child.Env = append(os.Environ(), "ETCD_TEST_WRITE="+dir)
	child.Stderr = os.Stderr
	out, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	last := ""
	for lines := bufio.NewScanner(out); lines.Scan(); {
		last = lines.Text()
		if last == "1500" { // past a snapshot
			_ = child.Process.Kill()
		}
	}
	_ = child.Wait()
	n, err := strconv.Atoi(last)
	if err != nil || n < 1500 {
		t.Fatalf("the other process ended early, at %q", last)
	}
	cfg := localConfig(t)
	cfg.DataDir = dir
	s, stop := start(t, cfg)
	defer stop()
	resp, err := s.Client().Get(context.Background(), "k", clientv3.WithPrefix(), clientv3.WithCountOnly())
	if err != nil || resp.Count <= int64(n) {
		t.Errorf("%d acknowledged, got %v %v", n+1, resp, err)
	}
}
