package admission

import (
	"context"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
)

// chain returns a chain of only the named plugins, with synced informers that contain objs.
func chain(t testing.TB, cfg Config, plugins []string, objs ...runtime.Object) (*Chain, kubernetes.Interface) {
	t.Helper()
	kube := fake.NewClientset(objs...)
	inf := informers.NewSharedInformerFactory(kube, 0)
	cfg.Kube, cfg.Informers = kube, inf
	for _, k := range pluginOrder {
		if slices.Contains(plugins, k.name) {
			if !k.enabledByDefault {
				cfg.Enable = append(cfg.Enable, k.name)
			}
		} else if k.enabledByDefault {
			cfg.Disable = append(cfg.Disable, k.name)
		}
	}
	c, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(c.Plugins(), plugins) {
		t.Fatalf("plugins %v, want %v", c.Plugins(), plugins)
	}
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(func() { cancel(); inf.Shutdown() })
	inf.StartWithContext(ctx)
	inf.WaitForCacheSyncWithContext(ctx)
	return c, kube
}

// write describes one write request.
type write struct {
	op       admission.Operation
	resource string // "group/resource", the group may be empty
	sub      string
	ns, name string
	obj, old runtime.Object
	user     user.Info
}

// ask runs a request through the chain as the API server does.
func ask(t testing.TB, c *Chain, w write) error {
	t.Helper()
	if w.op == "" {
		w.op = admission.Create
	}
	if w.user == nil {
		w.user = &user.DefaultInfo{Name: "ann"}
	}
	if m, ok := w.obj.(metav1.Object); ok && w.name == "" {
		w.name = m.GetName()
	}
	group, resource, _ := strings.Cut(w.resource, "/")
	a := admission.NewAttributesRecord(w.obj, w.old, schema.GroupVersionKind{Group: group, Version: "v1", Kind: "X"}, w.ns, w.name,
		schema.GroupVersionResource{Group: group, Version: "v1", Resource: resource}, w.sub, w.op, nil, false, w.user)
	if err := c.Admit(t.Context(), a, nil); err != nil {
		return err
	}
	return c.Validate(t.Context(), a, nil)
}

// wantErr fails the test unless err contains text. An empty text means no error.
func wantErr(t testing.TB, err error, text string) {
	t.Helper()
	if text == "" && err != nil || text != "" && (err == nil || !strings.Contains(err.Error(), text)) {
		t.Errorf("got error %v, want %q", err, text)
	}
}

func pod(change func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c"}}}}
	if change != nil {
		change(p)
	}
	return p
}

func TestNewRefuses(t *testing.T) {
	kube := fake.NewClientset()
	base := Config{Kube: kube, Informers: informers.NewSharedInformerFactory(kube, 0)}
	for name, tc := range map[string]struct {
		change func(*Config)
		err    string
	}{
		"unknown on":       {func(c *Config) { c.Enable = []string{"Magic"} }, `enable-admission-plugins plugin "Magic" is unknown`},
		"unknown off":      {func(c *Config) { c.Disable = []string{"Magic"} }, `disable-admission-plugins plugin "Magic" is unknown`},
		"limits missing":   {func(c *Config) { c.Enable = []string{"EventRateLimit"} }, "admission plugin EventRateLimit: "},
		"webhook missing":  {func(c *Config) { c.Enable = []string{"ImagePolicyWebhook"} }, "admission plugin ImagePolicyWebhook: "},
		"both on and off":  {func(c *Config) { c.Enable, c.Disable = []string{"AlwaysAdmit"}, []string{"AlwaysAdmit"} }, "[AlwaysAdmit] in enable-admission-plugins and disable-admission-plugins overlapped"},
		"without a client": {func(c *Config) { c.Kube = nil }, "informers and a client"},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := base
			tc.change(&cfg)
			_, err := New(cfg)
			wantErr(t, err, tc.err)
		})
	}
}

func TestDefaultPlugins(t *testing.T) {
	kube := fake.NewClientset()
	cfg := Config{Kube: kube, Informers: informers.NewSharedInformerFactory(kube, 0), Extra: map[string]admission.Interface{
		"MutatingAdmissionWebhook": alwaysAdmit{all}, "Ours": alwaysAdmit{all},
	}}
	c, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	want := "NamespaceLifecycle LimitRanger ServiceAccount NodeRestriction TaintNodesByCondition PodSecurity Priority " +
		"DefaultTolerationSeconds DefaultStorageClass StorageObjectInUseProtection PersistentVolumeClaimResize RuntimeClass " +
		"CertificateSubjectRestriction DefaultIngressClass PodTopologyLabels NodeDeclaredFeatureValidator PodResizeValidator MutatingAdmissionWebhook ResourceQuota Ours"
	if got := strings.Join(c.Plugins(), " "); got != want {
		t.Errorf("got %s", got)
	}
	// A configuration as in a server: with an authorizer, policies and webhooks.
	whole := cfg
	whole.Authorizer = authorizer.AuthorizerFunc(func(context.Context, authorizer.Attributes) (authorizer.Decision, string, error) {
		return authorizer.DecisionNoOpinion, "", nil
	})
	whole.Extra = map[string]admission.Interface{}
	for _, name := range []string{"MutatingAdmissionPolicy", "MutatingAdmissionWebhook", "ValidatingAdmissionPolicy", "ValidatingAdmissionWebhook"} {
		whole.Extra[name] = alwaysAdmit{all}
	}
	if c, err = New(whole); err != nil {
		t.Fatal(err)
	}
	want = "NamespaceLifecycle LimitRanger ServiceAccount NodeRestriction TaintNodesByCondition PodSecurity Priority " +
		"DefaultTolerationSeconds DefaultStorageClass StorageObjectInUseProtection PersistentVolumeClaimResize RuntimeClass " +
		"CertificateApproval CertificateSigning ClusterTrustBundleAttest CertificateSubjectRestriction DefaultIngressClass PodTopologyLabels " +
		"NodeDeclaredFeatureValidator PodResizeValidator MutatingAdmissionPolicy MutatingAdmissionWebhook ValidatingAdmissionPolicy " +
		"ValidatingAdmissionWebhook ResourceQuota"
	if got := strings.Join(c.Plugins(), " "); got != want {
		t.Errorf("of a whole server: got %s", got)
	}
	cfg.Serves = func(gvr schema.GroupVersionResource) bool { return false }
	if c, err = New(cfg); err != nil {
		t.Fatal(err)
	}
	if got := c.Plugins(); slices.Contains(got, "LimitRanger") || slices.Contains(got, "Priority") {
		t.Errorf("got %v", got)
	}
}

func TestNamespaceLifecycle(t *testing.T) {
	ns := func(name string, phase corev1.NamespacePhase) *corev1.Namespace {
		return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: corev1.NamespaceStatus{Phase: phase}}
	}
	c, kube := chain(t, Config{}, []string{"NamespaceLifecycle"}, ns("ns", corev1.NamespaceActive), ns("going", corev1.NamespaceTerminating))
	tests := []struct {
		name string
		w    write
		err  string
	}{
		{"in a namespace", write{resource: "/pods", ns: "ns", obj: pod(nil)}, ""},
		{"in none", write{resource: "/pods", ns: "absent", obj: pod(nil)}, `namespaces "absent" not found`},
		{"in one that goes", write{resource: "/pods", ns: "going", obj: pod(nil)}, `pods "p" is forbidden: unable to create new content in namespace going because it is being terminated`},
		{"update in one that goes", write{op: admission.Update, resource: "/pods", ns: "going", obj: pod(nil)}, ""},
		{"delete in none", write{op: admission.Delete, resource: "/pods", ns: "absent", name: "p"}, ""},
		{"cluster scoped", write{resource: "/nodes", obj: &corev1.Node{}}, ""},
		{"a namespace", write{resource: "/namespaces", ns: "new", obj: ns("new", "")}, ""},
		{"a question", write{resource: "authorization.k8s.io/localsubjectaccessreviews", ns: "absent"}, ""},
		{"delete default", write{op: admission.Delete, resource: "/namespaces", ns: "default", name: "default"}, `namespaces "default" is forbidden: this namespace may not be deleted`},
		{"delete kube-system", write{op: admission.Delete, resource: "/namespaces", name: "kube-system"}, "may not be deleted"},
		{"delete another", write{op: admission.Delete, resource: "/namespaces", name: "other"}, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) { wantErr(t, ask(t, c, tt.w), tt.err) })
	}

	err := ask(t, c, write{resource: "/pods", ns: "going", obj: pod(nil)})
	if !apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
		t.Errorf("no cause in %v", err)
	}

	// A namespace that was just created is found although the informer has not seen it.
	if _, err := kube.CoreV1().Namespaces().Create(t.Context(), ns("fresh", corev1.NamespaceActive), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	wantErr(t, ask(t, c, write{resource: "/pods", ns: "fresh", obj: pod(nil)}), "")
}

func TestNodeDefaults(t *testing.T) {
	c, _ := chain(t, Config{}, []string{"TaintNodesByCondition", "DefaultTolerationSeconds"})
	node := &corev1.Node{}
	for range 2 {
		wantErr(t, ask(t, c, write{resource: "/nodes", obj: node}), "")
	}
	if len(node.Spec.Taints) != 1 || node.Spec.Taints[0] != (corev1.Taint{Key: "node.kubernetes.io/not-ready", Effect: "NoSchedule"}) {
		t.Errorf("%+v", node.Spec.Taints)
	}

	p := pod(nil)
	for range 2 {
		wantErr(t, ask(t, c, write{resource: "/pods", obj: p}), "")
	}
	if len(p.Spec.Tolerations) != 2 || p.Spec.Tolerations[0].Key != "node.kubernetes.io/not-ready" || p.Spec.Tolerations[1].Key != "node.kubernetes.io/unreachable" ||
		*p.Spec.Tolerations[0].TolerationSeconds != 300 || p.Spec.Tolerations[0].Effect != "NoExecute" || p.Spec.Tolerations[0].Operator != "Exists" {
		t.Errorf("%+v", p.Spec.Tolerations)
	}
	for _, own := range []corev1.Toleration{{Operator: "Exists"}, {Operator: "Exists", Effect: "NoExecute"}} {
		p = pod(func(p *corev1.Pod) { p.Spec.Tolerations = []corev1.Toleration{own} })
		wantErr(t, ask(t, c, write{resource: "/pods", obj: p}), "")
		if len(p.Spec.Tolerations) != 1 {
			t.Errorf("%+v", p.Spec.Tolerations)
		}
	}
	p = pod(func(p *corev1.Pod) {
		p.Spec.Tolerations = []corev1.Toleration{{Key: "node.kubernetes.io/not-ready", Operator: "Exists", Effect: "NoSchedule"}}
	})
	wantErr(t, ask(t, c, write{resource: "/pods", obj: p}), "")
	if len(p.Spec.Tolerations) != 3 {
		t.Errorf("%+v", p.Spec.Tolerations)
	}
}

func TestSimplePlugins(t *testing.T) {
	c, _ := chain(t, Config{}, []string{"AlwaysPullImages", "DenyServiceExternalIPs"})
	p := pod(func(p *corev1.Pod) { p.Spec.Containers[0].ImagePullPolicy = corev1.PullNever })
	wantErr(t, ask(t, c, write{resource: "/pods", obj: p}), "")
	if p.Spec.Containers[0].ImagePullPolicy != corev1.PullAlways {
		t.Error(p.Spec.Containers[0].ImagePullPolicy)
	}
	svc := func(ips ...string) *corev1.Service {
		return &corev1.Service{Spec: corev1.ServiceSpec{ExternalIPs: ips}}
	}
	wantErr(t, ask(t, c, write{resource: "/services", obj: svc("192.0.2.1")}), "Use of external IPs is denied by admission control")
	wantErr(t, ask(t, c, write{op: admission.Update, resource: "/services", obj: svc("192.0.2.1"), old: svc("192.0.2.1", "192.0.2.2")}), "")
	deny, _ := chain(t, Config{}, []string{"AlwaysDeny"})
	wantErr(t, ask(t, deny, write{resource: "/pods", obj: pod(nil)}), "admission control is denying all modifications")
}

// TestEveryImageIsPulled checks that every image reference of a pod gets pull policy Always.
func TestEveryImageIsPulled(t *testing.T) {
	c, _ := chain(t, Config{}, []string{"AlwaysPullImages"})
	p := pod(func(p *corev1.Pod) {
		p.Spec.InitContainers = []corev1.Container{{Name: "i", ImagePullPolicy: corev1.PullNever}}
		p.Spec.EphemeralContainers = []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: "e"}}}
		p.Spec.Volumes = []corev1.Volume{{Name: "none"}, {Name: "v", VolumeSource: corev1.VolumeSource{Image: &corev1.ImageVolumeSource{Reference: "x", PullPolicy: corev1.PullIfNotPresent}}}}
	})
	wantErr(t, ask(t, c, write{resource: "/pods", obj: p}), "")
	for what, policy := range map[string]corev1.PullPolicy{
		"container": p.Spec.Containers[0].ImagePullPolicy, "init container": p.Spec.InitContainers[0].ImagePullPolicy,
		"ephemeral container": p.Spec.EphemeralContainers[0].ImagePullPolicy, "volume": p.Spec.Volumes[1].Image.PullPolicy,
	} {
		if policy != corev1.PullAlways {
			t.Errorf("%s: %q", what, policy)
		}
	}
}

// TestExtendedResourceToleration checks that a pod that requests an extended resource gets exactly
// one toleration for the taint with the name of the resource.
func TestExtendedResourceToleration(t *testing.T) {
	c, _ := chain(t, Config{}, []string{"ExtendedResourceToleration"})
	asks := func(names ...corev1.ResourceName) (r corev1.ResourceRequirements) {
		r.Requests = corev1.ResourceList{}
		for _, name := range names {
			r.Requests[name] = resource.MustParse("1")
		}
		return r
	}
	seconds := int64(5)
	p := pod(func(p *corev1.Pod) {
		p.Spec.InitContainers = []corev1.Container{{Name: "i", Resources: asks("example.com/b", "requests.example.com/c")}}
		p.Spec.Containers[0].Resources = asks("cpu", "example.com/a", "example.com/b", "kubernetes.io/batch", "hugepages-2Mi", "example.com/known")
		p.Spec.Tolerations = []corev1.Toleration{
			{Key: "example.com/known", Operator: corev1.TolerationOpExists},
			{Key: "example.com/a", Operator: corev1.TolerationOpExists, TolerationSeconds: &seconds},
		}
	})
	wantErr(t, ask(t, c, write{resource: "/pods", obj: p}), "")
	var got []string
	for _, toleration := range p.Spec.Tolerations[2:] {
		if toleration.Operator != corev1.TolerationOpExists || toleration.Effect != "" || toleration.TolerationSeconds != nil {
			t.Errorf("%+v", toleration)
		}
		got = append(got, toleration.Key)
	}
	if !slices.Equal(got, []string{"example.com/a", "example.com/b"}) {
		t.Errorf("tolerates %v", got)
	}
}

func TestTopologyLabels(t *testing.T) {
	c, _ := chain(t, Config{}, []string{"PodTopologyLabels"}, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", Labels: map[string]string{
		"topology.kubernetes.io/zone": "z", "topology.kubernetes.io/region": "r", "x": "y"}}})
	b := &corev1.Binding{Target: corev1.ObjectReference{Kind: "Node", Name: "n"}}
	wantErr(t, ask(t, c, write{resource: "/pods", sub: "binding", obj: b}), "")
	if len(b.Labels) != 2 || b.Labels["topology.kubernetes.io/zone"] != "z" {
		t.Errorf("%v", b.Labels)
	}
	p := pod(func(p *corev1.Pod) { p.Spec.NodeName = "absent" })
	wantErr(t, ask(t, c, write{resource: "/pods", obj: p}), "")
}
