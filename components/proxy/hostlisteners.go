package proxy

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"hyperkube/components/proxy/rules"
)

// usedAddresses removes load balancer addresses that other programs use from the ports after, as
// removeUsedAddresses does. before are the previous ports of the Service key in the same IP family.
// It returns those addresses that were not in use at the previous sync, for which the caller
// creates an event. It may only be called by the goroutine of Run.
func (p *Proxy) usedAddresses(key string, ipv6 bool, before, after []*rules.Port) (found []hostListener) {
	used := removeUsedAddresses(before, after)
	for _, l := range used {
		if p.refused[l] != key {
			found = append(found, l)
		}
	}
	maps.DeleteFunc(p.refused, func(l hostListener, service string) bool {
		return service == key && l.address.Addr().Is6() == ipv6
	})
	for _, l := range used {
		p.refused[l] = key
	}
	return found
}

// removeUsedAddresses removes the load balancer addresses of this node from the ports of a Service where another
// program of the node, such as sshd, listens: the rules would redirect its connections to the Service. before
// are the previous ports of the Service; an address that the Service had is not checked again, so a program that
// starts later does not take the address from the Service. It returns the removed addresses.
func removeUsedAddresses(before, after []*rules.Port) (used []hostListener) {
	for _, port := range after {
		i := slices.IndexFunc(before, func(b *rules.Port) bool { return b.Protocol == port.Protocol && b.Port == port.Port })
		port.LoadBalancerIPs = slices.DeleteFunc(port.LoadBalancerIPs, func(ip netip.Addr) bool {
			if i >= 0 && slices.Contains(before[i].LoadBalancerIPs, ip) {
				return false
			}
			l := hostListener{port.Protocol, netip.AddrPortFrom(ip, port.Port)}
			if !l.exists() {
				return false
			}
			used = append(used, l)
			return true
		})
	}
	return used
}

// hostListener is an address and port at which a program in the network namespace of the node may
// listen.
type hostListener struct {
	protocol string // as in rules.Port
	address  netip.AddrPort
}

// exists reports whether a program listens at the address, by binding a socket to it for a moment.
// It returns false if the address is not one of this node, or if this cannot be determined.
func (l hostListener) exists() bool {
	kind := unix.SOCK_STREAM
	switch l.protocol {
	case "tcp":
	case "udp":
		kind = unix.SOCK_DGRAM
	default:
		return false
	}
	var family int
	var address unix.Sockaddr
	if l.address.Addr().Is4() {
		family, address = unix.AF_INET, &unix.SockaddrInet4{Port: int(l.address.Port()), Addr: l.address.Addr().As4()}
	} else {
		family, address = unix.AF_INET6, &unix.SockaddrInet6{Port: int(l.address.Port()), Addr: l.address.Addr().As16()}
	}
	fd, err := unix.Socket(family, kind|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	if kind == unix.SOCK_STREAM {
		// Closed connections of an earlier program do not count.
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1); err != nil {
			return false
		}
	}
	return errors.Is(unix.Bind(fd, address), unix.EADDRINUSE)
}

// createPortInUseEvent creates a warning event for a Service that this node does not serve at the
// load balancer address l, because another program listens there. It writes to the API directly,
// because the event is too rare to justify a recorder.
func (p *Proxy) createPortInUseEvent(ctx context.Context, service serviceName, l hostListener) {
	now := time.Now()
	event := &eventsv1.Event{
		ObjectMeta:          metav1.ObjectMeta{Namespace: service.Namespace, Name: fmt.Sprintf("%s.%x", service.Name, now.UnixNano())},
		EventTime:           metav1.NewMicroTime(now),
		ReportingController: "kube-proxy", ReportingInstance: "kube-proxy-" + p.cfg.NodeName,
		Action: "Forward", Reason: "LoadBalancerPortInUse", Type: corev1.EventTypeWarning,
		Regarding: corev1.ObjectReference{APIVersion: "v1", Kind: "Service", Namespace: service.Namespace, Name: service.Name},
		Note: fmt.Sprintf("node %s does not forward %s port %d of %s: another program of the node listens there; stop it, or choose another port, then change the Service",
			p.cfg.NodeName, l.protocol, l.address.Port(), l.address.Addr()),
	}
	if _, err := p.cfg.Clients.Kube.EventsV1().Events(service.Namespace).Create(ctx, event, metav1.CreateOptions{}); err != nil && ctx.Err() == nil {
		p.cfg.Log.Warn("creating event about a load balancer port in use by another program failed; this node does not forward the port, and users see that only in this log, no retry of the event", "service", service.Namespace+"/"+service.Name, "port", l.address.Port(), "err", err)
	}
}
