package loadbalancer

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"hyperkube/components/controllers/loadbalancer/addresspool"
)

// requestAnnotations are the annotations of a Service that request addresses of the pool, separated by commas, at most
// one for each IP family. They are those of MetalLB, so that its manifests need no change.
var requestAnnotations = []string{"metallb.io/loadBalancerIPs", "metallb.universe.tf/loadBalancerIPs"}

// problem describes why a Service gets no addresses: a reason and a message of a condition.
type problem struct{ reason, message string }

// demand is what a Service requires of the pool.
type demand struct {
	families []corev1.IPFamily
	// exact are the addresses that the Service requests. The addresses of other families are free to choose.
	exact []netip.Addr
	// partial is true if an address of one of the families is enough.
	partial bool
}

// demandOf returns what svc requires of the pool. The problem is nil unless svc requests invalid addresses. The
// annotations take precedence over spec.loadBalancerIP.
func demandOf(svc *corev1.Service) (demand, *problem) {
	d := demand{families: svc.Spec.IPFamilies, partial: ptr.Deref(svc.Spec.IPFamilyPolicy, "") == corev1.IPFamilyPolicyPreferDualStack}
	text, source := svc.Spec.LoadBalancerIP, "spec.loadBalancerIP"
	for _, name := range slices.Backward(requestAnnotations) {
		if value := svc.Annotations[name]; value != "" {
			text, source = value, "annotation "+name
		}
	}
	if text == "" {
		return d, nil
	}
	for one := range strings.SplitSeq(text, ",") {
		a, err := netip.ParseAddr(strings.TrimSpace(one))
		switch {
		case err != nil || a.Zone() != "":
			return d, &problem{reasonInvalidAddress, fmt.Sprintf("%s requests %q, which is not an IP address", source, one)}
		case !slices.Contains(d.families, familyOf(a.Unmap())):
			return d, &problem{reasonInvalidAddress, fmt.Sprintf("%s requests %s, but the Service has no %s in ipFamilies", source, a, familyOf(a.Unmap()))}
		case slices.ContainsFunc(d.exact, func(b netip.Addr) bool { return familyOf(b) == familyOf(a.Unmap()) }):
			return d, &problem{reasonInvalidAddress, fmt.Sprintf("%s requests more than one %s address", source, familyOf(a.Unmap()))}
		}
		d.exact = append(d.exact, a.Unmap())
	}
	return d, nil
}

// choose returns the addresses of a Service, in the order of its families: those that it requests, else those that it
// holds, else the first free ones of the pool. owner returns what uses an address, for messages; it returns "" if the
// Service may have the address. complete is false if a family has no address, which is not a problem if the demand
// is partial. If there is a problem, the Service gets no addresses.
func choose(pool addresspool.Pool, d demand, held []netip.Addr, owner func(netip.Addr) string) (out []netip.Addr, complete bool, p *problem) {
	complete = true
	for _, family := range d.families {
		of := func(a netip.Addr) bool { return familyOf(a) == family }
		if i := slices.IndexFunc(d.exact, of); i >= 0 {
			a := d.exact[i]
			if !pool.Contains(a) {
				return nil, false, &problem{reasonNotInPool, fmt.Sprintf("the requested address %s is not in the pool %s", a, pool)}
			}
			if by := owner(a); by != "" {
				return nil, false, &problem{reasonInUse, fmt.Sprintf("the requested address %s is used by %s", a, by)}
			}
			out = append(out, a)
			continue
		}
		usable := func(a netip.Addr) bool { return of(a) && pool.Contains(a) && owner(a) == "" }
		if i := slices.IndexFunc(held, usable); i >= 0 {
			out = append(out, held[i])
			continue
		}
		found := false
		for a := range pool.Addresses(family == corev1.IPv6Protocol) {
			if owner(a) == "" {
				out, found = append(out, a), true
				break
			}
		}
		if found {
			continue
		}
		complete = false
		p = &problem{reasonExhausted, fmt.Sprintf("no %s address of the pool %s is free", family, pool)}
		if !pool.HasFamily(family == corev1.IPv6Protocol) {
			p = &problem{reasonNotInPool, fmt.Sprintf("the pool %s has no %s addresses", pool, family)}
		}
	}
	if p != nil && (!d.partial || len(out) == 0) {
		return nil, false, p
	}
	return out, complete, nil
}

// claims records which Service has which addresses of the pool. A Service is identified by its namespace/name. An
// address has at most one owner. It is not safe for concurrent use.
type claims struct {
	owners    map[netip.Addr]string
	addresses map[string][]netip.Addr
}

func newClaims() *claims {
	return &claims{owners: map[netip.Addr]string{}, addresses: map[string][]netip.Addr{}}
}

// of returns the addresses of a Service. The caller must not modify the result.
func (c *claims) of(service string) []netip.Addr { return c.addresses[service] }

// owner returns the Service that has an address, or "".
func (c *claims) owner(a netip.Addr) string { return c.owners[a] }

// set replaces the addresses of a Service. It skips addresses of other Services. It reports whether the Service has
// lost an address, which another Service may now get.
func (c *claims) set(service string, addresses ...netip.Addr) (released bool) {
	var now []netip.Addr
	for _, a := range addresses {
		if by := c.owners[a]; (by == "" || by == service) && !slices.Contains(now, a) {
			now = append(now, a)
		}
	}
	for _, a := range c.addresses[service] {
		if !slices.Contains(now, a) {
			delete(c.owners, a)
			released = true
		}
	}
	for _, a := range now {
		c.owners[a] = service
	}
	if len(now) == 0 {
		delete(c.addresses, service)
	} else {
		c.addresses[service] = now
	}
	return released
}
