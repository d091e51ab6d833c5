package nodelifecycle

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	coordv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"hyperkube/components/controllers/internal/control"
	"hyperkube/components/controllers/internal/controltest"
)

func testNode(name string, ready corev1.ConditionStatus) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.NewTime(controltest.Now.Add(-time.Hour))}}
	if ready != "" {
		n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: ready, LastHeartbeatTime: metav1.NewTime(controltest.Now)}}
	}
	return n
}

type world struct {
	t *testing.T
	f *controltest.Fixture
	c *Controller
}

func newWorld(t *testing.T, nodes ...*corev1.Node) *world {
	t.Helper()
	f := controltest.New(t)
	c, err := New(f.Env, Config{})
	if err != nil {
		t.Fatal(err)
	}
	w := &world{t, f, c}
	for _, n := range nodes {
		f.Add(n)
	}
	for _, n := range nodes {
		w.sync(n.Name)
	}
	return w
}

func (w *world) node(name string) *corev1.Node {
	w.t.Helper()
	n, err := w.f.Kube.CoreV1().Nodes().Get(context.Background(), name, metav1.GetOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	return n
}

// sync syncs a key and all keys that this enqueues, and updates the cache.
func (w *world) sync(key string) {
	w.t.Helper()
	w.c.Add(key)
	for range 20 {
		if w.c.Len() == 0 {
			return
		}
		if err := w.c.Drain(context.Background()); err != nil {
			w.t.Fatal(err)
		}
		list, err := w.f.Kube.CoreV1().Nodes().List(context.Background(), metav1.ListOptions{})
		if err != nil {
			w.t.Fatal(err)
		}
		for i := range list.Items {
			w.f.Cache(&list.Items[i])
		}
	}
}

func (w *world) taints(name string) []string {
	var out []string
	for _, t := range w.node(name).Spec.Taints {
		out = append(out, strings.TrimPrefix(t.Key, "node.kubernetes.io/")+":"+string(t.Effect))
	}
	slices.Sort(out)
	return out
}

func (w *world) beat(name string) {
	w.t.Helper()
	w.beatAt(name, w.f.Clock.Now())
}

// beatAt renews the lease of a node whose clock shows at.
func (w *world) beatAt(name string, at time.Time) {
	w.t.Helper()
	now := metav1.NewMicroTime(at)
	l := &coordv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: leaseNamespace, Name: name}, Spec: coordv1.LeaseSpec{RenewTime: &now}}
	w.f.Cache(l)
	w.c.leaseRenewed(l)
}

func TestUnresponsiveNode(t *testing.T) {
	w := newWorld(t, testNode("a", corev1.ConditionTrue), testNode("b", corev1.ConditionTrue))
	p := controltest.Pod("ns", "p", nil, corev1.PodRunning)
	p.Spec.NodeName = "a"
	w.f.Add(p)
	w.f.Recorded()
	// 49 seconds are within the grace period.
	w.f.Clock.SetTime(controltest.Now.Add(49 * time.Second))
	w.sync("a")
	if c := readyCondition(w.node("a")); c.Status != corev1.ConditionTrue {
		t.Fatalf("condition %+v", c)
	}
	w.beat("b")
	w.f.Clock.SetTime(controltest.Now.Add(51 * time.Second))
	w.sync("a")
	w.sync("b")
	c := readyCondition(w.node("a"))
	if c.Status != corev1.ConditionUnknown || c.Reason != "NodeStatusUnknown" || c.Message != "Kubelet stopped posting node status." {
		t.Errorf("condition %+v", c)
	}
	if c := readyCondition(w.node("b")); c.Status != corev1.ConditionTrue {
		t.Errorf("b renewed its lease: %+v", c)
	}
	if got, want := w.taints("a"), []string{"unreachable:NoExecute", "unreachable:NoSchedule"}; !slices.Equal(got, want) {
		t.Errorf("taints %v, want %v", got, want)
	}
	if got := w.taints("b"); len(got) != 0 {
		t.Errorf("taints of b %v", got)
	}
	pod, err := w.f.Kube.CoreV1().Pods("ns").Get(context.Background(), "p", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if pod.Status.Conditions[0].Status != corev1.ConditionFalse {
		t.Errorf("pod %+v", pod.Status)
	}
	events := w.f.Recorded()
	for _, want := range []string{"Normal NodeNotReady Node a status is now: NodeNotReady", "Warning NodeNotReady Node is not ready"} {
		if !slices.Contains(events, want) {
			t.Errorf("events %q lack %q", events, want)
		}
	}
	// The node reports its status again.
	n := w.node("a")
	n.Status.Conditions[0].Status = corev1.ConditionTrue
	n.Status.Conditions[0].LastHeartbeatTime = metav1.NewTime(w.f.Clock.Now())
	if _, err := w.f.Kube.CoreV1().Nodes().UpdateStatus(context.Background(), n, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	w.f.Cache(n)
	w.sync("a")
	if got := w.taints("a"); len(got) != 0 {
		t.Errorf("taints %v", got)
	}
}

func TestNeverReported(t *testing.T) {
	n := testNode("a", "")
	n.CreationTimestamp = metav1.NewTime(controltest.Now)
	w := newWorld(t, n, testNode("b", corev1.ConditionTrue))
	w.f.Clock.SetTime(controltest.Now.Add(59 * time.Second))
	w.beat("b")
	w.sync("a")
	if readyCondition(w.node("a")) != nil {
		t.Fatal("too early")
	}
	w.f.Clock.SetTime(controltest.Now.Add(61 * time.Second))
	w.sync("a")
	if c := readyCondition(w.node("a")); c == nil || c.Reason != "NodeStatusNeverUpdated" {
		t.Errorf("condition %+v", c)
	}
}

func TestConditionTaints(t *testing.T) {
	n := testNode("a", corev1.ConditionFalse)
	n.Spec.Unschedulable = true
	n.Spec.Taints = []corev1.Taint{{Key: "mine", Effect: corev1.TaintEffectNoSchedule}, {Key: corev1.TaintNodeMemoryPressure, Effect: corev1.TaintEffectNoSchedule}}
	n.Status.Conditions = append(n.Status.Conditions, corev1.NodeCondition{Type: corev1.NodeDiskPressure, Status: corev1.ConditionTrue})
	w := newWorld(t, n, testNode("b", corev1.ConditionTrue))
	want := []string{"disk-pressure:NoSchedule", "mine:NoSchedule", "not-ready:NoExecute", "not-ready:NoSchedule", "unschedulable:NoSchedule"}
	if got := w.taints("a"); !slices.Equal(got, want) {
		t.Errorf("taints %v, want %v", got, want)
	}
}

// TestAllNodesUnresponsive: if all nodes are unresponsive, the controller itself is disconnected.
func TestAllNodesUnresponsive(t *testing.T) {
	w := newWorld(t, testNode("a", corev1.ConditionTrue), testNode("b", corev1.ConditionTrue))
	w.f.Clock.SetTime(controltest.Now.Add(time.Minute))
	w.sync("a")
	w.sync("b")
	for _, n := range []string{"a", "b"} {
		if got := w.taints(n); slices.Contains(got, "unreachable:NoExecute") || !slices.Contains(got, "unreachable:NoSchedule") {
			t.Errorf("taints of %s: %v", n, got)
		}
	}
}

func TestZoneRate(t *testing.T) {
	z := zones{cfg: Config{}.defaulted(), byName: map[string]*zone{}}
	for i := range 10 {
		n := testNode(fmt.Sprint("n", i), corev1.ConditionTrue)
		ready := corev1.ConditionTrue
		if i < 3 {
			ready = corev1.ConditionUnknown
		}
		z.join(n, ready)
		if i < 3 {
			z.queueTaint(n.Name)
		}
	}
	z.updateStates()
	now := controltest.Now
	if n, again := z.pop("", now); n != "n0" || again != 10*time.Second {
		t.Errorf("%q, %s", n, again)
	}
	if n, again := z.pop("", now.Add(4*time.Second)); n != "" || again != 6*time.Second {
		t.Errorf("%q, %s", n, again)
	}
	if n, _ := z.pop("", now.Add(10*time.Second)); n != "n1" {
		t.Errorf("%q", n)
	}
	// Most nodes of a small zone are down: no pods are evicted.
	for i := range 7 {
		z.join(testNode(fmt.Sprint("n", i), ""), corev1.ConditionUnknown)
	}
	z.updateStates()
	if n, again := z.pop("", now.Add(time.Hour)); n != "" || again != 0 {
		t.Errorf("got %q, %s from an unhealthy zone", n, again)
	}
}

// TestNodeClockSetBack: setting back the clock of a node does not make it unresponsive.
func TestNodeClockSetBack(t *testing.T) {
	w := newWorld(t, testNode("a", corev1.ConditionTrue))
	w.beatAt("a", controltest.Now.Add(time.Hour))
	for s := 40; s <= 200; s += 40 {
		w.f.Clock.SetTime(controltest.Now.Add(time.Duration(s) * time.Second))
		w.beat("a")
		w.sync("a")
		if c := readyCondition(w.node("a")); c.Status != corev1.ConditionTrue {
			t.Fatalf("after %d s: %+v", s, c)
		}
	}
	w.f.Clock.SetTime(controltest.Now.Add(251 * time.Second))
	w.sync("a")
	if c := readyCondition(w.node("a")); c.Status != corev1.ConditionUnknown {
		t.Errorf("unresponsive for 51 s: %+v", c)
	}
}

// TestStaleLeaseCache: a node is not marked as unresponsive while the cache of leases is stale.
func TestStaleLeaseCache(t *testing.T) {
	w := newWorld(t, testNode("a", corev1.ConditionTrue))
	lease := &coordv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: leaseNamespace, Name: "a", ResourceVersion: "7"}}
	if err := w.f.Kube.Tracker().Add(lease); err != nil {
		t.Fatal(err)
	}
	w.f.Clock.SetTime(controltest.Now.Add(time.Hour))
	if err := controltest.Sync(t, w.c.Loop, "a"); !errors.Is(err, control.ErrStale) {
		t.Errorf("error %v", err)
	}
	if c := readyCondition(w.node("a")); c.Status != corev1.ConditionTrue {
		t.Errorf("condition %+v", c)
	}
	w.f.Cache(lease)
	w.sync("a")
	if c := readyCondition(w.node("a")); c.Status != corev1.ConditionUnknown {
		t.Errorf("condition %+v", c)
	}
}

// TestRequeue: a node whose taint cannot be added does not block other nodes.
func TestRequeue(t *testing.T) {
	z := zones{cfg: Config{}.defaulted(), byName: map[string]*zone{}}
	for _, name := range []string{"a", "b", "c"} {
		z.join(testNode(name, ""), corev1.ConditionFalse)
		z.queueTaint(name)
	}
	z.join(testNode("d", ""), corev1.ConditionTrue)
	node, _ := z.pop("", controltest.Now)
	z.requeue(node)
	if next, _ := z.pop("", controltest.Now); node != "a" || next != "b" {
		t.Errorf("next after %s is %s", node, next)
	}
}

// TestExcluded: nodes with the exclusion label do not affect their zone's state.
func TestExcluded(t *testing.T) {
	excluded := testNode("b", corev1.ConditionTrue)
	excluded.Labels = map[string]string{excludeLabel: ""}
	w := newWorld(t, testNode("a", corev1.ConditionUnknown), excluded)
	if got, want := w.taints("a"), []string{"unreachable:NoSchedule"}; !slices.Equal(got, want) {
		t.Errorf("taints %v, want %v: all relevant nodes are unresponsive", got, want)
	}
	// Its pods are still evicted while another zone is healthy.
	down := testNode("b", corev1.ConditionUnknown)
	down.Labels = excluded.Labels
	w = newWorld(t, testNode("a", corev1.ConditionTrue), down)
	if got, want := w.taints("b"), []string{"unreachable:NoExecute", "unreachable:NoSchedule"}; !slices.Equal(got, want) {
		t.Errorf("taints %v, want %v", got, want)
	}
	n := testNode("c", corev1.ConditionTrue)
	w.c.zones.join(n, corev1.ConditionTrue)
	n.Labels = map[string]string{excludeLabel: ""}
	w.c.zones.join(n, corev1.ConditionTrue)
	if z := w.c.zones.byName[""]; z.ready["c"] || !z.excluded["c"] {
		t.Errorf("zone %+v", z)
	}
}

// TestOldZoneLabels: the deprecated zone labels take precedence.
func TestOldZoneLabels(t *testing.T) {
	n := testNode("a", corev1.ConditionTrue)
	n.Labels = map[string]string{corev1.LabelFailureDomainBetaZone: "z0", corev1.LabelTopologyZone: "z1", corev1.LabelTopologyRegion: "r"}
	w := newWorld(t, n)
	if got := slices.Collect(maps.Keys(w.c.zones.byName)); !slices.Equal(got, []string{"r:\x00:z0"}) {
		t.Errorf("zones %q", got)
	}
}

// TestRecoveryOfAllNodes: when the first nodes respond after all were unresponsive, the others get a new
// grace period.
func TestRecoveryOfAllNodes(t *testing.T) {
	late := testNode("b", corev1.ConditionFalse)
	w := newWorld(t, testNode("a", corev1.ConditionTrue), late)
	at := func(s int) { w.f.Clock.SetTime(controltest.Now.Add(time.Duration(s) * time.Second)) }
	at(10)
	late = w.node("b")
	late.Status.Conditions[0].LastHeartbeatTime = metav1.NewTime(w.f.Clock.Now())
	w.f.Cache(late)
	w.sync("b")
	at(51)
	w.sync("a")
	if !w.c.zones.allDown {
		t.Fatal("not all nodes are unresponsive")
	}
	at(52)
	a := w.node("a")
	a.Status.Conditions[0].Status = corev1.ConditionTrue
	a.Status.Conditions[0].LastHeartbeatTime = metav1.NewTime(w.f.Clock.Now())
	if _, err := w.f.Kube.CoreV1().Nodes().UpdateStatus(context.Background(), a, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	w.f.Cache(a)
	w.sync("a")
	at(101)
	w.sync("b")
	if c := readyCondition(w.node("b")); c.Status != corev1.ConditionFalse {
		t.Errorf("condition %+v", c)
	}
	at(103)
	w.sync("b")
	if c := readyCondition(w.node("b")); c.Status != corev1.ConditionUnknown {
		t.Errorf("condition %+v", c)
	}
}

// TestTaintKeptAfterStart: an unresponsive node that is synced first after a start keeps its taint,
// if other nodes are ready.
func TestTaintKeptAfterStart(t *testing.T) {
	f := controltest.New(t)
	c, err := New(f.Env, Config{})
	if err != nil {
		t.Fatal(err)
	}
	w := &world{t, f, c}
	silent := testNode("a", corev1.ConditionUnknown)
	before := metav1.NewTime(controltest.Now.Add(-time.Minute))
	silent.Spec.Taints = []corev1.Taint{{Key: corev1.TaintNodeUnreachable, Effect: corev1.TaintEffectNoExecute, TimeAdded: &before}}
	f.Add(silent)
	f.Add(testNode("b", corev1.ConditionTrue))
	if err := c.observeAll(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.sync("a")
	if got, want := w.taints("a"), []string{"unreachable:NoExecute", "unreachable:NoSchedule"}; !slices.Equal(got, want) {
		t.Errorf("taints %v, want %v", got, want)
	}
}
