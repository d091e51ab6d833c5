package admissionregistration

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"strings"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	webhookutil "k8s.io/apiserver/pkg/util/webhook"
)

// hook is a validating or mutating webhook, so that both can be validated by the same functions:
// the fields that both have, and the reinvocation policy, which only mutating webhooks have.
type hook struct {
	admissionv1.ValidatingWebhook
	reinvocation *admissionv1.ReinvocationPolicyType
}

// mutatingHooks converts mutating webhooks for validation.
func mutatingHooks(hooks []admissionv1.MutatingWebhook) []hook {
	out := make([]hook, len(hooks))
	for i, h := range hooks {
		out[i] = hook{
			ValidatingWebhook: admissionv1.ValidatingWebhook{
				Name: h.Name, ClientConfig: h.ClientConfig, Rules: h.Rules, FailurePolicy: h.FailurePolicy,
				MatchPolicy: h.MatchPolicy, NamespaceSelector: h.NamespaceSelector, ObjectSelector: h.ObjectSelector,
				SideEffects: h.SideEffects, TimeoutSeconds: h.TimeoutSeconds,
				AdmissionReviewVersions: h.AdmissionReviewVersions, MatchConditions: h.MatchConditions,
			},
			reinvocation: h.ReinvocationPolicy,
		}
	}
	return out
}

// validatingHooks converts validating webhooks for validation. They have no reinvocation policy.
func validatingHooks(hooks []admissionv1.ValidatingWebhook) []hook {
	out := make([]hook, len(hooks))
	for i, h := range hooks {
		out[i].ValidatingWebhook = h
	}
	return out
}

// leniency specifies which kinds of invalid values an updated webhook configuration may contain,
// because the stored one contains them. The zero value, for new objects, allows none.
type leniency struct {
	sideEffects, versions, names, selectors, conditions bool
	// known are the expressions of existing match conditions. They may use features that this
	// version does not allow in new expressions yet.
	known expressions
}

// leniencyOf returns the leniency for an update that replaces the webhooks old with hooks.
func leniencyOf(hooks, old []hook) leniency {
	l := leniency{conditions: len(hooks) == len(old)}
	names := map[string]bool{}
	for i, h := range old {
		l.names = l.names || names[h.Name]
		names[h.Name] = true
		l.sideEffects = l.sideEffects || h.SideEffects == nil || !slices.Contains(harmless, *h.SideEffects)
		l.versions = l.versions || len(h.AdmissionReviewVersions) > 0 && !slices.ContainsFunc(h.AdmissionReviewVersions, isReviewVersion)
		for _, s := range []*metav1.LabelSelector{h.NamespaceSelector, h.ObjectSelector} {
			l.selectors = l.selectors || s != nil && len(metav1validation.ValidateLabelSelector(s, metav1validation.LabelSelectorValidationOptions{}, nil)) > 0
		}
		l.conditions = l.conditions && reflect.DeepEqual(hooks[i].MatchConditions, h.MatchConditions)
		l.known.addConditions(h.MatchConditions)
	}
	return l
}

var (
	harmless      = []admissionv1.SideEffectClass{admissionv1.SideEffectClassNone, admissionv1.SideEffectClassNoneOnDryRun}
	sideEffects   = []admissionv1.SideEffectClass{admissionv1.SideEffectClassNone, admissionv1.SideEffectClassNoneOnDryRun, admissionv1.SideEffectClassSome, admissionv1.SideEffectClassUnknown}
	failures      = []admissionv1.FailurePolicyType{admissionv1.Fail, admissionv1.Ignore}
	matches       = []admissionv1.MatchPolicyType{admissionv1.Equivalent, admissionv1.Exact}
	reinvocations = []admissionv1.ReinvocationPolicyType{admissionv1.IfNeededReinvocationPolicy, admissionv1.NeverReinvocationPolicy}
	// reviewVersions are the versions of AdmissionReview that a webhook may list in admissionReviewVersions.
	reviewVersions = []string{"v1", "v1beta1"}
)

// isReviewVersion reports whether the API server supports a version of AdmissionReview.
func isReviewVersion(v string) bool { return slices.Contains(reviewVersions, v) }

// notSupported returns an error if value is neither nil nor one of the values in of. path is the field path of the
// value.
func notSupported[T ~string](path *field.Path, value *T, of []T) field.ErrorList {
	if value == nil || slices.Contains(of, *value) {
		return nil
	}
	return field.ErrorList{field.NotSupported(path, *value, of)}
}

// validateHooks validates the webhooks of a configuration, whose names must be unique. l allows kinds of invalid
// values.
func validateHooks(hooks []hook, l leniency) field.ErrorList {
	var errs field.ErrorList
	names := map[string]bool{}
	for i := range hooks {
		path := field.NewPath("webhooks").Index(i)
		errs = append(errs, validateHook(&hooks[i], l, path)...)
		errs = append(errs, validateReviewVersions(hooks[i].AdmissionReviewVersions, !l.versions, path.Child("admissionReviewVersions"))...)
		if name := hooks[i].Name; name != "" && !l.names {
			if names[name] {
				errs = append(errs, field.Duplicate(path.Child("name"), name))
			}
			names[name] = true
		}
	}
	return errs
}

// validateHook validates a webhook without its review versions. New webhooks must not have side effects, or only in
// requests that are not dry runs; l may allow others.
func validateHook(h *hook, l leniency, path *field.Path) field.ErrorList {
	errs := validation.IsFullyQualifiedName(path.Child("name"), h.Name)
	for i := range h.Rules {
		errs = append(errs, validateRule(&h.Rules[i], path.Child("rules").Index(i))...)
	}
	errs = append(errs, notSupported(path.Child("failurePolicy"), h.FailurePolicy, failures)...)
	errs = append(errs, notSupported(path.Child("matchPolicy"), h.MatchPolicy, matches)...)
	allowed := harmless
	if l.sideEffects {
		allowed = sideEffects
	}
	if h.SideEffects == nil {
		names := make([]string, len(allowed))
		for i, s := range allowed {
			names[i] = string(s)
		}
		errs = append(errs, field.Required(path.Child("sideEffects"), "must specify one of "+strings.Join(names, ", ")))
	}
	errs = append(errs, notSupported(path.Child("sideEffects"), h.SideEffects, allowed)...)
	if t := h.TimeoutSeconds; t != nil && (*t > 30 || *t < 1) {
		errs = append(errs, field.Invalid(path.Child("timeoutSeconds"), *t, "the timeout value must be between 1 and 30 seconds"))
	}
	opts := metav1validation.LabelSelectorValidationOptions{AllowInvalidLabelValueInSelector: l.selectors}
	if h.NamespaceSelector != nil {
		errs = append(errs, metav1validation.ValidateLabelSelector(h.NamespaceSelector, opts, path.Child("namespaceSelector"))...)
	}
	if h.ObjectSelector != nil {
		errs = append(errs, metav1validation.ValidateLabelSelector(h.ObjectSelector, opts, path.Child("objectSelector"))...)
	}
	errs = append(errs, notSupported(path.Child("reinvocationPolicy"), h.reinvocation, reinvocations)...)
	at := path.Child("clientConfig")
	switch url, service := h.ClientConfig.URL, h.ClientConfig.Service; {
	case (url == nil) == (service == nil):
		errs = append(errs, field.Required(at, "exactly one of url or service is required"))
	case url != nil:
		errs = append(errs, webhookutil.ValidateWebhookURL(at.Child("url"), *url, true)...)
	default:
		var port int32
		if service.Port != nil {
			port = *service.Port
		}
		// Upstream passes name and namespace in this order, which determines the field path of the
		// error for an empty value.
		errs = append(errs, webhookutil.ValidateWebhookService(at.Child("service"), service.Name, service.Namespace, service.Path, port)...)
	}
	if !l.conditions {
		errs = append(errs, validateMatchConditions(h.MatchConditions, false, l.known, path.Child("matchConditions"))...)
	}
	return errs
}

// validateReviewVersions validates the versions of AdmissionReview that a webhook accepts. At least one is required and
// none may be repeated. If recognized is set, the API server must support one of them.
func validateReviewVersions(versions []string, recognized bool, path *field.Path) field.ErrorList {
	if len(versions) == 0 {
		return field.ErrorList{field.Required(path, "must specify one of "+strings.Join(reviewVersions, ", "))}
	}
	var errs field.ErrorList
	seen := map[string]bool{}
	for i, v := range versions {
		if seen[v] {
			errs = append(errs, field.Invalid(path.Index(i), v, "duplicate version"))
			continue
		}
		seen[v] = true
		for _, msg := range validation.IsDNS1035Label(v) {
			errs = append(errs, field.Invalid(path.Index(i), v, msg))
		}
	}
	if recognized && !slices.ContainsFunc(versions, isReviewVersion) {
		errs = append(errs, field.Invalid(path, versions, "must include at least one of "+strings.Join(reviewVersions, ", ")))
	}
	return errs
}

// warnVirtual returns warnings for rules that match one of ExemptResources, whose requests are
// never sent to webhooks.
func warnVirtual(hooks []hook) []string {
	var out []string
	virtual := ExemptResources()
	for i, h := range hooks {
		for j, r := range h.Rules {
			if slices.Contains(r.APIGroups, "*") || slices.Contains(r.APIVersions, "*") || slices.Contains(r.Resources, "*") {
				continue
			}
			seen := map[schema.GroupResource]bool{}
			for _, g := range r.APIGroups {
				for _, res := range r.Resources {
					gr := schema.GroupResource{Group: g, Resource: res}
					if slices.Contains(virtual, gr) && !seen[gr] {
						seen[gr] = true
						out = append(out, fmt.Sprintf("%s: %s is excluded from admission webhooks; this rule will have no effect",
							field.NewPath("webhooks").Index(i).Child("rules").Index(j), gr))
					}
				}
			}
		}
	}
	return out
}

// webhookColumns are the columns of both kinds of webhook configurations.
var webhookColumns = []metav1.TableColumnDefinition{
	nameColumn,
	{Name: "Webhooks", Type: "integer", Description: "Webhooks indicates the number of webhooks registered in this configuration"},
	ageColumn,
}

// prepareGeneration sets the generation of an updated object: that of old if same is set, and the
// next one otherwise. Callers set same if the spec is unchanged; for webhooks, an empty list
// differs from a missing one.
func prepareGeneration(obj, old metav1.Object, same bool) {
	obj.SetGeneration(old.GetGeneration())
	if !same {
		obj.SetGeneration(old.GetGeneration() + 1)
	}
}

// firstGeneration sets the generation of a new object.
func firstGeneration[T metav1.Object](_ context.Context, obj T) { obj.SetGeneration(1) }
