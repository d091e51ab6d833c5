package podgc

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"hyperkube/components/controllers/internal/controltest"
)

func TestPass(t *testing.T) {
	now := metav1.NewTime(controltest.Now)
	pod := func(name, node string, phase corev1.PodPhase, deleting bool) *corev1.Pod {
		p := controltest.Pod("ns", name, nil, phase)
		p.Spec.NodeName = node
		if deleting {
			p.DeletionTimestamp = &now
			p.Finalizers = []string{"x"}
		}
		return p
	}
	off := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "off"}, Spec: corev1.NodeSpec{Taints: []corev1.Taint{{Key: corev1.TaintNodeOutOfService, Effect: corev1.TaintEffectNoExecute}}}}
	f := controltest.New(t, off, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}},
		pod("fine", "n1", corev1.PodRunning, false),
		pod("ending", "n1", corev1.PodRunning, true),
		pod("orphan", "gone", corev1.PodRunning, false),
		pod("homeless", "", corev1.PodPending, true),
		pod("on-off", "off", corev1.PodRunning, true),
		pod("on-off-stays", "off", corev1.PodRunning, false),
		pod("done1", "n1", corev1.PodSucceeded, false),
		pod("done2", "n1", corev1.PodFailed, false),
	)
	c, err := New(f.Env, 1)
	if err != nil {
		t.Fatal(err)
	}
	sync := func() []string {
		t.Helper()
		if err := controltest.Sync(t, c.Loop, passKey); err != nil {
			t.Fatal(err)
		}
		var deleted []string
		for _, w := range f.Writes() {
			if w[:6] == "delete" {
				deleted = append(deleted, w[len("delete pods "):])
			}
		}
		slices.Sort(deleted)
		return deleted
	}
	if got, want := sync(), []string{"done1", "homeless", "on-off"}; !slices.Equal(got, want) {
		t.Errorf("deleted %v, want %v", got, want)
	}
	f.Clock.SetTime(controltest.Now.Add(quarantine))
	if got := sync(); !slices.Contains(got, "orphan") {
		t.Errorf("deleted %v, want the orphan after the quarantine period", got)
	}
}
