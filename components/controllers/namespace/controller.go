// Package namespace deletes the content of namespaces that are being deleted, and then removes
// their finalizer.
//
// https://kubernetes.io/docs/concepts/overview/working-with-objects/namespaces/
package namespace

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/discovery"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/util/retry"

	"hyperkube/components/controllers/internal/control"
)

// Config contains the clients that find and delete the content of a namespace, and the delay before the deletion.
type Config struct {
	// Discovery returns the namespaced resources.
	Discovery discovery.DiscoveryInterface
	// Metadata lists and deletes their objects.
	Metadata metadata.Interface
	// Delay is how long the deletion of the content is delayed, so that all API servers observe the
	// namespace's deletion and admit no more objects.
	Delay time.Duration
}

// Controller deletes the content of namespaces that are being deleted, and removes their finalizer when no content is
// left.
type Controller struct {
	*control.Loop
	env        control.Env
	cfg        Config
	namespaces corelisters.NamespaceLister
	pods       corelisters.PodLister
}

// New returns a Controller that uses the API client, the informers and the event recorder in env. The caller then
// starts the informers and calls Run.
func New(env control.Env, cfg Config) (*Controller, error) {
	env = env.Defaulted()
	namespaces, pods := env.Informers.Core().V1().Namespaces(), env.Informers.Core().V1().Pods()
	c := &Controller{env: env, cfg: cfg, namespaces: namespaces.Lister(), pods: pods.Lister()}
	c.Loop = control.NewLoop(env, "namespace", c.sync)
	add := func(ns *corev1.Namespace) {
		if ns.DeletionTimestamp != nil {
			c.AddAfter(ns.Name, cfg.Delay)
		}
	}
	if err := c.Watch(namespaces.Informer(), control.Handlers(add, func(old, cur *corev1.Namespace) {
		// Ignore status updates, which this controller writes.
		if old.DeletionTimestamp == nil || len(old.Spec.Finalizers) != len(cur.Spec.Finalizers) {
			add(cur)
		}
	}, nil)); err != nil {
		return nil, err
	}
	// The content that remains is deleted after the last pod has terminated.
	return c, c.Watch(pods.Informer(), control.Handlers(nil, nil, func(p *corev1.Pod) {
		ns, err := c.namespaces.Get(p.Namespace)
		if err != nil || ns.DeletionTimestamp == nil {
			return
		}
		if rest, err := c.pods.Pods(p.Namespace).List(labels.Everything()); err == nil && len(rest) == 0 {
			c.Add(p.Namespace)
		}
	}))
}

// sync sets the phase of the namespace with the name to Terminating and deletes its content, if the namespace is being
// deleted. If content remains, it schedules another sync; otherwise it removes the finalizer. A namespace without the
// finalizer keeps its content.
func (c *Controller) sync(ctx context.Context, name string) error {
	shared, err := c.namespaces.Get(name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil || shared.DeletionTimestamp == nil {
		return err
	}
	api := c.env.Kube.CoreV1().Namespaces()
	ns, err := api.Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if ns.DeletionTimestamp == nil || ns.UID != shared.UID {
		return nil
	}
	if ns.Status.Phase != corev1.NamespaceTerminating {
		ns, err = c.update(ctx, ns, func(s *corev1.NamespaceStatus) { s.Phase = corev1.NamespaceTerminating })
		if apierrors.IsNotFound(err) {
			return nil
		}
		if err != nil {
			return err
		}
	}
	if !hasFinalizer(ns) {
		return nil
	}
	left, err := c.deleteContent(ctx, ns)
	if err != nil {
		return fmt.Errorf("deleting content of namespace %s: %w", name, err)
	}
	if left > 0 {
		c.AddAfter(name, left/2+time.Second)
		return nil
	}
	return c.finalize(ctx, ns)
}

// update changes the status of ns with f and returns the written namespace. After a conflict it reads the namespace and
// calls f again. It returns an error if the namespace was recreated.
func (c *Controller) update(ctx context.Context, ns *corev1.Namespace, f func(*corev1.NamespaceStatus)) (*corev1.Namespace, error) {
	api := c.env.Kube.CoreV1().Namespaces()
	err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
		next := ns.DeepCopy()
		f(&next.Status)
		written, err := api.UpdateStatus(ctx, next, metav1.UpdateOptions{})
		if err == nil {
			ns = written
			return nil
		}
		if !apierrors.IsConflict(err) {
			return err
		}
		fresh, getErr := api.Get(ctx, ns.Name, metav1.GetOptions{})
		if getErr != nil {
			return getErr
		}
		if fresh.UID != ns.UID {
			return fmt.Errorf("namespace %s was recreated", ns.Name)
		}
		ns = fresh
		return err
	})
	return ns, err
}

// hasFinalizer reports whether ns has the finalizer that this controller removes.
func hasFinalizer(ns *corev1.Namespace) bool {
	return slices.Contains(ns.Spec.Finalizers, corev1.FinalizerKubernetes)
}

// finalize removes this controller's finalizer from ns, whose content is deleted. Other finalizers remain.
func (c *Controller) finalize(ctx context.Context, ns *corev1.Namespace) error {
	next := ns.DeepCopy()
	next.Spec.Finalizers = nil
	for _, f := range ns.Spec.Finalizers {
		if f != corev1.FinalizerKubernetes {
			next.Spec.Finalizers = append(next.Spec.Finalizers, f)
		}
	}
	_, err := c.env.Kube.CoreV1().Namespaces().Finalize(ctx, next, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
