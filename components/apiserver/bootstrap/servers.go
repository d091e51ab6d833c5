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

	"hyperkube/internal/base/lifecycle"
)

// serverTTL is the lifetime of a server's key in seconds. A server that has disappeared is removed
// from the endpoints after that time.
const serverTTL = 15

// serverTracker tracks the API servers of an etcd cluster. Each server keeps a key named after its
// address, with a lease, at the same place as upstream's servers.
type serverTracker struct {
	client *clientv3.Client
	prefix string // prefix of the keys
	self   netip.Addr
	log    *slog.Logger
	// changed is called with the sorted addresses of all servers whenever they have changed.
	changed func([]netip.Addr)
}

// Run maintains this server's key and calls changed until ctx is canceled. Then it deletes the key,
// so that the other servers notice immediately.
func (s *serverTracker) Run(ctx context.Context) {
	for ctx.Err() == nil {
		if err := s.follow(ctx); err != nil && ctx.Err() == nil {
			s.log.Warn("maintaining the API server's address in etcd failed, will retry", "address", s.self, "err", err)
			lifecycle.Pause(ctx, retryDelay)
		}
	}
}

// follow is one attempt of Run. It returns on error.
func (s *serverTracker) follow(ctx context.Context) error {
	lease, err := s.client.Grant(ctx, serverTTL)
	if err != nil {
		return fmt.Errorf("creating etcd lease: %w", err)
	}
	defer func() {
		ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
		defer cancel()
		_, _ = s.client.Revoke(ending, lease.ID) // if this fails, the lease expires
	}()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	alive, err := s.client.KeepAlive(ctx, lease.ID)
	if err != nil {
		return fmt.Errorf("renewing etcd lease: %w", err)
	}
	value, err := encodeServer(s.self)
	if err != nil {
		return err
	}
	if _, err := s.client.Put(ctx, path.Join(s.prefix, s.self.String()), string(value), clientv3.WithLease(lease.ID)); err != nil {
		return fmt.Errorf("writing API server key: %w", err)
	}
	for {
		list, err := s.client.Get(ctx, s.prefix+"/", clientv3.WithPrefix(), clientv3.WithKeysOnly())
		if err != nil {
			return fmt.Errorf("listing API server keys: %w", err)
		}
		addrs := serversOf(list)
		if !slices.Contains(addrs, s.self) {
			return errors.New("API server key was deleted")
		}
		s.changed(addrs)
		if err := s.wait(ctx, list.Header.Revision+1, alive); err != nil {
			return err
		}
	}
}

// wait returns when a key under the prefix has changed.
func (s *serverTracker) wait(ctx context.Context, revision int64, alive <-chan *clientv3.LeaseKeepAliveResponse) error {
	ctx, cancel := context.WithCancel(clientv3.WithRequireLeader(ctx))
	defer cancel()
	changes := s.client.Watch(ctx, s.prefix+"/", clientv3.WithPrefix(), clientv3.WithRev(revision))
	for {
		select {
		case c, ok := <-changes:
			if !ok || c.Err() != nil {
				return errors.Join(errors.New("watching API server keys"), c.Err(), ctx.Err())
			}
			if len(c.Events) > 0 {
				return nil
			}
		case _, ok := <-alive:
			if !ok {
				return errors.Join(errors.New("etcd lease expired"), ctx.Err())
			}
		}
	}
}

// serversOf returns the addresses that the keys of list contain.
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

// encodeServer returns the value of a server's key, in the format of upstream's servers.
func encodeServer(addr netip.Addr) ([]byte, error) {
	ep := &corev1.Endpoints{Subsets: []corev1.EndpointSubset{{Addresses: []corev1.EndpointAddress{{IP: addr.String()}}}}}
	ep.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Endpoints"))
	var out bytes.Buffer
	if err := protobuf.NewSerializer(scheme.Scheme, scheme.Scheme).Encode(ep, &out); err != nil {
		return nil, fmt.Errorf("encoding API server key: %w", err)
	}
	return out.Bytes(), nil
}
