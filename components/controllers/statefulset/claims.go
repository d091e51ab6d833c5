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

// podKind is the kind of Pods, for owner references.
var podKind = corev1.SchemeGroupVersion.WithKind("Pod")

// hasClaims reports whether the pod of an ordinal has a volume for each claim template of the StatefulSet, with the
// claim of this ordinal.
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

// claims returns the PersistentVolumeClaims that the pod of an ordinal needs, according to the claim templates.
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
			// Set the owner at creation, so that the update does not conflict with the
			// provisioner's.
			c.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(set, Kind)}
		}
		out = append(out, c)
	}
	return out
}

// ensureClaims creates the claims of a pod that do not exist. It returns an error if one cannot be created or is being
// deleted; the pod then has to wait.
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

// recordClaim emits an event on the StatefulSet about the creation of a claim, which failed if err is not nil.
func (c *Controller) recordClaim(set *appsv1.StatefulSet, p *corev1.Pod, claim *corev1.PersistentVolumeClaim, err error) {
	if err == nil {
		c.env.Events.Eventf(set, corev1.EventTypeNormal, control.SuccessfulCreate, "Create Claim %s Pod %s in StatefulSet %s success", claim.Name, p.Name, set.Name)
		return
	}
	c.env.Events.Eventf(set, corev1.EventTypeWarning, control.FailedCreate, "Create Claim %s for Pod %s in StatefulSet %s failed error: %s", claim.Name, p.Name, set.Name, err)
}

// policy returns the retention policy for claims: whether they are deleted with the StatefulSet, and with a pod that is
// scaled down. The default is neither.
func policy(set *appsv1.StatefulSet) (deletedWithSet, deletedWithPod bool) {
	r := set.Spec.PersistentVolumeClaimRetentionPolicy
	if r == nil {
		return false, false
	}
	const del = appsv1.DeletePersistentVolumeClaimRetentionPolicyType
	return r.WhenDeleted == del, r.WhenScaled == del
}

// claimsOfFormerPod reports whether the pod p must not be created yet, because one of its claims belongs to a deleted
// pod of the same name and will be deleted too.
func (c *Controller) claimsOfFormerPod(set *appsv1.StatefulSet, p *corev1.Pod, ordinal int) bool {
	if _, withPod := policy(set); !withPod {
		return false
	}
	for _, claim := range claims(set, ordinal) {
		there, err := c.claims.PersistentVolumeClaims(claim.Namespace).Get(claim.Name)
		if err == nil && ownedByFormer(there, p, podKind) {
			return true
		}
	}
	return false
}

// claimsOf calls f with each existing claim of a pod until f returns false. Missing claims are skipped.
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

// claimOwnersCorrect reports whether the claims of a pod have the owner references that the retention policy requires.
// If that cannot be determined, it returns true.
func (c *Controller) claimOwnersCorrect(set *appsv1.StatefulSet, p *corev1.Pod) bool {
	settled := true
	err := c.claimsOf(set, p, func(claim *corev1.PersistentVolumeClaim) bool {
		_, changed := owners(claim, set, p)
		settled = !changed
		return settled
	})
	return settled || err != nil
}

// updateClaimOwners sets the owner references of a pod's claims according to the retention policy: the StatefulSet, the
// pod if it is scaled down, or none. The garbage collector then deletes the claims with their owner.
func (c *Controller) updateClaimOwners(ctx context.Context, set *appsv1.StatefulSet, p *corev1.Pod) error {
	var failed error
	err := c.claimsOf(set, p, func(claim *corev1.PersistentVolumeClaim) bool {
		if controlledByOther(claim, set, p) {
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

// refersTo reports whether the owner reference r names an object of this kind with the name of o, whatever its UID.
func refersTo(r *metav1.OwnerReference, o metav1.Object, kind schema.GroupVersionKind) bool {
	return r.APIVersion == kind.GroupVersion().String() && r.Kind == kind.Kind && r.Name == o.GetName()
}

// ownedByFormer reports whether a claim belongs to a deleted object of this kind with the name of o: it has an owner
// reference with the name but another UID.
func ownedByFormer(claim *corev1.PersistentVolumeClaim, o metav1.Object, kind schema.GroupVersionKind) bool {
	i := slices.IndexFunc(claim.OwnerReferences, func(r metav1.OwnerReference) bool { return refersTo(&r, o, kind) })
	return i >= 0 && claim.OwnerReferences[i].UID != o.GetUID()
}

// controlledByOther reports whether the retention policy applies to a claim, but an object other than the StatefulSet
// and the pod controls it. The policy is then ignored for this claim.
func controlledByOther(claim *corev1.PersistentVolumeClaim, set *appsv1.StatefulSet, p *corev1.Pod) bool {
	if withSet, withPod := policy(set); !withSet && !withPod {
		return false
	}
	return slices.ContainsFunc(claim.OwnerReferences, func(r metav1.OwnerReference) bool {
		switch {
		case refersTo(&r, set, Kind):
			return r.UID != set.UID
		case refersTo(&r, p, podKind):
			return r.UID != p.UID
		}
		return ptr.Deref(r.Controller, false)
	})
}

// owners returns the owner references that the claim of a pod should have according to the retention policy. It returns
// false if the claim has them already, or belongs to a former StatefulSet or pod and must not be changed.
func owners(claim *corev1.PersistentVolumeClaim, set *appsv1.StatefulSet, p *corev1.Pod) ([]metav1.OwnerReference, bool) {
	if ownedByFormer(claim, set, Kind) || ownedByFormer(claim, p, podKind) {
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
		if !refersTo(&r, set, Kind) && !refersTo(&r, p, podKind) {
			others = append(others, r)
		}
	}
	if controlledByOther(claim, set, p) {
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
