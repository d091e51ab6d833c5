package statefulset

import (
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestOwners(t *testing.T) {
	const keep, del = appsv1.RetainPersistentVolumeClaimRetentionPolicyType, appsv1.DeletePersistentVolumeClaimRetentionPolicyType
	yes := true
	bySet := metav1.OwnerReference{APIVersion: "apps/v1", Kind: "StatefulSet", Name: "db", UID: "set", Controller: &yes}
	for _, c := range []struct {
		name                string
		whenDeleted, scaled appsv1.PersistentVolumeClaimRetentionPolicyType
		pod                 string
		refs                []metav1.OwnerReference
		want                []string // UIDs
		changed             bool
	}{
		{"retained", keep, keep, "db-0", nil, nil, false},
		{"no longer deleted with the set", keep, keep, "db-0", []metav1.OwnerReference{bySet}, nil, true},
		{"deleted with the set", del, keep, "db-0", nil, []string{"set"}, true},
		{"already deleted with the set", del, keep, "db-0", []metav1.OwnerReference{bySet}, nil, false},
		{"not scaled away", keep, del, "db-0", nil, nil, false},
		{"scaled away", keep, del, "db-7", nil, []string{"pod"}, true},
		{"scaled away, and with the set", del, del, "db-7", []metav1.OwnerReference{bySet}, []string{"pod"}, true},
		{"no owners", del, keep, "db-0", []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "StatefulSet", Name: "db", UID: "set"}}, []string{"set"}, true},
		{"owned by a former set", del, keep, "db-0", []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "StatefulSet", Name: "db", UID: "older", Controller: &yes}}, nil, false},
		{"controlled by another object", del, keep, "db-0", []metav1.OwnerReference{{APIVersion: "x/v1", Kind: "X", Name: "x", UID: "x", Controller: &yes}}, nil, false},
		{"also controlled by another object", del, keep, "db-0", []metav1.OwnerReference{bySet, {APIVersion: "x/v1", Kind: "X", Name: "x", UID: "x", Controller: &yes}}, []string{"x"}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			set := testSet(2)
			set.Spec.PersistentVolumeClaimRetentionPolicy = &appsv1.StatefulSetPersistentVolumeClaimRetentionPolicy{WhenDeleted: c.whenDeleted, WhenScaled: c.scaled}
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: c.pod, UID: "pod"}}
			claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{OwnerReferences: c.refs}}
			refs, changed := owners(claim, set, pod)
			if changed != c.changed {
				t.Fatalf("changed is %v", changed)
			}
			if !changed {
				return
			}
			if len(refs) != len(c.want) {
				t.Fatalf("owners %+v, want %v", refs, c.want)
			}
			for i := range refs {
				if string(refs[i].UID) != c.want[i] {
					t.Errorf("owner %d is %s, want %s", i, refs[i].UID, c.want[i])
				}
			}
		})
	}
}
