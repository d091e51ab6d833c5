// Package serviceaccount creates the ServiceAccount "default" in each namespace.
//
// https://kubernetes.io/docs/reference/access-authn-authz/service-accounts-admin/#serviceaccount-controller
package serviceaccount

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corelisters "k8s.io/client-go/listers/core/v1"

	"hyperkube/components/controllers/internal/control"
)

// name is the name of the created service accounts. Pods that specify none use it.
const name = "default"

// Controller creates the service account "default" in each active namespace that lacks it.
type Controller struct {
	*control.Loop
	env        control.Env
	namespaces corelisters.NamespaceLister
	accounts   corelisters.ServiceAccountLister
}

// New returns a Controller that uses the API client, the informers and the event recorder in env. The caller then
// starts the informers and calls Run.
func New(env control.Env) (*Controller, error) {
	env = env.Defaulted()
	namespaces := env.Informers.Core().V1().Namespaces()
	accounts := env.Informers.Core().V1().ServiceAccounts()
	c := &Controller{env: env, namespaces: namespaces.Lister(), accounts: accounts.Lister()}
	c.Loop = control.NewLoop(env, "serviceaccount", c.sync)
	added := func(ns *corev1.Namespace) { c.Add(ns.Name) }
	if err := c.Watch(namespaces.Informer(), control.Handlers(added, func(_, ns *corev1.Namespace) { added(ns) }, nil)); err != nil {
		return nil, err
	}
	return c, c.Watch(accounts.Informer(), control.Handlers(nil, nil, func(sa *corev1.ServiceAccount) { c.Add(sa.Namespace) }))
}

// sync creates the service account "default" in the namespace with the name key if it does not exist, unless the
// namespace does not exist or is not active.
func (c *Controller) sync(ctx context.Context, key string) error {
	ns, err := c.namespaces.Get(key)
	if err != nil || ns.Status.Phase != corev1.NamespaceActive {
		return nil
	}
	if _, err := c.accounts.ServiceAccounts(key).Get(name); !apierrors.IsNotFound(err) {
		return err
	}
	sa := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: key}}
	_, err = c.env.Kube.CoreV1().ServiceAccounts(key).Create(ctx, sa, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) || apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
		return nil
	}
	return err
}
