package debugserver

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// authorize authenticates r by client certificate or, if Config.Reviews is set, by a TokenReview of its bearer token;
// without either, the user is system:anonymous. It authorizes the user by a SubjectAccessReview of the API server.
// Members of system:masters are allowed everything; without Config.Reviews, all others are denied. It returns a nil
// error if the request is allowed, and otherwise the HTTP status (401, 403, or 500 if a review failed) and the error
// for the response.
func (s *Server) authorize(r *http.Request) (int, error) {
	var spec authorizationv1.SubjectAccessReviewSpec
	token, bearer := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	switch {
	case r.TLS != nil && len(r.TLS.VerifiedChains) > 0:
		subject := r.TLS.VerifiedChains[0][0].Subject
		spec.User, spec.Groups = subject.CommonName, append(slices.Clone(subject.Organization), "system:authenticated")
	case bearer && s.cfg.Reviews != nil:
		tr, err := s.cfg.Reviews.AuthenticationV1().TokenReviews().Create(r.Context(),
			&authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token}}, metav1.CreateOptions{})
		if err != nil {
			return http.StatusInternalServerError, errors.New("reviewing token failed")
		}
		if !tr.Status.Authenticated {
			return http.StatusUnauthorized, errors.New("Unauthorized")
		}
		u := tr.Status.User
		spec.User, spec.Groups, spec.UID = u.Username, u.Groups, u.UID
	default:
		spec.User, spec.Groups = "system:anonymous", []string{"system:unauthenticated"}
	}
	if slices.Contains(spec.Groups, "system:masters") {
		return 0, nil
	}
	if s.cfg.Reviews == nil {
		return http.StatusForbidden, errors.New("forbidden")
	}
	spec.NonResourceAttributes = &authorizationv1.NonResourceAttributes{Path: r.URL.Path, Verb: strings.ToLower(r.Method)}
	sar, err := s.cfg.Reviews.AuthorizationV1().SubjectAccessReviews().Create(r.Context(), &authorizationv1.SubjectAccessReview{Spec: spec}, metav1.CreateOptions{})
	if err != nil {
		return http.StatusInternalServerError, errors.New("reviewing access failed")
	}
	if !sar.Status.Allowed {
		return http.StatusForbidden, fmt.Errorf("forbidden: User %q cannot %s path %q", spec.User, spec.NonResourceAttributes.Verb, r.URL.Path)
	}
	return 0, nil
}
