// Package reviews implements authentication and authorization reviews, and token requests for
// service accounts.
package reviews

import (
	"context"
	"fmt"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"hyperkube/components/apiserver/registry"
	"hyperkube/internal/credentials/tokens"
)

// Config is the configuration of the review APIs, with which clients check tokens and permissions.
type Config struct {
	// Tokens authenticates the tokens of TokenReviews: an *authn.Authenticator.
	Tokens authenticator.Token
	// Audiences are the identifiers of the API server, which apply to TokenReviews without audiences.
	Audiences authenticator.Audiences
	// Authorizer authorizes requests, Rules lists permissions. Both are an *authz.Authorizer.
	Authorizer authorizer.Authorizer
	Rules      authorizer.RuleResolver
	// Issuer issues service account tokens. If it is nil, serviceaccounts/token is not served.
	Issuer *tokens.Issuer
}

// Actions returns the registry actions that handle all reviews, and serviceaccounts/token if an
// issuer is configured.
func Actions(cfg Config) []*registry.Action {
	authn, authz := authenticationv1.SchemeGroupVersion, authorizationv1.SchemeGroupVersion
	actions := []*registry.Action{
		action(authn, "tokenreviews", "TokenReview", func(ctx context.Context, _ registry.ActionCall, r *authenticationv1.TokenReview) (runtime.Object, error) {
			return cfg.TokenReview(ctx, r)
		}),
		action(authn, "selfsubjectreviews", "SelfSubjectReview", func(ctx context.Context, _ registry.ActionCall, r *authenticationv1.SelfSubjectReview) (runtime.Object, error) {
			return cfg.SelfSubjectReview(ctx, r)
		}),
		action(authz, "subjectaccessreviews", "SubjectAccessReview", func(ctx context.Context, _ registry.ActionCall, r *authorizationv1.SubjectAccessReview) (runtime.Object, error) {
			return cfg.SubjectAccessReview(ctx, r)
		}),
		action(authz, "selfsubjectaccessreviews", "SelfSubjectAccessReview", func(ctx context.Context, _ registry.ActionCall, r *authorizationv1.SelfSubjectAccessReview) (runtime.Object, error) {
			return cfg.SelfSubjectAccessReview(ctx, r)
		}),
		action(authz, "localsubjectaccessreviews", "LocalSubjectAccessReview", func(ctx context.Context, call registry.ActionCall, r *authorizationv1.LocalSubjectAccessReview) (runtime.Object, error) {
			return cfg.LocalSubjectAccessReview(ctx, call.Namespace, r)
		}),
		action(authz, "selfsubjectrulesreviews", "SelfSubjectRulesReview", func(ctx context.Context, _ registry.ActionCall, r *authorizationv1.SelfSubjectRulesReview) (runtime.Object, error) {
			return cfg.SelfSubjectRulesReview(ctx, r)
		}),
	}
	if cfg.Issuer != nil {
		actions = append(actions, cfg.tokenRequest())
	}
	return actions
}

// action returns the registry action of a review resource, whose kind has the Go type T. run
// handles the decoded request.
func action[T any, P interface {
	*T
	runtime.Object
}](gv schema.GroupVersion, resource, kind string, run func(context.Context, registry.ActionCall, P) (runtime.Object, error)) *registry.Action {
	return &registry.Action{
		Resource: gv.WithResource(resource),
		Kind:     gv.WithKind(kind),
		New:      func() runtime.Object { return P(new(T)) },
		Run: func(ctx context.Context, call registry.ActionCall) (runtime.Object, error) {
			obj, ok := call.Object.(P)
			if !ok {
				return nil, fmt.Errorf("answering a %s: got a %T", kind, call.Object)
			}
			return run(ctx, call, obj)
		},
	}
}

// tokenRequest returns the registry action of serviceaccounts/token, which issues a token for a
// service account.
func (cfg Config) tokenRequest() *registry.Action {
	a := action(authenticationv1.SchemeGroupVersion, "", "TokenRequest", func(ctx context.Context, call registry.ActionCall, r *authenticationv1.TokenRequest) (runtime.Object, error) {
		if call.Validate != nil {
			if err := call.Validate(ctx, r); err != nil {
				return nil, err
			}
		}
		return cfg.Issuer.Request(ctx, call.Namespace, call.Name, r)
	})
	a.Resource = schema.GroupVersionResource{Version: "v1", Resource: "serviceaccounts"}
	a.Subresource = "token"
	a.Default = func(obj runtime.Object) {
		if r, ok := obj.(*authenticationv1.TokenRequest); ok {
			tokens.Default(r)
		}
	}
	return a
}
