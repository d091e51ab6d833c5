// Package admissionregistration describes the kinds of
// admissionregistration.k8s.io/v1, one file a kind: webhooks and policies that
// take part in admission. What they do is in components/apiserver/admission.
//
// https://kubernetes.io/docs/reference/access-authn-authz/extensible-admission-controllers/
// https://kubernetes.io/docs/reference/access-authn-authz/validating-admission-policy/
// https://kubernetes.io/docs/reference/access-authn-authz/mutating-admission-policy/
package admissionregistration

import (
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"hyperkube/internal/api"
)

const (
	group   = "admissionregistration.k8s.io"
	version = "v1"
)

// Resources are all kinds of the group.
func Resources() []*api.Resource {
	return []*api.Resource{
		validatingWebhookConfiguration().Resource(),
		mutatingWebhookConfiguration().Resource(),
		validatingAdmissionPolicy().Resource(),
		validatingAdmissionPolicyBinding().Resource(),
		mutatingAdmissionPolicy().Resource(),
		mutatingAdmissionPolicyBinding().Resource(),
	}
}

// Virtual are the resources without storage that no webhook and no policy is
// asked about, so that none can lock a cluster out of its own authentication
// and authorization. The slice is the caller's.
func Virtual() []schema.GroupResource {
	return []schema.GroupResource{
		{Group: "authentication.k8s.io", Resource: "selfsubjectreviews"},
		{Group: "authentication.k8s.io", Resource: "tokenreviews"},
		{Group: "authorization.k8s.io", Resource: "localsubjectaccessreviews"},
		{Group: "authorization.k8s.io", Resource: "selfsubjectaccessreviews"},
		{Group: "authorization.k8s.io", Resource: "selfsubjectrulesreviews"},
		{Group: "authorization.k8s.io", Resource: "subjectaccessreviews"},
	}
}

// StaticSuffix is how the names of webhooks and policies end that files of the
// API server configure.
const StaticSuffix = ".static.k8s.io"

// notStatic refuses their names for new objects of the API.
func notStatic(name string) field.ErrorList {
	if !strings.HasSuffix(name, StaticSuffix) {
		return nil
	}
	return field.ErrorList{field.Invalid(field.NewPath("metadata", "name"), name,
		fmt.Sprintf("names ending with %q are reserved for static manifest-based configurations and cannot be managed via the API", StaticSuffix))}
}

// selectAll fills a selector that is not there with one that selects all.
func selectAll(s **metav1.LabelSelector) {
	if *s == nil {
		*s = &metav1.LabelSelector{}
	}
}
