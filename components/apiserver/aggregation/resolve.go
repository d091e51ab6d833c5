package aggregation

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"hyperkube/components/apiserver/registry"
	"hyperkube/internal/store"
)

// directory looks up the Services of other servers and their EndpointSlices in the watch cache.
type directory struct {
	services, slices *registry.Resource
}

// newDirectory returns the directory of the Services and EndpointSlices in reg. A resource that is not served is nil.
func newDirectory(reg *registry.Registry) *directory {
	return &directory{
		services: reg.Lookup(schema.GroupVersionResource{Version: "v1", Resource: "services"}),
		slices:   reg.Lookup(discoveryv1.SchemeGroupVersion.WithResource("endpointslices")),
	}
}

// service returns a Service from the watch cache, or store.ErrNotFound if it does not exist or Services are not
// served. The Service is shared.
func (d *directory) service(ctx context.Context, namespace, name string) (*corev1.Service, error) {
	if d.services == nil {
		return nil, store.ErrNotFound
	}
	e, err := d.services.Collection.Get(ctx, namespace+"/"+name, 0)
	if err != nil {
		return nil, err
	}
	if e == nil {
		return nil, store.ErrNotFound
	}
	obj, err := d.services.Read(e)
	if err != nil {
		return nil, err
	}
	svc, ok := obj.(*corev1.Service)
	if !ok {
		return nil, fmt.Errorf("service %s is a %T", name, obj)
	}
	return svc, nil
}

// slicesOf returns the EndpointSlices of a Service from the watch cache. They are shared. It returns an error if any
// EndpointSlice of the namespace cannot be decoded, and none if the resource is not served.
func (d *directory) slicesOf(ctx context.Context, namespace, name string) ([]*discoveryv1.EndpointSlice, error) {
	if d.slices == nil {
		return nil, nil
	}
	page, err := d.slices.Collection.List(ctx, store.ListOptions{Prefix: namespace + "/"})
	if err != nil {
		return nil, err
	}
	var out []*discoveryv1.EndpointSlice
	for _, e := range page.Entries {
		obj, err := d.slices.Read(e)
		if err != nil {
			return nil, err
		}
		if s, ok := obj.(*discoveryv1.EndpointSlice); ok && s.Labels[discoveryv1.LabelServiceName] == name {
			out = append(out, s)
		}
	}
	return out, nil
}

// portOf returns the port of a Service with the number port. It returns false if there is none.
func portOf(svc *corev1.Service, port int32) (*corev1.ServicePort, bool) {
	for i := range svc.Spec.Ports {
		if svc.Spec.Ports[i].Port == port {
			return &svc.Spec.Ports[i], true
		}
	}
	return nil, false
}

// resolve returns the address, HOST:PORT, at which a Service can be reached: its cluster IP or external name, or one
// of its ready endpoints if endpoints is set. It returns an error if the Service, the port or an endpoint does not
// exist, and for a headless Service unless endpoints is set.
func (d *directory) resolve(ctx context.Context, namespace, name string, port int32, endpoints bool) (string, error) {
	svc, err := d.service(ctx, namespace, name)
	if err != nil {
		return "", fmt.Errorf("service %q in namespace %q: %w", name, namespace, err)
	}
	switch svc.Spec.Type {
	case corev1.ServiceTypeExternalName:
		return net.JoinHostPort(svc.Spec.ExternalName, strconv.Itoa(int(port))), nil
	case corev1.ServiceTypeClusterIP, corev1.ServiceTypeLoadBalancer, corev1.ServiceTypeNodePort:
	default:
		return "", fmt.Errorf("unsupported service type %q", svc.Spec.Type)
	}
	at, ok := portOf(svc, port)
	if !ok {
		return "", fmt.Errorf("no service port %d found for service %q", port, svc.Name)
	}
	if !endpoints {
		if svc.Spec.ClusterIP == corev1.ClusterIPNone {
			return "", errors.New(`cannot route to service with ClusterIP "None"`)
		}
		return net.JoinHostPort(svc.Spec.ClusterIP, strconv.Itoa(int(at.Port))), nil
	}
	all, err := d.slicesOf(ctx, namespace, name)
	if err != nil {
		return "", err
	}
	var family corev1.IPFamily
	if len(svc.Spec.IPFamilies) > 0 {
		family = svc.Spec.IPFamilies[0]
	}
	host := pickEndpoint(all, at.Name, discoveryv1.AddressType(family))
	if host == "" {
		return "", fmt.Errorf("no endpoints available for service %q", svc.Name)
	}
	return host, nil
}

// pickEndpoint returns the address, HOST:PORT, of a random ready endpoint in the EndpointSlices all that has the port
// with the name. Endpoints of the address family are preferred. It returns "" if there is none.
func pickEndpoint(all []*discoveryv1.EndpointSlice, port string, family discoveryv1.AddressType) string {
	var preferred, others []string
	for _, s := range all {
		i := slices.IndexFunc(s.Ports, func(p discoveryv1.EndpointPort) bool {
			return p.Name != nil && *p.Name == port && p.Port != nil
		})
		if i < 0 {
			continue
		}
		for _, ep := range s.Endpoints {
			if len(ep.Addresses) == 0 || !isReady(&ep) {
				continue
			}
			host := net.JoinHostPort(ep.Addresses[0], strconv.Itoa(int(*s.Ports[i].Port)))
			if s.AddressType == family {
				preferred = append(preferred, host)
			} else {
				others = append(others, host)
			}
		}
	}
	if len(preferred) == 0 {
		preferred = others
	}
	if len(preferred) == 0 {
		return ""
	}
	return preferred[rand.IntN(len(preferred))]
}

// isReady reports whether an endpoint is ready. An unset condition means that it is.
func isReady(ep *discoveryv1.Endpoint) bool {
	return ep.Conditions.Ready == nil || *ep.Conditions.Ready
}
