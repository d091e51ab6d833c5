package statefulset

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"

	"hyperkube/components/controllers/internal/control"
)

var podKind = corev1.SchemeGroupVersion.WithKind("Pod")

// hasClaims tells whether the volumes of a pod refer to its own claims.
func hasClaims(set *appsv1.StatefulSet, p *corev1.Pod, ordinal int) bool {
	for i := range set.Spec.VolumeClaimTemplates {
		name := set.Spec.VolumeClaimTemplates[i].Name
		if !slices.ContainsFunc(p.Spec.Volumes, func(v corev1.Volume) bool {
			return v.Name == name && v.PersistentVolumeClaim != nil && v.PersistentVolumeClaim.ClaimName == claimName(set, name, ordinal)
		}) {
			return false
		}
	}
	return true
}

// claims are the claims that the pod of an ordinal needs.
func claims(set *appsv1.StatefulSet, ordinal int) []*corev1.PersistentVolumeClaim {
	var out []*corev1.PersistentVolumeClaim
	for i := range set.Spec.VolumeClaimTemplates {
		c := set.Spec.VolumeClaimTemplates[i].DeepCopy()
		c.Name, c.Namespace = claimName(set, c.Name, ordinal), set.Namespace
		c.Labels = maps.Clone(c.Labels)
		if set.Spec.Selector != nil && len(set.Spec.Selector.MatchLabels) > 0 {
			if c.Labels == nil {
				c.Labels = map[string]string{}
			}
			maps.Copy(c.Labels, set.Spec.Selector.MatchLabels)
		}
		if withSet, _ := policy(set); withSet {
			// At once, so that who provisions it is not in the way of that.
			c.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(set, Kind)}
		}
		out = append(out, c)
	}
	return out
}

// ensureClaims makes the claims of a pod that are not there.
func (c *Controller) ensureClaims(ctx context.Context, set *appsv1.StatefulSet, p *corev1.Pod, ordinal int) error {
	var errs []error
	for _, claim := range claims(set, ordinal) {
		there, err := c.claims.PersistentVolumeClaims(claim.Namespace).Get(claim.Name)
		switch {
		case apierrors.IsNotFound(err):
			_, err := c.env.Kube.CoreV1().PersistentVolumeClaims(claim.Namespace).Create(ctx, claim, metav1.CreateOptions{})
			if err != nil {
				errs = append(errs, fmt.Errorf("failed to create PVC %s: %w", claim.Name, err))
			}
			if !apierrors.IsAlreadyExists(err) {
				c.recordClaim(set, p, claim, err)
			}
		case err != nil:
			errs = append(errs, fmt.Errorf("failed to retrieve PVC %s: %w", claim.Name, err))
			c.recordClaim(set, p, claim, err)
		case there.DeletionTimestamp != nil:
			errs = append(errs, fmt.Errorf("pvc %s is being deleted", claim.Name))
		}
	}
	return errors.Join(errs...)
}

// recordClaim tells of a claim made, or not.
func (c *Controller) recordClaim(set *appsv1.StatefulSet, p *corev1.Pod, claim *corev1.PersistentVolumeClaim, err error) {
	if err == nil {
		c.env.Events.Eventf(set, corev1.EventTypeNormal, control.SuccessfulCreate, "Create Claim %s Pod %s in StatefulSet %s success", claim.Name, p.Name, set.Name)
		return
	}
	c.env.Events.Eventf(set, corev1.EventTypeWarning, control.FailedCreate, "Create Claim %s for Pod %s in StatefulSet %s failed error: %s", claim.Name, p.Name, set.Name, err)
}

// policy is what becomes of claims, Retain where nothing is said.
func policy(set *appsv1.StatefulSet) (deletedWithSet, deletedWithPod bool) {
	r := set.Spec.PersistentVolumeClaimRetentionPolicy
	if r == nil {
		return false, false
	}
	const del = appsv1.DeletePersistentVolumeClaimRetentionPolicyType
	return r.WhenDeleted == del, r.WhenScaled == del
}

// claimsOfAnother tells whether a claim of the pod to be made is still owned by
// an earlier pod of its name, with which it goes.
func (c *Controller) claimsOfAnother(set *appsv1.StatefulSet, p *corev1.Pod, ordinal int) bool {
	if _, withPod := policy(set); !withPod {
		return false
	}
	for _, claim := range claims(set, ordinal) {
		there, err := c.claims.PersistentVolumeClaims(claim.Namespace).Get(claim.Name)
		if err == nil && ownedByNamesake(there, p, podKind) {
			return true
		}
	}
	return false
}

// claimsOf calls f with each claim of a pod that is there, until it returns
// false.
func (c *Controller) claimsOf(set *appsv1.StatefulSet, p *corev1.Pod, f func(*corev1.PersistentVolumeClaim) bool) error {
	ordinal, ok := ordinalOf(set, p)
	if !ok {
		return nil
	}
	for i := range set.Spec.VolumeClaimTemplates {
		name := claimName(set, set.Spec.VolumeClaimTemplates[i].Name, ordinal)
		there, err := c.claims.PersistentVolumeClaims(set.Namespace).Get(name)
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return fmt.Errorf("could not retrieve claim %s for %s when checking PVC deletion policy: %w", name, p.Name, err)
		}
		if !f(there) {
			return nil
		}
	}
	return nil
}

// claimsSettled tells whether the claims of a pod go with whom they should.
func (c *Controller) claimsSettled(set *appsv1.StatefulSet, p *corev1.Pod) bool {
	settled := true
	err := c.claimsOf(set, p, func(claim *corev1.PersistentVolumeClaim) bool {
		_, changed := owners(claim, set, p)
		settled = !changed
		return settled
	})
	return settled || err != nil
}

// settleClaims makes the claims of a pod go with whom they should: the set, the
// pod that is scaled away, or nobody.
func (c *Controller) settleClaims(ctx context.Context, set *appsv1.StatefulSet, p *corev1.Pod) error {
	var failed error
	err := c.claimsOf(set, p, func(claim *corev1.PersistentVolumeClaim) bool {
		if foreign(claim, set, p) {
			c.env.Events.Eventf(set, corev1.EventTypeWarning, "ConflictingController",
				"PersistentVolumeClaim %s has a conflicting OwnerReference that acts as a manging controller, the retention policy is ignored for this claim", claim.Name)
		}
		refs, changed := owners(claim, set, p)
		if !changed {
			return true
		}
		next := claim.DeepCopy()
		next.OwnerReferences = refs
		if _, err := c.env.Kube.CoreV1().PersistentVolumeClaims(next.Namespace).Update(ctx, next, metav1.UpdateOptions{}); err != nil {
			failed = fmt.Errorf("could not update claim %s for delete policy ownerRefs: %w", next.Name, err)
		}
		return failed == nil
	})
	return errors.Join(err, failed)
}

// names tells whether a reference is to an object of this kind and name, which
// need not be the same object.
func names(r *metav1.OwnerReference, o metav1.Object, kind schema.GroupVersionKind) bool {
	return r.APIVersion == kind.GroupVersion().String() && r.Kind == kind.Kind && r.Name == o.GetName()
}

// ownedByNamesake tells whether an earlier object of the name of o owns claim.
func ownedByNamesake(claim *corev1.PersistentVolumeClaim, o metav1.Object, kind schema.GroupVersionKind) bool {
	i := slices.IndexFunc(claim.OwnerReferences, func(r metav1.OwnerReference) bool { return names(&r, o, kind) })
	return i >= 0 && claim.OwnerReferences[i].UID != o.GetUID()
}

// foreign tells whether something else than the set and the pod controls a
// claim that the set has a policy for.
func foreign(claim *corev1.PersistentVolumeClaim, set *appsv1.StatefulSet, p *corev1.Pod) bool {
	if withSet, withPod := policy(set); !withSet && !withPod {
		return false
	}
	return slices.ContainsFunc(claim.OwnerReferences, func(r metav1.OwnerReference) bool {
		switch {
		case names(&r, set, Kind):
			return r.UID != set.UID
		case names(&r, p, podKind):
			return r.UID != p.UID
		}
		return ptr.Deref(r.Controller, false)
	})
}

// owners are who a claim should be owned by; false when it is so already, or
// when it is better left alone.
func owners(claim *corev1.PersistentVolumeClaim, set *appsv1.StatefulSet, p *corev1.Pod) ([]metav1.OwnerReference, bool) {
	if ownedByNamesake(claim, set, Kind) || ownedByNamesake(claim, p, podKind) {
		return nil, false
	}
	var others []metav1.OwnerReference
	bySet, byPod, loose := false, false, false
	for _, r := range claim.OwnerReferences {
		ofSet, ofPod := r.UID == set.UID, p.UID != "" && r.UID == p.UID
		bySet, byPod = bySet || ofSet, byPod || ofPod
		if (ofSet || ofPod) && (r.Controller == nil || !*r.Controller) {
			loose = true
		}
		if !names(&r, set, Kind) && !names(&r, p, podKind) {
			others = append(others, r)
		}
	}
	if foreign(claim, set, p) {
		return others, bySet || byPod
	}
	withSet, withPod := policy(set)
	ordinal, _ := ordinalOf(set, p)
	scaledAway := ordinal < start(set) || ordinal >= start(set)+size(set)
	wantPod := withPod && scaledAway
	wantSet := withSet && !wantPod
	if !loose && bySet == wantSet && byPod == wantPod {
		return nil, false
	}
	switch {
	case wantSet:
		others = append(others, *metav1.NewControllerRef(set, Kind))
	case wantPod:
		others = append(others, *metav1.NewControllerRef(p, podKind))
	}
	return others, true
}
