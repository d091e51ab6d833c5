package etcd

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"strings"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
)

// TLS names the files of one kind of listener. Without CertFile and KeyFile it
// speaks plain text.
type TLS struct {
	CertFile, KeyFile string
	// TrustedCAFile signs the certificates of the other side.
	TrustedCAFile string
	// ClientCertAuth turns away who has no such certificate.
	ClientCertAuth bool
}

func (t TLS) enabled() bool { return t.CertFile != "" || t.KeyFile != "" }

func (t TLS) info() transport.TLSInfo {
	return transport.TLSInfo{
		CertFile: t.CertFile, KeyFile: t.KeyFile,
		TrustedCAFile: t.TrustedCAFile, ClientCertAuth: t.ClientCertAuth,
	}
}

// Config of a member. The zero value but for DataDir is a cluster of one that
// only this machine can reach.
type Config struct {
	// DataDir is where all data is; it is made when it does not exist.
	DataDir string
	// Name of the member; empty means "default".
	Name string

	// URLs; empty lists mean 127.0.0.1 with etcd's usual ports, 2379 for
	// clients and 2380 for peers, and advertised are those listened on. The
	// scheme is https exactly if the TLS files of that side are given.
	ListenClientURLs, AdvertiseClientURLs []string
	ListenPeerURLs, AdvertisePeerURLs     []string
	// ListenClientHTTPURLs serve what clients ask for by HTTP (/health,
	// /metrics, /version), https with the client URLs' TLS. Those serve gRPC
	// alone then, and with TLS need half of the CPU for it, because it does not
	// go through net/http. Empty: the client URLs serve both.
	ListenClientHTTPURLs []string
	// ListenMetricsURLs serve /metrics and /health besides the client URLs,
	// for which no client certificate is needed. Empty: none.
	ListenMetricsURLs []string

	ClientTLS, PeerTLS TLS

	// InitialCluster is "name=peerURL,…" of all members when the data
	// directory is empty; empty means this one alone. InitialClusterState is
	// "new" (or empty) or "existing".
	InitialCluster, InitialClusterState string
	// InitialClusterToken keeps clusters apart; empty means "etcd-cluster".
	InitialClusterToken string

	// SnapshotCount is after how many transactions raft's log is cut; zero
	// means 1000.
	SnapshotCount uint64
	// HeartbeatInterval and ElectionTimeout of raft. Zero means 250 ms and
	// 1.25 s for a cluster of one, 100 ms and 1 s else. One that other
	// members are going to join wants those before they do.
	HeartbeatInterval, ElectionTimeout time.Duration
	// QuotaBackendBytes is how large the database may grow; zero means 2
	// GiB.
	QuotaBackendBytes int64

	// NoSync writes without waiting for the disk, for data that nobody will
	// miss.
	NoSync bool

	// Log receives etcd's warnings and errors. Nil: nothing.
	Log *slog.Logger
}

// Defaults of Config.
const (
	defaultName          = "default"
	defaultSnapshotCount = 1000
	defaultQuota         = 2 << 30
	// A cluster of one has nobody to send heartbeats to, and it makes itself
	// the leader (see campaign) whatever the timeout is. Each tick costs CPU
	// while idle: 7 ms a second at 50 ms, 3 ms at 250 ms.
	aloneHeartbeat, aloneElection = 250 * time.Millisecond, 1250 * time.Millisecond
	usualHeartbeat, usualElection = 100 * time.Millisecond, time.Second
	// aloneCatchUp is how many entries of raft's log beyond SnapshotCount
	// stay in memory. A cluster of one has no slow followers that want them,
	// but what is read from disk at start must not be dropped before raft
	// knows that it has been applied: raft panics then.
	aloneCatchUp = 1000
	// aloneBatch is how often the database file is brought up to date with
	// the write-ahead log, which is what makes a write durable. Seldom is
	// cheap; a start after a crash has up to that much to apply again.
	aloneBatch = time.Second
)

// alone tells whether the cluster has no other members.
func (c *Config) alone() bool {
	return c.InitialClusterState != embed.ClusterStateFlagExisting && !strings.Contains(c.InitialCluster, ",")
}

// embed makes etcd's own configuration, to log to logger.
func (c *Config) embed(logger *zap.Logger) (*embed.Config, error) {
	if c.DataDir == "" {
		return nil, errors.New("etcd: no data directory")
	}
	for _, files := range []struct {
		side string
		tls  TLS
	}{{"client", c.ClientTLS}, {"peer", c.PeerTLS}} {
		if (files.tls.CertFile == "") != (files.tls.KeyFile == "") {
			return nil, fmt.Errorf("etcd: %s TLS needs both a certificate and a key file", files.side)
		}
		if files.tls.ClientCertAuth && files.tls.TrustedCAFile == "" {
			return nil, fmt.Errorf("etcd: %s certificate authentication needs a trusted CA file", files.side)
		}
	}
	out := embed.NewConfig()
	out.Dir = c.DataDir
	out.Name = cmp.Or(c.Name, defaultName)
	urls := []struct {
		what   string
		given  []string
		or     []string
		tls    bool
		parsed *[]url.URL
	}{
		{"listen client", c.ListenClientURLs, []string{local(c.ClientTLS, 2379)}, c.ClientTLS.enabled(), &out.ListenClientUrls},
		{"advertise client", c.AdvertiseClientURLs, c.ListenClientURLs, c.ClientTLS.enabled(), &out.AdvertiseClientUrls},
		{"listen peer", c.ListenPeerURLs, []string{local(c.PeerTLS, 2380)}, c.PeerTLS.enabled(), &out.ListenPeerUrls},
		{"advertise peer", c.AdvertisePeerURLs, c.ListenPeerURLs, c.PeerTLS.enabled(), &out.AdvertisePeerUrls},
	}
	for i, u := range urls {
		given := u.given
		if len(given) == 0 {
			given = u.or
		}
		if len(given) == 0 { // advertise what is listened on by default
			given = urls[i-1].or
		}
		var err error
		if *u.parsed, err = parseURLs(given); err != nil {
			return nil, fmt.Errorf("etcd: %s URL: %w", u.what, err)
		}
		for _, parsed := range *u.parsed {
			if scheme := parsed.Scheme; (scheme == "https" || scheme == "unixs") != u.tls {
				return nil, fmt.Errorf("etcd: %s URL %s: scheme does not match the TLS files", u.what, parsed.String())
			}
		}
	}
	var err error
	if out.ListenClientHttpUrls, err = parseURLs(c.ListenClientHTTPURLs); err != nil {
		return nil, fmt.Errorf("etcd: client HTTP URL: %w", err)
	}
	if out.ListenMetricsUrls, err = parseURLs(c.ListenMetricsURLs); err != nil {
		return nil, fmt.Errorf("etcd: metrics URL: %w", err)
	}
	out.ClientTLSInfo, out.PeerTLSInfo = c.ClientTLS.info(), c.PeerTLS.info()
	out.InitialCluster = cmp.Or(c.InitialCluster, out.InitialClusterFromName(out.Name))
	out.ClusterState = cmp.Or(c.InitialClusterState, embed.ClusterStateFlagNew)
	out.InitialClusterToken = cmp.Or(c.InitialClusterToken, out.InitialClusterToken)
	out.SnapshotCount = cmp.Or(c.SnapshotCount, defaultSnapshotCount)
	out.QuotaBackendBytes = cmp.Or(c.QuotaBackendBytes, defaultQuota)
	heartbeat, election := usualHeartbeat, usualElection
	if c.alone() {
		heartbeat, election = aloneHeartbeat, aloneElection
		out.SnapshotCatchUpEntries = out.SnapshotCount + aloneCatchUp
		out.BackendBatchInterval = aloneBatch
	}
	out.TickMs = uint(cmp.Or(c.HeartbeatInterval, heartbeat).Milliseconds())
	out.ElectionMs = uint(cmp.Or(c.ElectionTimeout, election).Milliseconds())
	out.UnsafeNoFsync = c.NoSync
	out.BackendFreelistType = "map"
	// The gateway would be a client of its own, for HTTP clients of which
	// Kubernetes has none.
	out.EnableGRPCGateway = false
	out.Logger = "zap"
	out.ZapLoggerBuilder = embed.NewZapLoggerBuilder(logger)
	if err := out.Validate(); err != nil {
		return nil, fmt.Errorf("etcd: %w", err)
	}
	return out, nil
}

func local(t TLS, port int) string {
	scheme := "http"
	if t.enabled() {
		scheme = "https"
	}
	return fmt.Sprintf("%s://127.0.0.1:%d", scheme, port)
}

func parseURLs(texts []string) ([]url.URL, error) {
	var out []url.URL
	for _, text := range texts {
		u, err := url.Parse(text)
		if err != nil {
			return nil, err
		}
		if u.Host == "" || u.Scheme == "" {
			return nil, fmt.Errorf("%q is not a URL", text)
		}
		out = append(out, *u)
	}
	return out, nil
}
