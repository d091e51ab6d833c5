// Package authorization defines the reviews of authorization.k8s.io/v1. They are not stored: the
// API server computes the response to a create request.
package authorization

import (
	"context"

	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"hyperkube/internal/api"
)

// Resources returns the definitions of the reviews of the API group authorization.k8s.io, in all served versions.
// Package catalog collects those of all groups for the API server.
func Resources() []*api.Resource {
	return []*api.Resource{
		review("LocalSubjectAccessReview", "localsubjectaccessreviews", api.Namespaced,
			func() *authorizationv1.LocalSubjectAccessReview { return &authorizationv1.LocalSubjectAccessReview{} }, validateLocal),
		review("SelfSubjectAccessReview", "selfsubjectaccessreviews", api.Cluster,
			func() *authorizationv1.SelfSubjectAccessReview { return &authorizationv1.SelfSubjectAccessReview{} }, validateSelf),
		review("SelfSubjectRulesReview", "selfsubjectrulesreviews", api.Cluster,
			func() *authorizationv1.SelfSubjectRulesReview { return &authorizationv1.SelfSubjectRulesReview{} }, nil),
		review("SubjectAccessReview", "subjectaccessreviews", api.Cluster,
			func() *authorizationv1.SubjectAccessReview { return &authorizationv1.SubjectAccessReview{} }, validateSubject),
	}
}

// review returns the definition of a kind of review, which can only be created. validate may be nil.
func review[T api.Object](kind, plural string, scope api.Scope, empty func() T, validate func(T) field.ErrorList) *api.Resource {
	k := api.Kind[T]{
		Names:   api.Names{Kind: kind, Plural: plural},
		Group:   authorizationv1.GroupName,
		Version: "v1",
		Scope:   scope,
		Verbs:   []string{"create"},
		Review:  true,
		New:     empty,
		NewList: func() runtime.Object { return nil },
	}
	if validate != nil {
		k.Validate = func(_ context.Context, r T) field.ErrorList { return validate(r) }
	}
	return k.Resource()
}
