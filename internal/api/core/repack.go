package core

import (
	"cmp"
	"crypto/md5"
	"maps"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/dump"
)

// addressKey tells addresses apart: pods on the network of a node share an IP.
type addressKey struct {
	ip  string
	uid types.UID
}

func keyOf(a *corev1.EndpointAddress) addressKey {
	key := addressKey{ip: a.IP}
	if a.TargetRef != nil {
		key.uid = a.TargetRef.UID
	}
	return key
}

func (k addressKey) compare(o addressKey) int {
	return cmp.Or(cmp.Compare(k.ip, o.ip), cmp.Compare(k.uid, o.uid))
}

// portKey is a port as a key of maps. The zero value stands for addresses
// without ports.
type portKey struct {
	name        string
	port        int32
	protocol    corev1.Protocol
	hasProtocol bool // whether there is an application protocol
	appProtocol string
}

// repackSubsets brings subsets into the one form in which they are stored,
// whichever way a client wrote them: each port is in one subset, ports with
// the same addresses are together, and all is in order. Where an address is
// both ready and not ready for a port it is not ready. What is told of an
// address is what was told first. The result shares pointers with subsets.
func repackSubsets(subsets []corev1.EndpointSubset) []corev1.EndpointSubset {
	if len(subsets) == 0 {
		return subsets
	}
	addresses := map[addressKey]*corev1.EndpointAddress{}
	byPort := map[portKey]map[addressKey]bool{} // to readiness
	ports := map[portKey]corev1.EndpointPort{}
	for i := range subsets {
		s := &subsets[i]
		keys := make([]portKey, 0, max(1, len(s.Ports)))
		for _, p := range s.Ports {
			key := portKey{name: p.Name, port: p.Port, protocol: p.Protocol, hasProtocol: p.AppProtocol != nil}
			if key.hasProtocol {
				key.appProtocol = *p.AppProtocol
			}
			keys, ports[key] = append(keys, key), p
		}
		if len(keys) == 0 {
			keys = append(keys, portKey{})
		}
		for _, key := range keys {
			if byPort[key] == nil {
				byPort[key] = map[addressKey]bool{}
			}
			for j := range s.Addresses {
				a := &s.Addresses[j]
				if k := keyOf(a); addresses[k] == nil {
					addresses[k] = a
				}
				if _, found := byPort[key][keyOf(a)]; !found {
					byPort[key][keyOf(a)] = true
				}
			}
			for j := range s.NotReadyAddresses {
				a := &s.NotReadyAddresses[j]
				if k := keyOf(a); addresses[k] == nil {
					addresses[k] = a
				}
				byPort[key][keyOf(a)] = false
			}
		}
	}

	// Ports with the same addresses, equally ready, make a subset.
	type group struct {
		subset    corev1.EndpointSubset
		readiness map[addressKey]bool
	}
	groups := map[string]*group{}
	for key, readiness := range byPort {
		text := readinessText(readiness)
		g := groups[text]
		if g == nil {
			g = &group{readiness: readiness}
			groups[text] = g
		}
		if p, ok := ports[key]; ok {
			g.subset.Ports = append(g.subset.Ports, p)
		}
	}
	out := make([]corev1.EndpointSubset, 0, len(groups))
	for _, g := range groups {
		s := &g.subset
		for key, ready := range g.readiness {
			if ready {
				s.Addresses = append(s.Addresses, *addresses[key])
			} else {
				s.NotReadyAddresses = append(s.NotReadyAddresses, *addresses[key])
			}
		}
		byKey := func(a, b corev1.EndpointAddress) int { return keyOf(&a).compare(keyOf(&b)) }
		slices.SortFunc(s.Addresses, byKey)
		slices.SortFunc(s.NotReadyAddresses, byKey)
		sortByHash(s.Ports, func(p corev1.EndpointPort) any { return hashedPort(p) })
		out = append(out, *s)
	}
	sortByHash(out, hashedSubset)
	return out
}

// readinessText is the same for the same addresses, equally ready.
func readinessText(readiness map[addressKey]bool) string {
	var text []byte
	for _, key := range slices.SortedFunc(maps.Keys(readiness), addressKey.compare) {
		text = strconv.AppendQuote(text, key.ip)
		text = strconv.AppendQuote(text, string(key.uid))
		text = strconv.AppendBool(text, readiness[key])
	}
	return string(text)
}

// sortByHash sorts as upstream does: by the MD5 sums of what its own types
// look like when they are printed.
func sortByHash[T any](list []T, as func(T) any) {
	if len(list) < 2 {
		return
	}
	type hashed struct {
		sum  [md5.Size]byte
		item T
	}
	all := make([]hashed, len(list))
	for i, item := range list {
		all[i] = hashed{md5.Sum([]byte(dump.ForHash(as(item)))), item}
	}
	slices.SortFunc(all, func(a, b hashed) int { return slices.Compare(a.sum[:], b.sum[:]) })
	for i := range all {
		list[i] = all[i].item
	}
}

// What is hashed has the names and the order of upstream's own types, which
// are in a package of this package's name.
type (
	// Protocol is hashed for corev1.Protocol.
	Protocol string
	// EndpointPort is hashed for corev1.EndpointPort.
	EndpointPort struct {
		Name        string
		Port        int32
		Protocol    Protocol
		AppProtocol *string
	}
	// ObjectReference is hashed for corev1.ObjectReference.
	ObjectReference struct {
		Kind            string
		Namespace       string
		Name            string
		UID             types.UID
		APIVersion      string
		ResourceVersion string
		FieldPath       string
	}
	// EndpointAddress is hashed for corev1.EndpointAddress.
	EndpointAddress struct {
		IP        string
		Hostname  string
		NodeName  *string
		TargetRef *ObjectReference
	}
	// EndpointSubset is hashed for corev1.EndpointSubset.
	EndpointSubset struct {
		Addresses         []EndpointAddress
		NotReadyAddresses []EndpointAddress
		Ports             []EndpointPort
	}
)

func hashedPort(p corev1.EndpointPort) EndpointPort {
	return EndpointPort{Name: p.Name, Port: p.Port, Protocol: Protocol(p.Protocol), AppProtocol: p.AppProtocol}
}

func hashedAddresses(list []corev1.EndpointAddress) []EndpointAddress {
	var out []EndpointAddress
	for _, a := range list {
		h := EndpointAddress{IP: a.IP, Hostname: a.Hostname, NodeName: a.NodeName}
		if a.TargetRef != nil {
			ref := ObjectReference(*a.TargetRef)
			h.TargetRef = &ref
		}
		out = append(out, h)
	}
	return out
}

func hashedSubset(s corev1.EndpointSubset) any {
	out := EndpointSubset{Addresses: hashedAddresses(s.Addresses), NotReadyAddresses: hashedAddresses(s.NotReadyAddresses)}
	for _, p := range s.Ports {
		out.Ports = append(out.Ports, hashedPort(p))
	}
	return out
}
