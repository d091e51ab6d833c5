package volumeprotection

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corelisters "k8s.io/client-go/listers/core/v1"

	"hyperkube/components/controllers/internal/control"
)

// volumeFinalizer delays the deletion of a volume as long as it is bound to a claim.
const volumeFinalizer = "kubernetes.io/pv-protection"

// Volumes adds the finalizer to each volume, and removes it from a deleted volume that is not bound.
type Volumes struct {
	*control.Loop
	env     control.Env
	volumes corelisters.PersistentVolumeLister
}

// NewVolumes returns the controller of volumes. The caller then starts the informers and calls Run.
func NewVolumes(env control.Env) (*Volumes, error) {
	env = env.Defaulted()
	volumes := env.Informers.Core().V1().PersistentVolumes()
	c := &Volumes{env: env, volumes: volumes.Lister()}
	c.Loop = control.NewLoop(env, "pv-protection", c.sync)
	changed := func(pv *corev1.PersistentVolume) {
		if (pv.DeletionTimestamp != nil) == slices.Contains(pv.Finalizers, volumeFinalizer) {
			c.AddObject(pv)
		}
	}
	return c, c.Watch(volumes.Informer(), control.AddedOrUpdated(changed))
}

// sync adds the finalizer to the PersistentVolume with the name, or removes it from a deleted volume that is not
// bound.
func (c *Volumes) sync(ctx context.Context, name string) error {
	pv, err := c.volumes.Get(name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	next := pv.DeepCopy()
	has := slices.Contains(pv.Finalizers, volumeFinalizer)
	switch {
	case pv.DeletionTimestamp == nil && !has:
		next.Finalizers = append(next.Finalizers, volumeFinalizer)
	case pv.DeletionTimestamp != nil && has && pv.Status.Phase != corev1.VolumeBound:
		next.Finalizers = slices.DeleteFunc(next.Finalizers, func(f string) bool { return f == volumeFinalizer })
	default:
		return nil
	}
	if _, err := c.env.Kube.CoreV1().PersistentVolumes().Update(ctx, next, metav1.UpdateOptions{}); err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("updating finalizers of volume %s: %w", name, err)
	}
	return nil
}
