package rules

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"

	pf "hyperkube/internal/host/packetfilter"
)

// The chains of the table NAT to which packets to an address of a Service jump, by its policy, and chainReject of the table
// Filter, which rejects all packets.
const (
	chainClusterIPs      = "KUBE-CLUSTER-IPS"
	chainLocalClusterIPs = "KUBE-LOCAL-CLUSTER-IPS"
	chainExternal        = "KUBE-EXTERNAL"
	chainExternalLocal   = "KUBE-EXTERNAL-LOCAL"
	chainAnyEndpoint     = "KUBE-ANY-ENDPOINT"
	chainReject          = "KUBE-REJECT"
)

// setTranslator is the Translator for nftables. All Services share the same chains, and each is a number of elements of sets.
//
// The zero setTranslator is not usable. Counters are removed when they are zero.
type setTranslator struct {
	cfg    Config
	static pf.Chains // chains that depend on cfg only
	// owners contains the port to which each address of a Service leads. If several ports have the same address, the others
	// are in waiting, in the order in which they came. A port whose cluster IP waits has no elements at all.
	owners  map[frontend]*Port
	waiting map[frontend][]*Port
	// hairpins, health, lengths and balancers are the numbers of uses of the addresses of endpoints, of health check ports, of
	// the lengths of source ranges and of chains.
	hairpins  map[netip.Addr]int
	health    map[uint16]int
	lengths   map[int]int
	balancers map[balancer]int
	chains    map[balancer][]pf.Rule // rules of balancers
	firewall  []pf.Rule              // rules of KUBE-PROXY-FIREWALL, or nil if lengths has changed
	// changes are the elements that changed since the last Build, or nil if it must return all of them.
	changes map[elementKey]change
}

// elementKey identifies an element.
type elementKey struct{ set, key string }

// change contains an element before and after changes. Set is empty if the element does not exist.
type change struct{ before, after pf.Element }

func newSetTranslator() *setTranslator {
	return &setTranslator{
		owners: map[frontend]*Port{}, waiting: map[frontend][]*Port{}, hairpins: map[netip.Addr]int{}, health: map[uint16]int{},
		lengths: map[int]int{}, balancers: map[balancer]int{}, chains: map[balancer][]pf.Rule{},
	}
}

func (t *setTranslator) Replace(before, after []*Port) {
	for _, p := range before {
		t.remove(p)
	}
	for _, p := range after {
		t.add(p)
	}
}

// Build returns all elements if it is called for the first time or cfg is not the same as before, because some elements depend
// on it.
func (t *setTranslator) Build(cfg Config) pf.Ruleset {
	if t.static == nil || !t.cfg.equal(cfg) {
		t.setConfig(cfg)
	}
	out := pf.Ruleset{Chains: maps.Clone(t.static), Jumps: jumps, Sets: sets(), Elements: pf.Elements{All: t.all, Rewrite: t.changes == nil}}
	for _, key := range slices.SortedFunc(maps.Keys(t.changes), elementKey.compare) {
		c := t.changes[key]
		if c.before == c.after {
			continue
		}
		if c.before.Set != "" {
			out.Elements.Removed = append(out.Elements.Removed, c.before)
		}
		if c.after.Set != "" {
			out.Elements.Added = append(out.Elements.Added, c.after)
		}
	}
	t.changes = map[elementKey]change{}
	for b := range t.balancers {
		if t.chains[b] == nil {
			t.chains[b] = b.rules(registersOf(cfg.IPv6))
		}
		out.Chains[b.chain()] = t.chains[b]
	}
	maps.DeleteFunc(t.chains, func(b balancer, _ []pf.Rule) bool { return t.balancers[b] == 0 })
	if t.firewall == nil {
		t.firewall = registersOf(cfg.IPv6).firewall(slices.Sorted(maps.Keys(t.lengths)))
	}
	out.Chains[pf.Chain{Table: pf.Filter, Name: "KUBE-PROXY-FIREWALL"}] = t.firewall
	return out
}

func (k elementKey) compare(o elementKey) int {
	return cmp.Or(cmp.Compare(k.set, o.set), cmp.Compare(k.key, o.key))
}

// setConfig sets the settings, and makes Build return all elements.
func (t *setTranslator) setConfig(cfg Config) {
	t.cfg, t.static, t.changes, t.firewall = cfg, staticSetChains(cfg), nil, nil
	clear(t.chains)
	clear(t.lengths)
	for f, p := range t.owners {
		if p.addresses()[f] == balancerIP {
			t.countLengths(p, 1)
		}
	}
}

// countLengths adds n to the number of uses of the lengths of the source ranges of p.
func (t *setTranslator) countLengths(p *Port, n int) {
	for _, r := range p.ranges(t.cfg) {
		if count(t.lengths, r.Bits(), n) {
			t.firewall = nil
		}
	}
}

// count adds n, which is 1 or -1, to a counter. It reports whether the counter was or is zero.
func count[K comparable](counters map[K]int, key K, n int) bool {
	counters[key] += n
	if counters[key] == 0 {
		delete(counters, key)
		return true
	}
	return n > 0 && counters[key] == n
}

// record notes that elements are added, if n is 1, or removed, if it is -1.
func (t *setTranslator) record(n int, elements ...pf.Element) {
	if t.changes == nil {
		return
	}
	for _, e := range elements {
		key := elementKey{e.Set, e.Key}
		c, changed := t.changes[key]
		switch {
		case n > 0:
			c.after = e
		case changed:
			c.after = pf.Element{}
		default:
			c.before = e
		}
		t.changes[key] = c
	}
}

// add adds the elements of a port, unless another one has its cluster IP.
func (t *setTranslator) add(p *Port) {
	if t.owners[p.id()] != nil {
		t.waiting[p.id()] = append(t.waiting[p.id()], p)
		return
	}
	t.owners[p.id()] = p
	t.update(p, 1)
	for f, k := range p.addresses() {
		if t.owners[f] != nil {
			t.waiting[f] = append(t.waiting[f], p)
			continue
		}
		t.owners[f] = p
		t.updateAddress(p, f, k, 1)
	}
}

// remove removes the elements of a port, and adds those of other ports with the same addresses.
func (t *setTranslator) remove(p *Port) {
	if t.owners[p.id()] != p {
		t.stopWaiting(p.id(), p)
		return
	}
	t.update(p, -1)
	for f, k := range p.addresses() {
		if t.owners[f] != p {
			t.stopWaiting(f, p)
			continue
		}
		t.updateAddress(p, f, k, -1)
		t.release(f)
	}
	t.release(p.id())
}

// stopWaiting removes a port from those that wait for an address.
func (t *setTranslator) stopWaiting(f frontend, p *Port) {
	t.waiting[f] = slices.DeleteFunc(t.waiting[f], func(o *Port) bool { return o == p })
	if len(t.waiting[f]) == 0 {
		delete(t.waiting, f)
	}
}

// release makes the next waiting port the owner of an address whose owner was removed.
func (t *setTranslator) release(f frontend) {
	delete(t.owners, f)
	if len(t.waiting[f]) == 0 {
		return
	}
	next := t.waiting[f][0]
	t.stopWaiting(f, next)
	if next.id() == f {
		t.add(next)
		return
	}
	t.owners[f] = next
	t.updateAddress(next, f, next.addresses()[f], 1)
}

// update records the elements of a port that do not depend on its addresses other than the cluster IP: they are added if n is
// 1, or removed if it is -1.
func (t *setTranslator) update(p *Port, n int) {
	ipv6 := t.isIPv6(p)
	t.record(n, p.frontendElement(p.id(), clusterIP, ipv6))
	if t.changes != nil {
		for _, set := range endpointSets() {
			t.record(n, p.endpointElements(set, ipv6)...)
		}
	}
	all, local := p.reached()
	for _, list := range [][]Endpoint{all, local} {
		for _, e := range list {
			if ip := e.Address.Addr(); count(t.hairpins, ip, n) {
				t.record(n, hairpinElement(ip))
			}
		}
	}
	if p.HealthCheckPort != 0 && count(t.health, p.HealthCheckPort, n) {
		t.record(n, healthPortElement(p.HealthCheckPort))
	}
	for _, b := range p.balancers() {
		if count(t.balancers, b, n) {
			t.record(n, b.element())
		}
	}
}

// updateAddress records the elements of an address of a port, as update does.
func (t *setTranslator) updateAddress(p *Port, f frontend, k kind, n int) {
	t.record(n, p.frontendElement(f, k, t.isIPv6(p)))
	if k == balancerIP && t.static != nil {
		t.countLengths(p, n)
		t.record(n, p.firewallElements(f, t.cfg)...)
	}
}

// isIPv6 reports the IP family, which is known before the first Build.
func (*setTranslator) isIPv6(p *Port) bool { return p.ClusterIP.Is6() }

// all iterates over all elements, set by set.
func (t *setTranslator) all(yield func(pf.Element) bool) {
	ok := true
	pass := func(elements ...pf.Element) {
		for _, e := range elements {
			ok = ok && yield(e)
		}
	}
	pass(staticElements()...)
	for _, b := range slices.SortedFunc(maps.Keys(t.balancers), balancer.compare) {
		pass(b.element())
	}
	for port := range t.health {
		pass(healthPortElement(port))
	}
	for ip := range t.hairpins {
		pass(hairpinElement(ip))
	}
	for f, p := range t.owners {
		k := clusterIP
		if f != p.id() {
			k = p.addresses()[f]
		}
		pass(p.frontendElement(f, k, t.cfg.IPv6))
	}
	for f, p := range t.owners {
		if len(p.SourceRanges) > 0 && p.addresses()[f] == balancerIP {
			pass(p.firewallElements(f, t.cfg)...)
		}
	}
	for _, set := range endpointSets() {
		for f, p := range t.owners {
			if f == p.id() {
				pass(p.endpointElements(set, t.cfg.IPv6)...)
			}
		}
	}
}

// compare orders balancers by set.
func (b balancer) compare(o balancer) int {
	return cmp.Or(cmp.Compare(b.element().Set, o.element().Set), cmp.Compare(b.count, o.count), cmp.Compare(b.timeout, o.timeout))
}

// staticSetChains returns the chains for nftables that depend on cfg only.
func staticSetChains(cfg Config) pf.Chains {
	r := registersOf(cfg.IPv6)
	mark := pf.Rule{Target: pf.MARK, SetMark: cfg.mark()}
	clusterIPs := []pf.Rule{}
	if cfg.MasqueradeAll {
		clusterIPs = append(clusterIPs, mark)
	} else if cfg.Pods != (Source{}) {
		clusterIPs = append(clusterIPs, cfg.Pods.match(mark, true))
	}
	externalLocal := []pf.Rule{}
	if cfg.Pods != (Source{}) {
		externalLocal = append(externalLocal, cfg.Pods.match(pf.Rule{Comment: "pod traffic for external destinations", Target: chainAnyEndpoint}, false))
	}
	markLocal := mark
	markLocal.Comment, markLocal.SrcLocal = "masquerade LOCAL traffic for external destinations", true
	externalLocal = append(externalLocal, markLocal,
		pf.Rule{Comment: "route LOCAL traffic for external destinations", SrcLocal: true, Target: chainAnyEndpoint})
	nodePorts := r.byPolicy(byNodePort, policies, "")
	nodePorts.Dst = notLocalhost(cfg)
	refusedNodePorts := r.byPolicy(byNodePort, externalRefusals, "node ports without endpoints")
	refusedNodePorts.DstLocal = true
	health := rule("health check node ports", []pf.Operation{{Do: pf.LoadProtocol}, {Do: pf.LoadPort, At: 1}, {Do: pf.Contained, Set: healthPorts}})
	health.Target = pf.Accept

	inBoth := staticChains(cfg)
	filter := func(name string) []pf.Rule { return inBoth[pf.Chain{Table: pf.Filter, Name: name}] }
	nat := func(name string) []pf.Rule { return inBoth[pf.Chain{Table: pf.NAT, Name: name}] }
	chains := pf.Chains{}
	for table, byName := range map[pf.Table]map[string][]pf.Rule{
		pf.NAT: {
			"KUBE-SERVICES":      append([]pf.Rule{r.byPolicy(byAddress, policies, "addresses of Services")}, nodePortJumps(cfg)...),
			"KUBE-NODEPORTS":     {nodePorts},
			"KUBE-POSTROUTING":   append([]pf.Rule{r.hairpinMasquerade()}, nat("KUBE-POSTROUTING")...),
			chainClusterIPs:      append(clusterIPs, r.balance(false, byAddress)...),
			chainLocalClusterIPs: append(slices.Clip(clusterIPs), r.balance(true, byAddress)...),
			chainExternal:        {mark, {Target: chainAnyEndpoint}},
			chainExternalLocal:   append(externalLocal, r.balance(true, allSources()...)...),
			chainAnyEndpoint:     r.balance(false, allSources()...),
			Canary:               nil,
		},
		pf.Filter: {
			"KUBE-SERVICES":          {r.byPolicy(byAddress, refusals, "cluster IPs without endpoints")},
			"KUBE-EXTERNAL-SERVICES": {r.byPolicy(byAddress, externalRefusals, "external addresses without endpoints"), refusedNodePorts},
			"KUBE-NODEPORTS":         {health},
			"KUBE-FIREWALL":          filter("KUBE-FIREWALL"),
			"KUBE-FORWARD":           insertBeforeEstablished(filter("KUBE-FORWARD"), r.hairpin(pf.Accept)),
			chainReject:              {{Target: pf.Reject}},
			Canary:                   nil,
		},
	} {
		for name, rules := range byName {
			chains[pf.Chain{Table: table, Name: name}] = rules
		}
	}
	return chains
}

// hairpinMasquerade returns the rule that masquerades packets from an endpoint to itself.
func (r registers) hairpinMasquerade() pf.Rule {
	out := r.hairpin(pf.Masquerade)
	out.RandomPorts = true
	return out
}

// insertBeforeEstablished inserts a rule before the last of rules, which accepts packets of established connections.
func insertBeforeEstablished(rules []pf.Rule, r pf.Rule) []pf.Rule {
	return slices.Insert(slices.Clone(rules), len(rules)-1, r)
}

// setChains returns patterns of the chains and sets that exist only in nftables.
func setChains() []pf.Chain {
	out := append(balancerChains(), pf.Chain{Table: pf.Sets, Name: "KUBE-*"}, pf.Chain{Table: pf.Filter, Name: chainReject})
	for _, name := range []string{chainClusterIPs, chainLocalClusterIPs, chainExternal, chainExternalLocal, chainAnyEndpoint} {
		out = append(out, pf.Chain{Table: pf.NAT, Name: name})
	}
	return out
}
