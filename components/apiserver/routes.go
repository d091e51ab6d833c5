package apiserver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"hyperkube/components/apiserver/discovery"
	"hyperkube/components/apiserver/health"
	"hyperkube/components/apiserver/metrics"
	"hyperkube/components/apiserver/negotiate"
	"hyperkube/components/apiserver/openapi"
	"hyperkube/components/apiserver/rest"
	"hyperkube/internal/base/version"
	"hyperkube/internal/credentials/tokens"
	"hyperkube/internal/serving/componentmetrics"
	"hyperkube/internal/serving/zpages"
	"hyperkube/internal/store"
)

// routes dispatches a request to the handler of its path, or of its longest prefix that ends with a
// slash. It never redirects, because double slashes and dots in paths may be intended for a proxied
// server.
type routes struct {
	exact    map[string]http.Handler
	prefixes []string // sorted, longest first
}

// newRoutes returns routes to the handlers, by path. A path that ends with a slash is a prefix.
func newRoutes(handlers map[string]http.Handler) *routes {
	r := &routes{exact: handlers}
	for path := range handlers {
		if strings.HasSuffix(path, "/") {
			r.prefixes = append(r.prefixes, path)
		}
	}
	slices.SortFunc(r.prefixes, func(a, b string) int { return len(b) - len(a) })
	return r
}

// ServeHTTP implements http.Handler. It calls the handler of the exact path, otherwise of the longest registered
// prefix of the path, and responds with 404 if there is none.
func (r *routes) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	path := req.URL.Path
	if h, ok := r.exact[path]; ok {
		h.ServeHTTP(w, req)
		return
	}
	for _, prefix := range r.prefixes {
		if strings.HasPrefix(path, prefix) {
			r.exact[prefix].ServeHTTP(w, req)
			return
		}
	}
	http.Error(w, "404 page not found", http.StatusNotFound)
}

// routes returns the handler of all paths of the server: API resources, discovery, health, metrics,
// OpenAPI, debug pages and those of Config.Paths.
func (s *Server) routes() http.Handler {
	others := s.cfg.Aggregation
	var addresses []metav1.ServerAddressByClientCIDR
	if s.cfg.External != "" {
		addresses = []metav1.ServerAddressByClientCIDR{{ClientCIDR: "0.0.0.0/0", ServerAddress: s.cfg.External}}
	}
	disc := discovery.New(discovery.Config{
		Registry: s.registry, Sender: s.rest, Addresses: addresses, Aggregation: others, Rebuilt: s.metrics.Discovered, NotFound: http.HandlerFunc(s.rest.NotFound),
	})
	resources := func(depth int) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			if !s.checkKnown(w, req) {
				return
			}
			if others != nil {
				if h := others.Handler(req.URL.Path); h != nil {
					h.ServeHTTP(w, req)
					return
				}
			}
			if strings.Count(strings.Trim(req.URL.Path, "/"), "/") < depth {
				disc.ServeHTTP(w, req)
				return
			}
			s.rest.ServeHTTP(w, req)
		})
	}
	all := map[string]http.Handler{
		"/api":     disc,
		"/apis":    s.requireComplete(disc),
		"/api/":    resources(2),
		"/apis/":   resources(3),
		"/version": http.HandlerFunc(s.serveVersion),
		"/metrics": s.metrics.Handler(),
	}
	s.metrics.RegisterStored(s.stored)
	slis := componentmetrics.NewHealth()
	all["/metrics/slis"] = slis.Handler()
	all["/version/"] = all["/version"]
	for path, checks := range s.checks() {
		for i, c := range checks {
			checks[i].Probe = func(ctx context.Context) error {
				err := c.Probe(ctx)
				slis.Observe(c.Name, path[1:], err)
				return err
			}
		}
		h := health.New(path, s.log, checks...)
		all[path], all[path+"/"] = h, h
	}
	all["/openapi/"] = openapi.New(s.registry, version.Get().GitVersion)
	if s.cfg.Profiling {
		maps.Copy(all, zpages.Profiles())
		if s.cfg.Level != nil {
			maps.Copy(all, zpages.DebugFlags(s.cfg.Level))
		}
	}
	for path, h := range s.cfg.Paths {
		if path == tokens.ConfigurationPath || path == tokens.JWKSPath {
			produces := "application/json"
			if path == tokens.JWKSPath {
				produces = "application/jwk-set+json"
			}
			h = s.onlyGet(h, produces)
		}
		all[path] = h
	}
	all["/openapi/"] = s.requireComplete(all["/openapi/"])
	all["/flagz"] = zpages.Flagz("apiserver", s.cfg.Flags)
	all["/statusz"] = nil // so that it is in the list of paths
	all["/statusz"] = zpages.Statusz("apiserver", indexPaths(all)...)
	all["/"] = s.index(all)
	return newRoutes(all)
}

// checks returns the health checks of /livez, /readyz and /healthz, by path.
func (s *Server) checks() map[string][]health.Check {
	etcd := func(name string, one *store.Store) health.Check {
		return health.Check{Name: name, Probe: func(ctx context.Context) error {
			ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
			defer cancel()
			return one.Healthy(ctx)
		}}
	}
	// The order is the same as in upstream. The log is written synchronously, so its check always
	// passes.
	live := []health.Check{health.Ping(), {Name: "log", Probe: func(context.Context) error { return nil }}, etcd("etcd", s.store)}
	for i, one := range s.overrideStores {
		live = append(live, etcd(fmt.Sprintf("etcd-override-%d", i), one))
	}
	running := health.Check{Name: "shutdown", Probe: func(context.Context) error {
		select {
		case <-s.shuttingDown:
			return errors.New("process is shutting down")
		default:
			return nil
		}
	}}
	hooks := s.cfg.ReadyChecks
	if len(hooks) == 0 {
		hooks = []health.Check{health.Closed("poststarthook/storage-readiness", s.ready)}
	}
	work := slices.Concat(live, s.cfg.WorkChecks, hooks)
	ready := slices.Concat(live, s.cfg.WorkChecks, []health.Check{etcd("etcd-readiness", s.store)}, s.cfg.OnlyReadyChecks, hooks, []health.Check{running})
	for _, h := range hooks {
		live = append(live, health.Grace(h, s.created.Add(s.cfg.Limits.LivezGrace)))
	}
	return map[string][]health.Check{
		"/livez":   live,
		"/readyz":  ready,
		"/healthz": work,
	}
}

// stored returns statistics of the cached objects of each resource, for metrics. Resources whose cache has not been
// filled yet are omitted, and versions of a resource that share their stored objects are counted once.
func (s *Server) stored() iter.Seq[metrics.Stored] {
	return func(yield func(metrics.Stored) bool) {
		seen := map[*store.Collection]bool{}
		for _, r := range s.registry.Resources() {
			if r.Collection == nil || seen[r.Collection] {
				continue
			}
			seen[r.Collection] = true
			n, size, ok := r.Collection.Stats()
			if ok && !yield(metrics.Stored{Group: r.Group, Resource: r.Plural, Objects: n, Bytes: n * size, Counts: r.Collection.Counts(), Revision: r.Collection.Store().Revision()}) {
				return
			}
		}
	}
}

// indexPaths returns the paths of all handlers for the list that "/" shows. Debug paths and path
// prefixes are omitted.
func indexPaths(all map[string]http.Handler) []string {
	var paths []string
	for path := range all {
		if !strings.HasSuffix(path, "/") && !strings.HasPrefix(path, "/debug/") {
			paths = append(paths, path)
		}
	}
	return paths
}

// index returns the handler of "/" and "/index.html", which lists all paths of the server as JSON. Other paths get
// the response 404.
func (s *Server) index(all map[string]http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.URL.Path != "/" && req.URL.Path != "/index.html" {
			http.Error(w, "404 page not found", http.StatusNotFound)
			return
		}
		paths := append(indexPaths(all), "/apis/", "/openapi/v2", "/openapi/v3", "/openapi/v3/")
		for _, gv := range s.registry.GroupVersions() {
			if gv.Group == "" {
				paths = append(paths, "/api/"+gv.Version)
				continue
			}
			paths = append(paths, "/apis/"+gv.Group, "/apis/"+gv.String())
		}
		for path, checks := range s.checks() {
			for _, c := range checks {
				paths = append(paths, path+"/"+c.Name)
			}
		}
		slices.Sort(paths)
		writeJSON(w, metav1.RootPaths{Paths: slices.Compact(paths)})
	})
}

// onlyGet wraps h, a handler that serves the media type produces. Methods other than GET get the response 405. A GET
// request whose Accept header excludes the media type gets the response 406. Both are as in upstream.
func (s *Server) onlyGet(h http.Handler, produces string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		switch {
		case req.Method != http.MethodGet:
			s.rest.Error(w, req, rest.NoMethod())
			return
		case !acceptsForm(req.Header.Get("Accept"), produces):
			s.rest.Error(w, req, rest.NoForm(produces))
			return
		}
		h.ServeHTTP(w, req)
	})
}

// acceptsForm reports whether an Accept header allows the media type form. An empty header allows all. As in
// upstream, parameters such as weights, and wildcards other than */*, are ignored.
func acceptsForm(accept, form string) bool {
	if accept == "" {
		return true
	}
	for one := range strings.SplitSeq(accept, ",") {
		if one, _, _ = strings.Cut(one, ";"); strings.TrimSpace(one) == form || strings.TrimSpace(one) == "*/*" {
			return true
		}
	}
	return false
}

// serveVersion responds with the version of the server as JSON. It responds with errors to paths below /version/, to
// methods other than GET, and to clients that do not accept JSON.
func (s *Server) serveVersion(w http.ResponseWriter, req *http.Request) {
	switch {
	case strings.TrimSuffix(req.URL.Path, "/") != "/version":
		s.rest.Error(w, req, rest.NoRoute())
	case req.Method != http.MethodGet:
		s.rest.Error(w, req, rest.NoMethod())
	case !negotiate.Named(req.Header.Get("Accept"), negotiate.TypeJSON):
		s.rest.Error(w, req, negotiate.NoRoute(negotiate.TypeJSON))
	default:
		writeJSON(w, version.Served())
	}
}

// writeJSON sends v as indented JSON with the status 200, or 500 if v cannot be encoded.
func writeJSON(w http.ResponseWriter, v any) {
	data, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		http.Error(w, fmt.Sprintf("internal server error: %v", err), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(data)
}
