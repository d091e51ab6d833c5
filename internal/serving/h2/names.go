package h2

import (
	"net/http"
	"strings"

	"golang.org/x/net/http/httpguts"
)

// common contains frequent header names in canonical form. commonLower maps them to the lowercase
// form that HTTP/2 sends, commonWire maps the lowercase form to the canonical one.
var common = []string{
	"Accept", "Accept-Encoding", "Accept-Language", "Audit-Id", "Authorization", "Cache-Control", "Connection", "Content-Encoding",
	"Content-Length", "Content-Type", "Cookie", "Date", "Etag", "Expect", "Host", "If-None-Match", "Impersonate-Group",
	"Impersonate-Uid", "Impersonate-User", "Keep-Alive", "Last-Modified", "Location", "Origin", "Proxy-Connection", "Range", "Referer",
	"Retry-After", "Server", "Te", "Trailer", "Transfer-Encoding", "Upgrade", "User-Agent", "Vary", "Warning",
	"X-Content-Type-Options", "X-Forwarded-For", "X-Kubernetes-Pf-Flowschema-Uid", "X-Kubernetes-Pf-Prioritylevel-Uid",
	"X-Remote-Group", "X-Remote-User",
}

var commonLower, commonWire = namesBothWays()

// namesBothWays returns the maps commonLower (canonical form to lowercase) and commonWire (lowercase to canonical form)
// of the names in common.
func namesBothWays() (low, wire map[string]string) {
	low, wire = make(map[string]string, len(common)), make(map[string]string, len(common))
	for _, name := range common {
		l := strings.ToLower(name)
		low[name], wire[l] = l, name
	}
	return low, wire
}

// canonical returns the canonical form of a header name as HTTP/2 sends it, e.g. "Content-Type" for "content-type".
// Frequent names need no new string.
func canonical(name string) string {
	if s, ok := commonWire[name]; ok {
		return s
	}
	return http.CanonicalHeaderKey(name)
}

// lower returns the lowercase form of a header name, which HTTP/2 requires, or "" if the name is
// invalid.
func lower(name string) string {
	if s, ok := commonLower[name]; ok {
		return s
	}
	if !httpguts.ValidHeaderFieldName(name) {
		return ""
	}
	return strings.ToLower(name)
}
