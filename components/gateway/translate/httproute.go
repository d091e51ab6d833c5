package translate

import (
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"time"

	"k8s.io/utils/ptr"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"hyperkube/components/gateway/model"
)

// ruleCompiler compiles the rules of one HTTPRoute or GRPCRoute and collects its problems.
type ruleCompiler struct {
	t    *translator
	from grantFrom
	// protocol is the protocol of backends whose Service does not specify one.
	protocol             model.BackendProtocol
	rejected, unresolved *problem
	backends             []*policyTarget
	services             []usedService
}

// compileHTTPRoute compiles the rules of an HTTPRoute.
func (t *translator) compileHTTPRoute(r *gatewayv1.HTTPRoute) compiled {
	c := &ruleCompiler{t: t, from: grantFrom{gatewayv1.GroupName, "HTTPRoute", r.Namespace}}
	out := &model.Route{Name: "HTTPRoute/" + r.Namespace + "/" + r.Name}
	for i := range r.Spec.Rules {
		out.Rules = append(out.Rules, c.httpRule(&r.Spec.Rules[i]))
	}
	return c.result(out)
}

// result returns the result of compiling a route with the rules of out.
func (c *ruleCompiler) result(out *model.Route) compiled {
	return compiled{
		rejected: c.rejected, unresolved: c.unresolved, targets: c.backends, services: c.services,
		attach: func(t *translator, l *listener, hostnames []string) {
			l.out.Routes = append(l.out.Routes, model.AttachedRoute{Hostnames: hostnames, Route: t.authenticate(out, l.gateway)})
		},
	}
}

// reject sets the reason why the route is not accepted, unless there is one already.
func (c *ruleCompiler) reject(format string, args ...any) {
	if c.rejected == nil {
		c.rejected = &problem{string(gatewayv1.RouteReasonUnsupportedValue), fmt.Sprintf(format, args...)}
	}
}

// unresolve sets the problem of the route's references, unless there is one already.
func (c *ruleCompiler) unresolve(p *problem) {
	if c.unresolved == nil {
		c.unresolved = p
	}
}

// httpRule compiles a rule of an HTTPRoute. A rule without matches applies to all requests. It rejects the route if the
// rule uses a field that is not supported.
func (c *ruleCompiler) httpRule(rule *gatewayv1.HTTPRouteRule) *model.Rule {
	out := &model.Rule{Filters: c.httpFilters(rule.Filters, false)}
	for i := range rule.Matches {
		out.Matches = append(out.Matches, c.httpMatch(&rule.Matches[i]))
	}
	if len(out.Matches) == 0 {
		out.Matches = []model.Match{{PathKind: model.PathPrefix}}
	}
	for i := range rule.BackendRefs {
		ref := &rule.BackendRefs[i]
		out.Backends = append(out.Backends, c.weighted(ref.BackendRef, c.httpFilters(ref.Filters, true)))
	}
	if rule.Timeouts != nil {
		out.Timeouts = model.Timeouts{Request: c.duration(rule.Timeouts.Request), Backend: c.duration(rule.Timeouts.BackendRequest)}
	}
	if rule.Retry != nil {
		out.Retry = &model.Retry{Attempts: ptr.Deref(rule.Retry.Attempts, 1), Backoff: c.duration(rule.Retry.Backoff)}
		for _, code := range rule.Retry.Codes {
			out.Retry.Codes = append(out.Retry.Codes, int(code))
		}
	}
	if rule.SessionPersistence != nil {
		c.reject("sessionPersistence is not supported")
	}
	return out
}

// duration returns a duration of a route. Nil is zero. It rejects the route if the duration is invalid or negative.
func (c *ruleCompiler) duration(d *gatewayv1.Duration) time.Duration {
	if d == nil {
		return 0
	}
	out, err := time.ParseDuration(string(*d))
	if err != nil || out < 0 {
		c.reject("%q is not a duration", *d)
	}
	return out
}

// httpMatch compiles a match of an HTTPRoute.
func (c *ruleCompiler) httpMatch(m *gatewayv1.HTTPRouteMatch) model.Match {
	out := model.Match{PathKind: model.PathPrefix, Method: string(ptr.Deref(m.Method, ""))}
	if m.Path != nil {
		value := ptr.Deref(m.Path.Value, "/")
		switch kind := ptr.Deref(m.Path.Type, gatewayv1.PathMatchPathPrefix); kind {
		case gatewayv1.PathMatchExact:
			out.PathKind, out.Path = model.PathExact, value
		case gatewayv1.PathMatchPathPrefix:
			out.Path = strings.TrimRight(value, "/")
		case gatewayv1.PathMatchRegularExpression:
			out.PathKind, out.Path, out.Pattern = model.PathRegexp, value, c.pattern(value)
		default:
			c.reject("path matches of the type %s are not supported", kind)
		}
	}
	for _, h := range m.Headers {
		out.Headers = c.valueMatch(out.Headers, http.CanonicalHeaderKey(string(h.Name)), h.Value, ptr.Deref(h.Type, gatewayv1.HeaderMatchExact) == gatewayv1.HeaderMatchRegularExpression)
	}
	for _, q := range m.QueryParams {
		out.Query = c.valueMatch(out.Query, string(q.Name), q.Value, ptr.Deref(q.Type, gatewayv1.QueryParamMatchExact) == gatewayv1.QueryParamMatchRegularExpression)
	}
	return out
}

// valueMatch appends the condition on a header or query parameter to list. Of several conditions with the same name only the
// first counts, as the API defines.
func (c *ruleCompiler) valueMatch(list []model.ValueMatch, name, value string, isPattern bool) []model.ValueMatch {
	for _, m := range list {
		if m.Name == name {
			return list
		}
	}
	m := model.ValueMatch{Name: name, Value: value}
	if isPattern {
		m.Pattern = c.pattern(value)
	}
	return append(list, m)
}

// pattern compiles a regular expression in the syntax of RE2, which must match a whole value.
func (c *ruleCompiler) pattern(expression string) *regexp.Regexp {
	p, err := regexp.Compile("^(?:" + expression + ")$")
	if err != nil {
		c.reject("regular expression %q: %v", expression, err)
		return regexp.MustCompile("$^") // matches nothing
	}
	return p
}

// weighted resolves a backend reference of a rule. If the reference is invalid, it sets the problem of the route's
// references and the result has no Backend; requests for it are answered with an error.
func (c *ruleCompiler) weighted(ref gatewayv1.BackendRef, filters model.Filters) model.WeightedBackend {
	backend, target, p := c.t.backend(c.from, ref.BackendObjectReference, c.protocol)
	c.services = append(c.services, c.t.use(c.from, ref.BackendObjectReference, backend, target))
	if p != nil {
		c.unresolve(p)
	}
	if target != nil {
		c.backends = append(c.backends, target)
	}
	return model.WeightedBackend{Backend: backend, Weight: ptr.Deref(ref.Weight, 1), Filters: filters}
}

// httpFilters compiles the filters of a rule of an HTTPRoute, or of one of its backends. Backends can only change
// headers. It rejects the route if it has other filters.
func (c *ruleCompiler) httpFilters(filters []gatewayv1.HTTPRouteFilter, ofBackend bool) model.Filters {
	var out model.Filters
	for i := range filters {
		f := &filters[i]
		switch f.Type {
		case gatewayv1.HTTPRouteFilterRequestHeaderModifier:
			out.RequestHeaders = headerFilter(f.RequestHeaderModifier)
			continue
		case gatewayv1.HTTPRouteFilterResponseHeaderModifier:
			out.ResponseHeaders = headerFilter(f.ResponseHeaderModifier)
			continue
		}
		if ofBackend {
			c.reject("filters of the type %s are not supported for backends", f.Type)
			continue
		}
		switch f.Type {
		case gatewayv1.HTTPRouteFilterRequestRedirect:
			out.Redirect = redirect(f.RequestRedirect)
		case gatewayv1.HTTPRouteFilterURLRewrite:
			out.Rewrite = &model.Rewrite{Hostname: string(ptr.Deref(f.URLRewrite.Hostname, "")), Path: pathModifier(f.URLRewrite.Path)}
		case gatewayv1.HTTPRouteFilterRequestMirror:
			c.mirror(&out, f.RequestMirror)
		case gatewayv1.HTTPRouteFilterCORS:
			out.CORS = cors(f.CORS)
		default:
			c.reject("filters of the type %s are not supported", f.Type)
		}
	}
	return out
}

// mirror adds a mirror filter to out. Requests are not mirrored to an invalid backend.
func (c *ruleCompiler) mirror(out *model.Filters, f *gatewayv1.HTTPRequestMirrorFilter) {
	w := c.weighted(gatewayv1.BackendRef{BackendObjectReference: f.BackendRef}, model.Filters{})
	if w.Backend == nil {
		return
	}
	m := model.Mirror{Backend: w.Backend, Numerator: 1, Denominator: 1}
	if f.Percent != nil {
		m.Numerator, m.Denominator = *f.Percent, 100
	}
	if f.Fraction != nil {
		m.Numerator, m.Denominator = f.Fraction.Numerator, ptr.Deref(f.Fraction.Denominator, 100)
	}
	out.Mirrors = append(out.Mirrors, m)
}

// headerFilter converts a filter that changes headers.
func headerFilter(f *gatewayv1.HTTPHeaderFilter) *model.HeaderFilter {
	out := &model.HeaderFilter{}
	for _, name := range f.Remove {
		out.Remove = append(out.Remove, http.CanonicalHeaderKey(name))
	}
	for _, h := range f.Set {
		out.Set = append(out.Set, model.Header{Name: http.CanonicalHeaderKey(string(h.Name)), Value: h.Value})
	}
	for _, h := range f.Add {
		out.Add = append(out.Add, model.Header{Name: http.CanonicalHeaderKey(string(h.Name)), Value: h.Value})
	}
	return out
}

// pathModifier converts a change of the path. Nil is no change.
func pathModifier(m *gatewayv1.HTTPPathModifier) *model.PathModifier {
	switch {
	case m == nil:
		return nil
	case m.Type == gatewayv1.PrefixMatchHTTPPathModifier:
		return &model.PathModifier{ReplacePrefix: true, Value: ptr.Deref(m.ReplacePrefixMatch, "")}
	}
	return &model.PathModifier{Value: ptr.Deref(m.ReplaceFullPath, "/")}
}

// redirect converts a redirect.
func redirect(f *gatewayv1.HTTPRequestRedirectFilter) *model.Redirect {
	return &model.Redirect{
		Scheme: ptr.Deref(f.Scheme, ""), Hostname: string(ptr.Deref(f.Hostname, "")), Port: ptr.Deref(f.Port, 0),
		Path: pathModifier(f.Path), Code: ptr.Deref(f.StatusCode, http.StatusFound),
	}
}

// cors converts a CORS filter.
func cors(f *gatewayv1.HTTPCORSFilter) *model.CORS {
	out := &model.CORS{Credentials: ptr.Deref(f.AllowCredentials, false), MaxAge: f.MaxAge}
	for _, o := range f.AllowOrigins {
		out.Origins = append(out.Origins, strings.ToLower(string(o)))
	}
	for _, m := range f.AllowMethods {
		out.Methods = append(out.Methods, string(m))
	}
	for _, h := range f.AllowHeaders {
		out.Headers = append(out.Headers, string(h))
	}
	for _, h := range f.ExposeHeaders {
		out.ExposeHeader = append(out.ExposeHeader, string(h))
	}
	return out
}
