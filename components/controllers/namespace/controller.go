// Package namespace empties namespaces that are being deleted, and then lets
// them go.
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

// Config says how content is found and deleted.
type Config struct {
	// Discovery tells what there is.
	Discovery discovery.DiscoveryInterface
	// Metadata lists and deletes it.
	Metadata metadata.Interface
	// Delay is how long a deletion is left alone first, so that all of
	// several API servers have heard of it and admit nothing more.
	Delay time.Duration
}

// Controller syncs Namespaces. Make it with New.
type Controller struct {
	*control.Loop
	env        control.Env
	cfg        Config
	namespaces corelisters.NamespaceLister
	pods       corelisters.PodLister
}

// New makes the controller.
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
		// Its own changes of conditions shall not hurry it on.
		if old.DeletionTimestamp == nil || len(old.Spec.Finalizers) != len(cur.Spec.Finalizers) {
			add(cur)
		}
	}, nil)); err != nil {
		return nil, err
	}
	// Pods take their time to end, and the rest waits for the last of them.
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
	left, err := c.empty(ctx, ns)
	if err != nil {
		return fmt.Errorf("deleting the content of namespace %s: %w", name, err)
	}
	if left > 0 {
		c.AddAfter(name, left/2+time.Second)
		return nil
	}
	return c.finalize(ctx, ns)
}

// update changes the status with f, again on the latest object after a
// conflict.
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
			return fmt.Errorf("namespace %s was made anew", ns.Name)
		}
		ns = fresh
		return err
	})
	return ns, err
}

func hasFinalizer(ns *corev1.Namespace) bool {
	return slices.Contains(ns.Spec.Finalizers, corev1.FinalizerKubernetes)
}

// finalize takes the finalizer off that kept the emptied namespace.
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
