package filters

import (
	"net/http"
	"strings"

	"k8s.io/apiserver/pkg/endpoints/filters/impersonation"
	"k8s.io/client-go/kubernetes/scheme"
)

// impersonates tells whether a request is to be treated as that of somebody
// else than its sender.
func impersonates(h http.Header) bool {
	for header := range h {
		if strings.HasPrefix(header, "Impersonate-") {
			return true
		}
	}
	return false
}

// newImpersonation makes the handler that treats requests as those of somebody
// else, whom the sender must be allowed to be: each part of that (impersonate),
// or that somebody for requests such as this one (impersonate-on).
//
// https://kubernetes.io/docs/reference/access-authn-authz/user-impersonation/
// https://kep.k8s.io/5284
func (c *Chain) newImpersonation() http.Handler {
	return impersonation.WithConstrainedImpersonation(http.HandlerFunc(c.serveKnown), c.cfg.Authorizer, scheme.Codecs)
}
