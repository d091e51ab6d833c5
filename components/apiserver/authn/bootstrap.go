package authn

import (
	"context"
	"crypto/subtle"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/kubernetes"
)

// bootstrapTokens authenticates joining nodes by the bootstrap tokens in Secrets of kube-system.
// Such requests are rare, so the Secrets are read through the API each time.
//
// https://kubernetes.io/docs/reference/access-authn-authz/bootstrap-tokens/
type bootstrapTokens struct {
	kube kubernetes.Interface
	now  func() time.Time
}

const bootstrapGroup = "system:bootstrappers"

var (
	bootstrapToken       = regexp.MustCompile(`^([a-z0-9]{6})\.([a-z0-9]{16})$`)
	bootstrapGroupSyntax = regexp.MustCompile(`^system:bootstrappers:[a-z0-9:-]{0,255}[a-z0-9]$`)
)

// errBootstrapToken is the error for a bootstrap token that is wrong, has expired or must not be used for
// authentication. It has no details because clients see it.
var errBootstrapToken = errors.New("the bootstrap token is not valid")

// AuthenticateToken implements authenticator.Token. It returns false if the token does not have the format of a
// bootstrap token or its ID has no Secret. It returns an error if the token is wrong, expired or not for
// authentication, or the Secret cannot be read.
func (b bootstrapTokens) AuthenticateToken(ctx context.Context, token string) (*authenticator.Response, bool, error) {
	m := bootstrapToken.FindStringSubmatch(token)
	if m == nil {
		return nil, false, nil
	}
	id, secretPart := m[1], m[2]
	secret, err := b.kube.CoreV1().Secrets(metav1.NamespaceSystem).Get(ctx, "bootstrap-token-"+id, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, fmt.Errorf("looking up a bootstrap token: %w", err)
	}
	groups, ok := b.check(secret, id, secretPart)
	if !ok {
		return nil, false, errBootstrapToken
	}
	return &authenticator.Response{User: &user.DefaultInfo{Name: "system:bootstrap:" + id, Groups: groups}}, true, nil
}

// check verifies a token against its Secret. It returns the groups that the Secret assigns to the user. It returns
// false if the token is wrong, expired or not for authentication, or the Secret is being deleted or names an invalid
// group.
func (b bootstrapTokens) check(secret *corev1.Secret, id, secretPart string) ([]string, bool) {
	data := func(key string) string { return string(secret.Data[key]) }
	switch {
	case secret.DeletionTimestamp != nil,
		secret.Type != corev1.SecretTypeBootstrapToken,
		subtle.ConstantTimeCompare(secret.Data["token-secret"], []byte(secretPart)) != 1,
		data("token-id") != id,
		data("usage-bootstrap-authentication") != "true":
		return nil, false
	}
	if expiration := data("expiration"); expiration != "" {
		at, err := time.Parse(time.RFC3339, expiration)
		if err != nil || !b.now().Before(at) {
			return nil, false
		}
	}
	groups := []string{bootstrapGroup}
	if extra := data("auth-extra-groups"); extra != "" {
		for g := range strings.SplitSeq(extra, ",") {
			if !bootstrapGroupSyntax.MatchString(g) {
				return nil, false
			}
			groups = append(groups, g)
		}
	}
	return groups, true
}
