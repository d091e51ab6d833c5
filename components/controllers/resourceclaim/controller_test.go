package resourceclaim

import (
	"context"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"hyperkube/components/controllers/internal/controltest"
)

func pod(phase corev1.PodPhase) *corev1.Pod {
	template := "t"
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "ns", UID: "pod-uid"},
		Spec:       corev1.PodSpec{NodeName: "n", ResourceClaims: []corev1.PodResourceClaim{{Name: "g", ResourceClaimTemplateName: &template}}},
		Status:     corev1.PodStatus{Phase: phase},
	}
}

func claim(owner *corev1.Pod, reservedFor types.UID) *resourcev1.ResourceClaim {
	c := &resourcev1.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Name: "c", Namespace: "ns", UID: "claim-uid", Finalizers: []string{resourcev1.Finalizer}},
		Status: resourcev1.ResourceClaimStatus{
			Allocation:  &resourcev1.AllocationResult{},
			ReservedFor: []resourcev1.ResourceClaimConsumerReference{{Resource: "pods", Name: "p", UID: reservedFor}},
		},
	}
	if owner != nil {
		c.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(owner, corev1.SchemeGroupVersion.WithKind("Pod"))}
	}
	return c
}

// TestMake: repeated syncs create a pod's claim only once.
func TestMake(t *testing.T) {
	ctx := context.Background()
	f := controltest.New(t, pod(corev1.PodPending), &resourcev1.ResourceClaimTemplate{
		ObjectMeta: metav1.ObjectMeta{Name: "t", Namespace: "ns"},
		Spec:       resourcev1.ResourceClaimTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"a": "b"}}},
	})
	c, err := New(f.Env)
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		c.Add("pod:ns/p")
		if err := c.Drain(ctx); err != nil {
			t.Fatal(err)
		}
	}
	all, err := f.Kube.ResourceV1().ResourceClaims("ns").List(ctx, metav1.ListOptions{})
	if err != nil || len(all.Items) != 1 {
		t.Fatalf("%v, claims %v", err, all.Items)
	}
	made := all.Items[0]
	if made.Annotations[claimNameKey] != "g" || made.Labels["a"] != "b" || !metav1.IsControlledBy(&made, pod("")) {
		t.Errorf("%+v", made.ObjectMeta)
	}
	p, err := f.Kube.CoreV1().Pods("ns").Get(ctx, "p", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if s := p.Status.ResourceClaimStatuses; len(s) != 1 || s[0].ResourceClaimName == nil || *s[0].ResourceClaimName != made.Name {
		t.Errorf("%+v", s)
	}
}

// TestFree: reservations of finished pods are removed.
func TestFree(t *testing.T) {
	ctx := context.Background()
	for _, tc := range []struct {
		name     string
		pod      *corev1.Pod
		owned    bool
		reserved types.UID
		// expected results
		allocated, gone bool
	}{
		{"in use", pod(corev1.PodRunning), true, "pod-uid", true, false},
		{"reserved for a deleted pod of the same name", pod(corev1.PodRunning), false, "other", false, false},
		{"pod finished", pod(corev1.PodSucceeded), false, "pod-uid", false, false},
		{"pod finished, owner of the claim", pod(corev1.PodFailed), true, "pod-uid", false, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var owner *corev1.Pod
			if tc.owned {
				owner = tc.pod
			}
			f := controltest.New(t, tc.pod, claim(owner, tc.reserved))
			c, err := New(f.Env)
			if err != nil {
				t.Fatal(err)
			}
			c.Add("claim:ns/c")
			if err := c.Drain(ctx); err != nil {
				t.Fatal(err)
			}
			all, err := f.Kube.ResourceV1().ResourceClaims("ns").List(ctx, metav1.ListOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if gone := len(all.Items) == 0; gone != tc.gone {
				t.Fatalf("gone %v", gone)
			}
			if tc.gone {
				return
			}
			got := all.Items[0]
			if allocated := got.Status.Allocation != nil; allocated != tc.allocated || (len(got.Finalizers) > 0) != tc.allocated || (len(got.Status.ReservedFor) > 0) != tc.allocated {
				t.Errorf("%+v", got)
			}
		})
	}
}

// TestMakeAgain: a pod gets a new claim if its claim was lost or belongs to another owner.
func TestMakeAgain(t *testing.T) {
	other := pod("")
	other.UID = "other"
	for name, there := range map[string]*resourcev1.ResourceClaim{"lost": nil, "other owner": claim(other, "other"), "no owner": claim(nil, "other")} {
		t.Run(name, func(t *testing.T) {
			p := pod(corev1.PodPending)
			p.Status.ResourceClaimStatuses = []corev1.PodResourceClaimStatus{{Name: "g", ResourceClaimName: new(string)}}
			*p.Status.ResourceClaimStatuses[0].ResourceClaimName = "c"
			f := controltest.New(t, p, &resourcev1.ResourceClaimTemplate{ObjectMeta: metav1.ObjectMeta{Name: "t", Namespace: "ns"}})
			if there != nil {
				f.Add(there)
			}
			c, err := New(f.Env)
			if err != nil {
				t.Fatal(err)
			}
			if err := controltest.Sync(t, c.Loop, "pod:ns/p"); err != nil {
				t.Fatal(err)
			}
			got, err := f.Kube.CoreV1().Pods("ns").Get(t.Context(), "p", metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			name := got.Status.ResourceClaimStatuses[0].ResourceClaimName
			if name == nil || *name == "c" {
				t.Fatalf("statuses %+v", got.Status.ResourceClaimStatuses)
			}
			if made, err := f.Kube.ResourceV1().ResourceClaims("ns").Get(t.Context(), *name, metav1.GetOptions{}); err != nil || !metav1.IsControlledBy(made, p) {
				t.Errorf("%+v, %v", made, err)
			}
		})
	}
}
