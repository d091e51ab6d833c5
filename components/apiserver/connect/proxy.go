package connect

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"path"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/httpstream"
	utilnet "k8s.io/apimachinery/pkg/util/net"

	"hyperkube/components/apiserver/registry"
	"hyperkube/components/apiserver/rest"
	"hyperkube/internal/serving/upgradeproxy"
	"hyperkube/internal/store"
)

// splitServiceName splits the name in the path of a Service proxy, "scheme:name:port", of which scheme and port are
// optional and then empty. It returns a BadRequest error if the name is malformed.
func splitServiceName(id string) (scheme, name, port string, err error) {
	scheme, name, port, ok := utilnet.SplitSchemeNamePort(id)
	if !ok {
		return "", "", "", badRequest("invalid service request %q", id)
	}
	return scheme, name, port, nil
}

// podProxy forwards a request for pods/proxy to the IP address of the pod. The port can be a number or the name of a
// container port; the default is the first container port. It returns an error if the pod does not exist or the API
// server must not connect to its address.
func (c *connector) podProxy(w http.ResponseWriter, req *http.Request, call registry.StreamCall) error {
	scheme, name, port, ok := utilnet.SplitSchemeNamePort(call.Name)
	if !ok {
		return badRequest("invalid pod request %q", call.Name)
	}
	pod, err := c.pod(req.Context(), call.Namespace, name)
	if err != nil {
		return err
	}
	if port == "" {
		for _, ctr := range pod.Spec.Containers {
			if len(ctr.Ports) > 0 {
				port = strconv.Itoa(int(ctr.Ports[0].ContainerPort))
				break
			}
		}
	} else if _, err := strconv.ParseUint(port, 10, 16); err != nil {
		for _, ctr := range pod.Spec.Containers {
			for _, p := range ctr.Ports {
				if p.Name == port {
					port = strconv.Itoa(int(p.ContainerPort))
				}
			}
		}
	}
	ip := pod.Status.PodIP
	if len(pod.Status.PodIPs) > 0 {
		ip = pod.Status.PodIPs[0].IP
	}
	if ip == "" {
		return badRequest("address not allowed")
	}
	if err := checkAddress(ip); err != nil {
		return err
	}
	host := ip
	if port != "" {
		host = net.JoinHostPort(ip, port)
	} else if strings.Contains(ip, ":") {
		host = "[" + ip + "]"
	}
	return c.forward(w, req, &url.URL{Scheme: scheme, Host: host}, call, false)
}

// serviceProxy forwards a request for services/proxy to a random ready endpoint of the Service. It returns a
// ServiceUnavailable error if there is none or the Service does not have the port.
func (c *connector) serviceProxy(w http.ResponseWriter, req *http.Request, call registry.StreamCall) error {
	scheme, name, port, err := splitServiceName(call.Name)
	if err != nil {
		return err
	}
	// A number is a port of the Service, which is mapped to the port's name. For named ports the
	// EndpointSlices are sufficient, even if the Service does not exist.
	if n, err := strconv.ParseInt(port, 10, 32); err == nil {
		obj, err := c.get(req.Context(), "services", call.Namespace, name)
		if err != nil {
			return err
		}
		svc, ok := obj.(*corev1.Service)
		if !ok {
			return fmt.Errorf("service %s is a %T", name, obj)
		}
		found := false
		for _, p := range svc.Spec.Ports {
			if int64(p.Port) == n {
				port, found = p.Name, true
				break
			}
		}
		if !found {
			return apierrors.NewServiceUnavailable(fmt.Sprintf("no service port %d found for service %q", n, name))
		}
	}
	host, err := c.endpoint(req.Context(), call.Namespace, name, port)
	if err != nil {
		return err
	}
	return c.forward(w, req, &url.URL{Scheme: scheme, Host: host}, call, false)
}

// endpoint returns the host and port of a random ready endpoint for the named port of a Service, from its
// EndpointSlices or, if these contain none, from its Endpoints. Addresses to which the API server must not connect do
// not count. It returns a ServiceUnavailable error if there is none.
func (c *connector) endpoint(ctx context.Context, namespace, service, port string) (string, error) {
	none := apierrors.NewServiceUnavailable(fmt.Sprintf("no endpoints available for service %q", service))
	res := c.registry.Lookup(discoveryv1.SchemeGroupVersion.WithResource("endpointslices"))
	if res == nil {
		return "", none
	}
	page, err := res.Collection.List(ctx, store.ListOptions{Prefix: namespace + "/"})
	if err != nil {
		return "", rest.StoreError(res, "", err)
	}
	var hosts []string
	for _, e := range page.Entries {
		obj, err := res.Read(e)
		if err != nil {
			return "", err
		}
		slice, ok := obj.(*discoveryv1.EndpointSlice)
		if !ok || slice.Labels[discoveryv1.LabelServiceName] != service || slice.AddressType == discoveryv1.AddressTypeFQDN {
			continue
		}
		for _, p := range slice.Ports {
			if p.Port == nil || p.Name == nil && port != "" || p.Name != nil && *p.Name != port {
				continue
			}
			for _, ep := range slice.Endpoints {
				if len(ep.Addresses) > 0 && (ep.Conditions.Ready == nil || *ep.Conditions.Ready) && checkAddress(ep.Addresses[0]) == nil {
					hosts = append(hosts, net.JoinHostPort(ep.Addresses[0], strconv.Itoa(int(*p.Port))))
				}
			}
		}
	}
	if len(hosts) == 0 {
		// Fall back to the Endpoints object. Another controller writes it, and a client may have
		// waited only for that one.
		if hosts, err = c.endpointsFallback(ctx, namespace, service, port); err != nil {
			return "", err
		}
	}
	if len(hosts) == 0 {
		return "", none
	}
	return hosts[rand.IntN(len(hosts))], nil
}

// endpointsFallback returns the ready addresses (host:port) for the named port of a Service from its Endpoints
// object, except for addresses to which the API server must not connect (see checkAddress). It is used if no
// EndpointSlice contains one, because another controller writes the Endpoints, possibly earlier. It returns none if
// there is no such object.
func (c *connector) endpointsFallback(ctx context.Context, namespace, service, port string) ([]string, error) {
	obj, err := c.get(ctx, "endpoints", namespace, service)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	endpoints, ok := obj.(*corev1.Endpoints)
	if !ok {
		return nil, fmt.Errorf("endpoints %s are a %T", service, obj)
	}
	var hosts []string
	for _, subset := range endpoints.Subsets {
		for _, p := range subset.Ports {
			if p.Name != port {
				continue
			}
			for _, a := range subset.Addresses {
				if checkAddress(a.IP) == nil {
					hosts = append(hosts, net.JoinHostPort(a.IP, strconv.Itoa(int(p.Port))))
				}
			}
		}
	}
	return hosts, nil
}

// nodeProxy forwards a request for nodes/proxy to the kubelet of the node, with the client certificate of the API
// server, or to another port of the node, without the certificate.
func (c *connector) nodeProxy(w http.ResponseWriter, req *http.Request, call registry.StreamCall) error {
	scheme, name, port, ok := utilnet.SplitSchemeNamePort(call.Name)
	if !ok {
		return badRequest("invalid node request %q", call.Name)
	}
	at, err := c.kubeletURL(req.Context(), name)
	if err != nil {
		return err
	}
	if port != "" && port != at.Port() {
		// Another port of the node is not the kubelet and must not receive the client certificate.
		at = &url.URL{Scheme: scheme, Host: net.JoinHostPort(at.Hostname(), port)}
		return c.forward(w, req, at, call, false)
	}
	return c.forward(w, req, at, call, true)
}

// checkAddress returns an error if the API server must not connect to host, the IP address of a pod
// or an endpoint. It returns nil for names; the dialer checks their addresses.
func checkAddress(host string) error {
	addr, err := netip.ParseAddr(host)
	if err != nil {
		return nil
	}
	return proxyable(addr)
}

// forward forwards a request of one of the proxy subresources to the URL at, and the response to the client. A GET
// request for the proxy itself without a trailing slash is redirected to the path with the slash. Links in HTML are
// rewritten so that they refer to the proxy. kubelet is set if the destination is a kubelet, which gets the client
// certificate of the API server.
func (c *connector) forward(w http.ResponseWriter, req *http.Request, at *url.URL, call registry.StreamCall, kubelet bool) error {
	if call.Path == "" && !strings.HasSuffix(req.URL.Path, "/") && (req.Method == http.MethodGet || req.Method == http.MethodHead) && !httpstream.IsUpgradeRequest(req) {
		// Relative links of the page need the trailing slash.
		to := url.URL{Path: req.URL.Path + "/", RawQuery: req.URL.RawQuery}
		w.Header().Set("Location", to.String())
		w.WriteHeader(http.StatusMovedPermanently)
		return nil
	}
	if at.Scheme == "" {
		at.Scheme = "http"
	}
	at.Path = "/" + strings.TrimPrefix(call.Path, "/")
	if clean := path.Clean(at.Path); strings.HasSuffix(at.Path, "/") && clean != "/" {
		at.Path = clean + "/"
	} else {
		at.Path = clean
	}
	at.RawQuery = req.URL.RawQuery
	rt := c.podTransport
	if kubelet {
		rt = c.verified
	}
	h := upgradeproxy.NewHandler(at, rt, true, false, responder{c.cfg.Error})
	h.MaxBytesPerSec = c.cfg.MaxBytesPerSec
	if id := w.Header()["Audit-Id"]; len(id) > 0 {
		req = req.Clone(req.Context())
		req.Header["Audit-Id"] = id
	}
	h.ServeHTTP(w, req)
	return nil
}
