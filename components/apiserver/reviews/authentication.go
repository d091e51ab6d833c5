package reviews

import (
	"context"
	"errors"

	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"
)

// TokenReview handles a TokenReview request: it authenticates the token in r for the audiences in r, by default those
// of this server, sets the status of r and returns r. A wrong token is not an error but reported in the status. It
// returns a BadRequest error if r contains no token.
func (cfg Config) TokenReview(ctx context.Context, r *authenticationv1.TokenReview) (*authenticationv1.TokenReview, error) {
	if r.Spec.Token == "" {
		return nil, apierrors.NewBadRequest("token is required for TokenReview in authentication")
	}
	r.Status = authenticationv1.TokenReviewStatus{}
	if cfg.Tokens == nil {
		return r, nil
	}
	audiences := authenticator.Audiences(r.Spec.Audiences)
	if len(audiences) == 0 {
		audiences = cfg.Audiences
	}
	if len(audiences) > 0 {
		ctx = authenticator.WithAudiences(ctx, audiences)
	}
	resp, ok, err := cfg.Tokens.AuthenticateToken(ctx, r.Spec.Token)
	r.Status.Authenticated = ok
	switch {
	case err != nil:
		r.Status.Error = err.Error()
	case !ok:
		r.Status.Error = "invalid bearer token"
	case len(audiences) > 0 && len(audiences.Intersect(resp.Audiences)) == 0:
		return nil, apierrors.NewInternalError(errors.New("unable to validate audience"))
	}
	if ok && resp.User != nil {
		r.Status.User = userInfo(resp.User)
		r.Status.Audiences = resp.Audiences
	}
	return r, nil
}

// SelfSubjectReview handles a SelfSubjectReview request (kubectl auth whoami): it returns the
// attributes of the requesting user. The result contains nothing of the request except its kind.
func (cfg Config) SelfSubjectReview(ctx context.Context, r *authenticationv1.SelfSubjectReview) (*authenticationv1.SelfSubjectReview, error) {
	u, ok := request.UserFrom(ctx)
	if !ok {
		return nil, apierrors.NewBadRequest("no user present on request")
	}
	return &authenticationv1.SelfSubjectReview{
		TypeMeta:   r.TypeMeta,
		ObjectMeta: metav1.ObjectMeta{CreationTimestamp: metav1.Now()},
		Status:     authenticationv1.SelfSubjectReviewStatus{UserInfo: userInfo(u)},
	}, nil
}

// userInfo converts a user to the form in which review responses contain it.
func userInfo(u user.Info) authenticationv1.UserInfo {
	info := authenticationv1.UserInfo{Username: u.GetName(), UID: u.GetUID(), Groups: u.GetGroups()}
	if extra := u.GetExtra(); len(extra) > 0 {
		info.Extra = make(map[string]authenticationv1.ExtraValue, len(extra))
		for k, v := range extra {
			info.Extra[k] = v
		}
	}
	return info
}
