package dataplane

import (
	"cmp"
	"crypto/tls"
	"math/rand/v2"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"hyperkube/components/gateway/model"
	"hyperkube/internal/serving/tlsdefaults"
)

// table is the compiled form of a model.Config. It is immutable, so that requests need no lock.
type table struct {
	ports map[model.PortID]*portTable
	// rules are the compiled rules of all routes.
	rules map[*model.Rule]*rule
}

// routes returns the names of all routes.
func (t *table) routes() map[string]bool {
	out := make(map[string]bool, len(t.rules))
	for _, r := range t.rules {
		out[r.route] = true
	}
	return out
}

// portTable are the listeners of a port by hostname.
type portTable struct {
	kind      model.Kind // of any listener
	listeners hostIndex[*listenerTable]
	// forwardsTLS is true if the content of some TLS connections is forwarded, so that the server name decides about each
	// connection before it is served.
	forwardsTLS bool
	// servesHTTP is true if a listener serves requests.
	servesHTTP bool
}

// listenerTable is a compiled listener: the rules and forwards of its routes by hostname.
type listenerTable struct {
	listener *model.Listener
	hosts    hostIndex[*vhost]
	tls      *tls.Config
	forwards hostIndex[*forward]
}

// vhost are the rules for a hostname, indexed by path.
type vhost struct {
	routes   []*model.Route // in the order of precedence
	exact    map[string][]entry
	prefixes map[string][]entry
	patterns []entry
}

// entry is a match of a rule. order is its position among all matches of the hostname.
type entry struct {
	match *model.Match
	rule  *rule
	order int
}

// rule is a compiled rule of a route, with its backends.
type rule struct {
	*model.Rule
	route   string
	targets targets
	mirrors []mirror
	metrics *routeMetrics
}

// mirror is a backend that receives copies of requests.
type mirror struct {
	pool                   *pool
	numerator, denominator int32
}

// forward is a compiled model.Forward: a TLSRoute, TCPRoute or UDPRoute with its backends.
type forward struct {
	name    string
	targets targets
}

// targets are the backends of a rule with their weights, from which requests select one.
type targets struct {
	list  []target
	total int32
}

// target is a backend. pool is nil if the backend is invalid.
type target struct {
	pool    *pool
	weight  int32
	filters *model.Filters
}

// pick returns a target, at random by weight. It returns nil if no target has a weight.
func (t *targets) pick() *target {
	switch {
	case t.total <= 0:
		return nil
	case len(t.list) == 1:
		return &t.list[0]
	}
	n := rand.Int32N(t.total)
	for i := range t.list {
		if n -= t.list[i].weight; n < 0 {
			return &t.list[i]
		}
	}
	return nil // not reached: the weights add up to total
}

// compiler compiles a model.Config.
type compiler struct {
	pool    func(*model.Backend) *pool
	metrics func(route string) *routeMetrics
	// before is the table that is replaced. What has not changed is taken from it.
	before *table
	// rules contains the compiled rules, which several listeners share.
	rules map[*model.Rule]*rule
}

// compile compiles a configuration. pool returns the pool of a backend, metrics the metrics of a route. before is the
// previous table, with the same pools. Rules, and hostnames with the same routes, are not compiled again.
func compile(c *model.Config, pool func(*model.Backend) *pool, metrics func(string) *routeMetrics, before *table) *table {
	x := &compiler{pool: pool, metrics: metrics, before: before, rules: make(map[*model.Rule]*rule, len(before.rules))}
	t := &table{ports: make(map[model.PortID]*portTable, len(c.Ports)), rules: x.rules}
	for id, p := range c.Ports {
		pt := &portTable{kind: p.Listeners[0].Kind}
		for _, l := range p.Listeners {
			pt.forwardsTLS = pt.forwardsTLS || l.Kind == model.TLSPassthrough || l.Kind == model.TLSTerminate
			pt.servesHTTP = pt.servesHTTP || l.Kind == model.HTTP || l.Kind == model.HTTPS
			pt.listeners.set(l.Hostname, x.listener(l, before.listener(id, l)))
		}
		t.ports[id] = pt
	}
	return t
}

// listener returns the compiled listener with the port and hostname of l, or an empty one if there is none.
func (t *table) listener(id model.PortID, l *model.Listener) *listenerTable {
	if p := t.ports[id]; p != nil {
		if out, ok := p.listeners.get(l.Hostname); ok {
			return out
		}
	}
	return &listenerTable{}
}

// listener compiles a listener: it indexes the rules of its HTTP routes by hostname and path, and its TLS, TCP and UDP
// routes by hostname, of which the oldest takes precedence. It uses the hostnames of before whose routes are the same.
func (x *compiler) listener(l *model.Listener, before *listenerTable) *listenerTable {
	out := &listenerTable{listener: l}
	if l.TLS != nil {
		out.tls = serverConfig(l)
	}
	out.hosts.grow(len(before.hosts.exact))
	for _, attached := range l.Routes {
		for _, name := range attached.Hostnames {
			h, ok := out.hosts.get(name)
			if !ok {
				h = &vhost{}
				out.hosts.set(name, h)
			}
			h.routes = append(h.routes, attached.Route)
		}
	}
	out.hosts.replace(func(name string, h *vhost) *vhost {
		same, ok := before.hosts.get(name)
		if ok && slices.Equal(same.routes, h.routes) {
			x.keep(h.routes)
			return same
		}
		x.index(h)
		return h
	})
	for i := range l.Forwards {
		f := &forward{name: l.Forwards[i].Name, targets: x.targets(l.Forwards[i].Backends)}
		for _, name := range l.Forwards[i].Hostnames {
			if _, ok := out.forwards.get(name); !ok { // the oldest route takes precedence
				out.forwards.set(name, f)
			}
		}
	}
	return out
}

// keep adds the rules of routes that were compiled for the previous table.
func (x *compiler) keep(routes []*model.Route) {
	for _, route := range routes {
		for _, m := range route.Rules {
			if x.rules[m] == nil {
				x.rules[m] = x.before.rules[m]
			}
		}
	}
}

// index indexes the rules of the routes of h.
func (x *compiler) index(h *vhost) {
	h.exact, h.prefixes = map[string][]entry{}, map[string][]entry{}
	order := 0
	for _, route := range h.routes {
		for _, m := range route.Rules {
			r := x.rule(route.Name, m)
			for i := range m.Matches {
				order++
				h.add(entry{&m.Matches[i], r, order})
			}
		}
	}
	h.sort()
}

// rule compiles a rule of a route. It returns the same value for each hostname and listener of the rule.
func (x *compiler) rule(route string, m *model.Rule) *rule {
	r := x.rules[m]
	if r == nil {
		r = x.before.rules[m]
	}
	if r != nil {
		x.rules[m] = r
		return r
	}
	r = &rule{Rule: m, route: route, targets: x.targets(m.Backends), metrics: x.metrics(route)}
	for _, f := range m.Filters.Mirrors {
		r.mirrors = append(r.mirrors, mirror{x.pool(f.Backend), f.Numerator, f.Denominator})
	}
	x.rules[m] = r
	return r
}

// targets compiles weighted backends. Those without a weight receive no requests.
func (x *compiler) targets(backends []model.WeightedBackend) targets {
	var out targets
	for i := range backends {
		b := &backends[i]
		if b.Weight <= 0 {
			continue
		}
		t := target{weight: b.Weight, filters: &b.Filters}
		if b.Backend != nil {
			t.pool = x.pool(b.Backend)
		}
		out.list = append(out.list, t)
		out.total += b.Weight
	}
	return out
}

// serverConfig returns the configuration with which a listener terminates TLS. If the listener has CAs for client
// certificates, clients need a valid certificate, unless the listener allows unverified ones.
func serverConfig(l *model.Listener) *tls.Config {
	c := &tls.Config{MinVersion: tls.VersionTLS12, CipherSuites: tlsdefaults.CipherSuites(), NextProtos: []string{"h2", "http/1.1"}}
	if l.Kind == model.TLSTerminate {
		c.NextProtos = nil
	}
	for _, certificate := range l.TLS.Certificates {
		c.Certificates = append(c.Certificates, *certificate)
	}
	if l.TLS.ClientCAs != nil {
		c.ClientCAs, c.ClientAuth = l.TLS.ClientCAs, tls.RequireAndVerifyClientCert
		if l.TLS.AllowUnverifiedClients {
			c.ClientAuth = tls.RequestClientCert
		}
	}
	return c
}

// add adds an entry to the index for the kind of its path match.
func (h *vhost) add(e entry) {
	switch e.match.PathKind {
	case model.PathExact:
		h.exact[e.match.Path] = append(h.exact[e.match.Path], e)
	case model.PathRegexp:
		h.patterns = append(h.patterns, e)
	case model.PathPrefix:
		h.prefixes[e.match.Path] = append(h.prefixes[e.match.Path], e)
	}
}

// sort orders the matches of each path by precedence.
func (h *vhost) sort() {
	for _, list := range h.exact {
		slices.SortFunc(list, precedence)
	}
	for _, list := range h.prefixes {
		slices.SortFunc(list, precedence)
	}
	slices.SortFunc(h.patterns, func(a, b entry) int {
		return cmp.Or(-cmp.Compare(len(a.match.Path), len(b.match.Path)), precedence(a, b))
	})
}

// precedence compares matches with the same path: a method takes precedence over none, then more headers over fewer, then
// more query parameters, then the order in the configuration.
func precedence(a, b entry) int {
	method := func(m *model.Match) int {
		if m.Method != "" {
			return 1
		}
		return 0
	}
	return cmp.Or(-cmp.Compare(method(a.match), method(b.match)), -cmp.Compare(len(a.match.Headers), len(b.match.Headers)),
		-cmp.Compare(len(a.match.Query), len(b.match.Query)), cmp.Compare(a.order, b.order))
}

// lookup is a request for which a rule is searched. Its query is parsed when the first condition needs it.
type lookup struct {
	*http.Request
	host  string     // normalized
	query url.Values // parsed when first needed
}

// find returns the match and rule for a request with the normalized host, or nil. Rules of a more specific hostname take
// precedence. If none of them matches, those of less specific ones are tried.
func (l *listenerTable) find(host string, r *http.Request) (*model.Match, *rule) {
	q := &lookup{Request: r, host: host}
	var match *model.Match
	var found *rule
	l.hosts.each(host, func(h *vhost) bool {
		match, found = h.find(q)
		return found == nil
	})
	return match, found
}

// find returns the match and rule for a request, or nil. An exact path takes precedence over a regular expression, which
// takes precedence over a prefix. Of several prefixes, the longest takes precedence.
func (h *vhost) find(q *lookup) (*model.Match, *rule) {
	path := q.URL.Path
	if m, r := first(h.exact[path], q); r != nil {
		return m, r
	}
	for _, e := range h.patterns {
		if e.match.Pattern.MatchString(path) && matches(e.match, q) {
			return e.match, e.rule
		}
	}
	for prefix := strings.TrimSuffix(path, "/"); ; {
		if m, r := first(h.prefixes[prefix], q); r != nil {
			return m, r
		}
		i := strings.LastIndexByte(prefix, '/')
		if i < 0 {
			return nil, nil
		}
		prefix = prefix[:i]
	}
}

// first returns the first entry whose other conditions a request matches.
func first(list []entry, q *lookup) (*model.Match, *rule) {
	for i := range list {
		if matches(list[i].match, q) {
			return list[i].match, list[i].rule
		}
	}
	return nil, nil
}

// matches reports whether a request matches all conditions of m except for the path.
func matches(m *model.Match, q *lookup) bool {
	if m.Method != "" && m.Method != q.Method || m.HostLabels != 0 && m.HostLabels != 1+strings.Count(q.host, ".") {
		return false
	}
	for i := range m.Headers {
		c := &m.Headers[i]
		values := q.Header[c.Name]
		if c.Name == "Host" { // net/http removes it from the header
			values = []string{q.Host}
		}
		if len(values) == 0 || !c.Matches(strings.Join(values, ",")) {
			return false
		}
	}
	if len(m.Query) == 0 {
		return true
	}
	if q.query == nil {
		q.query = q.URL.Query()
	}
	for i := range m.Query {
		values := q.query[m.Query[i].Name]
		if len(values) == 0 || !m.Query[i].Matches(values[0]) {
			return false
		}
	}
	return true
}
