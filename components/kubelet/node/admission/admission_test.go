package admission

import (
	"context"
	"log/slog"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/record"

	"hyperkube/components/kubelet/node/nodestatus"
	"hyperkube/components/kubelet/node/shutdown"
	"hyperkube/components/kubelet/pod/pods"
)

func TestPortsClash(t *testing.T) {
	pod := func(ports ...v1.ContainerPort) *v1.Pod {
		return &v1.Pod{Spec: v1.PodSpec{Containers: []v1.Container{{Name: "a"}, {Name: "b", Ports: ports}}}}
	}
	sidecar := pod()
	always := v1.ContainerRestartPolicyAlways
	sidecar.Spec.InitContainers = []v1.Container{{RestartPolicy: &always, Ports: []v1.ContainerPort{{HostPort: 80}}}}
	once := pod()
	once.Spec.InitContainers = []v1.Container{{Ports: []v1.ContainerPort{{HostPort: 80}}}}
	for name, c := range map[string]struct {
		a, b *v1.Pod
		want bool
	}{
		"none":                      {pod(v1.ContainerPort{ContainerPort: 80}), pod(v1.ContainerPort{ContainerPort: 80}), false},
		"same":                      {pod(v1.ContainerPort{HostPort: 80}), pod(v1.ContainerPort{HostPort: 80, Protocol: v1.ProtocolTCP}), true},
		"other port":                {pod(v1.ContainerPort{HostPort: 80}), pod(v1.ContainerPort{HostPort: 81}), false},
		"other protocol":            {pod(v1.ContainerPort{HostPort: 80}), pod(v1.ContainerPort{HostPort: 80, Protocol: v1.ProtocolUDP}), false},
		"other address":             {pod(v1.ContainerPort{HostPort: 80, HostIP: "10.0.0.1"}), pod(v1.ContainerPort{HostPort: 80, HostIP: "127.0.0.1"}), false},
		"all addresses":             {pod(v1.ContainerPort{HostPort: 80, HostIP: "10.0.0.1"}), pod(v1.ContainerPort{HostPort: 80}), true},
		"port of a sidecar":         {sidecar, pod(v1.ContainerPort{HostPort: 80}), true},
		"port of an init container": {once, pod(v1.ContainerPort{HostPort: 80}), false},
	} {
		if got := portsClash(c.a, c.b); got != c.want {
			t.Errorf("%s: %t", name, got)
		}
		if got := portsClash(c.b, c.a); got != c.want {
			t.Errorf("%s, reversed: %t", name, got)
		}
	}
}

func TestUnbearable(t *testing.T) {
	now, later := v1.TaintEffectNoExecute, v1.TaintEffectNoSchedule
	for name, c := range map[string]struct {
		tolerations []v1.Toleration
		taints      []v1.Taint
		want        bool
	}{
		"none":                        {nil, nil, false},
		"delayed NoExecute":           {nil, []v1.Taint{{Key: "a", Effect: later}}, false},
		"immediate NoExecute":         {nil, []v1.Taint{{Key: "b", Effect: later}, {Key: "a", Effect: now}}, true},
		"tolerated":                   {[]v1.Toleration{{Key: "a", Operator: v1.TolerationOpExists}}, []v1.Taint{{Key: "a", Effect: now}}, false},
		"one of two taints tolerated": {[]v1.Toleration{{Key: "a", Operator: v1.TolerationOpExists}}, []v1.Taint{{Key: "a", Effect: now}, {Key: "b", Effect: now}}, true},
		"all tolerated":               {[]v1.Toleration{{Operator: v1.TolerationOpExists}}, []v1.Taint{{Key: "a", Effect: now}, {Key: "b", Effect: now}}, false},
		"limited toleration":          {[]v1.Toleration{{Key: "a", Effect: later, Operator: v1.TolerationOpExists}}, []v1.Taint{{Key: "a", Effect: now}}, true},
	} {
		if got := hasUntoleratedNoExecuteTaint(&v1.Pod{Spec: v1.PodSpec{Tolerations: c.tolerations}}, c.taints); got != c.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}

// noResources has no devices, and admits all pods. It also is the eviction manager of a node without pressure.
type noResources struct{}

func (noResources) Admit(context.Context, *v1.Pod) error           { return nil }
func (noResources) Capacity() (all, healthy v1.ResourceList)       { return nil, nil }
func (noResources) Reject(*v1.Pod, v1.PodQOSClass) (reason string) { return "" }

// idle returns an Admitter and the registry of its pods. The cached Node is node, and the API server has newest.
func idle(t *testing.T, node, newest *v1.Node) (*Admitter, *pods.Registry) {
	t.Helper()
	kube, registry := fake.NewClientset(newest), pods.NewRegistry()
	status := nodestatus.New(nodestatus.Config{Name: "node", Kube: kube})
	status.Observe(node)
	var machine *shutdown.Manager // graceful shutdown is disabled
	return New(Config{
		NodeName: "node", Kube: kube, Pods: registry, Node: status, Resources: noResources{}, Eviction: noResources{}, Shutdown: machine,
		Allocatable: v1.ResourceList{
			v1.ResourceCPU: resource.MustParse("4"), v1.ResourceMemory: resource.MustParse("8Gi"), v1.ResourcePods: resource.MustParse("110"),
		},
		AllowedUnsafeSysctls: []string{"kernel.shm*", "user.max_pid_namespaces"},
		Events:               record.NewFakeRecorder(100), Preempted: func(string) {}, Log: slog.New(slog.DiscardHandler),
	}), registry
}

func refused(v *pods.Verdict) string {
	if v == nil {
		return ""
	}
	return v.Reason + ": " + v.Message
}

func TestFits(t *testing.T) {
	node := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node", UID: "n", ResourceVersion: "1"}}
	node.Status.Allocatable = v1.ResourceList{"example.com/dongle": resource.MustParse("2")}
	node.Spec.Taints = []v1.Taint{{Key: "k", Effect: v1.TaintEffectNoExecute}}
	newest := node.DeepCopy()
	newest.ResourceVersion, newest.Labels = "2", map[string]string{"fresh": "yes"}
	everywhere := []v1.Toleration{{Operator: v1.TolerationOpExists}}
	asks := func(name v1.ResourceName, n string) []v1.Container {
		return []v1.Container{{Name: "c", Resources: v1.ResourceRequirements{Requests: v1.ResourceList{name: resource.MustParse(n)}}}}
	}
	static := map[string]string{"kubernetes.io/config.source": "file"}
	sysctls := func(names ...string) *v1.PodSecurityContext {
		sc := &v1.PodSecurityContext{}
		for _, n := range names {
			sc.Sysctls = append(sc.Sysctls, v1.Sysctl{Name: n, Value: "1"})
		}
		return sc
	}
	other := &v1.Pod{Spec: v1.PodSpec{Containers: asks("example.com/dongle", "1")}}
	other.Spec.Containers[0].Ports = []v1.ContainerPort{{HostPort: 80}}
	for name, c := range map[string]struct {
		pod  v1.Pod
		want string
	}{
		"plain pod":                               {v1.Pod{Spec: v1.PodSpec{Tolerations: everywhere}}, ""},
		"new label":                               {v1.Pod{Spec: v1.PodSpec{Tolerations: everywhere, NodeSelector: map[string]string{"fresh": "yes"}}}, ""},
		"unknown label":                           {v1.Pod{Spec: v1.PodSpec{Tolerations: everywhere, NodeSelector: map[string]string{"fresh": "no"}}}, "NodeAffinity: Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector"},
		"a taint":                                 {v1.Pod{}, "TaintToleration: Predicate TaintToleration failed: node(s) had taints that the pod didn't tolerate"},
		"a taint, and a static pod":               {v1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: static}}, ""},
		"static pod with a node selector":         {v1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: static}, Spec: v1.PodSpec{NodeSelector: map[string]string{"fresh": "no"}}}, "NodeAffinity: Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector"},
		"a static pod's port":                     {v1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: static}, Spec: v1.PodSpec{Containers: other.Spec.Containers}}, "NodePorts: Predicate NodePorts failed: node(s) didn't have free ports for the requested pod ports"},
		"static pod without resources":            {v1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: static}, Spec: v1.PodSpec{Containers: asks(v1.ResourceMemory, "1Ei")}}, "UnexpectedAdmissionError: Unexpected error while attempting to recover from admission failure: preemption: error finding a set of pods to preempt: no set of running pods found to reclaim resources"},
		"extended resource":                       {v1.Pod{Spec: v1.PodSpec{Tolerations: everywhere, Containers: asks("example.com/dongle", "1")}}, ""},
		"too much of an extended resource":        {v1.Pod{Spec: v1.PodSpec{Tolerations: everywhere, Containers: asks("example.com/dongle", "2")}}, "OutOfexample.com/dongle: Node didn't have enough resource: example.com/dongle, requested: 2, used: 1, capacity: 2"},
		"unknown resource":                        {v1.Pod{Spec: v1.PodSpec{Tolerations: everywhere, Containers: asks("example.com/cluster", "2")}}, ""},
		"safe sysctl":                             {v1.Pod{Spec: v1.PodSpec{Tolerations: everywhere, SecurityContext: sysctls("net.ipv4.tcp_notsent_lowat", "net/ipv4/tcp_slow_start_after_idle", "kernel.shmmax")}}, ""},
		"unknown sysctl":                          {v1.Pod{Spec: v1.PodSpec{SecurityContext: sysctls("kernel.pid_max")}}, `SysctlForbidden: forbidden sysctl: "kernel.pid_max" not allowlisted`},
		"host sysctl":                             {v1.Pod{Spec: v1.PodSpec{HostNetwork: true, SecurityContext: sysctls("net.ipv4.tcp_syncookies")}}, `SysctlForbidden: forbidden sysctl: "net.ipv4.tcp_syncookies" not allowed with host Net enabled`},
		"IPC sysctl with host IPC":                {v1.Pod{Spec: v1.PodSpec{HostIPC: true, SecurityContext: sysctls("kernel.shmmax")}}, `SysctlForbidden: forbidden sysctl: "kernel.shmmax" not allowed with host IPC enabled`},
		"user sysctl":                             {v1.Pod{Spec: v1.PodSpec{SecurityContext: sysctls("user.max_pid_namespaces")}}, `SysctlForbidden: forbidden sysctl: "user.max_pid_namespaces" not allowed with host User enabled`},
		"namespaced sysctl with a user namespace": {v1.Pod{Spec: v1.PodSpec{Tolerations: everywhere, HostUsers: new(false), SecurityContext: sysctls("user.max_pid_namespaces")}}, ""},
	} {
		a, _ := idle(t, node, newest)
		got := refused(a.checkFit(t.Context(), &c.pod, []*v1.Pod{other}))
		if got != c.want && (c.want == "" || !strings.HasPrefix(got, c.want)) {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// TestPreemptForResize checks that the resize of an ordinary pod is deferred regardless of other pods, and
// that a critical pod preempts other pods only if that frees enough resources.
func TestPreemptForResize(t *testing.T) {
	huge := v1.ResourceRequirements{Requests: v1.ResourceList{v1.ResourceMemory: resource.MustParse("1Ei")}}
	for name, c := range map[string]struct {
		pod  v1.PodSpec
		want string
	}{
		"ordinary":            {v1.PodSpec{Containers: []v1.Container{{Resources: huge}}}, "full"},
		"critical":            {v1.PodSpec{Priority: new(int32(2000000000)), Containers: []v1.Container{{Resources: huge}}}, "Unexpected error while attempting to recover from admission failure: preemption: error finding a set of pods to preempt: no set of running pods found to reclaim resources"},
		"critical pod, waits": {v1.PodSpec{Priority: new(int32(2000000000))}, "full"},
	} {
		node := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node"}}
		a, _ := idle(t, node, node)
		if made, why := a.PreemptForResize(t.Context(), &v1.Pod{Spec: c.pod}, "full"); made || !strings.HasPrefix(why, c.want) {
			t.Errorf("%s: %t, %q", name, made, why)
		}
	}
}

// TestPreemptForResizeCanceled checks that a resize does not wait for preemption victims when its pod
// terminates or the kubelet shuts down.
func TestPreemptForResizeCanceled(t *testing.T) {
	asks := func(memory string) []v1.Container {
		return []v1.Container{{Name: "c", Resources: v1.ResourceRequirements{Requests: v1.ResourceList{v1.ResourceMemory: resource.MustParse(memory)}}}}
	}
	node := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node"}}
	a, registry := idle(t, node, node)
	// The victim was admitted by an earlier kubelet. It never terminates because nothing runs it.
	victim := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "victim", Namespace: "ns", UID: "victim"}, Spec: v1.PodSpec{Containers: asks("1Ei")}}
	victim.Status.StartTime = &metav1.Time{}
	pods.NewManager(pods.Config{Registry: registry, Log: slog.New(slog.DiscardHandler)}).Set(t.Context(), victim)
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "critical"}, Spec: v1.PodSpec{Priority: new(int32(2000000000)), Containers: asks("1Mi")}}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if made, why := a.PreemptForResize(ctx, pod, "full"); made || why != "full" {
		t.Errorf("%t, %q", made, why)
	}
}
