package pod

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestTolerateStoredErrors checks which errors of a stored pod prevent updates: all except those of
// rules that were introduced later.
func TestTolerateStoredErrors(t *testing.T) {
	values := []metav1.LabelSelectorRequirement{{Key: "a", Operator: metav1.LabelSelectorOpIn, Values: []string{"not a label"}}}
	nodes := []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "a", Operator: corev1.NodeSelectorOpIn, Values: []string{"not a label"}}}}}
	no, yes := false, true
	for _, tc := range []struct {
		name  string
		spoil func(*corev1.Pod)
		want  string // expected error of the update
	}{
		{"an unknown policy", func(p *corev1.Pod) { p.Spec.DNSPolicy = "Foo" }, "spec.dnsPolicy: Unsupported value"},
		{"no containers", func(p *corev1.Pod) { p.Spec.Containers = nil }, "spec.containers: Required value"},
		{"an invalid key", func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"a b": ""} }, "spec.nodeSelector: Invalid value"},
		{"values of an affinity", func(p *corev1.Pod) {
			p.Spec.Affinity = &corev1.Affinity{PodAffinity: &corev1.PodAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{
				{TopologyKey: "a", LabelSelector: &metav1.LabelSelector{MatchExpressions: values}}}}}
		}, ""},
		{"values of node labels", func(p *corev1.Pod) {
			p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: nodes}}}
		}, ""},
		{"a topology spread selector", func(p *corev1.Pod) {
			p.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{MaxSkew: 1, TopologyKey: "a", WhenUnsatisfiable: corev1.DoNotSchedule,
				LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"a": "not a label"}}}}
		}, ""},
		{"a capability", func(p *corev1.Pod) {
			p.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{AllowPrivilegeEscalation: &no, Capabilities: &corev1.Capabilities{Add: []corev1.Capability{"CAP_SYS_ADMIN"}}}
		}, ""},
		{"privileges", func(p *corev1.Pod) {
			p.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{AllowPrivilegeEscalation: &no, Privileged: &yes}
		}, "cannot set `allowPrivilegeEscalation` to false and `privileged` to true"},
		{"a sysctl of the host", func(p *corev1.Pod) {
			p.Spec.HostNetwork = true
			p.Spec.SecurityContext = &corev1.PodSecurityContext{Sysctls: []corev1.Sysctl{{Name: "net.ipv4.ip_forward", Value: "1"}}}
		}, ""},
		{"a pod deletion cost", func(p *corev1.Pod) { p.Annotations = map[string]string{corev1.PodDeletionCost: "x"} }, ""},
		{"an image without reference", func(p *corev1.Pod) {
			p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{Image: &corev1.ImageVolumeSource{PullPolicy: corev1.PullAlways}}}}
		}, ""},
		{"a token path", func(p *corev1.Pod) {
			seconds := int64(3600)
			p.Spec.ServiceAccountName = "a"
			p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{
				Sources: []corev1.VolumeProjection{{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Path: "../a", ExpirationSeconds: &seconds}}}}}}}
		}, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			sound := newPod(t, nil)
			sound.ResourceVersion = "1"
			old := sound.DeepCopy()
			tc.spoil(old)
			p := old.DeepCopy()
			p.Labels = map[string]string{"changed": "yes"}
			kind := Kind().Resource()
			if errs := kind.Validate(t.Context(), old); len(errs) == 0 {
				t.Error("create was accepted")
			}
			if errs := kind.Update.Validate(t.Context(), p, old); tc.want == "" && len(errs) > 0 || tc.want != "" && (len(errs) == 0 || !strings.Contains(errs.ToAggregate().Error(), tc.want)) {
				t.Errorf("label update: %v, want %q", errs, tc.want)
			}
			if errs := kind.Update.Validate(t.Context(), p, sound); len(errs) == 0 {
				t.Error("the error could be introduced by an update")
			}
		})
	}
}
