package volumeprotection

import (
	"context"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	corelisters "k8s.io/client-go/listers/core/v1"
	storagelisters "k8s.io/client-go/listers/storage/v1"

	"hyperkube/components/controllers/internal/control"
)

// classFinalizer delays the deletion of a class as long as claims or volumes use it.
const classFinalizer = "kubernetes.io/vac-protection"

// Classes adds the finalizer to each VolumeAttributesClass, and removes it from a deleted class that no claim or volume
// uses.
type Classes struct {
	*control.Loop
	env     control.Env
	classes storagelisters.VolumeAttributesClassLister
	claims  corelisters.PersistentVolumeClaimLister
	volumes corelisters.PersistentVolumeLister
}

// NewClasses returns the controller of VolumeAttributesClasses. The caller then starts the informers and calls Run.
func NewClasses(env control.Env) (*Classes, error) {
	env = env.Defaulted()
	core := env.Informers.Core().V1()
	classes := env.Informers.Storage().V1().VolumeAttributesClasses()
	c := &Classes{env: env, classes: classes.Lister(), claims: core.PersistentVolumeClaims().Lister(), volumes: core.PersistentVolumes().Lister()}
	c.Loop = control.NewLoop(env, "volumeattributesclass-protection", c.sync)
	changed := func(class *storagev1.VolumeAttributesClass) {
		if (class.DeletionTimestamp != nil) == slices.Contains(class.Finalizers, classFinalizer) {
			c.AddObject(class)
		}
	}
	claim := func(pvc *corev1.PersistentVolumeClaim) {
		for _, name := range attributesOf(pvc) {
			c.Add(name)
		}
	}
	volume := func(pv *corev1.PersistentVolume) {
		if name := pv.Spec.VolumeAttributesClassName; name != nil && *name != "" {
			c.Add(*name)
		}
	}
	return c, errors.Join(
		c.Watch(classes.Informer(), control.Handlers(changed, func(_, class *storagev1.VolumeAttributesClass) { changed(class) }, nil)),
		// Only a claim or volume that stops referring to a class can unblock its deletion.
		c.Watch(core.PersistentVolumeClaims().Informer(), control.Handlers(nil, func(old, _ *corev1.PersistentVolumeClaim) { claim(old) }, claim)),
		c.Watch(core.PersistentVolumes().Informer(), control.Handlers(nil, func(old, _ *corev1.PersistentVolume) { volume(old) }, volume)),
	)
}

// attributesOf returns the names of the VolumeAttributesClasses that a claim requests, has, or is being changed to.
func attributesOf(pvc *corev1.PersistentVolumeClaim) []string {
	var names []string
	add := func(name *string) {
		if name != nil && *name != "" {
			names = append(names, *name)
		}
	}
	add(pvc.Spec.VolumeAttributesClassName)
	add(pvc.Status.CurrentVolumeAttributesClassName)
	if s := pvc.Status.ModifyVolumeStatus; s != nil {
		add(&s.TargetVolumeAttributesClassName)
	}
	return names
}

// sync adds the finalizer to the VolumeAttributesClass with the name, or removes it from a deleted class that is not
// used.
func (c *Classes) sync(ctx context.Context, name string) error {
	class, err := c.classes.Get(name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	next := class.DeepCopy()
	has := slices.Contains(class.Finalizers, classFinalizer)
	switch {
	case class.DeletionTimestamp == nil && !has:
		next.Finalizers = append(next.Finalizers, classFinalizer)
	case class.DeletionTimestamp != nil && has:
		used, err := c.used(name)
		if used || err != nil {
			return err
		}
		next.Finalizers = slices.DeleteFunc(next.Finalizers, func(f string) bool { return f == classFinalizer })
	default:
		return nil
	}
	if _, err := c.env.Kube.StorageV1().VolumeAttributesClasses().Update(ctx, next, metav1.UpdateOptions{}); err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("updating finalizers of class %s: %w", name, err)
	}
	return nil
}

// used reports whether a claim or volume refers to the class with the name.
func (c *Classes) used(name string) (bool, error) {
	claims, err := c.claims.List(labels.Everything())
	if err != nil {
		return false, err
	}
	volumes, err := c.volumes.List(labels.Everything())
	if err != nil {
		return false, err
	}
	return slices.ContainsFunc(claims, func(pvc *corev1.PersistentVolumeClaim) bool { return slices.Contains(attributesOf(pvc), name) }) ||
		slices.ContainsFunc(volumes, func(pv *corev1.PersistentVolume) bool {
			return pv.Spec.VolumeAttributesClassName != nil && *pv.Spec.VolumeAttributesClassName == name
		}), nil
}
