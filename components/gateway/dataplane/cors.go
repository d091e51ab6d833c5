package dataplane

import (
	"net/http"
	"slices"
	"strconv"
	"strings"

	"hyperkube/components/gateway/model"
)

// answerPreflight answers a CORS preflight request, and reports whether the request is one. If the origin is not
// allowed, the response has no CORS headers, so that the browser blocks the request.
func answerPreflight(w http.ResponseWriter, r *http.Request, c *model.CORS) bool {
	method := r.Header.Get("Access-Control-Request-Method")
	if r.Method != http.MethodOptions || r.Header.Get("Origin") == "" || method == "" {
		return false
	}
	h := w.Header()
	if addCORS(h, r, c) {
		setList(h, "Access-Control-Allow-Methods", c.Methods, method, c.Credentials)
		setList(h, "Access-Control-Allow-Headers", c.Headers, r.Header.Get("Access-Control-Request-Headers"), c.Credentials)
		if c.MaxAge > 0 {
			h.Set("Access-Control-Max-Age", strconv.Itoa(int(c.MaxAge)))
		}
	}
	w.WriteHeader(http.StatusNoContent)
	return true
}

// setList sets a header to a list of allowed values. Browsers do not interpret "*" in responses to requests with
// credentials, so the requested values are returned instead.
func setList(h http.Header, name string, allowed []string, requested string, credentials bool) {
	switch {
	case len(allowed) == 0:
	case !slices.Contains(allowed, "*"):
		h.Set(name, strings.Join(allowed, ", "))
	case credentials || requested != "":
		if requested != "" {
			h.Set(name, requested)
		}
	default:
		h.Set(name, "*")
	}
}

// addCORS adds the headers for the origin of a request to a response, and reports whether the origin is allowed. It
// replaces those of the backend.
func addCORS(h http.Header, r *http.Request, c *model.CORS) bool {
	origin := r.Header.Get("Origin")
	if origin == "" {
		return false
	}
	h.Add("Vary", "Origin")
	h.Del("Access-Control-Allow-Origin")
	h.Del("Access-Control-Allow-Credentials")
	if !slices.ContainsFunc(c.Origins, func(pattern string) bool { return matchesOrigin(pattern, strings.ToLower(origin)) }) {
		return false
	}
	if slices.Contains(c.Origins, "*") && !c.Credentials {
		h.Set("Access-Control-Allow-Origin", "*")
	} else {
		h.Set("Access-Control-Allow-Origin", origin)
	}
	if c.Credentials {
		h.Set("Access-Control-Allow-Credentials", "true")
	}
	if len(c.ExposeHeader) > 0 {
		h.Set("Access-Control-Expose-Headers", strings.Join(c.ExposeHeader, ", "))
	}
	return true
}

// matchesOrigin reports whether a pattern such as "*", "https://example.com" or "https://*.example.com" matches an origin.
func matchesOrigin(pattern, origin string) bool {
	if pattern == "*" || pattern == origin {
		return true
	}
	before, after, wildcard := strings.Cut(pattern, "*")
	return wildcard && len(origin) > len(before)+len(after) && strings.HasPrefix(origin, before) && strings.HasSuffix(origin, after)
}
