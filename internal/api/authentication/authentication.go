// Package authentication defines the reviews of authentication.k8s.io/v1. They are not stored: the
// API server computes the response to a create request. TokenRequest is a subresource of service
// accounts.
package authentication

import (
	authenticationv1 "k8s.io/api/authentication/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"hyperkube/internal/api"
)

// Resources returns the definitions of the reviews of the API group authentication.k8s.io, in all served versions.
// Package catalog collects those of all groups for the API server.
func Resources() []*api.Resource {
	return []*api.Resource{
		tokenReview().Resource(),
		selfSubjectReview().Resource(),
	}
}

func tokenReview() api.Kind[*authenticationv1.TokenReview] {
	return api.Kind[*authenticationv1.TokenReview]{
		Names:   api.Names{Kind: "TokenReview", Plural: "tokenreviews"},
		Group:   authenticationv1.GroupName,
		Version: "v1",
		Scope:   api.Cluster,
		Verbs:   []string{"create"},
		Review:  true,
		New:     func() *authenticationv1.TokenReview { return &authenticationv1.TokenReview{} },
		// Reviews cannot be listed.
		NewList: func() runtime.Object { return nil },
	}
}

func selfSubjectReview() api.Kind[*authenticationv1.SelfSubjectReview] {
	return api.Kind[*authenticationv1.SelfSubjectReview]{
		Names:   api.Names{Kind: "SelfSubjectReview", Plural: "selfsubjectreviews"},
		Group:   authenticationv1.GroupName,
		Version: "v1",
		Scope:   api.Cluster,
		Verbs:   []string{"create"},
		Review:  true,
		New:     func() *authenticationv1.SelfSubjectReview { return &authenticationv1.SelfSubjectReview{} },
		NewList: func() runtime.Object { return nil },
	}
}
