// Package testetcd runs an etcd member in the process of a test, for tests that need a database but
// not the component that operates it.
package testetcd

import (
	"net/url"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3client"
	"go.uber.org/zap"
)

// startTimeout is the maximum time until a member is ready.
const startTimeout = time.Minute

// Member is a running etcd member for tests, with a client in the same process.
type Member struct {
	// Client is closed by Stop.
	Client *clientv3.Client
	// Server allows a test to access the server directly.
	Server *etcdserver.EtcdServer

	etcd *embed.Etcd
}

// Config configures a Member: its data directory, and whether it writes durably.
type Config struct {
	// Dir is the data directory. It may contain the data of an earlier member.
	Dir string
	// Fsync makes writes durable, for tests that kill their process.
	Fsync bool
}

// Start runs a single-member etcd on random ports. The test fails if it is not ready in time. The
// caller must stop it.
func Start(t testing.TB, c Config) *Member {
	t.Helper()
	cfg := embed.NewConfig()
	cfg.Dir = c.Dir
	cfg.UnsafeNoFsync = !c.Fsync
	cfg.TickMs, cfg.ElectionMs = 50, 250
	local := []url.URL{{Scheme: "http", Host: "127.0.0.1:0"}}
	cfg.ListenClientUrls, cfg.AdvertiseClientUrls = local, local
	cfg.ListenPeerUrls, cfg.AdvertisePeerUrls = local, local
	cfg.InitialCluster = cfg.InitialClusterFromName(cfg.Name)
	cfg.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.NewNop())
	etcd, err := embed.StartEtcd(cfg)
	if err != nil {
		t.Fatalf("starting etcd: %v", err)
	}
	select {
	case <-etcd.Server.ReadyNotify():
	case err := <-etcd.Err():
		t.Fatalf("etcd: %v", err)
	case <-time.After(startTimeout):
		t.Fatal("etcd did not become ready")
	}
	return &Member{Client: v3client.New(etcd.Server), Server: etcd.Server, etcd: etcd}
}

// Client starts a member that does not sync to disk and is stopped at the end of the test, and
// returns its client.
func Client(t testing.TB) *clientv3.Client {
	t.Helper()
	m := Start(t, Config{Dir: t.TempDir()})
	t.Cleanup(m.Stop)
	return m.Client
}

// Address returns the host and port at which clients in other processes reach the member, without
// TLS.
func (m *Member) Address() string { return m.etcd.Clients[0].Addr().String() }

// Stop closes the client and stops the member. Its data directory remains.
func (m *Member) Stop() {
	_ = m.Client.Close()
	m.etcd.Close()
}
