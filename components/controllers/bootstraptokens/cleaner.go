package bootstraptokens

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corelisters "k8s.io/client-go/listers/core/v1"

	"hyperkube/components/controllers/internal/control"
)

// Cleaner deletes the Secrets of bootstrap tokens when the tokens expire. Use NewCleaner to create it.
type Cleaner struct {
	*control.Loop
	env     control.Env
	secrets corelisters.SecretLister
}

// NewCleaner returns a Cleaner that uses the API client, the informers and the event recorder in env. The caller then
// starts the informers and calls Run.
func NewCleaner(env control.Env) (*Cleaner, error) {
	env = env.Defaulted()
	secrets := env.Informers.Core().V1().Secrets()
	c := &Cleaner{env: env, secrets: secrets.Lister()}
	c.Loop = control.NewLoop(env, "token_cleaner", c.sync)
	look := func(s *corev1.Secret) {
		if isToken(s) {
			c.Add(s.Name)
		}
	}
	return c, c.Watch(secrets.Informer(), control.AddedOrUpdated(look))
}

// sync deletes the token Secret with this name if it has expired, or schedules another sync for its expiration.
func (c *Cleaner) sync(ctx context.Context, name string) error {
	s, err := c.secrets.Secrets(metav1.NamespaceSystem).Get(name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	d, expires := remainingLifetime(s, c.env.Clock.Now())
	if !isToken(s) || !expires {
		return nil
	}
	if d > 0 {
		c.AddAfter(name, d)
		return nil
	}
	err = c.env.Kube.CoreV1().Secrets(s.Namespace).Delete(ctx, name, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(s.UID))})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil // it is deleted, or replaced by another object of that name
	}
	return err
}
