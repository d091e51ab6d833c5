package scheduler

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"hyperkube/components/scheduler/framework"
	"hyperkube/components/scheduler/plugins"
	"hyperkube/components/scheduler/state"
	"hyperkube/internal/client"
)

func priority(p int32) func(*corev1.Pod) { return func(pod *corev1.Pod) { pod.Spec.Priority = &p } }

func tainted(n *corev1.Node) {
	n.Spec.Taints = []corev1.Taint{{Key: "k", Value: "v", Effect: corev1.TaintEffectNoSchedule}}
}

func TestPreemptionMessages(t *testing.T) {
	never := corev1.PreemptNever
	evicted := func(p *corev1.Pod) {
		now := metav1.Now()
		p.DeletionTimestamp = &now
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: corev1.PodReasonPreemptionByScheduler}}
	}
	for _, c := range []struct {
		name      string
		nodes     []*corev1.Node
		there     *corev1.Pod // on node a
		nominated string
		pod       *corev1.Pod
		want      string
	}{
		{"no victims", []*corev1.Node{node("a")}, pod("q", requests("3")), "", pod("p", requests("3")),
			"0/1 nodes are available: 1 Insufficient cpu. preemption: 0/1 nodes are available: 1 No preemption victims found for incoming pod."},
		{"preemption does not help", []*corev1.Node{node("a")}, pod("q", requests("3")), "", pod("p", requests("5"), priority(1)),
			"0/1 nodes are available: 1 Insufficient cpu. preemption: 0/1 nodes are available: 1 Preemption is not helpful for scheduling."},
		{"different reasons", []*corev1.Node{node("a"), node("b", tainted)}, pod("q", requests("3")), "", pod("p", requests("3")),
			"0/2 nodes are available: 1 Insufficient cpu, 1 node(s) had untolerated taint(s). preemption: 0/2 nodes are available: 1 No preemption victims found for incoming pod, 1 Preemption is not helpful for scheduling."},
		{"never", []*corev1.Node{node("a")}, pod("q", requests("3")), "", pod("p", requests("3"), priority(1), func(p *corev1.Pod) { p.Spec.PreemptionPolicy = &never }),
			"0/1 nodes are available: 1 Insufficient cpu. preemption: not eligible due to preemptionPolicy=Never."},
		{"preemption in progress", []*corev1.Node{node("a")}, pod("q", requests("3"), evicted), "a", pod("p", requests("3"), priority(1)),
			"0/1 nodes are available: 1 Insufficient cpu. preemption: not eligible due to a terminating pod on the nominated node."},
		{"helps", []*corev1.Node{node("a")}, pod("q", requests("3")), "", pod("p", requests("3"), priority(1)),
			"0/1 nodes are available: 1 Insufficient cpu. preemption: found a potential placement for pod on node a, preempting 1 victims"},
		{"victims on one node", []*corev1.Node{node("a"), node("b")}, pod("q", requests("3")), "", pod("p", requests("3"), func(p *corev1.Pod) {
			p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
				NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchFields: []corev1.NodeSelectorRequirement{{Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: []string{"a"}}}}},
			}}}
		}), "0/2 nodes are available: 1 Insufficient cpu, 1 node(s) didn't satisfy plugin(s) [NodeAffinity]. preemption: 0/2 nodes are available: 1 No preemption victims found for incoming pod, 1 Preemption is not helpful for scheduling."},
	} {
		s := state.New()
		for _, n := range c.nodes {
			s.SetNode(n)
		}
		s.SetPod(state.NewPod(c.there), "a")
		info := state.NewPod(c.pod)
		if c.nominated != "" {
			s.Nominate(info, c.nominated)
		}
		set := plugins.Default()
		n, failed := findNode(&framework.Cycle{Pod: info, State: s}, &set, nil)
		if n != nil {
			t.Errorf("%s: placed", c.name)
			continue
		}
		preempt(failed, set.Preemption, nil, time.Unix(0, 0))
		if failed.Error() != c.want {
			t.Errorf("%s: %q, want %q", c.name, failed, c.want)
		}
	}
}

// TestNominatedCounts: resources reserved by a nominated pod are not available to less important
// pods, but to more important ones.
func TestNominatedCounts(t *testing.T) {
	s := state.New()
	s.SetNode(node("a"))
	s.Nominate(state.NewPod(pod("p", requests("3"), priority(5))), "a")
	set := plugins.Default()
	for p, fits := range map[int32]bool{1: false, 5: false, 6: true} {
		n, _ := findNode(&framework.Cycle{Pod: state.NewPod(pod("q", requests("2"), priority(p))), State: s}, &set, nil)
		if (n != nil) != fits {
			t.Errorf("priority %d: fits %v", p, n != nil)
		}
	}
	if n, _ := findNode(&framework.Cycle{Pod: state.NewPod(pod("p", requests("3"), priority(5))), State: s}, &set, nil); n == nil {
		t.Error("the nominated pod itself does not fit")
	}
}

// bindable makes a fake API server bind pods. The channel receives "pod node" for each.
func bindable(kube *fake.Clientset) <-chan string {
	bound := make(chan string, 100)
	kube.PrependReactor("create", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
		create, ok := action.(clienttesting.CreateAction)
		if !ok || action.GetSubresource() != "binding" {
			return false, nil, nil
		}
		b := create.GetObject().(*corev1.Binding)
		obj, err := kube.Tracker().Get(corev1.SchemeGroupVersion.WithResource("pods"), b.Namespace, b.Name)
		if err != nil {
			return true, nil, err
		}
		p := obj.(*corev1.Pod).DeepCopy()
		p.Spec.NodeName = b.Target.Name
		bound <- b.Name + " " + b.Target.Name
		return true, b, kube.Tracker().Update(corev1.SchemeGroupVersion.WithResource("pods"), p, b.Namespace)
	})
	return bound
}

// TestPreempts: a pod is preempted for another, through a fake API server.
func TestPreempts(t *testing.T) {
	kube := fake.NewClientset(node("a"))
	bound := bindable(kube)
	var steps []string
	updated := make(chan struct{})
	kube.PrependReactor("patch", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
		patch := action.(clienttesting.PatchAction)
		text := string(patch.GetPatch())
		switch {
		case patch.GetName() == "low" && strings.Contains(text, `"PreemptionByScheduler"`) &&
			strings.Contains(text, "default-scheduler: preempting to accommodate a higher priority pod"):
			steps = append(steps, "condition of low")
		case patch.GetName() == "high" && strings.Contains(text, `"nominatedNodeName":"a"`):
			steps = append(steps, "nominated high")
		}
		return false, nil, nil
	})
	kube.PrependReactor("delete", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
		steps = append(steps, "deleted "+action.(clienttesting.DeleteAction).GetName())
		close(updated)
		return false, nil, nil
	})
	clients := &client.Clients{Kube: kube, Informers: informers.NewSharedInformerFactory(kube, 0)}
	registry := prometheus.NewRegistry()
	s, err := New(Config{Clients: clients, Metrics: registry})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	done := make(chan error, 1)
	clients.Informers.Start(ctx.Done())
	go func() { done <- s.Run(ctx) }()
	<-s.Ready()
	for _, p := range []*corev1.Pod{pod("low", requests("3")), pod("high", requests("3"), priority(10))} {
		if _, err := kube.CoreV1().Pods("default").Create(ctx, p, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		if got := <-bound; got != p.Name+" a" {
			t.Fatalf("bound %s", got)
		}
	}
	<-updated
	if got := strings.Join(steps, ", "); got != "nominated high, condition of low, deleted low" {
		t.Errorf("steps: %s", got)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	clients.Informers.Shutdown()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	counts := map[string]float64{}
	for _, f := range families {
		for _, m := range f.Metric {
			key := f.GetName()
			for _, l := range m.Label {
				key += " " + l.GetValue()
			}
			counts[key] = m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	for key, want := range map[string]float64{
		"scheduler_preemption_attempts_total":                                       1,
		"scheduler_preemption_victims":                                              1,
		"scheduler_schedule_attempts_total default-scheduler scheduled":             2,
		"scheduler_schedule_attempts_total default-scheduler unschedulable":         1,
		"scheduler_scheduling_attempt_duration_seconds default-scheduler scheduled": 2,
		"scheduler_pod_scheduling_sli_duration_seconds 1":                           1,
		"scheduler_pod_scheduling_sli_duration_seconds 2":                           1,
		"scheduler_pending_pods active":                                             0,
	} {
		if got, ok := counts[key]; !ok || got != want {
			t.Errorf("%s is %v (%v), want %v", key, got, ok, want)
		}
	}
}
