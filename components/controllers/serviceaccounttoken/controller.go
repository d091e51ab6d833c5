// Package serviceaccounttoken fills Secrets of the type
// kubernetes.io/service-account-token with a token of the service account that
// they name, and deletes them when that account has gone.
//
// https://kubernetes.io/docs/reference/access-authn-authz/service-accounts-admin/#token-controller
package serviceaccounttoken

import (
	"bytes"
	"context"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	corelisters "k8s.io/client-go/listers/core/v1"

	"hyperkube/components/controllers/internal/control"
)

// Signer makes tokens that do not expire; they are good while secret has them.
type Signer interface {
	Sign(sa *corev1.ServiceAccount, secret *corev1.Secret) (string, error)
}

// Controller keeps the Secrets. Make it with New.
type Controller struct {
	*control.Loop
	env      control.Env
	signer   Signer
	ca       []byte
	accounts corelisters.ServiceAccountLister
	secrets  corelisters.SecretLister
}

// Keys of the queue are those of Secrets, or of what has gone: of an account
// behind goneAccount, of an account and the name of a Secret behind goneSecret.
const (
	goneAccount = "account:"
	goneSecret  = "secret:"
)

// New makes the controller. ca are the certificates in PEM that pods verify the
// API server by; without any, Secrets get none.
func New(env control.Env, signer Signer, ca []byte) (*Controller, error) {
	env = env.Defaulted()
	accounts := env.Informers.Core().V1().ServiceAccounts()
	secrets := env.Informers.Core().V1().Secrets()
	c := &Controller{env: env, signer: signer, ca: ca, accounts: accounts.Lister(), secrets: secrets.Lister()}
	c.Loop = control.NewLoop(env, "serviceaccount_token", c.sync)
	look := func(s *corev1.Secret) {
		if isToken(s) {
			c.AddObject(s)
		}
	}
	// A Secret that has gone leaves the list of its account.
	left := func(s *corev1.Secret) {
		if isToken(s) {
			c.Add(goneSecret + s.Namespace + "/" + s.Annotations[corev1.ServiceAccountNameKey] + "/" + s.Name)
		}
	}
	if err := c.Watch(secrets.Informer(), control.Handlers(look, func(_, s *corev1.Secret) { look(s) }, left)); err != nil {
		return nil, err
	}
	gone := func(sa *corev1.ServiceAccount) { c.Add(goneAccount + sa.Namespace + "/" + sa.Name) }
	return c, c.Watch(accounts.Informer(), control.Handlers(nil, func(old, cur *corev1.ServiceAccount) {
		if old.UID != cur.UID {
			gone(old)
		}
	}, gone))
}

// isToken tells whether s is meant to have the token of an account.
func isToken(s *corev1.Secret) bool {
	return s.Type == corev1.SecretTypeServiceAccountToken && s.Annotations[corev1.ServiceAccountNameKey] != ""
}

// isOf tells whether s is a token of sa and of no other of that name.
func isOf(s *corev1.Secret, sa *corev1.ServiceAccount) bool {
	uid := s.Annotations[corev1.ServiceAccountUIDKey]
	return s.Annotations[corev1.ServiceAccountNameKey] == sa.Name && (uid == "" || uid == string(sa.UID))
}

func (c *Controller) sync(ctx context.Context, key string) error {
	if account, ok := strings.CutPrefix(key, goneAccount); ok {
		return c.accountGone(account)
	}
	if secret, ok := strings.CutPrefix(key, goneSecret); ok {
		return c.unlist(ctx, secret)
	}
	namespace, name := control.SplitKey(key)
	s, err := c.secrets.Secrets(namespace).Get(name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil || !isToken(s) || s.DeletionTimestamp != nil {
		return err
	}
	sa, err := c.account(ctx, s)
	if err != nil {
		return err
	}
	if sa == nil {
		return c.delete(ctx, s)
	}
	return c.fill(ctx, s, sa)
}

// account returns the account of s, nil if there is none. The cache may not
// have heard of one yet, so the API is asked before a Secret goes.
func (c *Controller) account(ctx context.Context, s *corev1.Secret) (*corev1.ServiceAccount, error) {
	name := s.Annotations[corev1.ServiceAccountNameKey]
	if sa, err := c.accounts.ServiceAccounts(s.Namespace).Get(name); err == nil && isOf(s, sa) {
		return sa, nil
	}
	sa, err := c.env.Kube.CoreV1().ServiceAccounts(s.Namespace).Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, err
	case !isOf(s, sa):
		return nil, nil
	}
	return sa, nil
}

// fill adds what s lacks.
func (c *Controller) fill(ctx context.Context, s *corev1.Secret, sa *corev1.ServiceAccount) error {
	if !c.lacks(s, sa) {
		return nil
	}
	// What the cache has may be older than what this controller wrote, and a
	// second token would make the first one worthless.
	live, err := c.env.Kube.CoreV1().Secrets(s.Namespace).Get(ctx, s.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil || live.UID != s.UID || !isToken(live) || !c.lacks(live, sa) {
		return err
	}
	next := live.DeepCopy()
	if next.Data == nil {
		next.Data = map[string][]byte{}
	}
	if len(c.ca) > 0 {
		next.Data[corev1.ServiceAccountRootCAKey] = c.ca
	}
	if len(next.Data[corev1.ServiceAccountNamespaceKey]) == 0 {
		next.Data[corev1.ServiceAccountNamespaceKey] = []byte(s.Namespace)
	}
	if len(next.Data[corev1.ServiceAccountTokenKey]) == 0 {
		token, err := c.signer.Sign(sa, next)
		if err != nil {
			return err
		}
		next.Data[corev1.ServiceAccountTokenKey] = []byte(token)
	}
	next.Annotations = maps.Clone(next.Annotations)
	next.Annotations[corev1.ServiceAccountNameKey] = sa.Name
	next.Annotations[corev1.ServiceAccountUIDKey] = string(sa.UID)
	_, err = c.env.Kube.CoreV1().Secrets(s.Namespace).Update(ctx, next, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err // after a conflict it is looked at again
}

func (c *Controller) lacks(s *corev1.Secret, sa *corev1.ServiceAccount) bool {
	return len(s.Data[corev1.ServiceAccountTokenKey]) == 0 || len(s.Data[corev1.ServiceAccountNamespaceKey]) == 0 ||
		len(c.ca) > 0 && !bytes.Equal(s.Data[corev1.ServiceAccountRootCAKey], c.ca) ||
		s.Annotations[corev1.ServiceAccountUIDKey] != string(sa.UID)
}

// accountGone has the tokens of an account looked at.
func (c *Controller) accountGone(key string) error {
	namespace, name := control.SplitKey(key)
	secrets, err := c.secrets.Secrets(namespace).List(labels.Everything())
	if err != nil {
		return err
	}
	for _, s := range secrets {
		if isToken(s) && s.Annotations[corev1.ServiceAccountNameKey] == name {
			c.AddObject(s)
		}
	}
	return nil
}

// unlist takes a Secret that has gone off the list of its account. Other names
// on it, of Secrets that are yet to come too, are their writer's affair.
func (c *Controller) unlist(ctx context.Context, key string) error {
	parts := strings.Split(key, "/")
	if len(parts) != 3 {
		return nil
	}
	namespace, account, name := parts[0], parts[1], parts[2]
	sa, err := c.accounts.ServiceAccounts(namespace).Get(account)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	is := func(ref corev1.ObjectReference) bool { return ref.Name == name }
	if _, err := c.secrets.Secrets(namespace).Get(name); err == nil || !slices.ContainsFunc(sa.Secrets, is) {
		return nil
	}
	next := sa.DeepCopy()
	next.Secrets = slices.DeleteFunc(next.Secrets, is)
	_, err = c.env.Kube.CoreV1().ServiceAccounts(namespace).Update(ctx, next, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

func (c *Controller) delete(ctx context.Context, s *corev1.Secret) error {
	err := c.env.Kube.CoreV1().Secrets(s.Namespace).Delete(ctx, s.Name, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(s.UID))})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil // it is gone, or another of that name
	}
	return err
}
