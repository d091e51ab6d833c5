// Package volumeexpand emits an event on claims that request more storage than they have. The event explains that an
// external controller, the volume's provisioner, expands the claim. This package expands nothing itself.
//
// https://kubernetes.io/docs/concepts/storage/persistent-volumes/#expanding-persistent-volumes-claims
package volumeexpand

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	corelisters "k8s.io/client-go/listers/core/v1"
	volumehelpers "k8s.io/component-helpers/storage/volume"

	"hyperkube/components/controllers/internal/control"
	"hyperkube/internal/pod/localpath"
)

// Controller emits an event on each claim that requests more storage than it has, unless the local path provisioner
// expands the claim. The event explains that an external controller expands the volume.
type Controller struct {
	*control.Loop
	env     control.Env
	claims  corelisters.PersistentVolumeClaimLister
	volumes corelisters.PersistentVolumeLister
}

// New returns a Controller that uses the API client, the informers and the event recorder in env. The caller then
// starts the informers and calls Run.
func New(env control.Env) (*Controller, error) {
	env = env.Defaulted()
	core := env.Informers.Core().V1()
	c := &Controller{env: env, claims: core.PersistentVolumeClaims().Lister(), volumes: core.PersistentVolumes().Lister()}
	c.Loop = control.NewLoop(env, "persistentvolume-expander", c.sync)
	c.Await(core.PersistentVolumes().Informer())
	grown := func(old, pvc *corev1.PersistentVolumeClaim) {
		before, now := old.Spec.Resources.Requests[corev1.ResourceStorage], pvc.Spec.Resources.Requests[corev1.ResourceStorage]
		if now.Cmp(before) > 0 {
			c.AddObject(pvc)
		}
	}
	seen := func(pvc *corev1.PersistentVolumeClaim) { c.AddObject(pvc) }
	return c, c.Watch(core.PersistentVolumeClaims().Informer(), control.Handlers(seen, grown, nil))
}

// sync emits the event ExternalExpanding on the claim with the key, if the claim is bound and requests more storage
// than it has. It ignores local path volumes, which another controller expands.
func (c *Controller) sync(_ context.Context, key string) error {
	namespace, name := control.SplitKey(key)
	pvc, err := c.claims.PersistentVolumeClaims(namespace).Get(name)
	if apierrors.IsNotFound(err) || err == nil && pvc.Status.Phase != corev1.ClaimBound {
		return nil
	}
	if err != nil {
		return err
	}
	want, has := pvc.Spec.Resources.Requests[corev1.ResourceStorage], pvc.Status.Capacity[corev1.ResourceStorage]
	if want.Cmp(has) <= 0 {
		return nil
	}
	pv, err := c.volumes.Get(pvc.Spec.VolumeName)
	if apierrors.IsNotFound(err) || err == nil && (pv.Spec.ClaimRef == nil || pv.Spec.ClaimRef.UID != pvc.UID) {
		return nil
	}
	if err != nil {
		return err
	}
	if pv.Annotations[volumehelpers.AnnDynamicallyProvisioned] == localpath.Provisioner {
		return nil // the local path provisioner expands it
	}
	c.env.Events.Event(pvc, corev1.EventTypeNormal, "ExternalExpanding", "waiting for an external controller to expand this PVC")
	return nil
}
