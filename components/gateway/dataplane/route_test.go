package dataplane

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"hyperkube/components/gateway/model"
)

// naive finds the rule for a request by comparing all matches. It is the reference for the index.
func naive(l *model.Listener, host string, r *http.Request) *model.Rule {
	type candidate struct {
		hostname string
		match    *model.Match
		rule     *model.Rule
		order    int
	}
	var list []candidate
	order := 0
	for _, a := range l.Routes {
		for _, rule := range a.Route.Rules {
			for i := range rule.Matches {
				order++
				for _, h := range a.Hostnames {
					m := &rule.Matches[i]
					if hostMatches(h, host) && naivePath(m, r.URL.Path) && matches(m, &lookup{Request: r, host: host}) {
						list = append(list, candidate{h, m, rule, order})
					}
				}
			}
		}
	}
	if len(list) == 0 {
		return nil
	}
	exactHost := func(h string) int {
		switch {
		case h == "":
			return 2
		case strings.HasPrefix(h, "*"):
			return 1
		}
		return 0
	}
	method := func(m *model.Match) int { return min(1, len(m.Method)) }
	length := func(m *model.Match) int {
		if m.PathKind == model.PathExact {
			return 0
		}
		return len(m.Path)
	}
	slices.SortStableFunc(list, func(a, b candidate) int {
		return cmp.Or(
			cmp.Compare(exactHost(a.hostname), exactHost(b.hostname)), -cmp.Compare(len(a.hostname), len(b.hostname)),
			cmp.Compare(a.match.PathKind, b.match.PathKind), -cmp.Compare(length(a.match), length(b.match)),
			-cmp.Compare(method(a.match), method(b.match)), -cmp.Compare(len(a.match.Headers), len(b.match.Headers)),
			-cmp.Compare(len(a.match.Query), len(b.match.Query)), cmp.Compare(a.order, b.order))
	})
	return list[0].rule
}

func hostMatches(pattern, host string) bool {
	suffix, wildcard := strings.CutPrefix(pattern, "*")
	return pattern == "" || pattern == host || wildcard && len(host) > len(suffix) && strings.HasSuffix(host, suffix)
}

func naivePath(m *model.Match, path string) bool {
	switch m.PathKind {
	case model.PathExact:
		return m.Path == path
	case model.PathRegexp:
		return m.Pattern.MatchString(path)
	}
	return path == m.Path || strings.HasPrefix(path, m.Path+"/")
}

// pick returns a random element.
func pick[T any](r *rand.Rand, list ...T) T { return list[r.IntN(len(list))] }

// unconnected returns a pool that does not connect.
func unconnected(b *model.Backend) *pool { return newPool(b, nil) }

// TestRandomRoutes compares the index with the naive search for random routes and requests.
func TestRandomRoutes(t *testing.T) {
	hosts := []string{"", "*.com", "*.a.com", "*.b.a.com", "a.com", "x.a.com", "b.a.com", "y.b.a.com"}
	paths := []string{"", "/a", "/a/b", "/a/b/c", "/ab", "/b"}
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 1))
		l := &model.Listener{Name: "l"}
		for i := range 1 + r.IntN(6) {
			route := &model.Route{Name: fmt.Sprint(i)}
			for range 1 + r.IntN(3) {
				rule := &model.Rule{}
				for range 1 + r.IntN(3) {
					m := model.Match{PathKind: pick(r, model.PathExact, model.PathPrefix, model.PathPrefix, model.PathRegexp), Path: pick(r, paths...), Method: pick(r, "", "", "GET", "POST"), HostLabels: pick(r, 0, 0, 0, 2, 3)}
					switch m.PathKind {
					case model.PathExact:
						m.Path = cmp.Or(m.Path, "/")
					case model.PathRegexp:
						m.Path = pick(r, "/a.*", "/.", "/[ab]/b")
						m.Pattern = regexp.MustCompile("^(?:" + m.Path + ")$")
					}
					for _, name := range []string{"A", "B"} {
						if r.IntN(4) == 0 {
							m.Headers = append(m.Headers, model.ValueMatch{Name: name, Value: pick(r, "1", "2")})
						}
						if r.IntN(4) == 0 {
							m.Query = append(m.Query, model.ValueMatch{Name: strings.ToLower(name), Value: pick(r, "1", "2")})
						}
					}
					rule.Matches = append(rule.Matches, m)
				}
				route.Rules = append(route.Rules, rule)
			}
			names := []string{pick(r, hosts...)}
			if r.IntN(2) == 0 {
				names = append(names, pick(r, hosts...))
			}
			slices.Sort(names)
			l.Routes = append(l.Routes, model.AttachedRoute{Hostnames: slices.Compact(names), Route: route})
		}
		m := newMetrics(prometheus.NewRegistry())
		table := compile(&model.Config{Ports: map[model.PortID]*model.Port{{}: {Listeners: []*model.Listener{l}}}}, unconnected, m.route, &table{})
		compiled := table.ports[model.PortID{}].listeners.all
		for range 100 {
			host := pick(r, "a.com", "x.a.com", "b.a.com", "y.b.a.com", "z.y.b.a.com", "com", "other.org")
			q := &http.Request{Method: pick(r, "GET", "POST", "PUT"), Host: host, Header: http.Header{}, URL: &url.URL{Path: pick(r, "/", "/a", "/a/", "/a/b", "/a/b/", "/a/b/c/d", "/ab", "/abc", "/b/b", "/c")}}
			for _, name := range []string{"A", "B"} {
				if r.IntN(2) == 0 {
					q.Header.Set(name, pick(r, "1", "2"))
				}
				if r.IntN(2) == 0 {
					q.URL.RawQuery += "&" + strings.ToLower(name) + "=" + pick(r, "1", "2")
				}
			}
			want := naive(l, host, q)
			var got *model.Rule
			if _, found := compiled.find(host, q); found != nil {
				got = found.Rule
			}
			if got != want {
				t.Fatalf("seed %d: %s %s%s?%s %v: rule %+v, want %+v", seed, q.Method, host, q.URL.Path, q.URL.RawQuery, q.Header, got, want)
			}
		}
	}
}

func TestModifyPath(t *testing.T) {
	for _, test := range []struct{ path, prefix, replacement, want string }{
		{"/foo/bar", "/foo", "/xyz", "/xyz/bar"},
		{"/foo/bar", "/foo", "/xyz/", "/xyz/bar"},
		{"/foo", "/foo", "/xyz", "/xyz"},
		{"/foo/", "/foo", "/xyz", "/xyz/"},
		{"/foo/bar", "/foo", "", "/bar"},
		{"/foo/", "/foo", "/", "/"},
		{"/foo", "/foo", "", "/"},
		{"/foo", "/foo", "/", "/"},
		{"/any", "", "/xyz", "/xyz/any"},
	} {
		plain, escaped := test.path, ""
		modifyPath(&plain, &escaped, &model.PathModifier{ReplacePrefix: true, Value: test.replacement}, &model.Match{PathKind: model.PathPrefix, Path: test.prefix})
		if plain != test.want {
			t.Errorf("%s with %s replaced by %q: %s, want %s", test.path, test.prefix, test.replacement, plain, test.want)
		}
	}
}

func TestCleanPath(t *testing.T) {
	for path, want := range map[string]string{
		"/a/b": "/a/b", "/a/../b": "/b", "/a/./b/": "/a/b/", "/a/..": "/", "/../..": "/", "/a/b/..": "/a/", "/.well-known/x": "/.well-known/x", "/a..b": "/a..b", "/a/.": "/a/",
	} {
		r := &http.Request{URL: &url.URL{Path: path}}
		if cleanPath(r); r.URL.Path != want {
			t.Errorf("%s: %s, want %s", path, r.URL.Path, want)
		}
	}
}

func TestNormalizeHost(t *testing.T) {
	for host, want := range map[string]string{"A.com": "a.com", "a.com:80": "a.com", "a.com.": "a.com", "[::1]:80": "::1", "": ""} {
		if got := normalizeHost(host); got != want {
			t.Errorf("%s: %s, want %s", host, got, want)
		}
	}
}

// TestReuse checks that a change of a route compiles only the hostnames that it affects, and that the table is the same as
// without a previous one.
func TestReuse(t *testing.T) {
	key := model.BackendKey{Service: "s"}
	pools := map[model.BackendKey]*pool{}
	poolOf := func(b *model.Backend) *pool {
		if pools[b.Key] == nil {
			pools[b.Key] = newPool(b, nil)
		}
		return pools[b.Key]
	}
	route := func(name, path string, hostnames ...string) model.AttachedRoute {
		return model.AttachedRoute{Hostnames: hostnames, Route: &model.Route{Name: name, Rules: []*model.Rule{{
			Matches: []model.Match{{PathKind: model.PathPrefix, Path: path}}, Backends: []model.WeightedBackend{{Backend: &model.Backend{Key: key}, Weight: 1}},
		}}}}
	}
	config := func(routes ...model.AttachedRoute) *model.Config {
		return &model.Config{Ports: map[model.PortID]*model.Port{{}: {Listeners: []*model.Listener{{Routes: routes}}}}}
	}
	m := newMetrics(prometheus.NewRegistry())
	a, b, c := route("a", "/a", "a.example.com", "*.example.com"), route("b", "/b", "a.example.com"), route("c", "/c", "c.example.com", "")
	hosts := func(t *table) *hostIndex[*vhost] { return &t.ports[model.PortID{}].listeners.all.hosts }
	before := compile(config(a, b, c), poolOf, m.route, &table{})
	changed := route("b", "/changed", "a.example.com")
	after := compile(config(a, changed, c), poolOf, m.route, before)
	for pattern, same := range map[string]bool{"a.example.com": false, "*.example.com": true, "c.example.com": true, "": true} {
		old, _ := hosts(before).get(pattern)
		now, ok := hosts(after).get(pattern)
		if !ok || (old == now) != same {
			t.Errorf("%q: found %v, same %v, want %v", pattern, ok, old == now, same)
		}
	}
	if after.rules[b.Route.Rules[0]] != nil || len(after.rules) != 3 || after.rules[a.Route.Rules[0]] != before.rules[a.Route.Rules[0]] {
		t.Errorf("rules %v", after.rules)
	}
	if again := compile(config(a, changed, c), poolOf, m.route, &table{}); !reflect.DeepEqual(again, after) {
		t.Errorf("table %+v, want %+v", after, again)
	}
}

// BenchmarkCompile compiles 5,000 routes with different hostnames.
func BenchmarkCompile(b *testing.B) {
	l := &model.Listener{}
	for i := range 5000 {
		backend := &model.Backend{Key: model.BackendKey{Service: fmt.Sprint(i)}}
		l.Routes = append(l.Routes, model.AttachedRoute{Hostnames: []string{fmt.Sprintf("h%d.example.com", i)}, Route: &model.Route{Name: fmt.Sprint(i), Rules: []*model.Rule{{
			Matches: []model.Match{{PathKind: model.PathPrefix}}, Backends: []model.WeightedBackend{{Backend: backend, Weight: 1}},
		}}}})
	}
	c := &model.Config{Ports: map[model.PortID]*model.Port{{}: {Listeners: []*model.Listener{l}}}}
	m := newMetrics(prometheus.NewRegistry())
	for b.Loop() {
		compile(c, unconnected, m.route, &table{})
	}
}
