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

	"hyperkube/internal/serving/tlsdefaults"
)

// TLS names the TLS files for the listeners of one kind, for clients or for peers. Without CertFile and KeyFile the
// listeners are not encrypted.
type TLS struct {
	CertFile, KeyFile string
	// TrustedCAFile is the CA that signs the certificates of clients or peers.
	TrustedCAFile string
	// ClientCertAuth rejects clients without a certificate of that CA.
	ClientCertAuth bool
}

// enabled reports whether a certificate or a key is configured, so that the server uses TLS.
func (t TLS) enabled() bool { return t.CertFile != "" || t.KeyFile != "" }

// info converts the files to the form that etcd's libraries use, with the cipher suites of all servers of this
// project.
func (t TLS) info() transport.TLSInfo {
	return transport.TLSInfo{
		CertFile: t.CertFile, KeyFile: t.KeyFile,
		TrustedCAFile: t.TrustedCAFile, ClientCertAuth: t.ClientCertAuth, CipherSuites: tlsdefaults.CipherSuites(),
	}
}

// Config configures a member. With only DataDir set, it is a single-member cluster that only this
// machine can reach.
//
// Size: one field for each flag of etcd.
type Config struct {
	// DataDir is the data directory. It is created if it does not exist.
	DataDir string
	// Name of the member; empty means "default".
	Name string

	// URLs. Empty lists default to 127.0.0.1 with etcd's standard ports, 2379 for clients and 2380
	// for peers. Advertised URLs default to the listen URLs. The scheme must be https if and only
	// if the TLS files of that side are set.
	ListenClientURLs, AdvertiseClientURLs []string
	ListenPeerURLs, AdvertisePeerURLs     []string
	// ListenClientHTTPURLs serve HTTP clients (/health, /metrics, /version), over https if the
	// client URLs use TLS. The client URLs then serve gRPC only, which needs half of the CPU with
	// TLS because it does not go through net/http. If empty, the client URLs serve both.
	ListenClientHTTPURLs []string
	// ListenMetricsURLs serve /metrics and /health in addition to the client URLs, without client
	// certificates. Empty disables them.
	ListenMetricsURLs []string

	// ClientTLS and PeerTLS are the TLS files for the client URLs and the peer URLs.
	ClientTLS, PeerTLS TLS

	// InitialCluster lists all members as "name=peerURL,…" and is used when the data directory is
	// empty. Empty means this member only. InitialClusterState is "new" (or empty) or "existing".
	InitialCluster, InitialClusterState string
	// InitialClusterToken distinguishes clusters during bootstrap. Empty means "etcd-cluster".
	InitialClusterToken string

	// SnapshotCount is the number of transactions after which raft creates a snapshot and truncates
	// its log. Zero means 1000.
	SnapshotCount uint64
	// HeartbeatInterval and ElectionTimeout of raft. Zero means 250 ms and 1.25 s for a
	// single-member cluster, else 100 ms and 1 s. A single member needs the latter values before
	// other members join.
	HeartbeatInterval, ElectionTimeout time.Duration
	// QuotaBackendBytes is the maximum size of the database. Zero means 2 GiB.
	QuotaBackendBytes int64

	// AutoCompactionMode is "periodic" (or empty) or "revision". AutoCompactionRetention is what
	// etcd keeps of the history in that mode: a duration, where a plain number means hours, or a
	// number of revisions. Empty or "0" disables automatic compaction; the API server compacts by
	// itself.
	AutoCompactionMode, AutoCompactionRetention string
	// MaxRequestBytes is the maximum size of a client request. Zero means 1.5 MiB.
	MaxRequestBytes uint
	// ForceNewCluster starts a cluster with this member only from the existing data directory, to
	// recover from the permanent loss of a majority of members.
	ForceNewCluster bool
	// Metrics is "basic" (or empty), or "extensive" for additional histograms of gRPC calls.
	Metrics string

	// NoSync disables fsync, for disposable data.
	NoSync bool

	// Log receives messages of etcd at LogLevel and above, and all warnings and errors. Nil discards
	// them.
	Log *slog.Logger
	// LogLevel is debug, info, warn, error, panic or fatal. Empty means warn.
	LogLevel string

	// DiskFull is called with the error when a running member cannot continue because its disk is
	// full, in a goroutine of etcd. The process exits with code 1 when it returns. It may be nil.
	DiskFull func(err error)
}

// defaultName and the other constants are the defaults of the fields of Config. Those for a single member, the only
// one of its cluster, begin with single.
const (
	defaultName          = "default"
	defaultSnapshotCount = 1000
	defaultQuota         = 2 << 30
	// A single member sends no heartbeats, and it becomes the leader by itself (see campaign)
	// whatever the timeout is. Each tick costs CPU while idle: 7 ms per second at 50 ms, 3 ms at
	// 250 ms.
	singleHeartbeat, singleElection   = 250 * time.Millisecond, 1250 * time.Millisecond
	defaultHeartbeat, defaultElection = 100 * time.Millisecond, time.Second
	// singleCatchUpEntries is how many entries of the raft log beyond SnapshotCount stay in memory. A
	// single member has no slow followers that need them. But entries read from disk at startup
	// must not be dropped before raft has registered that they are applied, or raft panics.
	singleCatchUpEntries = 1000
	// singleBatchInterval is the interval at which changes are committed to the database file. Durability
	// comes from the write-ahead log. A long interval is cheap, but after a crash up to that much
	// of the log is applied again at startup.
	singleBatchInterval = time.Second
)

// singleMember reports whether the configuration describes a cluster whose only member is this one: it does not join
// an existing cluster, and InitialCluster has at most one member. It can be wrong if members join later.
func (c *Config) singleMember() bool {
	return c.InitialClusterState != embed.ClusterStateFlagExisting && !strings.Contains(c.InitialCluster, ",")
}

// embed validates c and returns the configuration of the etcd library, with the defaults of this package. etcd logs
// to logger. It returns an error if DataDir is empty, a certificate, key or CA file is missing, the scheme of a URL
// does not match the TLS files, or the etcd library rejects a value. It does not read the files.
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
		values := u.given
		if len(values) == 0 {
			values = u.or
		}
		if len(values) == 0 { // advertise the listen URLs by default
			values = urls[i-1].or
		}
		var err error
		if *u.parsed, err = parseURLs(values); err != nil {
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
	heartbeat, election := defaultHeartbeat, defaultElection
	if c.singleMember() {
		heartbeat, election = singleHeartbeat, singleElection
		out.SnapshotCatchUpEntries = out.SnapshotCount + singleCatchUpEntries
		out.BackendBatchInterval = singleBatchInterval
	}
	out.TickMs = uint(cmp.Or(c.HeartbeatInterval, heartbeat).Milliseconds())
	out.ElectionMs = uint(cmp.Or(c.ElectionTimeout, election).Milliseconds())
	out.AutoCompactionMode = cmp.Or(c.AutoCompactionMode, out.AutoCompactionMode)
	out.AutoCompactionRetention = cmp.Or(c.AutoCompactionRetention, "0")
	out.MaxRequestBytes = cmp.Or(c.MaxRequestBytes, out.MaxRequestBytes)
	out.ForceNewCluster = c.ForceNewCluster
	switch c.Metrics {
	case "", "basic", "extensive":
		out.Metrics = cmp.Or(c.Metrics, out.Metrics)
	default:
		return nil, fmt.Errorf("etcd: metrics %q: must be basic or extensive", c.Metrics)
	}
	out.UnsafeNoFsync = c.NoSync
	out.BackendFreelistType = "map"
	// The gateway would run an additional client, and Kubernetes does not use it.
	out.EnableGRPCGateway = false
	out.Logger = "zap"
	out.ZapLoggerBuilder = embed.NewZapLoggerBuilder(logger)
	if err := out.Validate(); err != nil {
		return nil, fmt.Errorf("etcd: %w", err)
	}
	return out, nil
}

// local returns the default URL for a port, which only this machine can reach: 127.0.0.1 with https if t has a
// certificate, otherwise with http.
func local(t TLS, port int) string {
	scheme := "http"
	if t.enabled() {
		scheme = "https"
	}
	return fmt.Sprintf("%s://127.0.0.1:%d", scheme, port)
}

// parseURLs parses URLs. It returns an error if one of them is malformed or has no scheme or host.
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
