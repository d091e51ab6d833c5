package rules

import (
	"fmt"
	"slices"

	pf "hyperkube/internal/host/packetfilter"
)

// The sets of the proxy in nftables. An ID is the cluster IP, the protocol and the port of a Service port.
const (
	// frontends contains zero, the policy and the ID for each address of a Service port: the address, protocol and port. A node
	// port has an address of zeros.
	frontends = "KUBE-FRONTENDS"
	// policies contains the chain that forwards packets to an address with a policy.
	policies = "KUBE-POLICIES"
	// refusals and externalRefusals contain the verdict for packets to an address with a policy that was not translated: to
	// cluster IPs, and to other addresses.
	refusals, externalRefusals = "KUBE-REFUSALS", "KUBE-EXTERNAL-REFUSALS"
	// counts contains for each ID zero, the number of local endpoints, the session affinity timeout and the number of all
	// endpoints.
	counts = "KUBE-ENDPOINT-COUNTS"
	// balancers contains the chain that chooses between a number of endpoints: by timeout and number. localBalancers is the
	// same for local endpoints: by number and timeout.
	balancers, localBalancers = "KUBE-BALANCERS", "KUBE-LOCAL-BALANCERS"
	// endpoints and localEndpoints contain the address and port of each endpoint of an ID without session affinity, by the ID
	// and a number from zero.
	endpoints, localEndpoints = "KUBE-ENDPOINTS", "KUBE-LOCAL-ENDPOINTS"
	// affine and localAffine contain the same for an ID with session affinity, after a zero. affineValid and localAffineValid
	// contain the address and port of each of these endpoints, and the ID.
	affine, localAffine           = "KUBE-AFFINITY-ENDPOINTS", "KUBE-LOCAL-AFFINITY-ENDPOINTS"
	affineValid, localAffineValid = "KUBE-AFFINITY-VALID", "KUBE-LOCAL-AFFINITY-VALID"
	// affinity contains the endpoint of a client, after a zero, by the ID and the client's address. Rules add its elements.
	affinity = "KUBE-AFFINITY"
	// hairpins contains a pair of equal addresses for each endpoint.
	hairpins = "KUBE-HAIRPINS"
	// firewalled contains addresses with loadBalancerSourceRanges, by address, protocol and port. sourceRanges contains such
	// an address, the first address of a range and the length of the range's prefix.
	firewalled, sourceRanges = "KUBE-FIREWALLED", "KUBE-SOURCE-RANGES"
	// healthPorts contains the health check node ports.
	healthPorts = "KUBE-HEALTH-CHECK-PORTS"
)

// maxAffinity is the maximum number of clients with session affinity. An element takes about 100 bytes of the kernel's memory.
const maxAffinity = 1 << 18

// sets returns the sets of the proxy.
func sets() []pf.Set {
	id := []pf.Type{pf.Address, pf.Protocol, pf.Port}
	endpoint := []pf.Type{pf.Address, pf.Port}
	with := func(types []pf.Type, more ...pf.Type) []pf.Type {
		return append(slices.Clip(types), more...)
	}
	return []pf.Set{
		{Name: frontends, Key: id, Value: with([]pf.Type{pf.Number, pf.Number}, id...)},
		{Name: policies, Key: []pf.Type{pf.Number}, Verdicts: true},
		{Name: refusals, Key: []pf.Type{pf.Number}, Verdicts: true},
		{Name: externalRefusals, Key: []pf.Type{pf.Number}, Verdicts: true},
		{Name: counts, Key: id, Value: []pf.Type{pf.Number, pf.Number, pf.Number, pf.Number}},
		{Name: balancers, Key: []pf.Type{pf.Number, pf.Number}, Verdicts: true},
		{Name: localBalancers, Key: []pf.Type{pf.Number, pf.Number}, Verdicts: true},
		{Name: endpoints, Key: with(id, pf.Number), Value: endpoint},
		{Name: localEndpoints, Key: with(id, pf.Number), Value: endpoint},
		{Name: affine, Key: with(id, pf.Number), Value: with([]pf.Type{pf.Number}, endpoint...)},
		{Name: localAffine, Key: with(id, pf.Number), Value: with([]pf.Type{pf.Number}, endpoint...)},
		{Name: affineValid, Key: with(endpoint, id...)},
		{Name: localAffineValid, Key: with(endpoint, id...)},
		{Name: affinity, Key: with(id, pf.Address), Value: with([]pf.Type{pf.Number}, endpoint...), Max: maxAffinity},
		{Name: hairpins, Key: []pf.Type{pf.Address, pf.Address}},
		{Name: firewalled, Key: id},
		{Name: sourceRanges, Key: with(id, pf.Address, pf.Number)},
		{Name: healthPorts, Key: []pf.Type{pf.Protocol, pf.Port}},
	}
}

// registers contains the numbers of the registers that programs use, which depend on the size of an address:
//
//	zero | endpoint                | ID | client or number of the endpoint
//	       zero and policy are last |    | zero, number of local endpoints, timeout, number of endpoints
//
// They are so adjacent that each key of a set consists of successive registers.
//
// The program nft, with which users list rules, supports only programs that it could have created itself: it exits if the key
// of a lookup contains the first register of the result of another one. So results of which a part is a key begin with a zero,
// and registers get a value before a result replaces it, which nft then prints.
type registers struct {
	endpoint, policy, id, after int
	// words is the size of an address.
	words int
}

func registersOf(ipv6 bool) registers {
	words := 1
	if ipv6 {
		words = 4
	}
	id := words + 2
	return registers{endpoint: 1, policy: id - 1, id: id, after: id + words + 2, words: words}
}

// source selects the addresses of Services that a program compares with the destination of packets.
type source bool

const (
	byAddress  source = false // all but node ports
	byNodePort source = true
)

// allSources returns all sources in the order in which chains must use them.
func allSources() []source { return []source{byAddress, byNodePort} }

// find returns the operations that find the policy and the ID for the destination of a packet.
func (r registers) find(s source) []pf.Operation {
	address := pf.LoadDestination
	if s == byNodePort {
		address = pf.LoadZeroAddress
	}
	return []pf.Operation{
		{Do: address, At: r.id}, {Do: pf.LoadProtocol, At: r.id + r.words}, {Do: pf.LoadPort, At: r.id + r.words + 1},
		{Do: pf.LoadNumber, At: r.policy}, {Do: pf.Find, Set: frontends, At: r.id, To: r.policy - 1},
	}
}

// rule returns a rule with a program.
func rule(comment string, operations []pf.Operation, more ...pf.Operation) pf.Rule {
	return pf.Rule{Comment: comment, Program: &pf.Program{Operations: append(operations, more...)}}
}

// byPolicy returns a rule that uses the verdict of the destination's policy in a map.
func (r registers) byPolicy(s source, verdicts, comment string) pf.Rule {
	return rule(comment, r.find(s), pf.Operation{Do: pf.Decide, Set: verdicts, At: r.policy})
}

// balance returns the rules that jump to the chain for the number of endpoints of the destination, or with local for the
// number of local ones.
func (r registers) balance(local bool, from ...source) []pf.Rule {
	localCount, timeout, count := r.after+1, r.after+2, r.after+3
	decide, comment := pf.Operation{Do: pf.Decide, Set: balancers, At: timeout}, "any endpoint"
	if local {
		decide, comment = pf.Operation{Do: pf.Decide, Set: localBalancers, At: localCount}, "an endpoint of this node"
	}
	var out []pf.Rule
	for _, s := range from {
		out = append(out, rule(comment, r.find(s), pf.Operation{Do: pf.LoadNumber, At: localCount}, pf.Operation{Do: pf.LoadNumber, At: timeout},
			pf.Operation{Do: pf.LoadNumber, At: count}, pf.Operation{Do: pf.Find, Set: counts, At: r.id, To: r.after}, decide))
	}
	return out
}

// balancer identifies a chain that chooses between endpoints.
type balancer struct {
	local bool
	// count is the number of endpoints.
	count int
	// timeout is the session affinity timeout in seconds, or zero.
	timeout int
}

// chain returns the name of the chain.
func (b balancer) chain() pf.Chain {
	name := "KUBE-BALANCE-"
	if b.local {
		name = "KUBE-LOCAL-BALANCE-"
	}
	name += fmt.Sprint(b.count)
	if b.timeout > 0 {
		name += fmt.Sprintf("-%d", b.timeout)
	}
	return pf.Chain{Table: pf.NAT, Name: name}
}

// balancerChains returns patterns that match the chains of all balancers.
func balancerChains() []pf.Chain {
	return []pf.Chain{{Table: pf.NAT, Name: "KUBE-BALANCE-*"}, {Table: pf.NAT, Name: "KUBE-LOCAL-BALANCE-*"}}
}

// element returns the element with which packets get to the chain.
func (b balancer) element() pf.Element {
	count, timeout := uint32(b.count), uint32(b.timeout)
	if b.local {
		return pf.Element{Set: localBalancers, Key: string(pf.AppendNumber(pf.AppendNumber(nil, count), timeout)), Verdict: b.chain()}
	}
	return pf.Element{Set: balancers, Key: string(pf.AppendNumber(pf.AppendNumber(nil, timeout), count)), Verdict: b.chain()}
}

// rules returns the rules of the chain. They translate the destination to the client's last endpoint, if session affinity is
// set and the endpoint still exists, and otherwise to a random one.
func (b balancer) rules(r registers) []pf.Rule {
	choose := pf.Operation{Do: pf.LoadRandom, At: r.after, Number: uint32(b.count)}
	if b.count == 1 {
		choose = pf.Operation{Do: pf.LoadNumber, At: r.after}
	}
	translate := pf.Operation{Do: pf.Translate, At: r.endpoint}
	var out []pf.Rule
	for _, s := range allSources() {
		if b.timeout == 0 {
			find := pf.Operation{Do: pf.Find, Set: endpoints, At: r.id, To: r.endpoint}
			if b.local {
				find.Set = localEndpoints
			}
			out = append(out, rule("a random endpoint", r.find(s), choose, find, translate))
			continue
		}
		out = append(out, b.affinityRules(r, s, choose, translate)...)
	}
	return out
}

// affinityRules returns the rules of the chain of a balancer with session affinity. choose loads the number of an endpoint.
func (b balancer) affinityRules(r registers, s source, choose, translate pf.Operation) []pf.Rule {
	all, valid := affine, affineValid
	if b.local {
		all, valid = localAffine, localAffineValid
	}
	zero, client := pf.Operation{Do: pf.LoadNumber}, pf.Operation{Do: pf.LoadSource, At: r.after}
	begin := append(r.find(s), zero, pf.Operation{Do: pf.LoadZeroAddress, At: r.endpoint}, pf.Operation{Do: pf.LoadNumber, At: r.endpoint + r.words})
	begin = slices.Clip(begin)
	find := pf.Operation{Do: pf.Find, Set: all, At: r.id}
	remember := pf.Operation{Do: pf.Remember, Set: affinity, At: r.id, Number: uint32(b.timeout)}
	return []pf.Rule{
		rule("the client's last endpoint", begin, client, pf.Operation{Do: pf.Find, Set: affinity, At: r.id}, zero,
			pf.Operation{Do: pf.Contained, Set: valid, At: r.endpoint}, remember, translate),
		rule("the client's last endpoint no longer exists", begin, client, pf.Operation{Do: pf.Forget, Set: affinity, At: r.id}),
		rule("a random endpoint", begin, choose, find, zero, client, remember, translate),
		rule("a random endpoint while too many clients have session affinity", begin, choose, find, translate),
	}
}

// hairpin matches packets from an endpoint that were translated to itself.
func (r registers) hairpin(target string) pf.Rule {
	out := rule("a pod that connects to itself through its Service",
		[]pf.Operation{{Do: pf.LoadSource}, {Do: pf.LoadDestination, At: r.words}, {Do: pf.Contained, Set: hairpins}})
	out.Conn, out.Target = pf.ConnState{States: pf.Translated}, target
	return out
}

// original returns the operations that load the destination before translation, as a key of firewalled.
func (r registers) original() []pf.Operation {
	return []pf.Operation{{Do: pf.LoadOriginalDestination}, {Do: pf.LoadProtocol, At: r.words}, {Do: pf.LoadOriginalPort, At: r.words + 1}}
}

// firewall returns the rules that drop packets to addresses with loadBalancerSourceRanges from other sources. lengths are the
// lengths of the prefixes of all ranges.
func (r registers) firewall(lengths []int) []pf.Rule {
	other := rule("addresses without source ranges", r.original(), pf.Operation{Do: pf.Missing, Set: firewalled})
	other.Target = pf.Return
	out := []pf.Rule{other}
	client := r.words + 2
	for _, bits := range lengths {
		allowed := rule(fmt.Sprintf("source ranges with a prefix of %d bits", bits), r.original(),
			pf.Operation{Do: pf.LoadSource, At: client}, pf.Operation{Do: pf.MaskAddress, At: client, Number: uint32(bits)},
			pf.Operation{Do: pf.LoadNumber, At: client + r.words, Number: uint32(bits)}, pf.Operation{Do: pf.Contained, Set: sourceRanges})
		allowed.Target = pf.Return
		out = append(out, allowed)
	}
	return append(out, pf.Rule{Comment: "traffic not accepted by loadBalancerSourceRanges", Target: pf.Drop})
}
