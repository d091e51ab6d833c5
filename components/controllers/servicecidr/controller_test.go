package servicecidr

import (
	"slices"
	"testing"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"hyperkube/components/controllers/internal/controltest"
)

func cidr(name, prefix string) *networkingv1.ServiceCIDR {
	return &networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{prefix}}}
}

// going returns s with a deletion timestamp in the past.
func going(s *networkingv1.ServiceCIDR, since time.Duration) *networkingv1.ServiceCIDR {
	s.DeletionTimestamp = &metav1.Time{Time: controltest.Now.Add(-since)}
	s.Finalizers = []string{"other", finalizer}
	return s
}

func address(a string) runtime.Object {
	return &networkingv1.IPAddress{ObjectMeta: metav1.ObjectMeta{Name: a}}
}

func TestSync(t *testing.T) {
	for _, tc := range []struct {
		name    string
		cidr    *networkingv1.ServiceCIDR
		others  []runtime.Object
		guarded bool
		ready   metav1.ConditionStatus
		reason  string
	}{
		{"new", cidr("a", "10.0.0.0/24"), nil, true, metav1.ConditionTrue, ""},
		{"just deleted", going(cidr("a", "10.0.0.0/24"), time.Second), nil, true, "", ""},
		{"deleted", going(cidr("a", "10.0.0.0/24"), time.Minute), []runtime.Object{address("10.0.1.1")}, false, "", ""},
		{"in use", going(cidr("a", "10.0.0.0/24"), time.Minute), []runtime.Object{address("10.0.0.1")}, true, metav1.ConditionFalse, networkingv1.ServiceCIDRReasonTerminating},
		{"in use, also in another range", going(cidr("a", "10.0.0.0/24"), time.Minute), []runtime.Object{address("10.0.0.1"), cidr("b", "10.0.0.0/16")}, false, "", ""},
		{"in use, other range being deleted", going(cidr("a", "10.0.0.0/24"), time.Minute), []runtime.Object{address("10.0.0.1"), going(cidr("b", "10.0.0.0/16"), time.Second)}, true, metav1.ConditionFalse, networkingv1.ServiceCIDRReasonTerminating},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := controltest.New(t, append(tc.others, tc.cidr)...)
			c, err := New(f.Env)
			if err != nil {
				t.Fatal(err)
			}
			if err := controltest.Sync(t, c.Loop, "a"); err != nil {
				t.Fatal(err)
			}
			got, err := f.Kube.NetworkingV1().ServiceCIDRs().Get(t.Context(), "a", metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if guarded := slices.Contains(got.Finalizers, finalizer); guarded != tc.guarded {
				t.Errorf("finalizers %v", got.Finalizers)
			}
			cond := meta.FindStatusCondition(got.Status.Conditions, networkingv1.ServiceCIDRConditionReady)
			if (cond == nil) != (tc.ready == "") || cond != nil && (cond.Status != tc.ready || cond.Reason != tc.reason || cond.Message == "") {
				t.Errorf("condition %+v", cond)
			}
			f.Writes()
			f.Cache(got)
			if err := controltest.Sync(t, c.Loop, "a"); err != nil {
				t.Fatal(err)
			}
			if w := f.Writes(); len(w) != 0 {
				t.Errorf("repeated writes: %v", w)
			}
		})
	}
}
