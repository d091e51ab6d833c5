// Package serviceaccounttoken adds tokens to Secrets of type kubernetes.io/service-account-token,
// and deletes them when their service account is deleted.
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

// Signer creates tokens of sa that do not expire. A token is valid as long as secret contains it.
type Signer interface {
	Sign(sa *corev1.ServiceAccount, secret *corev1.Secret) (string, error)
}

// Controller adds a token, the CA certificates and the namespace to each token Secret, and deletes the token Secrets of
// deleted service accounts.
type Controller struct {
	*control.Loop
	env      control.Env
	signer   Signer
	ca       []byte
	accounts corelisters.ServiceAccountLister
	secrets  corelisters.SecretLister
}

// A key of the queue is the key of a Secret, or has one of these prefixes: deletedAccountPrefix
// before the key of a deleted account, deletedSecretPrefix before the key of an account and the
// name of a deleted Secret.
const (
	deletedAccountPrefix = "account:"
	deletedSecretPrefix  = "secret:"
)

// New returns a Controller that uses the API client, the informers and the event recorder in env. ca contains the CA
// certificates of the API server in PEM format; if it is empty, they are not added to Secrets. The caller then starts
// the informers and calls Run.
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
	// Remove a deleted Secret from the secrets list of its account.
	left := func(s *corev1.Secret) {
		if isToken(s) {
			c.Add(deletedSecretPrefix + s.Namespace + "/" + s.Annotations[corev1.ServiceAccountNameKey] + "/" + s.Name)
		}
	}
	if err := c.Watch(secrets.Informer(), control.Handlers(look, func(_, s *corev1.Secret) { look(s) }, left)); err != nil {
		return nil, err
	}
	gone := func(sa *corev1.ServiceAccount) { c.Add(deletedAccountPrefix + sa.Namespace + "/" + sa.Name) }
	return c, c.Watch(accounts.Informer(), control.Handlers(nil, func(old, cur *corev1.ServiceAccount) {
		if old.UID != cur.UID {
			gone(old)
		}
	}, gone))
}

// isToken reports whether s is a token Secret: it has the type for tokens and names a service account.
func isToken(s *corev1.Secret) bool {
	return s.Type == corev1.SecretTypeServiceAccountToken && s.Annotations[corev1.ServiceAccountNameKey] != ""
}

// isOf reports whether the token Secret s belongs to sa. It is false if s belongs to a former account of the same name.
func isOf(s *corev1.Secret, sa *corev1.ServiceAccount) bool {
	uid := s.Annotations[corev1.ServiceAccountUIDKey]
	return s.Annotations[corev1.ServiceAccountNameKey] == sa.Name && (uid == "" || uid == string(sa.UID))
}

// sync handles a deleted account or Secret if the key has the corresponding prefix. Otherwise it fills the token Secret
// with the key, or deletes it if its service account does not exist.
func (c *Controller) sync(ctx context.Context, key string) error {
	if account, ok := strings.CutPrefix(key, deletedAccountPrefix); ok {
		return c.enqueueTokens(account)
	}
	if secret, ok := strings.CutPrefix(key, deletedSecretPrefix); ok {
		return c.removeReference(ctx, secret)
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

// account returns the service account of s, or nil if it does not exist. It checks with the API server if the cache
// does not contain the account, because a Secret without account is deleted.
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

// fill adds a token and other missing data to s, a Secret of sa. It keeps an existing token.
func (c *Controller) fill(ctx context.Context, s *corev1.Secret, sa *corev1.ServiceAccount) error {
	if !c.isIncomplete(s, sa) {
		return nil
	}
	// Get the Secret from the API server: the cached one may be older than this controller's last
	// write, and a second token would invalidate the first.
	live, err := c.env.Kube.CoreV1().Secrets(s.Namespace).Get(ctx, s.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil || live.UID != s.UID || !isToken(live) || !c.isIncomplete(live, sa) {
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
	return err // conflicts are retried
}

// isIncomplete reports whether data or the UID of sa is missing in s, or its CA certificates are not up to date.
func (c *Controller) isIncomplete(s *corev1.Secret, sa *corev1.ServiceAccount) bool {
	return len(s.Data[corev1.ServiceAccountTokenKey]) == 0 || len(s.Data[corev1.ServiceAccountNamespaceKey]) == 0 ||
		len(c.ca) > 0 && !bytes.Equal(s.Data[corev1.ServiceAccountRootCAKey], c.ca) ||
		s.Annotations[corev1.ServiceAccountUIDKey] != string(sa.UID)
}

// enqueueTokens enqueues the token Secrets of the deleted service account with the key.
func (c *Controller) enqueueTokens(key string) error {
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

// removeReference removes a deleted Secret from the secrets list of its account. key contains the namespace, the
// account and the Secret. Other names in the list, which may belong to Secrets that do not exist yet, are not changed.
func (c *Controller) removeReference(ctx context.Context, key string) error {
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

// delete deletes s, unless it was already deleted or replaced.
func (c *Controller) delete(ctx context.Context, s *corev1.Secret) error {
	err := c.env.Kube.CoreV1().Secrets(s.Namespace).Delete(ctx, s.Name, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(s.UID))})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil // it is deleted, or replaced by another object of that name
	}
	return err
}
