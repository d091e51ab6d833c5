// Package ephemeralvolume creates the claims of pods' generic ephemeral volumes. The pods own the
// claims, so that the garbage collector deletes them together.
//
// https://kubernetes.io/docs/concepts/storage/ephemeral-volumes/#generic-ephemeral-volumes
package ephemeralvolume

import (
	"context"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/component-helpers/storage/ephemeral"

	"hyperkube/components/controllers/internal/control"
)

// Controller creates the claims of pods with generic ephemeral volumes, and creates them again if they are deleted
// while the pod exists.
type Controller struct {
	*control.Loop
	env    control.Env
	pods   corelisters.PodLister
	claims corelisters.PersistentVolumeClaimLister
}

// New returns a Controller that uses the API client, the informers and the event recorder in env. The caller then
// starts the informers and calls Run.
func New(env control.Env) (*Controller, error) {
	env = env.Defaulted()
	core := env.Informers.Core().V1()
	c := &Controller{env: env, pods: core.Pods().Lister(), claims: core.PersistentVolumeClaims().Lister()}
	c.Loop = control.NewLoop(env, "ephemeral-volume", c.sync)
	pod := func(p *corev1.Pod) {
		if p.DeletionTimestamp == nil && slices.ContainsFunc(p.Spec.Volumes, func(v corev1.Volume) bool { return v.Ephemeral != nil }) {
			c.AddObject(p)
		}
	}
	gone := func(pvc *corev1.PersistentVolumeClaim) {
		if owner := metav1.GetControllerOf(pvc); owner != nil && owner.Kind == "Pod" {
			c.Add(pvc.Namespace + "/" + owner.Name)
		}
	}
	return c, errors.Join(
		// The volumes of a pod are immutable, so updates are not handled.
		c.Watch(core.Pods().Informer(), control.Handlers(pod, nil, nil)),
		c.Watch(core.PersistentVolumeClaims().Informer(), control.Handlers(nil, nil, gone)),
	)
}

// sync creates the claims of the pod with the key, unless the pod is being deleted. It stops at the first error, for
// which it also emits an event on the pod.
func (c *Controller) sync(ctx context.Context, key string) error {
	namespace, name := control.SplitKey(key)
	pod, err := c.pods.Pods(namespace).Get(name)
	if apierrors.IsNotFound(err) || err == nil && pod.DeletionTimestamp != nil {
		return nil
	}
	if err != nil {
		return err
	}
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		if v.Ephemeral == nil || v.Ephemeral.VolumeClaimTemplate == nil {
			continue
		}
		if err := c.claim(ctx, pod, v); err != nil {
			c.env.Events.Eventf(pod, corev1.EventTypeWarning, "FailedBinding", "ephemeral volume %s: %v", v.Name, err)
			return fmt.Errorf("pod %s, ephemeral volume %s: %w", key, v.Name, err)
		}
	}
	return nil
}

// claim creates the PersistentVolumeClaim of the ephemeral volume v of pod if it does not exist. It returns an error if
// a claim of that name exists that the pod does not own, because the pod must not use it.
func (c *Controller) claim(ctx context.Context, pod *corev1.Pod, v *corev1.Volume) error {
	name := ephemeral.VolumeClaimName(pod, v)
	pvc, err := c.claims.PersistentVolumeClaims(pod.Namespace).Get(name)
	if err == nil {
		// This returns an error if the claim has another owner.
		return ephemeral.VolumeIsForPod(pod, pvc)
	}
	if !apierrors.IsNotFound(err) {
		return err
	}
	template := v.Ephemeral.VolumeClaimTemplate
	_, err = c.env.Kube.CoreV1().PersistentVolumeClaims(pod.Namespace).Create(ctx, &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Labels: template.Labels, Annotations: template.Annotations,
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(pod, corev1.SchemeGroupVersion.WithKind("Pod"))},
		},
		Spec: template.Spec,
	}, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("creating PVC %s: %w", name, err)
	}
	return nil
}
