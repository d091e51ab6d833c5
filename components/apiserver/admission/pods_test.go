package admission

import (
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"sigs.k8s.io/yaml"
)

func account(name string, change func(*corev1.ServiceAccount)) *corev1.ServiceAccount {
	sa := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}}
	if change != nil {
		change(sa)
	}
	return sa
}

const tokenVolumeYAML = `name: NAME
projected:
  defaultMode: 420
  sources:
  - serviceAccountToken:
      expirationSeconds: 3607
      path: token
  - configMap:
      items:
      - key: ca.crt
        path: ca.crt
      name: kube-root-ca.crt
  - downwardAPI:
      items:
      - fieldRef:
          apiVersion: v1
          fieldPath: metadata.namespace
        path: namespace
`

func TestServiceAccountMounts(t *testing.T) {
	no := false
	c, _ := chain(t, Config{}, []string{"ServiceAccount"},
		account("default", func(sa *corev1.ServiceAccount) {
			sa.ImagePullSecrets = []corev1.LocalObjectReference{{Name: "pull"}}
		}),
		account("quiet", func(sa *corev1.ServiceAccount) { sa.AutomountServiceAccountToken = &no }),
	)
	p := pod(func(p *corev1.Pod) {
		p.Spec.InitContainers = []corev1.Container{{Name: "i"}}
		p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: "own", VolumeMounts: []corev1.VolumeMount{{Name: "x", MountPath: tokenMountPath}}})
	})
	wantErr(t, ask(t, c, write{resource: "/pods", ns: "ns", obj: p}), "")
	if p.Spec.ServiceAccountName != "default" || p.Spec.DeprecatedServiceAccount != "default" {
		t.Errorf("account %q, %q", p.Spec.ServiceAccountName, p.Spec.DeprecatedServiceAccount)
	}
	if len(p.Spec.ImagePullSecrets) != 1 || p.Spec.ImagePullSecrets[0].Name != "pull" {
		t.Errorf("%v", p.Spec.ImagePullSecrets)
	}
	if len(p.Spec.Volumes) != 1 || len(p.Spec.Volumes[0].Name) != len("kube-api-access-xxxxx") {
		t.Fatalf("%+v", p.Spec.Volumes)
	}
	name := p.Spec.Volumes[0].Name
	var want corev1.Volume
	if err := yaml.Unmarshal([]byte(tokenVolumeYAML), &want); err != nil {
		t.Fatal(err)
	}
	want.Name = name
	if !equality.Semantic.DeepEqual(want, p.Spec.Volumes[0]) {
		t.Errorf("%+v", p.Spec.Volumes[0])
	}
	mount := corev1.VolumeMount{Name: name, ReadOnly: true, MountPath: "/var/run/secrets/kubernetes.io/serviceaccount"}
	for _, ct := range []corev1.Container{p.Spec.InitContainers[0], p.Spec.Containers[0]} {
		if len(ct.VolumeMounts) != 1 || !equality.Semantic.DeepEqual(ct.VolumeMounts[0], mount) {
			t.Errorf("%s: %+v", ct.Name, ct.VolumeMounts)
		}
	}
	if len(p.Spec.Containers[1].VolumeMounts) != 1 {
		t.Error("mounted over the container's own mount")
	}
	// Run the plugin again, as for a reinvocation after a webhook.
	wantErr(t, ask(t, c, write{resource: "/pods", ns: "ns", obj: p}), "")
	if len(p.Spec.Volumes) != 1 || len(p.Spec.Containers[0].VolumeMounts) != 1 {
		t.Error("mounted twice")
	}

	p = pod(func(p *corev1.Pod) { p.Spec.ServiceAccountName = "quiet" })
	wantErr(t, ask(t, c, write{resource: "/pods", ns: "ns", obj: p}), "")
	if len(p.Spec.Volumes) != 0 {
		t.Error("mounted though the account forbids")
	}
	yes := true
	p = pod(func(p *corev1.Pod) { p.Spec.ServiceAccountName, p.Spec.AutomountServiceAccountToken = "quiet", &yes })
	wantErr(t, ask(t, c, write{resource: "/pods", ns: "ns", obj: p}), "")
	if len(p.Spec.Volumes) != 1 {
		t.Error("the pod's own setting was ignored")
	}
}

func TestServiceAccountRefuses(t *testing.T) {
	c, kube := chain(t, Config{}, []string{"ServiceAccount"},
		account("strict", func(sa *corev1.ServiceAccount) {
			sa.Annotations = map[string]string{"kubernetes.io/enforce-mountable-secrets": "1"}
			sa.Secrets = []corev1.ObjectReference{{Name: "mine"}}
			sa.ImagePullSecrets = []corev1.LocalObjectReference{{Name: "pull"}}
		}))
	secret := func(name string) corev1.Volume {
		return corev1.Volume{Name: "v", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: name}}}
	}
	mirror := func(p *corev1.Pod) { p.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "x"} }
	tests := []struct {
		name   string
		change func(*corev1.Pod)
		err    string
	}{
		{"absent", func(p *corev1.Pod) { p.Spec.ServiceAccountName = "gone" },
			`pods "p" is forbidden: error looking up service account ns/gone: serviceaccount "gone" not found`},
		{"mirror", mirror, ""},
		{"mirror with account", func(p *corev1.Pod) { mirror(p); p.Spec.ServiceAccountName = "x" }, "a mirror pod may not reference service accounts"},
		{"mirror with Secret", func(p *corev1.Pod) { mirror(p); p.Spec.Volumes = []corev1.Volume{secret("s")} }, "a mirror pod may not reference secrets"},
		{"mirror with token", func(p *corev1.Pod) {
			mirror(p)
			p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: tokenSource()}}
		},
			"a mirror pod may not use ServiceAccountToken volume projections"},
		{"mirror with authorities", func(p *corev1.Pod) {
			mirror(p)
			p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{
				Sources: []corev1.VolumeProjection{{ClusterTrustBundle: &corev1.ClusterTrustBundleProjection{}}},
			}}}}
		}, "a mirror pod may not use ClusterTrustBundle volume projections"},
		{"mirror with a certificate", func(p *corev1.Pod) {
			mirror(p)
			p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{
				Sources: []corev1.VolumeProjection{{DownwardAPI: &corev1.DownwardAPIProjection{}}, {PodCertificate: &corev1.PodCertificateProjection{}}},
			}}}}
		}, "a mirror pod may not use PodCertificate volume projections"},
		{"mirror pod with its own reference", func(p *corev1.Pod) {
			mirror(p)
			p.Spec.Volumes = []corev1.Volume{{Name: "e"}, {Name: "v", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{
				Sources: []corev1.VolumeProjection{{DownwardAPI: &corev1.DownwardAPIProjection{}}},
			}}}}
		}, ""},
		{"strict that pulls", func(p *corev1.Pod) {
			p.Spec.ServiceAccountName, p.Spec.ImagePullSecrets = "strict", []corev1.LocalObjectReference{{Name: "pull"}}
		}, ""},
		{"strict that pulls by another Secret", func(p *corev1.Pod) {
			p.Spec.ServiceAccountName, p.Spec.ImagePullSecrets = "strict", []corev1.LocalObjectReference{{Name: "pull"}, {Name: "mine"}}
		},
			`imagePullSecrets[1].name="mine" is not allowed because service account strict does not reference that imagePullSecret`},
		{"strict", func(p *corev1.Pod) {
			p.Spec.ServiceAccountName, p.Spec.Volumes = "strict", []corev1.Volume{secret("mine")}
		}, ""},
		{"strict with another Secret", func(p *corev1.Pod) {
			p.Spec.ServiceAccountName, p.Spec.Volumes = "strict", []corev1.Volume{secret("s")}
		},
			`volume with secret.secretName="s" is not allowed because service account strict does not reference that secret`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p := pod(tt.change)
			wantErr(t, ask(t, c, write{resource: "/pods", ns: "ns", obj: p}), tt.err)
			if tt.name == "mirror" && len(p.Spec.Volumes) > 0 {
				t.Error("a mirror pod was changed")
			}
		})
	}

	// The plugin waits for the default service account.
	var first sync.Once
	missed := make(chan struct{})
	kube.(*fake.Clientset).PrependReactor("get", "serviceaccounts", func(clienttesting.Action) (handled bool, _ runtime.Object, err error) {
		first.Do(func() {
			handled, err = true, apierrors.NewNotFound(corev1.Resource("serviceaccounts"), "default")
			close(missed)
		})
		return handled, nil, err
	})
	done := make(chan error)
	go func() { done <- ask(t, c, write{resource: "/pods", ns: "ns", obj: pod(nil)}) }()
	<-missed
	if _, err := kube.CoreV1().ServiceAccounts("ns").Create(t.Context(), account("default", nil), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	wantErr(t, <-done, "")
}

func TestPriority(t *testing.T) {
	never := corev1.PreemptNever
	class := func(name string, value int32, def bool) *schedulingv1.PriorityClass {
		return &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Value: value, GlobalDefault: def}
	}
	polite := class("polite", 5, false)
	polite.PreemptionPolicy = &never
	num := func(n int32) *int32 { return &n }
	classes := []runtime.Object{class("high", 1000, false), polite}
	tests := []struct {
		name   string
		extra  []runtime.Object
		change func(*corev1.PodSpec)
		class  string
		value  int32
		policy corev1.PreemptionPolicy
		err    string
	}{
		{name: "none", policy: "PreemptLowerPriority"},
		{name: "default", extra: []runtime.Object{class("def", 7, true), class("def2", 9, true)}, class: "def", value: 7, policy: "PreemptLowerPriority"},
		{name: "named", change: func(s *corev1.PodSpec) { s.PriorityClassName = "high" }, class: "high", value: 1000, policy: "PreemptLowerPriority"},
		{name: "policy", change: func(s *corev1.PodSpec) { s.PriorityClassName = "polite" }, class: "polite", value: 5, policy: "Never"},
		{name: "absent", change: func(s *corev1.PodSpec) { s.PriorityClassName = "x" }, err: "no PriorityClass with name x was found"},
		{name: "same number", change: func(s *corev1.PodSpec) { s.PriorityClassName, s.Priority = "high", num(1000) }, class: "high", value: 1000, policy: "PreemptLowerPriority"},
		{name: "other number", change: func(s *corev1.PodSpec) { s.PriorityClassName, s.Priority = "high", num(1) },
			err: "the integer value of priority (1) must not be provided in pod spec; priority admission controller computed 1000 from the given PriorityClass name"},
		{name: "other policy", change: func(s *corev1.PodSpec) { s.PriorityClassName, s.PreemptionPolicy = "high", &never },
			err: "the string value of PreemptionPolicy (Never) must not be provided in pod spec; priority admission controller computed PreemptLowerPriority from the given PriorityClass name"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c, _ := chain(t, Config{}, []string{"Priority"}, append(tt.extra, classes...)...)
			p := pod(nil)
			if tt.change != nil {
				tt.change(&p.Spec)
			}
			err := ask(t, c, write{resource: "/pods", obj: p})
			wantErr(t, err, tt.err)
			if err == nil && (p.Spec.PriorityClassName != tt.class || *p.Spec.Priority != tt.value || *p.Spec.PreemptionPolicy != tt.policy) {
				t.Errorf("%q %d %s", p.Spec.PriorityClassName, *p.Spec.Priority, *p.Spec.PreemptionPolicy)
			}
		})
	}

	c, _ := chain(t, Config{}, []string{"Priority"}, class("def", 7, true))
	wantErr(t, ask(t, c, write{resource: "scheduling.k8s.io/priorityclasses", obj: class("two", 1, true)}), "PriorityClass def is already marked as default. Only one default can exist")
	wantErr(t, ask(t, c, write{op: admission.Update, resource: "scheduling.k8s.io/priorityclasses", obj: class("def", 7, true)}), "")
	old := pod(func(p *corev1.Pod) { p.Spec.Priority, p.Spec.PreemptionPolicy = num(3), &never })
	p := pod(nil)
	wantErr(t, ask(t, c, write{op: admission.Update, resource: "/pods", obj: p, old: old}), "")
	if p.Spec.Priority == nil || *p.Spec.Priority != 3 || *p.Spec.PreemptionPolicy != never {
		t.Error("an update lost the priority")
	}
}

func TestRuntimeClass(t *testing.T) {
	overhead := corev1.ResourceList{"cpu": resource.MustParse("100m")}
	c, _ := chain(t, Config{}, []string{"RuntimeClass"},
		&nodev1.RuntimeClass{ObjectMeta: metav1.ObjectMeta{Name: "vm"}, Handler: "vm", Overhead: &nodev1.Overhead{PodFixed: overhead},
			Scheduling: &nodev1.Scheduling{NodeSelector: map[string]string{"vm": "yes"}, Tolerations: []corev1.Toleration{{Key: "vm", Operator: "Exists"}}}},
		&nodev1.RuntimeClass{ObjectMeta: metav1.ObjectMeta{Name: "plain"}, Handler: "plain"})
	named := func(name string, change func(*corev1.PodSpec)) *corev1.Pod {
		return pod(func(p *corev1.Pod) {
			if name != "" {
				p.Spec.RuntimeClassName = &name
			}
			if change != nil {
				change(&p.Spec)
			}
		})
	}
	tests := []struct {
		name string
		pod  *corev1.Pod
		err  string
	}{
		{"none", named("", nil), ""},
		{"overhead without class", named("", func(s *corev1.PodSpec) { s.Overhead = overhead }), "pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead"},
		{"empty overhead without class", named("", func(s *corev1.PodSpec) { s.Overhead = corev1.ResourceList{} }), "pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead"},
		{"class", named("vm", nil), ""},
		{"same overhead", named("vm", func(s *corev1.PodSpec) { s.Overhead = overhead }), ""},
		{"other overhead", named("vm", func(s *corev1.PodSpec) { s.Overhead = corev1.ResourceList{"cpu": resource.MustParse("1")} }), "pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead"},
		{"overhead with plain class", named("plain", func(s *corev1.PodSpec) { s.Overhead = overhead }), "without corresponding RuntimeClass"},
		{"conflict", named("vm", func(s *corev1.PodSpec) { s.NodeSelector = map[string]string{"vm": "no"} }), "conflict: runtimeClass.scheduling.nodeSelector[vm] = yes; pod.spec.nodeSelector[vm] = no"},
		{"absent", named("x", nil), `pods "p" is forbidden: pod rejected: RuntimeClass "x" not found`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			err := ask(t, c, write{resource: "/pods", obj: tt.pod})
			wantErr(t, err, tt.err)
			if err == nil && tt.pod.Spec.RuntimeClassName != nil &&
				(tt.pod.Spec.Overhead.Cpu().MilliValue() != 100 || tt.pod.Spec.NodeSelector["vm"] != "yes" || len(tt.pod.Spec.Tolerations) != 1) {
				t.Errorf("%+v", tt.pod.Spec)
			}
		})
	}
}

func TestPodSecurity(t *testing.T) {
	ns := func(name string, labels map[string]string) *corev1.Namespace {
		return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}
	}
	strict := map[string]string{"pod-security.kubernetes.io/enforce": "restricted"}
	base := map[string]string{"pod-security.kubernetes.io/enforce": "baseline"}
	c, _ := chain(t, Config{}, []string{"PodSecurity"}, ns("free", nil), ns("strict", strict), ns("base", base))
	privileged := pod(func(p *corev1.Pod) {
		yes := true
		p.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{Privileged: &yes}
	})
	wantErr(t, ask(t, c, write{resource: "/pods", ns: "free", obj: privileged}), "")
	wantErr(t, ask(t, c, write{resource: "/pods", ns: "base", obj: pod(nil)}), "")
	wantErr(t, ask(t, c, write{resource: "/pods", ns: "base", obj: privileged}), `pods "p" is forbidden: violates PodSecurity "baseline:latest": privileged (container "c" must not set securityContext.privileged=true)`)
	wantErr(t, ask(t, c, write{resource: "/pods", ns: "strict", obj: pod(nil)}), `violates PodSecurity "restricted:latest": allowPrivilegeEscalation != false`)
	wantErr(t, ask(t, c, write{resource: "/pods", sub: "exec", ns: "strict", obj: pod(nil)}), "")
	wantErr(t, ask(t, c, write{resource: "/namespaces", obj: ns("x", map[string]string{"pod-security.kubernetes.io/enforce": "tight"})}), "must be one of privileged, baseline, restricted")
	wantErr(t, ask(t, c, write{resource: "/configmaps", ns: "strict", obj: &corev1.ConfigMap{}}), "")
}

func TestLimitRanger(t *testing.T) {
	list := func(kv ...string) corev1.ResourceList {
		l := corev1.ResourceList{}
		for i := 0; i < len(kv); i += 2 {
			l[corev1.ResourceName(kv[i])] = resource.MustParse(kv[i+1])
		}
		return l
	}
	c, _ := chain(t, Config{}, []string{"LimitRanger"}, &corev1.LimitRange{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "l"}, Spec: corev1.LimitRangeSpec{Limits: []corev1.LimitRangeItem{
		{Type: "Container", Default: list("cpu", "500m", "memory", "1Gi"), DefaultRequest: list("cpu", "100m"), Min: list("cpu", "50m"), Max: list("cpu", "2"), MaxLimitRequestRatio: list("cpu", "10")},
		{Type: "Pod", Max: list("cpu", "3")},
		{Type: "PersistentVolumeClaim", Min: list("storage", "1Gi"), Max: list("storage", "10Gi")},
	}}}, &corev1.LimitRange{ObjectMeta: metav1.ObjectMeta{Namespace: "unset", Name: "l"}, Spec: corev1.LimitRangeSpec{Limits: []corev1.LimitRangeItem{
		// A min or max is not a default, except a max for containers without a limit.
		{Type: "Container", Min: list("cpu", "50m"), MaxLimitRequestRatio: list("cpu", "10")},
		{Type: "Container", Max: list("cpu", "2")},
		{Type: "PersistentVolumeClaim", Max: list("storage", "10Gi")},
	}}})
	with := func(requests, limits corev1.ResourceList) *corev1.Pod {
		return pod(func(p *corev1.Pod) {
			p.Spec.Containers[0].Resources = corev1.ResourceRequirements{Requests: requests, Limits: limits}
		})
	}
	p := pod(nil)
	wantErr(t, ask(t, c, write{resource: "/pods", ns: "ns", obj: p}), "")
	r := p.Spec.Containers[0].Resources
	if r.Requests.Cpu().String() != "100m" || r.Limits.Cpu().String() != "500m" || r.Limits.Memory().String() != "1Gi" {
		t.Errorf("%+v", r)
	}
	if got, want := p.Annotations["kubernetes.io/limit-ranger"], "LimitRanger plugin set: cpu request for container c; cpu, memory limit for container c"; got != want {
		t.Errorf("got %q", got)
	}
	pvc := func(size string) *corev1.PersistentVolumeClaim {
		return &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "c"}, Spec: corev1.PersistentVolumeClaimSpec{Resources: corev1.VolumeResourceRequirements{Requests: list("storage", size)}}}
	}
	tests := []struct {
		name string
		w    write
		err  string
	}{
		{"within", write{resource: "/pods", ns: "ns", obj: with(list("cpu", "1"), list("cpu", "2"))}, ""},
		{"over", write{resource: "/pods", ns: "ns", obj: with(list("cpu", "1"), list("cpu", "2500m"))}, `pods "p" is forbidden: maximum cpu usage per Container is 2, but limit is 2500m`},
		{"no limit", write{resource: "/pods", ns: "unset", obj: with(list("cpu", "1"), nil)}, "maximum cpu usage per Container is 2.  No limit is specified"},
		{"no request", write{resource: "/pods", ns: "unset", obj: with(nil, nil)}, "minimum cpu usage per Container is 50m.  No request is specified"},
		{"request over", write{resource: "/pods", ns: "unset", obj: with(list("cpu", "3"), list("cpu", "2"))}, "maximum cpu usage per Container is 2, but request is 3"},
		{"limit under", write{resource: "/pods", ns: "unset", obj: with(list("cpu", "50m"), list("cpu", "40m"))}, "minimum cpu usage per Container is 50m, but limit is 40m"},
		{"ratio of no request", write{resource: "/pods", ns: "unset", obj: with(nil, list("cpu", "1"))}, "cpu max limit to request ratio per Container is 10, but no request is specified or request is 0"},
		{"ratio of no limit", write{resource: "/pods", ns: "unset", obj: with(list("cpu", "1"), nil)}, "cpu max limit to request ratio per Container is 10, but no limit is specified or limit is 0"},
		{"claim of nothing", write{resource: "/persistentvolumeclaims", ns: "unset", obj: &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "c"}}}, "maximum storage usage per PersistentVolumeClaim is 10Gi.  No request is specified"},
		{"under", write{resource: "/pods", ns: "ns", obj: with(list("cpu", "10m"), list("cpu", "100m"))}, "minimum cpu usage per Container is 50m, but request is 10m"},
		{"ratio", write{resource: "/pods", ns: "ns", obj: with(list("cpu", "100m"), list("cpu", "2"))}, "cpu max limit to request ratio per Container is 10, but provided ratio is 20.000000"},
		{"pod over", write{resource: "/pods", ns: "ns", obj: pod(func(p *corev1.Pod) {
			two := corev1.ResourceRequirements{Requests: list("cpu", "2"), Limits: list("cpu", "2")}
			p.Spec.Containers = []corev1.Container{{Name: "a", Resources: two}, {Name: "b", Resources: two}}
		})}, "maximum cpu usage per Pod is 3, but limit is 4"},
		{"pod over by overhead alone", write{resource: "/pods", ns: "ns", obj: pod(func(p *corev1.Pod) {
			one := corev1.ResourceRequirements{Requests: list("cpu", "1500m"), Limits: list("cpu", "1500m")}
			p.Spec.Containers = []corev1.Container{{Name: "a", Resources: one}, {Name: "b", Resources: one}}
			p.Spec.Overhead = list("cpu", "250m")
		})}, ""},
		{"elsewhere", write{resource: "/pods", ns: "other", obj: with(list("cpu", "1"), list("cpu", "9"))}, ""},
		{"claim", write{resource: "/persistentvolumeclaims", ns: "ns", obj: pvc("5Gi")}, ""},
		{"small claim", write{resource: "/persistentvolumeclaims", ns: "ns", obj: pvc("5Mi")}, "minimum storage usage per PersistentVolumeClaim is 1Gi, but request is 5Mi"},
		{"big claim", write{resource: "/persistentvolumeclaims", ns: "ns", obj: pvc("50Gi")}, "maximum storage usage per PersistentVolumeClaim is 10Gi, but request is 50Gi"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) { wantErr(t, ask(t, c, tt.w), tt.err) })
	}
}
