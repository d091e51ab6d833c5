// Package etcd runs an etcd member, which stores the state of the cluster. A client in the same
// process calls it directly, without a connection.
package etcd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3client"
	"go.etcd.io/etcd/server/v3/storage/datadir"
	"go.uber.org/zap/zapcore"
	"google.golang.org/grpc"
)

// Server runs one etcd member in this process. Run may be called once; the other methods are safe for concurrent use.
type Server struct {
	cfg          *embed.Config
	log          *slog.Logger
	singleMember bool
	ready        chan struct{}
	// stopping is set when Run stops the member. It suppresses etcd's log messages, which report
	// lost connections as errors then.
	stopping *atomic.Bool
	// removed is set when other members report that this member was removed from the cluster.
	removed *atomic.Bool
	client  atomic.Pointer[clientv3.Client]
}

// New validates cfg and returns a Server. It does not open files or listeners; Run does. An unknown log level,
// inconsistent TLS files and malformed URLs are errors.
func New(cfg Config) (*Server, error) {
	stopping, removed := new(atomic.Bool), new(atomic.Bool)
	log := cfg.Log
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	level, err := zapcore.ParseLevel(cmp.Or(cfg.LogLevel, zapcore.WarnLevel.String()))
	if err != nil {
		return nil, fmt.Errorf("etcd: log level %q: must be debug, info, warn, error, panic or fatal", cfg.LogLevel)
	}
	out, err := cfg.embed(detectRemoval(zapLogger(log, level, stopping, cfg.DiskFull), removed))
	if err != nil {
		return nil, err
	}
	return &Server{cfg: out, log: log, singleMember: cfg.singleMember(), ready: make(chan struct{}), stopping: stopping, removed: removed}, nil
}

// Ready returns a channel that is closed once the member serves requests.
func (s *Server) Ready() <-chan struct{} { return s.ready }

// Client returns the client for code in this process, which calls the member directly. It is nil until Ready is
// closed. The server owns the client and closes it before Run returns.
func (s *Server) Client() *clientv3.Client { return s.client.Load() }

// DatabaseSize returns the size of the database file in bytes. It returns an error before the first start has created the file.
func (s *Server) DatabaseSize() (int64, error) {
	info, err := os.Stat(datadir.ToBackendFileName(s.cfg.Dir))
	if err != nil {
		return 0, fmt.Errorf("reading the size of the database: %w", err)
	}
	return info.Size(), nil
}

// MaxRequestBytes returns the size in bytes above which the member rejects requests of Client.
func (s *Server) MaxRequestBytes() int64 { return int64(s.cfg.MaxRequestBytes) }

// Run checks the data, then runs the member until ctx is canceled or the member fails. It returns nil if ctx was
// canceled. Errors about damaged data and full disks name the remedy; an error that wraps errRemoved means that the
// member was removed from the cluster. Every acknowledged write is on disk, however Run returns, unless Config.NoSync
// is set.
func (s *Server) Run(ctx context.Context) error {
	if err := os.MkdirAll(s.cfg.Dir, 0o700); err != nil {
		return fmt.Errorf("starting etcd: %w", withAdvice(err, s.cfg.Dir))
	}
	if s.cfg.ClusterState == embed.ClusterStateFlagNew {
		if err := clearPartialBootstrap(s.cfg.Dir, strings.Count(s.cfg.InitialCluster, ",")+1); err != nil {
			return fmt.Errorf("starting etcd: %w", err)
		}
	}
	if err := checkDamage(s.cfg.Dir); err != nil {
		return fmt.Errorf("starting etcd: %w", err)
	}
	var clients grpcServers
	s.cfg.ServiceRegister = clients.add
	member, err := startMember(s.cfg)
	if err != nil {
		return fmt.Errorf("starting etcd: %w", withAdvice(err, s.cfg.Dir))
	}
	defer func() {
		s.stopping.Store(true)
		clients.stop()
		member.Close()
	}()
	if s.singleMember {
		campaign(ctx, member.Server)
	}
	select {
	case <-member.Server.ReadyNotify():
	case err := <-member.Err():
		return fmt.Errorf("starting etcd: %w", s.stopReason(member, err))
	case <-member.Server.StopNotify():
		return fmt.Errorf("starting etcd: %w", s.stopReason(member, errors.New("etcd stopped unexpectedly")))
	case <-ctx.Done():
		return nil
	}
	client := v3client.New(member.Server)
	client.KV = &inProcessKV{client.KV, member.Server}
	defer client.Close()
	s.client.Store(client)
	close(s.ready)
	if s.singleMember {
		ctx, cancel := context.WithCancel(ctx)
		var wg sync.WaitGroup
		wg.Go(func() {
			(&spaceManager{server: member.Server, log: s.log, minSize: minDefragmentSize}).run(ctx, spaceInterval)
		})
		defer wg.Wait()
		defer cancel()
	}
	select {
	case err := <-member.Err():
		return fmt.Errorf("etcd: %w", s.stopReason(member, err))
	case <-member.Server.StopNotify():
		return fmt.Errorf("etcd: %w", s.stopReason(member, errors.New("etcd stopped unexpectedly")))
	case <-ctx.Done():
		return nil
	}
}

// errRemoved is the error of Run if this member was removed from the cluster. The removal is
// permanent.
var errRemoved = errors.New("this member has been removed from the cluster and its data cannot be used any more; reset the node and join it again " +
	"(`hyperkube reset`, then `hyperkube join` as a control plane node)")

// stopReason returns why the member has stopped: an error that wraps errRemoved and err if the member was removed
// from the cluster, and otherwise err. The member learns of the removal from the raft log or from the responses of
// other members.
func (s *Server) stopReason(member *embed.Etcd, err error) error {
	if s.removed.Load() || member.Server.IsIDRemoved(uint64(member.Server.MemberID())) {
		return fmt.Errorf("%w (%w)", errRemoved, err)
	}
	return err
}

// grpcServers are the gRPC servers of a member that serve clients, one per listen URL. They are
// recorded so that Run can stop them faster than etcd would.
type grpcServers struct {
	mu      sync.Mutex
	servers []*grpc.Server
}

// add records a server. etcd calls it before the server starts serving.
func (s *grpcServers) add(server *grpc.Server) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.servers = append(s.servers, server)
}

// shutdownGrace is the time that calls in progress get at shutdown. etcd itself would wait seven
// seconds, also for watches, which never complete.
const shutdownGrace = 100 * time.Millisecond

// stop closes all client connections, after waiting up to shutdownGrace for calls in progress.
func (s *grpcServers) stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	var wg sync.WaitGroup
	for _, server := range s.servers {
		wg.Go(func() {
			timer := time.AfterFunc(shutdownGrace, server.Stop)
			defer timer.Stop()
			server.GracefulStop()
		})
	}
	wg.Wait()
}
