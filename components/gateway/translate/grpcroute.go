package translate

import (
	"net/http"
	"regexp"

	"k8s.io/utils/ptr"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"hyperkube/components/gateway/model"
)

// compileGRPCRoute compiles the rules of a GRPCRoute. A gRPC method is the path /SERVICE/METHOD of an HTTP/2 request.
func (t *translator) compileGRPCRoute(r *gatewayv1.GRPCRoute) compiled {
	c := &ruleCompiler{t: t, from: grantFrom{gatewayv1.GroupName, "GRPCRoute", r.Namespace}, protocol: model.BackendH2C}
	out := &model.Route{Name: "GRPCRoute/" + r.Namespace + "/" + r.Name}
	rules := r.Spec.Rules
	if len(rules) == 0 {
		rules = []gatewayv1.GRPCRouteRule{{}}
	}
	for i := range rules {
		out.Rules = append(out.Rules, c.grpcRule(&rules[i]))
	}
	return c.result(out)
}

// grpcRule compiles a rule of a GRPCRoute. A rule without matches applies to all requests. It rejects the route if the
// rule uses a field that is not supported.
func (c *ruleCompiler) grpcRule(rule *gatewayv1.GRPCRouteRule) *model.Rule {
	out := &model.Rule{Filters: c.grpcFilters(rule.Filters, false)}
	for i := range rule.Matches {
		out.Matches = append(out.Matches, c.grpcMatch(&rule.Matches[i]))
	}
	if len(out.Matches) == 0 {
		out.Matches = []model.Match{{PathKind: model.PathPrefix}}
	}
	for i := range rule.BackendRefs {
		ref := &rule.BackendRefs[i]
		out.Backends = append(out.Backends, c.weighted(ref.BackendRef, c.grpcFilters(ref.Filters, true)))
	}
	if rule.SessionPersistence != nil {
		c.reject("sessionPersistence is not supported")
	}
	return out
}

// grpcMatch compiles a match of a GRPCRoute.
func (c *ruleCompiler) grpcMatch(m *gatewayv1.GRPCRouteMatch) model.Match {
	out := model.Match{PathKind: model.PathPrefix}
	if m.Method != nil {
		service, method := ptr.Deref(m.Method.Service, ""), ptr.Deref(m.Method.Method, "")
		exact := ptr.Deref(m.Method.Type, gatewayv1.GRPCMethodMatchExact) == gatewayv1.GRPCMethodMatchExact
		switch {
		case exact && service != "" && method != "":
			out.PathKind, out.Path = model.PathExact, "/"+service+"/"+method
		case exact && method == "" && service != "":
			out.Path = "/" + service
		case service != "" || method != "":
			out.PathKind, out.Path = model.PathRegexp, "/"+part(service, exact)+"/"+part(method, exact)
			out.Pattern = c.pattern(out.Path)
		}
	}
	for _, h := range m.Headers {
		out.Headers = c.valueMatch(out.Headers, http.CanonicalHeaderKey(string(h.Name)), h.Value, ptr.Deref(h.Type, gatewayv1.GRPCHeaderMatchExact) == gatewayv1.GRPCHeaderMatchRegularExpression)
	}
	return out
}

// part returns the regular expression of a part of a gRPC method: any name if value is empty, value itself if it is an
// expression, or else the expression that only value matches.
func part(value string, exact bool) string {
	switch {
	case value == "":
		return "[^/]+"
	case exact:
		return regexp.QuoteMeta(value)
	}
	return "(?:" + value + ")"
}

// grpcFilters compiles the filters of a rule of a GRPCRoute, or of one of its backends. Backends can only change
// headers. It rejects the route if it has other filters.
func (c *ruleCompiler) grpcFilters(filters []gatewayv1.GRPCRouteFilter, ofBackend bool) model.Filters {
	var out model.Filters
	for i := range filters {
		f := &filters[i]
		switch {
		case f.Type == gatewayv1.GRPCRouteFilterRequestHeaderModifier:
			out.RequestHeaders = headerFilter(f.RequestHeaderModifier)
		case f.Type == gatewayv1.GRPCRouteFilterResponseHeaderModifier:
			out.ResponseHeaders = headerFilter(f.ResponseHeaderModifier)
		case f.Type == gatewayv1.GRPCRouteFilterRequestMirror && !ofBackend:
			c.mirror(&out, f.RequestMirror)
		default:
			c.reject("filters of the type %s are not supported here", f.Type)
		}
	}
	return out
}
