package tainteviction

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"hyperkube/components/controllers/internal/controltest"
)

func TestTolerates(t *testing.T) {
	unreachable := corev1.Taint{Key: "unreachable", Effect: corev1.TaintEffectNoExecute}
	mine := corev1.Taint{Key: "mine", Value: "x", Effect: corev1.TaintEffectNoExecute}
	for _, tc := range []struct {
		name        string
		taints      []corev1.Taint
		tolerations []corev1.Toleration
		stay        time.Duration
		forever     bool
	}{
		{name: "no taints", forever: true},
		{name: "no toleration", taints: []corev1.Taint{unreachable}},
		{name: "all", taints: []corev1.Taint{unreachable, mine}, tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}}, forever: true},
		{name: "wrong value", taints: []corev1.Taint{mine}, tolerations: []corev1.Toleration{{Key: "mine", Value: "y"}}},
		{name: "right value", taints: []corev1.Taint{mine}, tolerations: []corev1.Toleration{{Key: "mine", Value: "x"}}, forever: true},
		{name: "the shortest counts", taints: []corev1.Taint{unreachable, mine}, tolerations: []corev1.Toleration{
			{Key: "unreachable", Operator: corev1.TolerationOpExists, TolerationSeconds: ptr.To[int64](300)},
			{Key: "mine", Operator: corev1.TolerationOpExists, TolerationSeconds: ptr.To[int64](10)},
		}, stay: 10 * time.Second},
		{name: "one not tolerated", taints: []corev1.Taint{unreachable, mine}, tolerations: []corev1.Toleration{
			{Key: "unreachable", Operator: corev1.TolerationOpExists, TolerationSeconds: ptr.To[int64](300)},
		}},
		{name: "the first counts", taints: []corev1.Taint{unreachable}, tolerations: []corev1.Toleration{
			{Operator: corev1.TolerationOpExists},
			{Key: "unreachable", Operator: corev1.TolerationOpExists, TolerationSeconds: ptr.To[int64](300)},
		}, forever: true},
		{name: "the first counts though it is shorter", taints: []corev1.Taint{unreachable}, tolerations: []corev1.Toleration{
			{Key: "unreachable", Operator: corev1.TolerationOpExists, TolerationSeconds: ptr.To[int64](300)},
			{Operator: corev1.TolerationOpExists},
		}, stay: 300 * time.Second},
		{name: "negative is zero", taints: []corev1.Taint{unreachable}, tolerations: []corev1.Toleration{
			{Key: "unreachable", Operator: corev1.TolerationOpExists, TolerationSeconds: ptr.To[int64](-1)},
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if stay, forever := tolerates(tc.taints, tc.tolerations); stay != tc.stay || forever != tc.forever {
				t.Errorf("%s, %v", stay, forever)
			}
		})
	}
}

func TestEviction(t *testing.T) {
	f := controltest.New(t)
	c, err := New(f.Env)
	if err != nil {
		t.Fatal(err)
	}
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Spec: corev1.NodeSpec{Taints: []corev1.Taint{{Key: "unreachable", Effect: corev1.TaintEffectNoExecute}}}}
	p := controltest.Pod("ns", "p", nil, corev1.PodRunning)
	p.Spec.Tolerations = []corev1.Toleration{{Key: "unreachable", Operator: corev1.TolerationOpExists, TolerationSeconds: ptr.To[int64](300)}}
	f.Add(n)
	f.Add(p)
	sync := func() []string {
		t.Helper()
		if err := controltest.Sync(t, c.Loop, "ns/p"); err != nil {
			t.Fatal(err)
		}
		return f.Writes()
	}
	if w := sync(); len(w) != 0 {
		t.Errorf("evicted immediately: %v", w)
	}
	f.Clock.SetTime(controltest.Now.Add(299 * time.Second))
	if w := sync(); len(w) != 0 {
		t.Errorf("evicted too early: %v", w)
	}
	// The taint is removed and added again: the toleration period starts again.
	f.Cache(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}})
	sync()
	f.Cache(n)
	if w := sync(); len(w) != 0 {
		t.Errorf("evicted: %v", w)
	}
	if e := f.Recorded(); len(e) != 1 || e[0] != "Normal TaintManagerEviction Cancelling deletion of Pod ns/p" {
		t.Errorf("events %q", e)
	}
	f.Clock.SetTime(controltest.Now.Add(600 * time.Second))
	if w := sync(); len(w) != 2 || w[0] != "patch pods/status p" || w[1] != "delete pods p" {
		t.Errorf("writes %v", w)
	}
	if n, late := testutil.ToFloat64(c.deleted), testutil.CollectAndCount(c.late); n != 1 || late != 1 {
		t.Errorf("%v deletions, %d latencies", n, late)
	}
	if e := f.Recorded(); len(e) != 1 || e[0] != "Normal TaintManagerEviction Marking for deletion Pod ns/p" {
		t.Errorf("events %q", e)
	}
}
