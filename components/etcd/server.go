// Package etcd is an etcd member: the keeper of a cluster's state. In one
// process its client calls it directly, without a connection.
package etcd

import (
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
	"google.golang.org/grpc"
)

// Server is one member.
type Server struct {
	cfg   *embed.Config
	log   *slog.Logger
	alone bool
	ready chan struct{}
	// stopping silences etcd's complaints of being stopped.
	stopping *atomic.Bool
	// removed: the others have answered that they have removed this member.
	removed *atomic.Bool
	client  atomic.Pointer[clientv3.Client]
}

// New validates cfg. Nothing is opened before Run.
func New(cfg Config) (*Server, error) {
	stopping, removed := new(atomic.Bool), new(atomic.Bool)
	log := cfg.Log
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	out, err := cfg.embed(noticing(zapLogger(log, stopping), removed))
	if err != nil {
		return nil, err
	}
	return &Server{cfg: out, log: log, alone: cfg.alone(), ready: make(chan struct{}), stopping: stopping, removed: removed}, nil
}

// Ready is closed once the member takes requests.
func (s *Server) Ready() <-chan struct{} { return s.ready }

// Client calls the member in process. It is nil until Ready, belongs to the
// server and ends with it.
func (s *Server) Client() *clientv3.Client { return s.client.Load() }

// Run runs the member until ctx ends or it fails. Whatever had been
// acknowledged is on the disk, however it ends.
func (s *Server) Run(ctx context.Context) error {
	if err := os.MkdirAll(s.cfg.Dir, 0o700); err != nil {
		return fmt.Errorf("starting etcd: %w", explain(err, s.cfg.Dir))
	}
	if s.cfg.ClusterState == embed.ClusterStateFlagNew {
		if err := clearUnborn(s.cfg.Dir, strings.Count(s.cfg.InitialCluster, ",")+1); err != nil {
			return fmt.Errorf("starting etcd: %w", err)
		}
	}
	if err := checkDamage(s.cfg.Dir); err != nil {
		return fmt.Errorf("starting etcd: %w", err)
	}
	var clients served
	s.cfg.ServiceRegister = clients.add
	member, err := startMember(s.cfg)
	if err != nil {
		return fmt.Errorf("starting etcd: %w", explain(err, s.cfg.Dir))
	}
	defer func() {
		s.stopping.Store(true)
		clients.stop()
		member.Close()
	}()
	if s.alone {
		campaign(ctx, member.Server)
	}
	select {
	case <-member.Server.ReadyNotify():
	case err := <-member.Err():
		return fmt.Errorf("starting etcd: %w", s.whyEnded(member, err))
	case <-member.Server.StopNotify():
		return fmt.Errorf("starting etcd: %w", s.whyEnded(member, errors.New("it stopped by itself")))
	case <-ctx.Done():
		return nil
	}
	client := v3client.New(member.Server)
	client.KV = &localKV{client.KV, member.Server}
	defer client.Close()
	s.client.Store(client)
	close(s.ready)
	if s.alone {
		ctx, cancel := context.WithCancel(ctx)
		var wg sync.WaitGroup
		wg.Go(func() {
			(&space{server: member.Server, log: s.log, worth: worthDefragment}).run(ctx, spaceInterval)
		})
		defer wg.Wait()
		defer cancel()
	}
	select {
	case err := <-member.Err():
		return fmt.Errorf("etcd: %w", s.whyEnded(member, err))
	case <-member.Server.StopNotify():
		return fmt.Errorf("etcd: %w", s.whyEnded(member, errors.New("it stopped by itself")))
	case <-ctx.Done():
		return nil
	}
}

// errRemoved tells that the others have removed this member, which is for good.
var errRemoved = errors.New("this member has been removed from the cluster: its data is of no use any more; take it away and let the machine enter anew " +
	"(`hyperkube reset` and `hyperkube join` on a master)")

// whyEnded is what ended a member, which itself only says that it stops. It has seen its
// removal in the log that members share, or others have answered that.
func (s *Server) whyEnded(member *embed.Etcd, err error) error {
	if s.removed.Load() || member.Server.IsIDRemoved(uint64(member.Server.MemberID())) {
		return fmt.Errorf("%w (%w)", errRemoved, err)
	}
	return err
}

// served are the servers that clients speak gRPC to, one a URL.
type served struct {
	mu      sync.Mutex
	servers []*grpc.Server
}

// add is called before a server serves.
func (s *served) add(server *grpc.Server) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.servers = append(s.servers, server)
}

// lastCalls is how long calls may still take that are under way at the end. Etcd
// itself waits for seven seconds, and for watches too, which never end.
const lastCalls = 100 * time.Millisecond

// stop ends all connections.
func (s *served) stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	var wg sync.WaitGroup
	for _, server := range s.servers {
		wg.Go(func() {
			late := time.AfterFunc(lastCalls, server.Stop)
			defer late.Stop()
			server.GracefulStop()
		})
	}
	wg.Wait()
}
