// Package testetcd runs an etcd member in the process of a test, for tests that
// need a database but not the component that operates one.
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

// startTimeout is how long a member may take to be ready.
const startTimeout = time.Minute

// Member is a running member with a client in its process.
type Member struct {
	// Client is closed by Stop.
	Client *clientv3.Client
	// Server lets a test look past the client.
	Server *etcdserver.EtcdServer

	etcd *embed.Etcd
}

// Config of a Member.
type Config struct {
	// Dir keeps the data. It may be that of an earlier member.
	Dir string
	// Fsync makes writes durable, as a test that kills its process wants.
	Fsync bool
}

// Start runs a member on ports that nobody knows. The test fails if it is not
// ready in time; the caller stops it.
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
		t.Fatal("etcd does not start")
	}
	return &Member{Client: v3client.New(etcd.Server), Server: etcd.Server, etcd: etcd}
}

// Client is one of a new member that lives and dies with the test and keeps
// nothing on a disk for sure.
func Client(t testing.TB) *clientv3.Client {
	t.Helper()
	m := Start(t, Config{Dir: t.TempDir()})
	t.Cleanup(m.Stop)
	return m.Client
}

// Address is where clients of other processes connect, without TLS.
func (m *Member) Address() string { return m.etcd.Clients[0].Addr().String() }

// Stop closes the client and ends the member. What it wrote is left in its folder.
func (m *Member) Stop() {
	_ = m.Client.Close()
	m.etcd.Close()
}
