package filters

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"regexp"
	"strings"
)

// Guard is what is done for browsers and load balancers. The zero value does
// nothing.
type Guard struct {
	// Origins are patterns of origins whose scripts may use the API.
	Origins []*regexp.Regexp
	// TransportSecurity is the header that tells browsers to come by HTTPS
	// alone.
	TransportSecurity string
	// GoAway is how likely a request over HTTP/2 ends its connection, so that
	// clients spread over the servers behind a load balancer; between 0 and
	// 0.02.
	GoAway float64
}

// maxGoAway bounds Guard.GoAway.
const maxGoAway = 0.02

// NewGuard reads flags: patterns of origins, and the directives of the header
// Strict-Transport-Security.
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

func (g *Guard) on() bool { return g.GoAway > 0 || g.TransportSecurity != "" || len(g.Origins) > 0 }

// answer sets headers; true when nothing is left to be answered.
func (g *Guard) answer(w http.ResponseWriter, req *http.Request) bool {
	h := w.Header()
	if g.TransportSecurity != "" {
		h.Set("Strict-Transport-Security", g.TransportSecurity)
	}
	if g.GoAway > 0 && req.ProtoMajor == 2 && rand.Float64() < g.GoAway {
		// For HTTP/2 this is a GOAWAY frame once requests have been answered.
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

// attempted says by which means a request tried to be authenticated, for the
// record.
func attempted(req *http.Request) string {
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
