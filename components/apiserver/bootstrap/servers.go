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

// serverTTL is the lifetime, in seconds, of the etcd key that each API server keeps. A server that
// has stopped without deleting its key is removed from the endpoints of the Service kubernetes
// after that time.
const serverTTL = 15

// serverTracker tracks which API servers of an etcd cluster are running. Each server writes an etcd key that ends
// with its address and expires with a lease, at the same place in etcd as upstream's servers.
type serverTracker struct {
	client *clientv3.Client
	prefix string // prefix of the keys
	self   netip.Addr
	log    *slog.Logger
	// changed is called with the sorted addresses of all running servers, once after the start and whenever keys
	// change.
	changed func([]netip.Addr)
}

// Run keeps this server's key in etcd alive until ctx is canceled, and calls s.changed with the addresses of all
// running servers when their keys change. Then it revokes the lease of the key, so that the other servers notice
// immediately that this one stops. It retries every second after errors.
func (s *serverTracker) Run(ctx context.Context) {
	for ctx.Err() == nil {
		if err := s.follow(ctx); err != nil && ctx.Err() == nil {
			s.log.Warn("registering this API server in etcd failed; its address may be missing in the endpoints of the Service default/kubernetes, so pods may not reach it; retrying in a second", "address", s.self, "err", err)
			lifecycle.Pause(ctx, retryDelay)
		}
	}
}

// follow is one attempt of Run: it creates the lease and the key, and calls changed after each
// change of keys. It returns an error if etcd fails, the lease expires or the key is deleted.
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

// wait returns nil when a key of some server changes at or after the etcd revision. It returns an error if the watch
// fails or the lease is lost, which is when alive is closed, or if ctx is canceled.
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

// serversOf returns the sorted addresses of the servers whose keys are in list. It ignores keys
// that are not addresses.
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

// encodeServer returns the value of a server's key: an Endpoints object in Protobuf, as upstream's
// servers write and read it.
func encodeServer(addr netip.Addr) ([]byte, error) {
	ep := &corev1.Endpoints{Subsets: []corev1.EndpointSubset{{Addresses: []corev1.EndpointAddress{{IP: addr.String()}}}}}
	ep.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Endpoints"))
	var out bytes.Buffer
	if err := protobuf.NewSerializer(scheme.Scheme, scheme.Scheme).Encode(ep, &out); err != nil {
		return nil, fmt.Errorf("encoding API server key: %w", err)
	}
	return out.Bytes(), nil
}
