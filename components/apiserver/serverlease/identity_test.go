package serverlease

import (
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
)

func TestKeeper(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	lease := func(name, of string, age time.Duration) *coordinationv1.Lease {
		seconds, at := int32(3600), metav1.NewMicroTime(now.Add(-age))
		return &coordinationv1.Lease{
			ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: name, UID: "u", Labels: map[string]string{label: of}},
			Spec:       coordinationv1.LeaseSpec{LeaseDurationSeconds: &seconds, RenewTime: &at},
		}
	}
	kube := fake.NewClientset(lease("gone", server, 2*time.Hour), lease("there", server, time.Minute), lease("else", "other", 9*time.Hour))
	leases := kube.CoordinationV1().Leases("kube-system")
	if _, err := New(Config{Leases: leases}); err == nil {
		t.Error("an empty hostname is accepted")
	}
	k, err := New(Config{Leases: leases, Hostname: "one"})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		at := now.Add(time.Duration(i) * renewInterval)
		if i == 2 { // another client deletes it
			if err := leases.Delete(t.Context(), k.name, metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		if err := k.renew(t.Context(), at); err != nil {
			t.Fatal(err)
		}
		l, err := leases.Get(t.Context(), k.name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if l.Labels["kubernetes.io/hostname"] != "one" || l.Labels[label] != server || !l.Spec.RenewTime.Time.Equal(at) || *l.Spec.HolderIdentity != k.holder {
			t.Errorf("got %+v", l)
		}
	}
	if err := k.clean(t.Context(), now); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]bool{"gone": false, "there": true, "else": true, k.name: true} {
		if _, err := leases.Get(t.Context(), name, metav1.GetOptions{}); apierrors.IsNotFound(err) == want {
			t.Errorf("%s: %v", name, err)
		}
	}
	// The format of kube-apiserver's name.
	if got := Name("one"); len(got) != len("apiserver-")+26 {
		t.Errorf("got %s", got)
	}
}
