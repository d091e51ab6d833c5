package kubelet

import (
	"testing"

	v1 "k8s.io/api/core/v1"
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
		"none":                {pod(v1.ContainerPort{ContainerPort: 80}), pod(v1.ContainerPort{ContainerPort: 80}), false},
		"same":                {pod(v1.ContainerPort{HostPort: 80}), pod(v1.ContainerPort{HostPort: 80, Protocol: v1.ProtocolTCP}), true},
		"other port":          {pod(v1.ContainerPort{HostPort: 80}), pod(v1.ContainerPort{HostPort: 81}), false},
		"other protocol":      {pod(v1.ContainerPort{HostPort: 80}), pod(v1.ContainerPort{HostPort: 80, Protocol: v1.ProtocolUDP}), false},
		"other address":       {pod(v1.ContainerPort{HostPort: 80, HostIP: "10.0.0.1"}), pod(v1.ContainerPort{HostPort: 80, HostIP: "127.0.0.1"}), false},
		"all addresses":       {pod(v1.ContainerPort{HostPort: 80, HostIP: "10.0.0.1"}), pod(v1.ContainerPort{HostPort: 80}), true},
		"of a sidecar":        {sidecar, pod(v1.ContainerPort{HostPort: 80}), true},
		"of what ends before": {once, pod(v1.ContainerPort{HostPort: 80}), false},
	} {
		if got := portsClash(c.a, c.b); got != c.want {
			t.Errorf("%s: %t", name, got)
		}
		if got := portsClash(c.b, c.a); got != c.want {
			t.Errorf("%s, the other way: %t", name, got)
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
		"none":             {nil, nil, false},
		"not at once":      {nil, []v1.Taint{{Key: "a", Effect: later}}, false},
		"at once":          {nil, []v1.Taint{{Key: "b", Effect: later}, {Key: "a", Effect: now}}, true},
		"tolerated":        {[]v1.Toleration{{Key: "a", Operator: v1.TolerationOpExists}}, []v1.Taint{{Key: "a", Effect: now}}, false},
		"one of two":       {[]v1.Toleration{{Key: "a", Operator: v1.TolerationOpExists}}, []v1.Taint{{Key: "a", Effect: now}, {Key: "b", Effect: now}}, true},
		"all tolerated":    {[]v1.Toleration{{Operator: v1.TolerationOpExists}}, []v1.Taint{{Key: "a", Effect: now}, {Key: "b", Effect: now}}, false},
		"for another time": {[]v1.Toleration{{Key: "a", Effect: later, Operator: v1.TolerationOpExists}}, []v1.Taint{{Key: "a", Effect: now}}, true},
	} {
		if got := unbearable(&v1.Pod{Spec: v1.PodSpec{Tolerations: c.tolerations}}, c.taints); got != c.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}
