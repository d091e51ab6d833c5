package endpoints

import (
	"cmp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// entry is an address with one of the ports that it serves. port is nil for the pods of headless Services without
// ports.
type entry struct {
	address corev1.EndpointAddress
	ready   bool
	port    *corev1.EndpointPort
}

// pack groups entries into subsets: addresses that serve the same ports share a subset. Duplicate entries are removed.
// The order of the result depends only on its content.
func pack(entries []entry) []corev1.EndpointSubset {
	type ref struct {
		entry
		key string
	}
	byPort := map[corev1.EndpointPort][]ref{}
	apps := map[corev1.EndpointPort]*string{}
	var none []ref
	for _, e := range entries {
		r := ref{e, addressKey(e)}
		if e.port == nil {
			none = append(none, r)
			continue
		}
		// Clear the pointer, because otherwise equal ports would be different map keys.
		p := *e.port
		app := p.AppProtocol
		p.AppProtocol = nil
		if app != nil {
			p.Name += "\x00" + *app
		}
		apps[p] = app
		byPort[p] = append(byPort[p], r)
	}
	type group struct {
		refs  []ref
		ports []corev1.EndpointPort
	}
	groups := map[string]*group{}
	add := func(refs []ref, port *corev1.EndpointPort) {
		slices.SortFunc(refs, func(a, b ref) int { return cmp.Compare(a.key, b.key) })
		refs = slices.CompactFunc(refs, func(a, b ref) bool { return a.key == b.key })
		var k strings.Builder
		for _, r := range refs {
			k.WriteString(r.key)
			k.WriteByte('\n')
		}
		g := groups[k.String()]
		if g == nil {
			g = &group{refs: refs}
			groups[k.String()] = g
		}
		if port != nil {
			g.ports = append(g.ports, *port)
		}
	}
	for p, refs := range byPort {
		port := p
		port.AppProtocol = apps[p]
		port.Name, _, _ = strings.Cut(port.Name, "\x00")
		add(refs, &port)
	}
	if len(none) > 0 {
		add(none, nil)
	}
	var out []corev1.EndpointSubset
	for _, g := range groups {
		s := corev1.EndpointSubset{Ports: g.ports}
		slices.SortFunc(s.Ports, comparePorts)
		for _, r := range g.refs {
			if r.ready {
				s.Addresses = append(s.Addresses, r.address)
			} else {
				s.NotReadyAddresses = append(s.NotReadyAddresses, r.address)
			}
		}
		out = append(out, s)
	}
	slices.SortFunc(out, func(a, b corev1.EndpointSubset) int {
		if c := slices.CompareFunc(a.Ports, b.Ports, comparePorts); c != 0 {
			return c
		}
		return cmp.Compare(firstAddress(a), firstAddress(b))
	})
	return out
}

// Repack groups subsets, which any client may have written, like those of this controller. An address that is ready in
// one subset and not ready in another, for the same port, is not ready in the result.
func Repack(subsets []corev1.EndpointSubset) []corev1.EndpointSubset {
	all := unpack(subsets)
	key := func(e entry) string {
		e.ready = false
		if e.port == nil {
			return addressKey(e)
		}
		return addressKey(e) + e.port.String()
	}
	down := map[string]bool{}
	for _, e := range all {
		if !e.ready {
			down[key(e)] = true
		}
	}
	for i := range all {
		all[i].ready = all[i].ready && !down[key(all[i])]
	}
	return pack(all)
}

// firstAddress returns the first ready address of s, or else its first address that is not ready, or "".
func firstAddress(s corev1.EndpointSubset) string {
	if len(s.Addresses) > 0 {
		return s.Addresses[0].IP
	}
	if len(s.NotReadyAddresses) > 0 {
		return s.NotReadyAddresses[0].IP
	}
	return ""
}

// comparePorts compares ports for sorting: by name, number and protocol.
func comparePorts(a, b corev1.EndpointPort) int {
	return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Port, b.Port), cmp.Compare(a.Protocol, b.Protocol))
}

// addressKey returns a string that identifies e's address, pod and readiness, but not its port.
func addressKey(e entry) string {
	uid := ""
	if e.address.TargetRef != nil {
		uid = string(e.address.TargetRef.UID)
	}
	ready := "0"
	if e.ready {
		ready = "1"
	}
	return e.address.IP + " " + uid + " " + ready
}

// truncate removes addresses from subsets until at most limit are left, and reports whether it removed any. It removes
// ready addresses only if all others are removed, and reduces all subsets proportionally.
func truncate(subsets []corev1.EndpointSubset, limit int) bool {
	ready, notReady := 0, 0
	for _, s := range subsets {
		ready += len(s.Addresses)
		notReady += len(s.NotReadyAddresses)
	}
	if ready+notReady <= limit {
		return false
	}
	keepReady := min(ready, limit)
	truncateShare(subsets, func(s *corev1.EndpointSubset) *[]corev1.EndpointAddress { return &s.Addresses }, keepReady, ready)
	truncateShare(subsets, func(s *corev1.EndpointSubset) *[]corev1.EndpointAddress { return &s.NotReadyAddresses }, limit-keepReady, notReady)
	return true
}

// truncateShare removes addresses from the lists that of returns for each of subsets. The lists contain total addresses
// before and keep addresses after the call. Each list keeps its share of them, rounded up while keep is not reached.
func truncateShare(subsets []corev1.EndpointSubset, of func(*corev1.EndpointSubset) *[]corev1.EndpointAddress, keep, total int) {
	if keep >= total {
		return
	}
	left := keep
	for i := range subsets {
		a := of(&subsets[i])
		n := min((len(*a)*keep+total-1)/total, left)
		left -= n
		if n == 0 {
			*a = nil
			continue
		}
		*a = (*a)[:n:n]
	}
}
