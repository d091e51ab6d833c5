// Package volumeprotection keeps claims that pods use and volumes that claims
// are bound to, though they were deleted, until that has ended.
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
	"hyperkube/internal/podfacts"
	"hyperkube/internal/podrefs"
)

const claimFinalizer = "kubernetes.io/pvc-protection"

// byClaim indexes pods by the claims that they use.
const byClaim = "claims"

// Claims protects claims. Make it with NewClaims.
type Claims struct {
	*control.Loop
	env    control.Env
	claims corelisters.PersistentVolumeClaimLister
	pods   cache.Indexer
}

// NewClaims makes the controller.
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
		if (pvc.DeletionTimestamp != nil) == slices.Contains(pvc.Finalizers, claimFinalizer) || useOf(pvc) == nil {
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
		if old.UID != p.UID || over(old) != over(p) || shutDown(old) != shutDown(p) {
			touch(p)
		}
	}, touch))
}

// claimsOf returns the keys of the claims of a pod.
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
		if err := c.tellUse(ctx, pvc); err != nil {
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
	used, err := c.used(ctx, pvc, holds)
	if used || err != nil {
		return err
	}
	return c.write(ctx, pvc, slices.DeleteFunc(slices.Clone(pvc.Finalizers), func(f string) bool { return f == claimFinalizer }))
}

// used tells whether a pod uses a claim, by what uses says of each. Before it
// says no it asks the API, for the informer of pods may be behind that of claims.
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
		return false, fmt.Errorf("looking for pods that use claim %s/%s: %w", pvc.Namespace, pvc.Name, err)
	}
	for i := range list.Items {
		if uses(&list.Items[i], pvc) {
			return true, nil
		}
	}
	return false, nil
}

// holds tells whether a pod keeps a claim, for it is on a node and so may have
// the volume mounted: one that has ended does so until it is deleted.
func holds(p *corev1.Pod, pvc *corev1.PersistentVolumeClaim) bool {
	if p.Spec.NodeName == "" {
		return false
	}
	for i := range p.Spec.Volumes {
		v := &p.Spec.Volumes[i]
		if names(v, pvc) || !shutDown(p) && makes(p, v, pvc) {
			return true
		}
	}
	return false
}

// refers tells whether a pod that is not over refers to a claim, on a node or
// not.
func refers(p *corev1.Pod, pvc *corev1.PersistentVolumeClaim) bool {
	if over(p) {
		return false
	}
	for i := range p.Spec.Volumes {
		v := &p.Spec.Volumes[i]
		if names(v, pvc) || makes(p, v, pvc) {
			return true
		}
	}
	return false
}

func names(v *corev1.Volume, pvc *corev1.PersistentVolumeClaim) bool {
	return v.PersistentVolumeClaim != nil && v.PersistentVolumeClaim.ClaimName == pvc.Name
}

// makes tells whether a claim is that of an ephemeral volume.
func makes(p *corev1.Pod, v *corev1.Volume, pvc *corev1.PersistentVolumeClaim) bool {
	return v.Ephemeral != nil && p.Name+"-"+v.Name == pvc.Name && metav1.IsControlledBy(pvc, p)
}

// over tells whether the containers of a pod have ended for good.
func over(p *corev1.Pod) bool {
	if podfacts.Terminal(p) {
		return true
	}
	return p.DeletionTimestamp != nil && !slices.ContainsFunc(p.Status.ContainerStatuses, func(s corev1.ContainerStatus) bool {
		return s.State.Terminated == nil && s.State.Waiting == nil
	})
}

// shutDown tells whether the node is done with a pod, or was not asked.
func shutDown(p *corev1.Pod) bool {
	return p.DeletionTimestamp != nil && p.DeletionGracePeriodSeconds != nil && *p.DeletionGracePeriodSeconds == 0
}

// useOf returns the condition that tells since when a claim is not in use, nil
// if there is none.
func useOf(pvc *corev1.PersistentVolumeClaim) *corev1.PersistentVolumeClaimCondition {
	for i := range pvc.Status.Conditions {
		if c := &pvc.Status.Conditions[i]; c.Type == corev1.PersistentVolumeClaimUnused {
			return c
		}
	}
	return nil
}

// tellUse keeps the condition of a bound claim that tells since when no pod has
// referred to it.
//
// https://kep.k8s.io/5541
func (c *Claims) tellUse(ctx context.Context, pvc *corev1.PersistentVolumeClaim) error {
	used, err := c.used(ctx, pvc, refers)
	if err != nil {
		return err
	}
	was := useOf(pvc)
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
	if at := useOf(next); at != nil {
		*at = now
	} else {
		next.Status.Conditions = append(next.Status.Conditions, now)
	}
	if _, err := c.env.Kube.CoreV1().PersistentVolumeClaims(pvc.Namespace).UpdateStatus(ctx, next, metav1.UpdateOptions{}); err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("telling whether claim %s/%s is in use: %w", pvc.Namespace, pvc.Name, err)
	}
	return nil
}

func (c *Claims) write(ctx context.Context, pvc *corev1.PersistentVolumeClaim, finalizers []string) error {
	next := pvc.DeepCopy()
	next.Finalizers = finalizers
	_, err := c.env.Kube.CoreV1().PersistentVolumeClaims(pvc.Namespace).Update(ctx, next, metav1.UpdateOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("protecting claim %s/%s: %w", pvc.Namespace, pvc.Name, err)
	}
	return nil
}
