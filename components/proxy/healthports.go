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

	"hyperkube/internal/plainhttp"
)

// serviceHealth is the health check port of one service.
type serviceHealth struct {
	port    uint16
	local   int
	sockets []socket
	servers []*plainhttp.Server // one a socket
}

func (s *serviceHealth) close() {
	for _, server := range s.servers {
		server.Close()
	}
	s.servers = nil
}

// listen answers at all sockets, or at none.
func (s *serviceHealth) listen(handler http.Handler) error {
	for _, at := range s.sockets {
		listener, err := net.Listen(at.network, net.JoinHostPort(at.host, strconv.Itoa(int(s.port))))
		if err != nil {
			s.close()
			return err
		}
		s.servers = append(s.servers, plainhttp.On(listener, handler))
	}
	return nil
}

// socket is where a health check port is: a network and a host of net.Listen.
type socket struct{ network, host string }

// everywhere is on all addresses of both families.
var everywhere = []socket{{"tcp", ""}}

// healthSockets are on the addresses on which node ports answer, as upstream's.
func (p *Proxy) healthSockets() ([]socket, error) {
	facts := p.facts()
	ranges := map[bool][]netip.Prefix{}
	for _, ipv6 := range []bool{false, true} {
		ranges[ipv6] = p.nodePortRanges(ipv6, facts)
	}
	if len(ranges[false])+len(ranges[true]) == 0 {
		return everywhere, nil
	}
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return nil, fmt.Errorf("listing the node's addresses: %w", err)
	}
	var own []netip.Addr
	for _, a := range addrs {
		if prefix, err := netip.ParsePrefix(a.String()); err == nil {
			own = append(own, prefix.Addr())
		}
	}
	return socketsOn(ranges, own), nil
}

// socketsOn are on those of a node's own addresses that are in the ranges of their
// family, or on all of a family without ranges. Those of a link alone cannot be
// listened on without it.
func socketsOn(ranges map[bool][]netip.Prefix, own []netip.Addr) []socket {
	var out []socket
	for _, addr := range own {
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

// healthCheckPorts returns, for those of the changed services that have one,
// the health check port and how many endpoints are on this node; nil for those
// that have none.
func (p *Proxy) healthCheckPorts(changed map[string]bool) map[string]*serviceHealth {
	out := map[string]*serviceHealth{}
	var sockets []socket
	for key := range changed {
		out[key] = nil
		obj, there, err := p.services.GetIndexer().GetByKey(key)
		if err != nil || !there {
			continue
		}
		svc := obj.(*corev1.Service)
		if svc.Spec.HealthCheckNodePort == 0 {
			continue
		}
		if sockets == nil {
			if sockets, err = p.healthSockets(); err != nil {
				p.cfg.Log.Error("the health of services is told on all addresses", "err", err)
				sockets = everywhere
			}
		}
		s := &serviceHealth{port: uint16(svc.Spec.HealthCheckNodePort), sockets: sockets}
		for _, ipv6 := range []bool{false, true} {
			s.local = max(s.local, readyHere(p.slicesOf(key), p.cfg.NodeName, ipv6))
		}
		out[key] = s
	}
	return out
}

// readyHere counts the addresses of a node that are ready in slices.
func readyHere(list []*discoveryv1.EndpointSlice, node string, ipv6 bool) int {
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

// portsAgain is how long after a health check port could not be listened on that is
// tried again.
const portsAgain = 5 * time.Second

// serveServices brings the health check ports to what is wanted.
func (h *health) serveServices(wanted map[string]*serviceHealth) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for key, want := range wanted {
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
				h.log.Error("the health of a service cannot be served, trying again", "service", key, "err", err)
				if h.unserved != nil {
					h.unserved(key, want.port, err)
				}
			}
			h.waiting[key] = want
			continue
		}
		h.services[key] = want
	}
}

// serveWaiting tries again what could not be listened on.
func (h *health) serveWaiting() {
	h.mu.Lock()
	wanted := maps.Clone(h.waiting)
	h.mu.Unlock()
	h.serveServices(wanted)
}

// waits tells whether there is any port that could not be listened on.
func (h *health) waits() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.waiting) > 0
}

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

// serviceReport is what a health check port tells, in upstream's words.
type serviceReport struct {
	Service             serviceName `json:"service"`
	LocalEndpoints      int         `json:"localEndpoints"`
	ServiceProxyHealthy bool        `json:"serviceProxyHealthy"`
}

type serviceName struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
}

// nameOf reads "namespace/name".
func nameOf(key string) serviceName {
	namespace, name, _ := strings.Cut(key, "/")
	return serviceName{namespace, name}
}
