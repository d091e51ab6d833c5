// Package admissionregistration defines the kinds of admissionregistration.k8s.io/v1, one file per
// kind: admission webhooks and policies. They are executed by components/apiserver/admission.
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

// Resources returns the definitions of the resources of the API group admissionregistration.k8s.io, in all served
// versions. Package catalog collects those of all groups for the API server.
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

// ExemptResources returns the resources without storage that are exempt from webhooks and policies, so that
// these cannot block authentication and authorization of the cluster. The caller owns the slice.
func ExemptResources() []schema.GroupResource {
	return []schema.GroupResource{
		{Group: "authentication.k8s.io", Resource: "selfsubjectreviews"},
		{Group: "authentication.k8s.io", Resource: "tokenreviews"},
		{Group: "authorization.k8s.io", Resource: "localsubjectaccessreviews"},
		{Group: "authorization.k8s.io", Resource: "selfsubjectaccessreviews"},
		{Group: "authorization.k8s.io", Resource: "selfsubjectrulesreviews"},
		{Group: "authorization.k8s.io", Resource: "subjectaccessreviews"},
	}
}

// StaticSuffix is the name suffix of webhooks and policies that are configured by manifest files of
// the API server.
const StaticSuffix = ".static.k8s.io"

// notStatic returns an error for a name with StaticSuffix, which objects that are created through
// the API must not have.
func notStatic(name string) field.ErrorList {
	if !strings.HasSuffix(name, StaticSuffix) {
		return nil
	}
	return field.ErrorList{field.Invalid(field.NewPath("metadata", "name"), name,
		fmt.Sprintf("names ending with %q are reserved for static manifest-based configurations and cannot be managed via the API", StaticSuffix))}
}

// selectAll sets a nil selector to an empty one, which selects everything.
func selectAll(s **metav1.LabelSelector) {
	if *s == nil {
		*s = &metav1.LabelSelector{}
	}
}
