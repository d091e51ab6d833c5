package bootstrap

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"path"
	"slices"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/client-go/kubernetes/scheme"

	"hyperkube/internal/lifecycle"
)

// serverTTL is for how many seconds others still know of a server that
// vanished.
const serverTTL = 15

// servers knows which API servers serve an etcd cluster: each keeps a key under
// its address that goes with it, where upstream's have theirs.
type servers struct {
	client *clientv3.Client
	prefix string // of the keys
	self   netip.Addr
	log    *slog.Logger
	// found is called with the addresses of all, in order, whenever they have
	// changed.
	found func([]netip.Addr)
}

// Run keeps this server's key, and tells of all, until ctx ends. Then the
// others hear of it at once.
func (s *servers) Run(ctx context.Context) {
	for ctx.Err() == nil {
		if err := s.follow(ctx); err != nil && ctx.Err() == nil {
			s.log.Error("Could not tell other API servers of this one", "error", err)
			lifecycle.Pause(ctx, pause)
		}
	}
}

// follow does that until something fails.
func (s *servers) follow(ctx context.Context) error {
	lease, err := s.client.Grant(ctx, serverTTL)
	if err != nil {
		return fmt.Errorf("asking etcd for a lease: %w", err)
	}
	defer func() {
		ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
		defer cancel()
		_, _ = s.client.Revoke(ending, lease.ID) // else it ends by itself
	}()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	alive, err := s.client.KeepAlive(ctx, lease.ID)
	if err != nil {
		return fmt.Errorf("keeping etcd's lease: %w", err)
	}
	value, err := encodeServer(s.self)
	if err != nil {
		return err
	}
	if _, err := s.client.Put(ctx, path.Join(s.prefix, s.self.String()), string(value), clientv3.WithLease(lease.ID)); err != nil {
		return fmt.Errorf("writing this server's key: %w", err)
	}
	for {
		list, err := s.client.Get(ctx, s.prefix+"/", clientv3.WithPrefix(), clientv3.WithKeysOnly())
		if err != nil {
			return fmt.Errorf("listing the API servers: %w", err)
		}
		addrs := serversOf(list)
		if !slices.Contains(addrs, s.self) {
			return errors.New("this server's key is gone")
		}
		s.found(addrs)
		if err := s.wait(ctx, list.Header.Revision+1, alive); err != nil {
			return err
		}
	}
}

// wait returns when there is something new under the prefix.
func (s *servers) wait(ctx context.Context, revision int64, alive <-chan *clientv3.LeaseKeepAliveResponse) error {
	ctx, cancel := context.WithCancel(clientv3.WithRequireLeader(ctx))
	defer cancel()
	changes := s.client.Watch(ctx, s.prefix+"/", clientv3.WithPrefix(), clientv3.WithRev(revision))
	for {
		select {
		case c, ok := <-changes:
			if !ok || c.Err() != nil {
				return errors.Join(errors.New("following the API servers"), c.Err(), ctx.Err())
			}
			if len(c.Events) > 0 {
				return nil
			}
		case _, ok := <-alive:
			if !ok {
				return errors.Join(errors.New("etcd's lease has ended"), ctx.Err())
			}
		}
	}
}

// serversOf are the addresses that the keys of list are of.
func serversOf(list *clientv3.GetResponse) []netip.Addr {
	var addrs []netip.Addr
	for _, kv := range list.Kvs {
		if addr, err := netip.ParseAddr(path.Base(string(kv.Key))); err == nil {
			addrs = append(addrs, addr)
		}
	}
	slices.SortFunc(addrs, netip.Addr.Compare)
	return addrs
}

// encodeServer is the value of a server's key, as upstream's servers read it.
func encodeServer(addr netip.Addr) ([]byte, error) {
	ep := &corev1.Endpoints{Subsets: []corev1.EndpointSubset{{Addresses: []corev1.EndpointAddress{{IP: addr.String()}}}}}
	ep.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Endpoints"))
	var out bytes.Buffer
	if err := protobuf.NewSerializer(scheme.Scheme, scheme.Scheme).Encode(ep, &out); err != nil {
		return nil, fmt.Errorf("encoding this server's key: %w", err)
	}
	return out.Bytes(), nil
}
