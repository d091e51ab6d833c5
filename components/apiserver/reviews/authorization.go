package reviews

import (
	"context"
	"errors"
	"fmt"
	"strings"

	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/request"
)

// SubjectAccessReview handles a SubjectAccessReview request: it checks whether the user in r is
// authorized for the action in r, sets the status of r and returns r.
func (cfg Config) SubjectAccessReview(ctx context.Context, r *authorizationv1.SubjectAccessReview) (*authorizationv1.SubjectAccessReview, error) {
	status, err := cfg.review(ctx, subject(&r.Spec), r.Spec.ResourceAttributes, r.Spec.NonResourceAttributes)
	if err != nil {
		return nil, err
	}
	r.Status = status
	return r, nil
}

// SelfSubjectAccessReview handles a SelfSubjectAccessReview request (kubectl auth can-i): it checks
// whether the requesting user is authorized for the action in r, sets the status of r and returns
// r.
func (cfg Config) SelfSubjectAccessReview(ctx context.Context, r *authorizationv1.SelfSubjectAccessReview) (*authorizationv1.SelfSubjectAccessReview, error) {
	u, ok := request.UserFrom(ctx)
	if !ok {
		return nil, apierrors.NewBadRequest("no user present on request")
	}
	status, err := cfg.review(ctx, u, r.Spec.ResourceAttributes, r.Spec.NonResourceAttributes)
	if err != nil {
		return nil, err
	}
	r.Status = status
	return r, nil
}

// LocalSubjectAccessReview handles a LocalSubjectAccessReview request: it does the same as SubjectAccessReview for an
// action on a resource in namespace, the namespace of the request. It returns a BadRequest error if r names another
// namespace or no resource.
func (cfg Config) LocalSubjectAccessReview(ctx context.Context, namespace string, r *authorizationv1.LocalSubjectAccessReview) (*authorizationv1.LocalSubjectAccessReview, error) {
	if namespace == "" {
		return nil, apierrors.NewBadRequest("namespace is required on this type: " + namespace)
	}
	if r.Spec.ResourceAttributes == nil || r.Spec.ResourceAttributes.Namespace != namespace {
		return nil, apierrors.NewBadRequest("spec.resourceAttributes.namespace must match namespace: " + namespace)
	}
	status, err := cfg.review(ctx, subject(&r.Spec), r.Spec.ResourceAttributes, nil)
	if err != nil {
		return nil, err
	}
	r.Status = status
	return r, nil
}

// SelfSubjectRulesReview handles a SelfSubjectRulesReview request (kubectl auth can-i --list): it returns the
// permissions of the requesting user in the namespace that r names. The status reports whether the list is
// incomplete. It returns a BadRequest error if r names no namespace.
func (cfg Config) SelfSubjectRulesReview(ctx context.Context, r *authorizationv1.SelfSubjectRulesReview) (*authorizationv1.SelfSubjectRulesReview, error) {
	u, ok := request.UserFrom(ctx)
	if !ok {
		return nil, apierrors.NewBadRequest("no user present on request")
	}
	if r.Spec.Namespace == "" {
		return nil, apierrors.NewBadRequest("no namespace on request")
	}
	resources, urls, incomplete, err := cfg.Rules.RulesFor(ctx, u, r.Spec.Namespace)
	out := &authorizationv1.SelfSubjectRulesReview{Status: authorizationv1.SubjectRulesReviewStatus{
		ResourceRules:    make([]authorizationv1.ResourceRule, 0, len(resources)),
		NonResourceRules: make([]authorizationv1.NonResourceRule, 0, len(urls)),
		Incomplete:       incomplete,
	}}
	for _, i := range resources {
		out.Status.ResourceRules = append(out.Status.ResourceRules, authorizationv1.ResourceRule{
			Verbs: i.GetVerbs(), APIGroups: i.GetAPIGroups(), Resources: i.GetResources(), ResourceNames: i.GetResourceNames(),
		})
	}
	for _, i := range urls {
		out.Status.NonResourceRules = append(out.Status.NonResourceRules, authorizationv1.NonResourceRule{
			Verbs: i.GetVerbs(), NonResourceURLs: i.GetNonResourceURLs(),
		})
	}
	if err != nil {
		out.Status.EvaluationError = err.Error()
	}
	return out, nil
}

// subject returns the user whose permissions a SubjectAccessReview requests.
func subject(spec *authorizationv1.SubjectAccessReviewSpec) user.Info {
	u := &user.DefaultInfo{Name: spec.User, UID: spec.UID, Groups: spec.Groups}
	if len(spec.Extra) > 0 {
		u.Extra = make(map[string][]string, len(spec.Extra))
		for k, v := range spec.Extra {
			u.Extra[k] = v
		}
	}
	return u
}

// review requests a decision from the authorizer about an action of u, on a resource (res) or, if that is nil, on a
// path (other). It returns a BadRequest error if both are nil.
func (cfg Config) review(ctx context.Context, u user.Info, res *authorizationv1.ResourceAttributes, other *authorizationv1.NonResourceAttributes) (authorizationv1.SubjectAccessReviewStatus, error) {
	var attrs authorizer.AttributesRecord
	switch {
	case res != nil:
		attrs = resourceAttributes(u, res)
	case other != nil:
		attrs = authorizer.AttributesRecord{User: u, Verb: other.Verb, Path: other.Path}
	default:
		return authorizationv1.SubjectAccessReviewStatus{}, apierrors.NewBadRequest("exactly one of nonResourceAttributes or resourceAttributes must be specified")
	}
	decision, reason, err := cfg.Authorizer.Authorize(ctx, attrs)
	status := authorizationv1.SubjectAccessReviewStatus{
		Allowed: decision == authorizer.DecisionAllow,
		Denied:  decision == authorizer.DecisionDeny,
		Reason:  reason,
	}
	status.EvaluationError = evaluationError(err, attrs)
	return status, nil
}

// evaluationError returns the text for status.evaluationError: the authorizer's error err, and
// selectors in the reviewed attributes that were ignored because they are invalid.
func evaluationError(err error, attrs authorizer.AttributesRecord) string {
	var all []string
	if err != nil {
		all = append(all, err.Error())
	}
	ignored := func(selector string, some bool, err error) {
		switch {
		case err == nil:
		case some:
			all = append(all, "spec.resourceAttributes."+selector+" partially ignored due to parse error")
		default:
			all = append(all, "spec.resourceAttributes."+selector+" ignored due to parse error")
		}
	}
	ignored("fieldSelector", len(attrs.FieldSelectorRequirements) > 0, attrs.FieldSelectorParsingErr)
	ignored("labelSelector", len(attrs.LabelSelectorRequirements) > 0, attrs.LabelSelectorParsingErr)
	return strings.Join(all, "; ")
}

// resourceAttributes converts the action on a resource in a review to attributes for the authorizer. An empty version
// means all versions. Invalid selectors result in errors in the attributes.
func resourceAttributes(u user.Info, in *authorizationv1.ResourceAttributes) authorizer.AttributesRecord {
	attrs := authorizer.AttributesRecord{
		User: u, Verb: in.Verb, Namespace: in.Namespace,
		APIGroup: in.Group, APIVersion: in.Version, Resource: in.Resource, Subresource: in.Subresource, Name: in.Name,
		ResourceRequest: true,
	}
	if attrs.APIVersion == "" {
		attrs.APIVersion = "*"
	}
	if s := in.FieldSelector; s != nil {
		if s.RawSelector != "" {
			sel, err := fields.ParseSelector(s.RawSelector)
			if err != nil {
				attrs.FieldSelectorParsingErr = err
			} else {
				attrs.FieldSelectorRequirements = sel.Requirements()
			}
		} else {
			attrs.FieldSelectorRequirements, attrs.FieldSelectorParsingErr = fieldRequirements(s.Requirements)
		}
	}
	if s := in.LabelSelector; s != nil {
		if s.RawSelector != "" {
			sel, err := labels.Parse(s.RawSelector)
			if err != nil {
				attrs.LabelSelectorParsingErr = err
			} else {
				attrs.LabelSelectorRequirements, _ = sel.Requirements()
			}
		} else {
			attrs.LabelSelectorRequirements, attrs.LabelSelectorParsingErr = labelRequirements(s.Requirements)
		}
	}
	return attrs
}

// fieldRequirements converts the requirements of a reviewed request's field selector. It returns
// the supported ones and an error for the others. The caller may use the result despite the error:
// without a requirement, the reviewed request covers more objects, never fewer.
func fieldRequirements(in []metav1.FieldSelectorRequirement) (fields.Requirements, error) {
	var out fields.Requirements
	var errs []error
	for _, r := range in {
		switch {
		case len(r.Values) > 1:
			errs = append(errs, errors.New("fieldSelectors do not yet support multiple values"))
		case r.Operator == metav1.FieldSelectorOpIn && len(r.Values) == 1:
			out = append(out, fields.Requirement{Operator: selection.Equals, Field: r.Key, Value: r.Values[0]})
		case r.Operator == metav1.FieldSelectorOpNotIn && len(r.Values) == 1:
			out = append(out, fields.Requirement{Operator: selection.NotEquals, Field: r.Key, Value: r.Values[0]})
		case r.Operator == metav1.FieldSelectorOpIn || r.Operator == metav1.FieldSelectorOpNotIn:
			errs = append(errs, errors.New("fieldSelectors in must have one value"))
		case r.Operator == metav1.FieldSelectorOpExists || r.Operator == metav1.FieldSelectorOpDoesNotExist:
			errs = append(errs, fmt.Errorf("fieldSelectors do not yet support %v", r.Operator))
		default:
			errs = append(errs, fmt.Errorf("%q is not a valid field selector operator", r.Operator))
		}
	}
	return out, utilerrors.NewAggregate(errs)
}

// labelRequirements converts the label selector of a review. It returns the valid requirements, and
// errors for the invalid ones.
func labelRequirements(in []metav1.LabelSelectorRequirement) (labels.Requirements, error) {
	ops := map[metav1.LabelSelectorOperator]selection.Operator{
		metav1.LabelSelectorOpIn:           selection.In,
		metav1.LabelSelectorOpNotIn:        selection.NotIn,
		metav1.LabelSelectorOpExists:       selection.Exists,
		metav1.LabelSelectorOpDoesNotExist: selection.DoesNotExist,
	}
	var out labels.Requirements
	var errs []error
	for _, r := range in {
		op, ok := ops[r.Operator]
		if !ok {
			errs = append(errs, fmt.Errorf("%q is not a valid label selector operator", r.Operator))
			continue
		}
		req, err := labels.NewRequirement(r.Key, op, r.Values)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		out = append(out, *req)
	}
	return out, utilerrors.NewAggregate(errs)
}
