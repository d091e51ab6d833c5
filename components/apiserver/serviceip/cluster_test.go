package serviceip

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"sync"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/intstr"
	utilnet "k8s.io/apimachinery/pkg/util/net"

	"hyperkube/internal/api"
	"hyperkube/internal/store"
)

// protoCodec encodes objects as plain protobuf.
type protoCodec[T any, P interface {
	*T
	api.Object
	Marshal() ([]byte, error)
	Unmarshal([]byte) error
}] struct{}

func (protoCodec[T, P]) Encode(obj runtime.Object) ([]byte, error) { return obj.(P).Marshal() }

func (protoCodec[T, P]) Decode(data []byte, revision int64) (runtime.Object, error) {
	obj := P(new(T))
	if err := obj.Unmarshal(data); err != nil {
		return nil, err
	}
	obj.SetResourceVersion(fmt.Sprint(revision))
	return obj, nil
}

// cluster is a store with an allocator. It writes Services like the API server.
type cluster struct {
	t         testing.TB
	store     *store.Store
	services  *store.Collection
	addresses *store.Collection
	*Allocator
	// attempts counts the calls of the hook by key. Tests that read it must not write concurrently.
	attempts map[string]int
}

func newCluster(t testing.TB, client *clientv3.Client, ports utilnet.PortRange, cidrs ...string) *cluster {
	t.Helper()
	s, err := store.New(store.Config{Client: client, Prefix: "/registry"})
	if err != nil {
		t.Fatal(err)
	}
	c := &cluster{
		t:     t,
		store: s,
		services: s.Collection(store.CollectionConfig{Resource: schema.GroupResource{Resource: "services"},
			Path: "services/specs", Codec: protoCodec[corev1.Service, *corev1.Service]{}}),
		addresses: s.Collection(store.CollectionConfig{Resource: schema.GroupResource{Resource: "ipaddresses"},
			Path: "ipaddresses", Codec: protoCodec[networkingv1.IPAddress, *networkingv1.IPAddress]{}}),
	}
	var prefixes []netip.Prefix
	for _, s := range cidrs {
		prefixes = append(prefixes, netip.MustParsePrefix(s))
	}
	c.Allocator, err = New(Config{
		Store: s, Services: c.services, IPAddresses: c.addresses, CIDRs: prefixes, NodePorts: ports,
		Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = s.Run(ctx) })
	running.Go(func() { _ = c.Run(ctx) })
	t.Cleanup(func() {
		cancel()
		running.Wait()
	})
	return c
}

// write updates a Service with f, calls the hook, and retries after conflicts. f gets a copy of the
// current Service, or nil if it does not exist, and returns the desired one.
func (c *cluster) write(key string, f func(old *corev1.Service) *corev1.Service) (*corev1.Service, error) {
	return c.writeUntil(c.t.Context(), key, f)
}

// writeUntil is write that stops at any point when ctx is done.
func (c *cluster) writeUntil(ctx context.Context, key string, f func(old *corev1.Service) *corev1.Service) (*corev1.Service, error) {
	for {
		var old *corev1.Service
		entry, err := c.services.Get(ctx, key, -1)
		if err == nil {
			obj, err := entry.Object()
			if err != nil {
				return nil, err
			}
			old = obj.(*corev1.Service)
		} else if !errors.Is(err, store.ErrNotFound) {
			return nil, err
		}
		is := f(old.DeepCopy())
		var obj, was api.Object
		if is != nil {
			is.ResourceVersion = ""
			obj = is
		}
		if old != nil {
			was = old
		}
		if c.attempts != nil {
			c.attempts[key]++
		}
		ops, err := c.Hook(ctx, obj, was)
		if err != nil {
			return nil, err
		}
		switch {
		case old == nil:
			ops = append(ops, c.services.Create(key, is, 0))
		case is == nil:
			ops = append(ops, c.services.Delete(entry))
		default:
			ops = append(ops, c.services.Update(entry, is, 0))
		}
		_, _, err = c.store.Commit(ctx, ops...)
		if err == nil {
			return is, nil
		}
		if !errors.Is(err, store.ErrConflict) && !errors.Is(err, store.ErrExists) && !errors.Is(err, store.ErrNotFound) {
			return nil, err
		}
	}
}

func (c *cluster) create(svc *corev1.Service) (*corev1.Service, error) {
	return c.write(svc.Namespace+"/"+svc.Name, func(*corev1.Service) *corev1.Service { return svc.DeepCopy() })
}

func (c *cluster) mustCreate(svc *corev1.Service) *corev1.Service {
	c.t.Helper()
	svc, err := c.create(svc)
	if err != nil {
		c.t.Fatal(err)
	}
	return svc
}

func (c *cluster) update(name string, f func(*corev1.Service)) (*corev1.Service, error) {
	return c.write("default/"+name, func(old *corev1.Service) *corev1.Service {
		f(old)
		return old
	})
}

func (c *cluster) delete(name string) {
	c.t.Helper()
	if _, err := c.write("default/"+name, func(*corev1.Service) *corev1.Service { return nil }); err != nil {
		c.t.Fatal(err)
	}
}

// names returns the allocated addresses, sorted.
func (c *cluster) names() []string {
	c.t.Helper()
	page, err := c.addresses.List(c.t.Context(), store.ListOptions{Revision: -1})
	if err != nil {
		c.t.Fatal(err)
	}
	var out []string
	for _, e := range page.Entries {
		out = append(out, e.Key())
	}
	return out
}

func (c *cluster) usedPorts() []int {
	c.t.Helper()
	p, _, err := c.load(c.t.Context(), -1)
	if err != nil {
		c.t.Fatal(err)
	}
	var out []int
	for port := p.within.Base; port < p.within.Base+p.within.Size; port++ {
		if p.used(port) {
			out = append(out, port)
		}
	}
	return out
}

func service(name string, typ corev1.ServiceType, ports ...corev1.ServicePort) *corev1.Service {
	if len(ports) == 0 {
		ports = []corev1.ServicePort{{Port: 80, Protocol: corev1.ProtocolTCP, TargetPort: intstr.FromInt32(80)}}
	}
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec:       corev1.ServiceSpec{Type: typ, Ports: ports, Selector: map[string]string{"app": name}},
	}
}

func with(svc *corev1.Service, f func(*corev1.ServiceSpec)) *corev1.Service {
	f(&svc.Spec)
	return svc
}

func ptr[T any](v T) *T { return &v }

func wantError(t *testing.T, err error, part string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), part) {
		t.Errorf("error is %v, want one with %q", err, part)
	}
}
