package reviews

import (
	"context"
	"errors"
	"fmt"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/request"
)

func testConfig() Config {
	return Config{
		Audiences: authenticator.Audiences{"k8s"},
		Tokens: authenticator.TokenFunc(func(ctx context.Context, token string) (*authenticator.Response, bool, error) {
			asked, _ := authenticator.AudiencesFrom(ctx)
			switch token {
			case "good":
				return &authenticator.Response{Audiences: asked, User: &user.DefaultInfo{Name: "ann", UID: "7", Groups: []string{"g"}, Extra: map[string][]string{"k": {"v"}}}}, true, nil
			case "other":
				return &authenticator.Response{Audiences: authenticator.Audiences{"x"}, User: &user.DefaultInfo{Name: "ann"}}, true, nil
			case "bad":
				return nil, false, errors.New("expired")
			}
			return nil, false, nil
		}),
		Authorizer: authorizer.AuthorizerFunc(func(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
			sel, selErr := a.GetFieldSelector()
			reason := fmt.Sprintf("%s %v %s %s/%s/%s/%s/%s/%s %s %v %v", a.GetUser().GetName(), a.GetUser().GetGroups(), a.GetVerb(),
				a.GetNamespace(), a.GetAPIGroup(), a.GetAPIVersion(), a.GetResource(), a.GetSubresource(), a.GetName(), a.GetPath(), sel, selErr)
			switch a.GetVerb() {
			case "get":
				return authorizer.DecisionAllow, reason, nil
			case "never":
				return authorizer.DecisionDeny, reason, errors.New("broken")
			}
			return authorizer.DecisionNoOpinion, reason, nil
		}),
	}
}

func TestTokenReview(t *testing.T) {
	cfg := testConfig()
	tests := []struct {
		token         string
		authenticated bool
		err, status   string
	}{
		{"good", true, "", ""},
		{"bad", false, "", "expired"},
		{"unknown", false, "", "invalid bearer token"},
		{"other", false, "Internal error occurred: unable to validate audience", ""},
		{"", false, "token is required for TokenReview in authentication", ""},
	}
	for _, tt := range tests {
		r, err := cfg.TokenReview(t.Context(), &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: tt.token}})
		if tt.err != "" {
			if err == nil || err.Error() != tt.err {
				t.Errorf("%s: %v", tt.token, err)
			}
			continue
		}
		if err != nil || r.Status.Authenticated != tt.authenticated || r.Status.Error != tt.status {
			t.Errorf("%s: %+v %v", tt.token, r, err)
		}
		if tt.authenticated && (r.Status.User.Username != "ann" || r.Status.User.UID != "7" || r.Status.User.Extra["k"][0] != "v" || r.Status.Audiences[0] != "k8s") {
			t.Errorf("%s: %+v", tt.token, r.Status)
		}
	}
}

func TestAccessReviews(t *testing.T) {
	cfg := testConfig()
	ctx := request.WithUser(t.Context(), &user.DefaultInfo{Name: "me", Groups: []string{"mine"}})
	res := &authorizationv1.ResourceAttributes{Verb: "get", Namespace: "ns", Group: "apps", Resource: "deployments", Subresource: "scale", Name: "d",
		FieldSelector: &authorizationv1.FieldSelectorAttributes{Requirements: []metav1.FieldSelectorRequirement{{Key: "a", Operator: "In", Values: []string{"b"}}, {Key: "c", Operator: "Exists"}}}}
	sar, err := cfg.SubjectAccessReview(ctx, &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{User: "bob", Groups: []string{"g"}, ResourceAttributes: res}})
	if err != nil {
		t.Fatal(err)
	}
	if want := "bob [g] get ns/apps/*/deployments/scale/d  [{= a b}] fieldSelectors do not yet support Exists"; !sar.Status.Allowed || sar.Status.Reason != want {
		t.Errorf("%+v", sar.Status)
	}
	self, err := cfg.SelfSubjectAccessReview(ctx, &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{
		NonResourceAttributes: &authorizationv1.NonResourceAttributes{Verb: "never", Path: "/x"}}})
	if err != nil || self.Status.Allowed || !self.Status.Denied || self.Status.EvaluationError != "broken" || self.Status.Reason != "me [mine] never ///// /x [] <nil>" {
		t.Errorf("%+v %v", self, err)
	}
	local := &authorizationv1.LocalSubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{User: "bob", ResourceAttributes: res}}
	if _, err := cfg.LocalSubjectAccessReview(ctx, "other", local); err == nil || err.Error() != "spec.resourceAttributes.namespace must match namespace: other" {
		t.Error(err)
	}
	if r, err := cfg.LocalSubjectAccessReview(ctx, "ns", local); err != nil || !r.Status.Allowed {
		t.Error(err)
	}
	if _, err := cfg.SelfSubjectAccessReview(t.Context(), &authorizationv1.SelfSubjectAccessReview{}); err == nil {
		t.Error("answered without a user")
	}
}

func TestSelfReviews(t *testing.T) {
	cfg := testConfig()
	cfg.Rules = rules{}
	ctx := request.WithUser(t.Context(), &user.DefaultInfo{Name: "me"})
	who, err := cfg.SelfSubjectReview(ctx, &authenticationv1.SelfSubjectReview{})
	if err != nil || who.Status.UserInfo.Username != "me" {
		t.Errorf("%+v %v", who, err)
	}
	r, err := cfg.SelfSubjectRulesReview(ctx, &authorizationv1.SelfSubjectRulesReview{Spec: authorizationv1.SelfSubjectRulesReviewSpec{Namespace: "ns"}})
	if err != nil || len(r.Status.ResourceRules) != 1 || r.Status.NonResourceRules == nil || !r.Status.Incomplete || r.Status.EvaluationError != "some missing" {
		t.Errorf("%+v %v", r, err)
	}
	if _, err := cfg.SelfSubjectRulesReview(ctx, &authorizationv1.SelfSubjectRulesReview{}); err == nil || err.Error() != "no namespace on request" {
		t.Error(err)
	}
}

type rules struct{}

func (rules) RulesFor(context.Context, user.Info, string) ([]authorizer.ResourceRuleInfo, []authorizer.NonResourceRuleInfo, bool, error) {
	return []authorizer.ResourceRuleInfo{&authorizer.DefaultResourceRuleInfo{Verbs: []string{"get"}}}, nil, true, errors.New("some missing")
}
