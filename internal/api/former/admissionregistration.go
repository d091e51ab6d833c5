package former

import (
	admissionv1 "k8s.io/api/admissionregistration/v1"
	admissionv1beta1 "k8s.io/api/admissionregistration/v1beta1"

	"hyperkube/internal/api"
)

// admissionregistrationVersions returns the readers of webhook configurations in v1beta1, whose
// defaults were less strict: they ignored failures, for example.
func admissionregistrationVersions() []version {
	v1, beta := admissionv1.SchemeGroupVersion, admissionv1beta1.SchemeGroupVersion
	lenient := func(failure **admissionv1.FailurePolicyType, match **admissionv1.MatchPolicyType, effects **admissionv1.SideEffectClass, seconds **int32, reviews *[]string) {
		api.SetDefault(failure, admissionv1.Ignore)
		api.SetDefault(match, admissionv1.Exact)
		api.SetDefault(effects, admissionv1.SideEffectClassUnknown)
		api.SetDefault(seconds, 30)
		if len(*reviews) == 0 {
			*reviews = []string{"v1beta1"}
		}
	}
	return []version{
		{"ValidatingWebhookConfiguration", v1, beta, sameFields(func(now *admissionv1.ValidatingWebhookConfiguration) error {
			for i := range now.Webhooks {
				w := &now.Webhooks[i]
				lenient(&w.FailurePolicy, &w.MatchPolicy, &w.SideEffects, &w.TimeoutSeconds, &w.AdmissionReviewVersions)
			}
			return nil
		})},
		{"MutatingWebhookConfiguration", v1, beta, sameFields(func(now *admissionv1.MutatingWebhookConfiguration) error {
			for i := range now.Webhooks {
				w := &now.Webhooks[i]
				lenient(&w.FailurePolicy, &w.MatchPolicy, &w.SideEffects, &w.TimeoutSeconds, &w.AdmissionReviewVersions)
			}
			return nil
		})},
	}
}
