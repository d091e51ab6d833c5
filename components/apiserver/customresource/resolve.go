package customresource

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"hyperkube/components/apiserver/registry"
	"hyperkube/internal/store"
)

// services is the default resolver of the Services of conversion webhooks. It returns the cluster
// IP, which the service proxy of this node forwards to an endpoint.
type services struct{ registry *registry.Registry }

// ResolveEndpoint implements webhook.ServiceResolver. It returns the URL with the cluster IP, or the external name,
// of the Service, which it reads from the watch cache for at most 5 seconds. It returns an error if the Service does
// not exist, is headless or does not have the port.
func (s services) ResolveEndpoint(namespace, name string, port int32) (*url.URL, error) {
	res := s.registry.Lookup(schema.GroupVersionResource{Version: "v1", Resource: "services"})
	if res == nil {
		return nil, fmt.Errorf("service %q: services are not served", name)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	entry, err := res.Collection.Get(ctx, res.Key(namespace, name), 0)
	if errors.Is(err, store.ErrNotFound) {
		return nil, fmt.Errorf("service %q not found", name)
	}
	if err != nil {
		return nil, fmt.Errorf("service %q: %w", name, err)
	}
	obj, err := res.Read(entry)
	if err != nil {
		return nil, err
	}
	svc, ok := obj.(*corev1.Service)
	if !ok {
		return nil, fmt.Errorf("service %q is a %T", name, obj)
	}
	host := svc.Spec.ClusterIP
	switch {
	case svc.Spec.Type == corev1.ServiceTypeExternalName:
		host = svc.Spec.ExternalName
	case host == corev1.ClusterIPNone, host == "":
		return nil, fmt.Errorf(`cannot route to service with ClusterIP %q`, host)
	default:
		known := false
		for _, p := range svc.Spec.Ports {
			known = known || p.Port == port
		}
		if !known {
			return nil, fmt.Errorf("no service port %d found for service %q", port, name)
		}
	}
	return &url.URL{Scheme: "https", Host: net.JoinHostPort(host, strconv.Itoa(int(port)))}, nil
}
