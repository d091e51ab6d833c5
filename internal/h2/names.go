package h2

import (
	"net/http"
	"strings"

	"golang.org/x/net/http/httpguts"
)

// common are names of headers as programs write them; commonLower are those as
// they are sent, commonWire the other way round.
var common = []string{
	"Accept", "Accept-Encoding", "Accept-Language", "Audit-Id", "Authorization", "Cache-Control", "Connection", "Content-Encoding",
	"Content-Length", "Content-Type", "Cookie", "Date", "Etag", "Expect", "Host", "If-None-Match", "Impersonate-Group",
	"Impersonate-Uid", "Impersonate-User", "Keep-Alive", "Last-Modified", "Location", "Origin", "Proxy-Connection", "Range", "Referer",
	"Retry-After", "Server", "Te", "Trailer", "Transfer-Encoding", "Upgrade", "User-Agent", "Vary", "Warning",
	"X-Content-Type-Options", "X-Forwarded-For", "X-Kubernetes-Pf-Flowschema-Uid", "X-Kubernetes-Pf-Prioritylevel-Uid",
	"X-Remote-Group", "X-Remote-User",
}

var commonLower, commonWire = namesBothWays()

func namesBothWays() (low, wire map[string]string) {
	low, wire = make(map[string]string, len(common)), make(map[string]string, len(common))
	for _, name := range common {
		l := strings.ToLower(name)
		low[name], wire[l] = l, name
	}
	return low, wire
}

// canonical is a name from the wire as programs write it.
func canonical(name string) string {
	if s, ok := commonWire[name]; ok {
		return s
	}
	return http.CanonicalHeaderKey(name)
}

// lower is a name as it is sent; empty when it is none.
func lower(name string) string {
	if s, ok := commonLower[name]; ok {
		return s
	}
	if !httpguts.ValidHeaderFieldName(name) {
		return ""
	}
	return strings.ToLower(name)
}
