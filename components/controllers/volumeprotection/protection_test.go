package volumeprotection

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"

	"hyperkube/components/controllers/internal/control"
	"hyperkube/components/controllers/internal/controltest"
)

func meta(name, finalizer string, deleted bool) metav1.ObjectMeta {
	m := metav1.ObjectMeta{Name: name, UID: "u"}
	if finalizer != "" {
		m.Finalizers = []string{"other", finalizer}
	}
	if deleted {
		now := metav1.NewTime(controltest.Now)
		m.DeletionTimestamp = &now
	}
	return m
}

func user(node string, phase corev1.PodPhase) *corev1.Pod {
	p := controltest.Pod("ns", "p", nil, phase)
	p.Spec.NodeName = node
	p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "x"}}}}
	return p
}

func TestProtection(t *testing.T) {
	claim := func(finalizer string, deleted bool) *corev1.PersistentVolumeClaim {
		pvc := &corev1.PersistentVolumeClaim{ObjectMeta: meta("x", finalizer, deleted)}
		pvc.Namespace = "ns"
		return pvc
	}
	volume := func(deleted bool, phase corev1.PersistentVolumePhase) *corev1.PersistentVolume {
		return &corev1.PersistentVolume{ObjectMeta: meta("x", volumeFinalizer, deleted), Status: corev1.PersistentVolumeStatus{Phase: phase}}
	}
	naming := claim("", false)
	naming.Spec.VolumeAttributesClassName = ptr.To("x")
	claims := func(env control.Env) (*control.Loop, error) { c, err := NewClaims(env); return c.Loop, err }
	volumes := func(env control.Env) (*control.Loop, error) { c, err := NewVolumes(env); return c.Loop, err }
	classes := func(env control.Env) (*control.Loop, error) { c, err := NewClasses(env); return c.Loop, err }
	for name, tc := range map[string]struct {
		make    func(control.Env) (*control.Loop, error)
		objects []runtime.Object
		want    string
	}{
		"claim without finalizer":                 {claims, []runtime.Object{claim("", false)}, "[update persistentvolumeclaims]"},
		"claim with finalizer":                    {claims, []runtime.Object{claim(claimFinalizer, false)}, "[]"},
		"deleted claim":                           {claims, []runtime.Object{claim(claimFinalizer, true)}, "[update persistentvolumeclaims]"},
		"deleted claim, in use":                   {claims, []runtime.Object{claim(claimFinalizer, true), user("n", corev1.PodRunning)}, "[]"},
		"deleted claim, used by a terminated pod": {claims, []runtime.Object{claim(claimFinalizer, true), user("n", corev1.PodSucceeded)}, "[]"},
		"deleted claim, pod without node":         {claims, []runtime.Object{claim(claimFinalizer, true), user("", corev1.PodPending)}, "[update persistentvolumeclaims]"},
		"deleted volume":                          {volumes, []runtime.Object{volume(true, corev1.VolumeReleased)}, "[update persistentvolumes]"},
		"deleted volume, bound":                   {volumes, []runtime.Object{volume(true, corev1.VolumeBound)}, "[]"},
		"deleted class":                           {classes, []runtime.Object{&storagev1.VolumeAttributesClass{ObjectMeta: meta("x", classFinalizer, true)}}, "[update volumeattributesclasses]"},
		"deleted class, in use":                   {classes, []runtime.Object{&storagev1.VolumeAttributesClass{ObjectMeta: meta("x", classFinalizer, true)}, naming}, "[]"},
		"class without finalizer, unused":         {classes, []runtime.Object{&storagev1.VolumeAttributesClass{ObjectMeta: meta("x", "", false)}}, "[update volumeattributesclasses]"},
	} {
		t.Run(name, func(t *testing.T) {
			f := controltest.New(t, tc.objects...)
			l, err := tc.make(f.Env)
			if err != nil {
				t.Fatal(err)
			}
			key := "x"
			if _, ok := tc.objects[0].(*corev1.PersistentVolumeClaim); ok {
				key = "ns/x"
			}
			if err := controltest.Sync(t, l, key); err != nil {
				t.Fatal(err)
			}
			if w := f.Writes(); fmt.Sprint(w) != tc.want {
				t.Errorf("writes %v, want %s", w, tc.want)
			}
		})
	}
}

func TestUse(t *testing.T) {
	withCondition := func(s corev1.ConditionStatus) *corev1.PersistentVolumeClaim {
		pvc := &corev1.PersistentVolumeClaim{ObjectMeta: meta("x", claimFinalizer, false), Status: corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound}}
		pvc.Namespace = "ns"
		if s != "" {
			pvc.Status.Conditions = []corev1.PersistentVolumeClaimCondition{{Type: corev1.PersistentVolumeClaimUnused, Status: s}}
		}
		return pvc
	}
	pending := withCondition("")
	pending.Status.Phase = corev1.ClaimPending
	for name, tc := range map[string]struct {
		objects []runtime.Object
		want    corev1.ConditionStatus
		reason  string // "" if there is no update
	}{
		"not bound":        {[]runtime.Object{pending}, "", ""},
		"no pod":           {[]runtime.Object{withCondition("")}, corev1.ConditionTrue, "NoPodsUsingPVC"},
		"pod without node": {[]runtime.Object{withCondition(""), user("", corev1.PodPending)}, corev1.ConditionFalse, "PodUsingPVC"},
		"still used":       {[]runtime.Object{withCondition(corev1.ConditionFalse), user("n", corev1.PodRunning)}, corev1.ConditionFalse, ""},
		"no longer used":   {[]runtime.Object{withCondition(corev1.ConditionFalse), user("n", corev1.PodSucceeded)}, corev1.ConditionTrue, "NoPodsUsingPVC"},
	} {
		t.Run(name, func(t *testing.T) {
			f := controltest.New(t, tc.objects...)
			c, err := NewClaims(f.Env)
			if err != nil {
				t.Fatal(err)
			}
			if err := controltest.Sync(t, c.Loop, "ns/x"); err != nil {
				t.Fatal(err)
			}
			pvc, err := f.Kube.CoreV1().PersistentVolumeClaims("ns").Get(t.Context(), "x", metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			var is corev1.PersistentVolumeClaimCondition
			if u := unusedCondition(pvc); u != nil {
				is = *u
			}
			if is.Status != tc.want || is.Reason != tc.reason {
				t.Errorf("condition %+v", is)
			}
		})
	}
}
