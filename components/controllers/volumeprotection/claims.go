// Package volumeprotection maintains finalizers that delay the deletion of claims that pods use,
// and of volumes and VolumeAttributesClasses that are in use.
//
// https://kubernetes.io/docs/concepts/storage/persistent-volumes/#storage-object-in-use-protection
package volumeprotection

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"

	"hyperkube/components/controllers/internal/control"
	"hyperkube/internal/api/podrefs"
	"hyperkube/internal/pod/podutil"
)

// claimFinalizer delays the deletion of a claim as long as pods use it.
const claimFinalizer = "kubernetes.io/pvc-protection"

// byClaim is the name of the index of pods by the claims that they use.
const byClaim = "claims"

// Claims adds the finalizer to each claim, and removes it from a deleted claim that no pod uses. It also maintains the
// condition Unused.
type Claims struct {
	*control.Loop
	env    control.Env
	claims corelisters.PersistentVolumeClaimLister
	pods   cache.Indexer
}

// NewClaims returns the controller of claims. It adds an index to the informer of pods. The caller then starts the
// informers and calls Run.
func NewClaims(env control.Env) (*Claims, error) {
	env = env.Defaulted()
	core := env.Informers.Core().V1()
	pods := core.Pods().Informer()
	c := &Claims{env: env, claims: core.PersistentVolumeClaims().Lister(), pods: pods.GetIndexer()}
	if _, ok := pods.GetIndexer().GetIndexers()[byClaim]; !ok {
		if err := pods.AddIndexers(cache.Indexers{byClaim: claimsOf}); err != nil {
			return nil, fmt.Errorf("indexing pods: %w", err)
		}
	}
	c.Loop = control.NewLoop(env, "pvc-protection", c.sync)
	claim := func(pvc *corev1.PersistentVolumeClaim) {
		if (pvc.DeletionTimestamp != nil) == slices.Contains(pvc.Finalizers, claimFinalizer) || unusedCondition(pvc) == nil {
			c.AddObject(pvc)
		}
	}
	touch := func(p *corev1.Pod) {
		keys, _ := claimsOf(p)
		for _, key := range keys {
			c.Add(key)
		}
	}
	if err := c.Watch(core.PersistentVolumeClaims().Informer(), control.Handlers(claim, func(_, pvc *corev1.PersistentVolumeClaim) { claim(pvc) }, nil)); err != nil {
		return nil, err
	}
	return c, c.Watch(pods, control.Handlers(touch, func(old, p *corev1.Pod) {
		if old.UID != p.UID {
			touch(old)
		}
		if old.UID != p.UID || terminated(old) != terminated(p) || shutDown(old) != shutDown(p) {
			touch(p)
		}
	}, touch))
}

// claimsOf returns the keys of the claims of a pod, including those of its ephemeral volumes. It is the function of the
// index byClaim.
func claimsOf(obj any) ([]string, error) {
	p, ok := obj.(*corev1.Pod)
	if !ok {
		return nil, nil
	}
	var keys []string
	for i := range p.Spec.Volumes {
		if name := podrefs.ClaimName(p, &p.Spec.Volumes[i]); name != "" {
			keys = append(keys, p.Namespace+"/"+name)
		}
	}
	return keys, nil
}

// sync maintains the finalizer and the condition Unused of the claim with the key.
func (c *Claims) sync(ctx context.Context, key string) error {
	namespace, name := control.SplitKey(key)
	pvc, err := c.claims.PersistentVolumeClaims(namespace).Get(name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if pvc.DeletionTimestamp == nil && pvc.Status.Phase == corev1.ClaimBound {
		if err := c.updateUnusedCondition(ctx, pvc); err != nil {
			return err
		}
	}
	has := slices.Contains(pvc.Finalizers, claimFinalizer)
	switch {
	case pvc.DeletionTimestamp == nil && !has:
		return c.write(ctx, pvc, append(slices.Clone(pvc.Finalizers), claimFinalizer))
	case pvc.DeletionTimestamp == nil || !has:
		return nil
	}
	used, err := c.used(ctx, pvc, keepsClaim)
	if used || err != nil {
		return err
	}
	return c.write(ctx, pvc, slices.DeleteFunc(slices.Clone(pvc.Finalizers), func(f string) bool { return f == claimFinalizer }))
}

// used reports whether some pod in the claim's namespace uses the claim, as decided by uses. If no pod in the cache
// does, it checks with the API server, because the cache may be stale.
func (c *Claims) used(ctx context.Context, pvc *corev1.PersistentVolumeClaim, uses func(*corev1.Pod, *corev1.PersistentVolumeClaim) bool) (bool, error) {
	objs, err := c.pods.ByIndex(byClaim, pvc.Namespace+"/"+pvc.Name)
	if err != nil {
		return false, err
	}
	for _, o := range objs {
		if p, ok := o.(*corev1.Pod); ok && uses(p, pvc) {
			return true, nil
		}
	}
	list, err := c.env.Kube.CoreV1().Pods(pvc.Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return false, fmt.Errorf("listing pods that use claim %s/%s: %w", pvc.Namespace, pvc.Name, err)
	}
	for i := range list.Items {
		if uses(&list.Items[i], pvc) {
			return true, nil
		}
	}
	return false, nil
}

// keepsClaim reports whether p prevents the deletion of pvc. Pods on a node do, even after they have terminated,
// because the volume may still be mounted. The only exception is a pod that is shut down and for whose ephemeral
// volume pvc was created.
func keepsClaim(p *corev1.Pod, pvc *corev1.PersistentVolumeClaim) bool {
	if p.Spec.NodeName == "" {
		return false
	}
	for i := range p.Spec.Volumes {
		v := &p.Spec.Volumes[i]
		if refersByName(v, pvc) || !shutDown(p) && ownsEphemeral(p, v, pvc) {
			return true
		}
	}
	return false
}

// refersToClaim reports whether p refers to pvc and has not terminated. p need not be scheduled.
func refersToClaim(p *corev1.Pod, pvc *corev1.PersistentVolumeClaim) bool {
	if terminated(p) {
		return false
	}
	for i := range p.Spec.Volumes {
		v := &p.Spec.Volumes[i]
		if refersByName(v, pvc) || ownsEphemeral(p, v, pvc) {
			return true
		}
	}
	return false
}

// refersByName reports whether v names the claim pvc. It is false for ephemeral volumes.
func refersByName(v *corev1.Volume, pvc *corev1.PersistentVolumeClaim) bool {
	return v.PersistentVolumeClaim != nil && v.PersistentVolumeClaim.ClaimName == pvc.Name
}

// ownsEphemeral reports whether v is an ephemeral volume of p and pvc is its claim.
func ownsEphemeral(p *corev1.Pod, v *corev1.Volume, pvc *corev1.PersistentVolumeClaim) bool {
	return v.Ephemeral != nil && p.Name+"-"+v.Name == pvc.Name && metav1.IsControlledBy(pvc, p)
}

// terminated reports whether no container of a pod runs or will run again: the pod is in a terminal phase, or is being
// deleted and no container is running.
func terminated(p *corev1.Pod) bool {
	if podutil.Terminal(p) {
		return true
	}
	return p.DeletionTimestamp != nil && !slices.ContainsFunc(p.Status.ContainerStatuses, func(s corev1.ContainerStatus) bool {
		return s.State.Terminated == nil && s.State.Waiting == nil
	})
}

// shutDown reports whether only the deletion of p remains to be completed, because the kubelet has terminated p, or p
// was deleted with a grace period of zero.
func shutDown(p *corev1.Pod) bool {
	return p.DeletionTimestamp != nil && p.DeletionGracePeriodSeconds != nil && *p.DeletionGracePeriodSeconds == 0
}

// unusedCondition returns the condition Unused of pvc, which shows since when no pod has referred to it, or nil. The
// result points into pvc.
func unusedCondition(pvc *corev1.PersistentVolumeClaim) *corev1.PersistentVolumeClaimCondition {
	for i := range pvc.Status.Conditions {
		if c := &pvc.Status.Conditions[i]; c.Type == corev1.PersistentVolumeClaimUnused {
			return c
		}
	}
	return nil
}

// updateUnusedCondition updates the condition Unused of pvc, which is bound, unless its status is already right.
//
// https://kep.k8s.io/5541
func (c *Claims) updateUnusedCondition(ctx context.Context, pvc *corev1.PersistentVolumeClaim) error {
	used, err := c.used(ctx, pvc, refersToClaim)
	if err != nil {
		return err
	}
	was := unusedCondition(pvc)
	now := corev1.PersistentVolumeClaimCondition{
		Type: corev1.PersistentVolumeClaimUnused, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(c.env.Clock.Now()),
		Reason: "NoPodsUsingPVC", Message: "No pods are currently referencing this PVC",
	}
	if used {
		now.Status, now.Reason, now.Message = corev1.ConditionFalse, "PodUsingPVC", "A pod is currently referencing this PVC"
	}
	if was != nil && was.Status == now.Status {
		return nil
	}
	next := pvc.DeepCopy()
	if at := unusedCondition(next); at != nil {
		*at = now
	} else {
		next.Status.Conditions = append(next.Status.Conditions, now)
	}
	if _, err := c.env.Kube.CoreV1().PersistentVolumeClaims(pvc.Namespace).UpdateStatus(ctx, next, metav1.UpdateOptions{}); err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("updating Unused condition of claim %s/%s: %w", pvc.Namespace, pvc.Name, err)
	}
	return nil
}

// write replaces the finalizers of pvc in the API server by finalizers.
func (c *Claims) write(ctx context.Context, pvc *corev1.PersistentVolumeClaim, finalizers []string) error {
	next := pvc.DeepCopy()
	next.Finalizers = finalizers
	_, err := c.env.Kube.CoreV1().PersistentVolumeClaims(pvc.Namespace).Update(ctx, next, metav1.UpdateOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("updating finalizers of claim %s/%s: %w", pvc.Namespace, pvc.Name, err)
	}
	return nil
}
