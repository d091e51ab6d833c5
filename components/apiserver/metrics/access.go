package metrics

import (
	"crypto/x509"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// access contains the metrics of authentication (users, attempts, authenticated, expiration) and
// authorization (decisions, authorized). The remaining fields are the metrics of individual label
// values, which are looked up once because each request counts in them.
type access struct {
	users                            *prometheus.CounterVec
	attempts, decisions              *prometheus.CounterVec
	authenticated, authorized        *prometheus.HistogramVec
	expiration                       prometheus.Histogram
	success, failure                 outcome
	allowed, denied, noOpinion, fail outcome
	other, email                     prometheus.Counter
}

// outcome contains the metrics of one possible result of an authentication or authorization: how
// often it occurred, and how long that took.
type outcome struct {
	n    prometheus.Counter
	took prometheus.Observer
}

// count records one result, which took the given time.
func (o outcome) count(took time.Duration) {
	o.n.Inc()
	o.took.Observe(took.Seconds())
}

// newAccess creates the metrics of authentication and authorization. New registers them.
func newAccess() *access {
	result, buckets := []string{"result"}, prometheus.ExponentialBuckets(0.001, 2, 15)
	a := &access{
		users: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "authenticated_user_requests", Help: "[ALPHA] Counter of authenticated requests broken out by username.",
		}, []string{"username"}),
		attempts: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "authentication_attempts", Help: "[ALPHA] Counter of authenticated attempts."}, result),
		authenticated: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "authentication_duration_seconds", Help: "[ALPHA] Authentication duration in seconds broken out by result.", Buckets: buckets,
		}, result),
		decisions: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "authorization_attempts_total",
			Help: "[ALPHA] Counter of authorization attempts broken down by result. It can be either 'allowed', 'denied', 'no-opinion' or 'error'.",
		}, result),
		authorized: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "authorization_duration_seconds", Help: "[ALPHA] Authorization duration in seconds broken out by result.", Buckets: buckets,
		}, result),
		expiration: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "apiserver_client_certificate_expiration_seconds", Help: "[ALPHA] Distribution of the remaining lifetime on the certificate used to authenticate a request.",
			Buckets: []float64{0, 1800, 3600, 7200, 21600, 43200, 86400, 172800, 345600, 604800, 2592000, 7776000, 15552000, 31104000},
		}),
	}
	came := func(result string) outcome {
		return outcome{a.attempts.WithLabelValues(result), a.authenticated.WithLabelValues(result)}
	}
	decided := func(result string) outcome {
		return outcome{a.decisions.WithLabelValues(result), a.authorized.WithLabelValues(result)}
	}
	a.success, a.failure = came("success"), came("failure")
	a.allowed, a.denied, a.noOpinion, a.fail = decided("allowed"), decided("denied"), decided("no-opinion"), decided("error")
	a.other, a.email = a.users.WithLabelValues("other"), a.users.WithLabelValues("email_id")
	return a
}

// collectors returns all metrics of authentication and authorization, which New registers.
func (a *access) collectors() []prometheus.Collector {
	return []prometheus.Collector{a.users, a.attempts, a.decisions, a.authenticated, a.authorized, a.expiration}
}

// Authenticated counts a request whose user was authenticated. certificate is the client
// certificate, or nil if the user authenticated in another way. took is how long the authentication
// took. As in upstream, only some well-known user names are counted by name.
func (m *Metrics) Authenticated(user string, certificate *x509.Certificate, now time.Time, took time.Duration) {
	m.access.success.count(took)
	switch {
	case user == "admin", user == "client", user == "kube_proxy", user == "kubelet", user == "system:serviceaccount:kube-system:default":
		m.access.users.WithLabelValues(user).Inc()
	case strings.IndexByte(user, '@') >= 0:
		m.access.email.Inc()
	default:
		m.access.other.Inc()
	}
	if certificate != nil {
		m.access.expiration.Observe(certificate.NotAfter.Sub(now).Seconds())
	}
}

// Unauthenticated counts a request whose authentication failed after the time took.
func (m *Metrics) Unauthenticated(took time.Duration) { m.access.failure.count(took) }

// Decision is the result of an authorization check.
type Decision int

// The results of authorization checks. Failed means that the authorizer returned an error.
const (
	Allowed Decision = iota
	Denied
	NoOpinion
	Failed
)

// Authorized counts the result d of an authorization check, which took the given time.
func (m *Metrics) Authorized(d Decision, took time.Duration) {
	o := [...]*outcome{Allowed: &m.access.allowed, Denied: &m.access.denied, NoOpinion: &m.access.noOpinion, Failed: &m.access.fail}[d]
	o.count(took)
}
