package proxy

import (
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"hyperkube/internal/serving/plainhttp"
)

// serviceHealth is the state of the health check port of a Service, on which load balancers request
// whether this node has ready endpoints of the Service.
type serviceHealth struct {
	port    uint16
	local   int // number of ready endpoints on this node
	sockets []socket
	servers []*plainhttp.Server // one for each socket
}

func (s *serviceHealth) close() {
	for _, server := range s.servers {
		server.Close()
	}
	s.servers = nil
}

// listen listens on the port at all sockets and serves handler there. If one socket fails, it
// listens on none and returns the error.
func (s *serviceHealth) listen(handler http.Handler) error {
	for _, at := range s.sockets {
		listener, err := net.Listen(at.network, net.JoinHostPort(at.host, strconv.Itoa(int(s.port))))
		if err != nil {
			s.close()
			return err
		}
		s.servers = append(s.servers, plainhttp.ServeListener(listener, handler))
	}
	return nil
}

// socket is the listen address of a health check port: network and host as in net.Listen.
type socket struct{ network, host string }

// wildcardSockets are the sockets that accept connections to all addresses of the node, in both IP
// families.
var wildcardSockets = []socket{{"tcp", ""}}

// healthSockets returns the addresses on which health check ports listen: those on which node ports
// answer, as in upstream.
func (p *Proxy) healthSockets() ([]socket, error) {
	facts := p.facts()
	ranges := map[bool][]netip.Prefix{}
	for _, ipv6 := range []bool{false, true} {
		ranges[ipv6] = p.nodePortRanges(ipv6, facts)
	}
	if len(ranges[false])+len(ranges[true]) == 0 {
		return wildcardSockets, nil
	}
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return nil, fmt.Errorf("listing the node's addresses: %w", err)
	}
	var nodeAddrs []netip.Addr
	for _, a := range addrs {
		if prefix, err := netip.ParsePrefix(a.String()); err == nil {
			nodeAddrs = append(nodeAddrs, prefix.Addr())
		}
	}
	return listenSockets(ranges, nodeAddrs), nil
}

// listenSockets returns a socket for each of nodeAddrs that is in the ranges of its IP family.
// ranges is keyed by IPv6; for a family without ranges, it returns the wildcard address. It skips
// link-local addresses, which cannot be listened on without a zone.
func listenSockets(ranges map[bool][]netip.Prefix, nodeAddrs []netip.Addr) []socket {
	var out []socket
	for _, addr := range nodeAddrs {
		ipv6 := addr.Is6()
		at := socket{"tcp", addr.String()}
		if len(ranges[ipv6]) == 0 {
			at = map[bool]socket{false: {"tcp4", "0.0.0.0"}, true: {"tcp6", "::"}}[ipv6]
		} else if addr.IsLinkLocalUnicast() || !slices.ContainsFunc(ranges[ipv6], func(r netip.Prefix) bool { return r.Contains(addr) }) {
			continue
		}
		if !slices.Contains(out, at) {
			out = append(out, at)
		}
	}
	return out
}

// healthCheckPorts returns the desired health check ports for serveServices. changed and the result
// are keyed by namespace/name; the value is nil for Services without a port and for deleted ones.
func (p *Proxy) healthCheckPorts(changed map[string]bool) map[string]*serviceHealth {
	out := map[string]*serviceHealth{}
	var sockets []socket
	for key := range changed {
		out[key] = nil
		obj, exists, err := p.services.GetIndexer().GetByKey(key)
		if err != nil || !exists {
			continue
		}
		svc := obj.(*corev1.Service)
		if svc.Spec.HealthCheckNodePort == 0 {
			continue
		}
		if sockets == nil {
			if sockets, err = p.healthSockets(); err != nil {
				p.cfg.Log.Error("listing node addresses failed; health check ports of changed Services also listen on addresses that serve no node ports, retrying when such a Service changes again", "node", p.cfg.NodeName, "err", err)
				sockets = wildcardSockets
			}
		}
		s := &serviceHealth{port: uint16(svc.Spec.HealthCheckNodePort), sockets: sockets}
		for _, ipv6 := range []bool{false, true} {
			s.local = max(s.local, countReadyLocal(p.slicesOf(key), p.cfg.NodeName, ipv6))
		}
		out[key] = s
	}
	return out
}

// countReadyLocal counts the distinct addresses of ready endpoints on a node, in the slices of one
// Service and the given IP family.
func countReadyLocal(list []*discoveryv1.EndpointSlice, node string, ipv6 bool) int {
	seen := map[string]bool{}
	for _, slice := range list {
		if (slice.AddressType == discoveryv1.AddressTypeIPv6) != ipv6 {
			continue
		}
		for i := range slice.Endpoints {
			e := &slice.Endpoints[i]
			here := e.NodeName != nil && *e.NodeName == node && len(e.Addresses) > 0
			if here && (e.Conditions.Ready == nil || *e.Conditions.Ready) {
				seen[e.Addresses[0]] = true
			}
		}
	}
	return len(seen)
}

// portRetryInterval is the interval at which Run retries to listen on health check ports in use by
// another process.
const portRetryInterval = 5 * time.Second

// serveServices starts, updates and stops the servers of health check ports as in desired, keyed by
// namespace/name; nil stops one. Services that are not in desired stay as they are. If a port
// cannot be listened on, it logs an error, calls onUnserved once, and keeps the Service for
// retryWaiting.
func (h *health) serveServices(desired map[string]*serviceHealth) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for key, want := range desired {
		have := h.services[key]
		if have != nil && want != nil && have.port == want.port && slices.Equal(have.sockets, want.sockets) {
			have.local = want.local
			continue
		}
		if have != nil {
			have.close()
			delete(h.services, key)
		}
		before := h.waiting[key]
		delete(h.waiting, key)
		if want == nil {
			continue
		}
		if err := want.listen(h.serviceHandler(key)); err != nil {
			if before == nil || before.port != want.port {
				h.log.Error("listening on health check port of Service failed; load balancers send no traffic of the Service to this node until a retry succeeds, retrying every 5 seconds", "service", key, "port", want.port, "retryInterval", portRetryInterval, "err", err)
				if h.onUnserved != nil {
					h.onUnserved(key, want.port, err)
				}
			}
			h.waiting[key] = want
			continue
		}
		h.services[key] = want
	}
}

// retryWaiting calls serveServices for the ports that could not be listened on.
func (h *health) retryWaiting() {
	h.mu.Lock()
	desired := maps.Clone(h.waiting)
	h.mu.Unlock()
	h.serveServices(desired)
}

// hasWaiting reports whether there are ports that could not be listened on.
func (h *health) hasWaiting() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.waiting) > 0
}

// serviceHandler returns the handler of a Service's health check port. It responds with the status
// 200 if the Service has ready endpoints on this node and the proxy is healthy, and otherwise with
// 503.
func (h *health) serviceHandler(key string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		h.mu.Lock()
		local := 0
		if s := h.services[key]; s != nil {
			local = s.local
		}
		healthy := h.healthy()
		h.mu.Unlock()
		body, err := json.MarshalIndent(serviceReport{nameOf(key), local, healthy}, "", "\t")
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.Header().Set("X-Load-Balancing-Endpoint-Weight", strconv.Itoa(local))
		write(w, local > 0 && healthy, body)
	}
}

// serviceReport is the response body of a health check port, as in upstream.
type serviceReport struct {
	Service             serviceName `json:"service"`
	LocalEndpoints      int         `json:"localEndpoints"`
	ServiceProxyHealthy bool        `json:"serviceProxyHealthy"`
}

// serviceName identifies a Service, in the JSON format of serviceReport.
type serviceName struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
}

// nameOf parses "namespace/name".
func nameOf(key string) serviceName {
	namespace, name, _ := strings.Cut(key, "/")
	return serviceName{namespace, name}
}
