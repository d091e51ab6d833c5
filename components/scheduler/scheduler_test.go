package scheduler

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"

	"hyperkube/components/scheduler/framework"
	"hyperkube/components/scheduler/plugins"
	"hyperkube/components/scheduler/state"
	"hyperkube/internal/client"
)

func node(name string, change ...func(*corev1.Node)) *corev1.Node {
	n := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelHostname: name}},
		Status: corev1.NodeStatus{Allocatable: corev1.ResourceList{
			corev1.ResourceCPU: resource.MustParse("4"), corev1.ResourceMemory: resource.MustParse("8Gi"),
			corev1.ResourcePods: resource.MustParse("110"),
		}},
	}
	for _, f := range change {
		f(n)
	}
	return n
}

func pod(name string, change ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name)},
		Spec:       corev1.PodSpec{SchedulerName: corev1.DefaultSchedulerName, Containers: []corev1.Container{{Name: "c", Image: "i"}}},
	}
	for _, f := range change {
		f(p)
	}
	return p
}

func requests(cpu string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)}
	}
}

func labelled(l map[string]string) func(*corev1.Pod) { return func(p *corev1.Pod) { p.Labels = l } }

func zone(z string) func(*corev1.Node) {
	return func(n *corev1.Node) { n.Labels[corev1.LabelTopologyZone] = z }
}

func hostPort(ip string, port int32) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.Containers[0].Ports = []corev1.ContainerPort{{HostIP: ip, HostPort: port, ContainerPort: port}}
	}
}

func spread(key string, skew int32) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{
			MaxSkew: skew, TopologyKey: key, WhenUnsatisfiable: corev1.DoNotSchedule,
			LabelSelector: &metav1.LabelSelector{MatchLabels: p.Labels},
		}}
	}
}

func antiAffinity(key string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{
				TopologyKey: key, LabelSelector: &metav1.LabelSelector{MatchLabels: p.Labels},
			}},
		}}
	}
}

func TestFindNode(t *testing.T) {
	web := map[string]string{"app": "web"}
	for _, c := range []struct {
		name   string
		nodes  []*corev1.Node
		placed map[string]*corev1.Pod // by node
		pod    *corev1.Pod
		want   string // the node, or the message
	}{
		{"no nodes", nil, nil, pod("p"), "no nodes available to schedule pods"},
		{"sufficient resources", []*corev1.Node{node("a")}, nil, pod("p", requests("4")), "a"},
		{"insufficient resources", []*corev1.Node{node("a")}, map[string]*corev1.Pod{"a": pod("q", requests("1"))}, pod("p", requests("3500m")),
			"0/1 nodes are available: 1 Insufficient cpu."},
		{"most free resources", []*corev1.Node{node("a"), node("b")}, map[string]*corev1.Pod{"a": pod("q", requests("2"))}, pod("p", requests("1")), "b"},
		{"cordoned", []*corev1.Node{node("a", func(n *corev1.Node) { n.Spec.Unschedulable = true })}, nil, pod("p"),
			"0/1 nodes are available: 1 node(s) were unschedulable."},
		{"tainted and full", []*corev1.Node{
			node("a", func(n *corev1.Node) {
				n.Spec.Taints = []corev1.Taint{{Key: "k", Value: "v", Effect: corev1.TaintEffectNoSchedule}}
			}), node("b")}, nil, pod("p", requests("5")),
			"0/2 nodes are available: 1 Insufficient cpu, 1 node(s) had untolerated taint(s)."},
		{"tolerated", []*corev1.Node{node("a", func(n *corev1.Node) {
			n.Spec.Taints = []corev1.Taint{{Key: "k", Value: "v", Effect: corev1.TaintEffectNoSchedule}}
		})}, nil, pod("p", func(p *corev1.Pod) { p.Spec.Tolerations = []corev1.Toleration{{Key: "k", Operator: "Exists"}} }), "a"},
		{"selector", []*corev1.Node{node("a"), node("b", func(n *corev1.Node) { n.Labels["disk"] = "ssd" })}, nil,
			pod("p", func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"disk": "ssd"} }), "b"},
		{"port taken", []*corev1.Node{node("a")}, map[string]*corev1.Pod{"a": pod("q", hostPort("", 80))}, pod("p", hostPort("127.0.0.1", 80)),
			"0/1 nodes are available: 1 node(s) didn't have free ports for the requested pod ports."},
		{"port on another address", []*corev1.Node{node("a")}, map[string]*corev1.Pod{"a": pod("q", hostPort("127.0.0.2", 80))}, pod("p", hostPort("127.0.0.1", 80)), "a"},
		{"spread over zones", []*corev1.Node{node("a", zone("1")), node("b", zone("2"))}, map[string]*corev1.Pod{"a": pod("q", labelled(web))},
			pod("p", labelled(web), spread(corev1.LabelTopologyZone, 1)), "b"},
		{"spread without label", []*corev1.Node{node("a")}, nil, pod("p", labelled(web), spread(corev1.LabelTopologyZone, 1)),
			"0/1 nodes are available: 1 node(s) didn't match pod topology spread constraints (missing required label)."},
		{"anti-affinity", []*corev1.Node{node("a"), node("b")}, map[string]*corev1.Pod{"a": pod("q", labelled(web))},
			pod("p", labelled(web), antiAffinity(corev1.LabelHostname)), "b"},
		{"existing anti-affinity", []*corev1.Node{node("a")}, map[string]*corev1.Pod{"a": pod("q", labelled(web), antiAffinity(corev1.LabelHostname))},
			pod("p", labelled(web)), "0/1 nodes are available: 1 node(s) didn't satisfy existing pods anti-affinity rules."},
		{"image on the node", []*corev1.Node{node("a"), node("b", func(n *corev1.Node) {
			n.Status.Images = []corev1.ContainerImage{{Names: []string{"i:latest"}, SizeBytes: 900 << 20}}
		})}, nil, pod("p"), "b"},
	} {
		s := state.New()
		for _, n := range c.nodes {
			s.SetNode(n)
		}
		for n, p := range c.placed {
			s.SetPod(state.NewPod(p), n)
		}
		set := plugins.Default()
		got, failed := findNode(&framework.Cycle{Pod: state.NewPod(c.pod), State: s}, &set, nil)
		switch {
		case got == nil && failed.Error() != c.want:
			t.Errorf("%s: %q, want %q", c.name, failed, c.want)
		case got != nil && got.Name != c.want:
			t.Errorf("%s: %s, want %q", c.name, got.Name, c.want)
		}
	}
}

// TestStateAgainstRecount makes random changes to a state and compares its sums with a recount.
func TestStateAgainstRecount(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	s := state.New()
	where := map[string]string{}
	objects := map[string]*corev1.Pod{}
	nodes := map[string]bool{}
	for range 5000 {
		name := fmt.Sprintf("n%d", rng.IntN(5))
		switch rng.IntN(6) {
		case 0:
			s.SetNode(node(name))
			nodes[name] = true
		case 1:
			s.RemoveNode(name)
			delete(nodes, name)
		case 2:
			p := fmt.Sprintf("p%d", rng.IntN(20))
			s.RemovePod(types.UID(p))
			delete(where, p)
		default:
			p := pod(fmt.Sprintf("p%d", rng.IntN(20)), requests(fmt.Sprintf("%dm", rng.IntN(500))), hostPort("", int32(rng.IntN(5)+1)))
			s.SetPod(state.NewPod(p), name)
			where[p.Name], objects[p.Name] = name, p
		}
		if len(s.Nodes()) != len(nodes) {
			t.Fatalf("%d nodes, want %d", len(s.Nodes()), len(nodes))
		}
		for _, n := range s.Nodes() {
			var cpu, count int64
			ports := map[int32]int{}
			for p, on := range where {
				if on == n.Name {
					count++
					cpu += objects[p].Spec.Containers[0].Resources.Requests.Cpu().MilliValue()
					ports[objects[p].Spec.Containers[0].Ports[0].HostPort]++
				}
			}
			if n.Requested.CPU != cpu || n.Requested.Pods != count || int64(len(n.Pods)) != count || len(n.Ports) != len(ports) {
				t.Fatalf("%s: %+v with %d ports, want cpu %d, pods %d, ports %d", n.Name, n.Requested, len(n.Ports), cpu, count, len(ports))
			}
		}
	}
}

func TestQueue(t *testing.T) {
	now := time.Unix(1000, 0)
	q := newQueue()
	high := int32(10)
	q.set(pod("low"), false, now)
	q.set(pod("later"), false, now.Add(time.Second))
	q.set(pod("high", func(p *corev1.Pod) { p.Spec.Priority = &high }), false, now.Add(2*time.Second))
	q.set(pod("gated"), true, now)
	var order []string
	var last *item
	for it := q.pop(now); it != nil; it = q.pop(now) {
		order = append(order, it.pod.Name)
		last = it
	}
	if got := strings.Join(order, " "); got != "high low later" {
		t.Fatalf("order %q", got)
	}
	q.addUnschedulable(last, framework.PodRemoved, now)
	q.onEvent(framework.NodeAdded, now)
	if it := q.pop(now.Add(maxWaiting - 1)); it != nil {
		t.Fatalf("%s was retried by an unrelated event", it.pod.Name)
	}
	if q.nextReady() != now.Add(maxWaiting) {
		t.Fatalf("retried at %v", q.nextReady())
	}
	q.onEvent(framework.PodRemoved, now)
	q.set(pod("fresh"), false, now)
	if it := q.pop(now); it == nil || it.pod.Name != "fresh" {
		t.Fatalf("popped %+v before a pod without back-off", it)
	}
	if it := q.pop(now); it != last || it.attempts != 2 {
		t.Fatalf("popped %+v, want the pod in back-off because there is no other", it)
	}
	q.addBackoff(last, now)
	if it := q.pop(now); it != nil {
		t.Fatal("no back-off after an error")
	}
	if q.nextReady() != now.Add(2*time.Second) {
		t.Fatalf("ready at %v", q.nextReady())
	}
	if it := q.pop(now.Add(2 * time.Second)); it != last || it.attempts != 3 {
		t.Fatalf("popped %+v", it)
	}
	q.set(pod("gated"), false, now)
	if it := q.pop(now); it == nil || it.pod.Name != "gated" {
		t.Fatal("not scheduled after its gates were removed")
	}
	q.addUnschedulable(last, framework.PodRemoved, now)
	if it := q.pop(now.Add(maxWaiting)); it != last {
		t.Fatal("the queue is not empty")
	}
	last.evicting = true
	q.addUnschedulable(last, framework.PodRemoved, now)
	q.onEvent(framework.PodRemoved, now)
	if it := q.pop(now.Add(time.Minute)); it != nil {
		t.Fatal("a held pod was retried")
	}
	q.evictionDone(last.pod.UID, false, now)
	if it := q.pop(now.Add(time.Minute)); it != last {
		t.Fatal("not retried after it was released")
	}
	last.evicting = true
	q.addUnschedulable(last, framework.PodRemoved, now)
	q.evictionDone(last.pod.UID, false, now)
	if it := q.pop(now.Add(time.Minute)); it != nil {
		t.Fatal("retried before its victims are deleted")
	}
	q.onEvent(framework.PodRemoved, now)
	if it := q.pop(now.Add(time.Minute)); it != last {
		t.Fatal("not retried after its victims were deleted")
	}
	last.evicting = true
	q.addUnschedulable(last, framework.PodRemoved, now)
	q.evictionDone(last.pod.UID, true, now)
	if it := q.pop(now.Add(time.Minute)); it != last {
		t.Fatal("not retried although its victims were not evicted")
	}
	if q.backoffAfter(10) != maxBackoff {
		t.Error("the back-off has no maximum")
	}
}

// TestRun schedules pods with a fake API server: fitting pods are bound, others are bound when
// resources become available.
func TestRun(t *testing.T) {
	kube := fake.NewClientset(node("a"))
	bound := bindable(kube)
	clients := &client.Clients{Kube: kube, Informers: informers.NewSharedInformerFactory(kube, 0)}
	s, err := New(Config{Clients: clients})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	done := make(chan error, 1)
	clients.Informers.Start(ctx.Done())
	go func() { done <- s.Run(ctx) }()
	<-s.Ready()
	create := func(p *corev1.Pod) {
		t.Helper()
		if _, err := kube.CoreV1().Pods("default").Create(ctx, p, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	create(pod("one", requests("3")))
	if got := <-bound; got != "one a" {
		t.Fatalf("bound %s", got)
	}
	create(pod("two", requests("3")))
	create(pod("other", func(p *corev1.Pod) { p.Spec.SchedulerName = "someone-else" }))
	create(pod("three", requests("1")))
	if got := <-bound; got != "three a" {
		t.Fatalf("bound %s", got)
	}
	if err := kube.CoreV1().Pods("default").Delete(ctx, "one", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if got := <-bound; got != "two a" {
		t.Fatalf("bound %s", got)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	clients.Informers.Shutdown()
}
