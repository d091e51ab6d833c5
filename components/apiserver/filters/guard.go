package filters

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"regexp"
	"strings"
)

// Guard contains settings for browsers and load balancers. The zero value has no effect.
type Guard struct {
	// Origins are patterns of origins that are allowed by CORS.
	Origins []*regexp.Regexp
	// TransportSecurity is the value of the header Strict-Transport-Security.
	TransportSecurity string
	// GoAway is the probability, between 0 and 0.02, that an HTTP/2 request closes its connection
	// gracefully, so that clients are rebalanced over the servers behind a load balancer.
	GoAway float64
}

// maxGoAway is the maximum fraction of HTTP/2 requests after which the connection is closed
// (Guard.GoAway).
const maxGoAway = 0.02

// NewGuard parses the values of --cors-allowed-origins, --strict-transport-security-directives and
// --goaway-chance. It returns an error if one is invalid.
func NewGuard(origins, directives []string, goAway float64) (Guard, error) {
	g := Guard{TransportSecurity: strings.Join(directives, "; "), GoAway: goAway}
	if goAway < 0 || goAway > maxGoAway {
		return g, errors.New("--goaway-chance can not be less than 0 or greater than 0.02")
	}
	for _, d := range directives {
		if d != "includeSubDomains" && d != "preload" && !strings.HasPrefix(d, "max-age=") {
			return g, errors.New("--strict-transport-security-directives invalid, allowed values: max-age=expireTime, includeSubDomains, preload. see https://tools.ietf.org/html/rfc6797#section-6.1 for more information")
		}
	}
	for _, o := range origins {
		re, err := regexp.Compile(o)
		if err != nil {
			return g, fmt.Errorf("--cors-allowed-origins has an invalid regular expression: %w", err)
		}
		g.Origins = append(g.Origins, re)
	}
	return g, nil
}

// on reports whether any setting of the Guard is configured, so that responses must be changed or connections closed.
func (g *Guard) on() bool { return g.GoAway > 0 || g.TransportSecurity != "" || len(g.Origins) > 0 }

// apply sets the configured response headers: HSTS always, CORS if the origin of the request is allowed, and for a
// random fraction of HTTP/2 requests the one that closes the connection. It returns true if it has also sent the
// response, which it does for CORS preflight requests.
func (g *Guard) apply(w http.ResponseWriter, req *http.Request) bool {
	h := w.Header()
	if g.TransportSecurity != "" {
		h.Set("Strict-Transport-Security", g.TransportSecurity)
	}
	if g.GoAway > 0 && req.ProtoMajor == 2 && rand.Float64() < g.GoAway {
		// In HTTP/2 this sends a GOAWAY frame and closes the connection after all responses.
		h.Set("Connection", "close")
	}
	origin := req.Header.Get("Origin")
	if origin == "" || len(g.Origins) == 0 {
		return false
	}
	for _, re := range g.Origins {
		if !re.MatchString(origin) {
			continue
		}
		h.Set("Access-Control-Allow-Origin", origin)
		h.Set("Access-Control-Allow-Methods", "POST, GET, OPTIONS, PUT, DELETE, PATCH")
		h.Set("Access-Control-Allow-Headers", "Content-Type, Content-Length, Accept-Encoding, X-CSRF-Token, Authorization, X-Requested-With, If-Modified-Since")
		h.Set("Access-Control-Expose-Headers", "Date")
		h.Set("Access-Control-Allow-Credentials", "true")
		if req.Method == http.MethodOptions {
			w.WriteHeader(http.StatusNoContent)
			return true
		}
		break
	}
	return false
}

// authenticationMethods returns a text for the audit log that lists the kinds of credentials in a request whose
// authentication failed.
func authenticationMethods(req *http.Request) string {
	var means []string
	if _, _, ok := req.BasicAuth(); ok {
		means = append(means, "basic")
	}
	if scheme, _, ok := strings.Cut(strings.TrimSpace(req.Header.Get("Authorization")), " "); ok && strings.EqualFold(scheme, "bearer") {
		means = append(means, "bearer")
	}
	if strings.TrimSpace(req.URL.Query().Get("access_token")) != "" {
		means = append(means, "access_token")
	}
	if req.TLS != nil && len(req.TLS.PeerCertificates) > 0 {
		means = append(means, "x509")
	}
	if len(means) == 0 {
		return "Authentication failed, no credentials provided"
	}
	return "Authentication failed, attempted: " + strings.Join(means, ", ")
}
