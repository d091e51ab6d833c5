package tokens

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/warning"
	"k8s.io/client-go/kubernetes"
)

// LastUsedLabel is the label of a Secret with a token that has the date of the last use of the token, and
// InvalidSinceLabel the one with the date since which the token is invalid. Day is the date format.
//
// https://kubernetes.io/docs/reference/access-authn-authz/service-accounts-admin/#legacy-serviceaccount-token-cleaner
const (
	LastUsedLabel     = "kubernetes.io/legacy-token-last-used"
	InvalidSinceLabel = "kubernetes.io/legacy-token-invalid-since"
	Day               = time.DateOnly
)

// TrackingName and TrackingKey are the ConfigMap in kube-system and its key that contain the date
// since which the use of tokens in Secrets is tracked.
const (
	TrackingName = "kube-apiserver-legacy-service-account-token-tracking"
	TrackingKey  = "since"
)

// Usage records the use of service account tokens in metrics, audit annotations and labels of Secrets. Its methods
// are safe for concurrent use; those that the Verifier calls do nothing on nil.
type Usage struct {
	kube kubernetes.Interface
	log  *slog.Logger
	now  func() time.Time

	legacy, stale, valid, manual, auto, invalid prometheus.Counter

	// Metrics of the token cache: requests by cache hit or miss, their duration, and token
	// verifications.
	requests, fetches *prometheus.CounterVec
	took              *prometheus.HistogramVec
	verifying         prometheus.Gauge
}

// NewUsage returns a Usage that labels Secrets with the client kube and registers its metrics in reg. If kube is nil,
// labeling fails and is logged to log. It returns an error if reg already has one of the metrics.
func NewUsage(kube kubernetes.Interface, reg prometheus.Registerer, log *slog.Logger) (*Usage, error) {
	u := &Usage{kube: kube, log: log, now: time.Now}
	for _, c := range []struct {
		to         *prometheus.Counter
		name, help string
	}{
		{&u.legacy, "legacy_tokens_total", "[BETA] Cumulative legacy service account tokens used"},
		{&u.stale, "stale_tokens_total", "[BETA] Cumulative stale projected service account tokens used"},
		{&u.valid, "valid_tokens_total", "[BETA] Cumulative valid projected service account tokens used"},
		{&u.manual, "legacy_manual_token_uses_total", "[ALPHA] Cumulative manually created legacy tokens used"},
		{&u.auto, "legacy_auto_token_uses_total", "[ALPHA] Cumulative auto-generated legacy tokens used"},
		{&u.invalid, "invalid_legacy_auto_token_uses_total", "[ALPHA] Cumulative invalid auto-generated legacy tokens used"},
	} {
		*c.to = prometheus.NewCounter(prometheus.CounterOpts{Subsystem: "serviceaccount", Name: c.name, Help: c.help})
		if err := reg.Register(*c.to); err != nil {
			return nil, fmt.Errorf("registering token metrics: %w", err)
		}
	}
	cache := prometheus.Opts{Namespace: "authentication", Subsystem: "token_cache", Help: "[ALPHA] "}
	named := func(name string) prometheus.Opts { o := cache; o.Name = name; return o }
	u.requests = prometheus.NewCounterVec(prometheus.CounterOpts(named("request_total")), []string{"status"})
	u.fetches = prometheus.NewCounterVec(prometheus.CounterOpts(named("fetch_total")), []string{"status"})
	u.took = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Namespace: cache.Namespace, Subsystem: cache.Subsystem, Name: "request_duration_seconds", Help: cache.Help,
	}, []string{"status"})
	active := prometheus.NewGaugeVec(prometheus.GaugeOpts(named("active_fetch_count")), []string{"status"})
	// No request waits for another to verify the same token, so this is always zero.
	active.WithLabelValues("blocked")
	u.verifying = active.WithLabelValues("in_flight")
	for _, c := range []prometheus.Collector{u.requests, u.fetches, u.took, active} {
		if err := reg.Register(c); err != nil {
			return nil, fmt.Errorf("registering token metrics: %w", err)
		}
	}
	return u, nil
}

// recordHit records that a token was found in the verifier's cache. took is the duration of the
// lookup.
func (u *Usage) recordHit(took time.Duration) {
	if u == nil {
		return
	}
	u.requests.WithLabelValues("hit").Inc()
	u.took.WithLabelValues("hit").Observe(took.Seconds())
}

// recordVerification records the start of the verification of a token that was not in the cache; began is the start
// of the lookup. The caller must call the returned function with the result of the verification.
func (u *Usage) recordVerification(began time.Time) func(error) {
	if u == nil {
		return func(error) {}
	}
	u.verifying.Inc()
	return func(err error) {
		status := "ok"
		if err != nil {
			status = "error"
		}
		u.verifying.Dec()
		u.fetches.WithLabelValues(status).Inc()
		u.requests.WithLabelValues("miss").Inc()
		u.took.WithLabelValues("miss").Observe(time.Since(began).Seconds())
	}
}

// recordBound records the use of a token with an extended lifetime: as valid, or as stale if it is used after
// warnAfter, because the client should have replaced it. A stale use is also added to the audit event, with
// subject, the user of the token. If warnAfter is zero, the token has no extended lifetime, and nothing is
// recorded.
func (u *Usage) recordBound(ctx context.Context, subject string, now, warnAfter time.Time) {
	if u == nil || warnAfter.IsZero() {
		return
	}
	if !now.After(warnAfter) {
		u.valid.Inc()
		return
	}
	u.stale.Inc()
	audit.AddAuditAnnotation(ctx, "authentication.k8s.io/stale-token",
		fmt.Sprintf("subject: %s, seconds after warning threshold: %d", subject, now.Unix()-warnAfter.Unix()))
}

// recordSecret records the use of the token that is stored in the Secret s of the account sa, and labels the Secret
// with the date. It returns an error if the Secret has the label InvalidSinceLabel, which marks the token as invalid;
// such a use is recorded too. For a Secret that was generated automatically, the client gets a warning.
func (u *Usage) recordSecret(ctx context.Context, s *corev1.Secret, sa *corev1.ServiceAccount) error {
	if u == nil {
		return nil
	}
	if s.Labels[InvalidSinceLabel] != "" {
		audit.AddAuditAnnotation(ctx, "authentication.k8s.io/legacy-token-invalidated", s.Name+"/"+s.Namespace)
		u.invalid.Inc()
		u.labelLastUsed(ctx, s)
		return fmt.Errorf("the token in secret %s/%s for service account %s/%s has been marked invalid. Use tokens from the TokenRequest API or manually created secret-based tokens, or remove the '%s' label from the secret to temporarily allow use of this token",
			s.Namespace, s.Name, sa.Namespace, sa.Name, InvalidSinceLabel)
	}
	if Generated(s, sa) {
		warning.AddWarning(ctx, "", "Use tokens from the TokenRequest API or manually created secret-based tokens instead of auto-generated secret-based tokens.")
		audit.AddAuditAnnotation(ctx, "authentication.k8s.io/legacy-token-autogenerated-secret", s.Name)
		u.auto.Inc()
	} else {
		audit.AddAuditAnnotation(ctx, "authentication.k8s.io/legacy-token-manual-secret", s.Name)
		u.manual.Inc()
	}
	u.labelLastUsed(ctx, s)
	u.legacy.Inc()
	return nil
}

// Generated reports whether the Secret s was generated automatically for the account sa, as old Kubernetes versions
// did, which also listed it in the field secrets of the account.
func Generated(s *corev1.Secret, sa *corev1.ServiceAccount) bool {
	for _, r := range sa.Secrets {
		if r.Name == s.Name {
			return true
		}
	}
	return false
}

// labelLastUsed sets LastUsedLabel of a Secret to the present date in UTC, unless it has that date or the following
// one. A failure is only logged.
func (u *Usage) labelLastUsed(ctx context.Context, s *corev1.Secret) {
	now := u.now().UTC()
	// The clock of another server may be ahead.
	if last := s.Labels[LastUsedLabel]; last == now.Format(Day) || last == now.AddDate(0, 0, 1).Format(Day) {
		return
	}
	if err := u.label(ctx, s, now); err != nil {
		u.log.ErrorContext(ctx, "labeling Secret with the date of the last use of its service account token failed; this request is not affected, but the token can be invalidated as unused if this persists for a year; retrying at its next use", "namespace", s.Namespace, "secret", s.Name, "err", err)
	}
}

// label patches LastUsedLabel of a Secret to the date of now. It returns an error if there is no client or the Secret
// does not exist anymore with the same UID.
func (u *Usage) label(ctx context.Context, s *corev1.Secret, now time.Time) error {
	if u.kube == nil {
		return errors.New("no client")
	}
	patch, err := LabelPatch(s, LastUsedLabel, now)
	if err != nil {
		return err
	}
	_, err = u.kube.CoreV1().Secrets(s.Namespace).Patch(ctx, s.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	return err
}

// LabelPatch returns a merge patch that sets a label of a Secret to a date. It contains the UID, so
// that it does not change a new Secret with the same name.
func LabelPatch(s *corev1.Secret, label string, day time.Time) ([]byte, error) {
	return json.Marshal(map[string]any{"metadata": map[string]any{
		"uid": s.UID, "labels": map[string]string{label: day.UTC().Format(Day)},
	}})
}
