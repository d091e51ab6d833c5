package admission

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	imagepolicy "k8s.io/api/imagepolicy/v1alpha1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
)

func files(name, text string) Config { return Config{Files: map[string][]byte{name: []byte(text)}} }

func TestConfigurationsRefused(t *testing.T) {
	const limits = "apiVersion: eventratelimit.admission.k8s.io/v1alpha1\nkind: Configuration\n"
	for name, tc := range map[string]struct{ plugin, text, err string }{
		"no limits":      {"EventRateLimit", limits, "limits: Invalid value"},
		"limit type":     {"EventRateLimit", limits + "limits: [{type: Moon, qps: 1, burst: 1}]", `limits[0].type: Unsupported value: "Moon"`},
		"limit numbers":  {"EventRateLimit", limits + "limits: [{type: Server}]", "limits[0].burst: Invalid value: 0: must be positive"},
		"limit field":    {"EventRateLimit", limits + "limit: []", "unknown field"},
		"limit kind":     {"EventRateLimit", "limits: []", "Object 'Kind' is missing"},
		"limit version":  {"EventRateLimit", "apiVersion: v1\nkind: Configuration", `no kind "Configuration" is registered for version "v1"`},
		"tolerations":    {"PodTolerationRestriction", "apiVersion: podtolerationrestriction.admission.k8s.io/v1alpha1\nkind: Configuration\nwhite: []", "unknown field"},
		"selector":       {"PodNodeSelector", "podNodeSelectorPluginConfig: {ns: a in (b)}", "node selector of ns"},
		"image webhook":  {"ImagePolicyWebhook", "imagePolicy: {allowTTL: 100000}", "valid value is between 1s and 30m0s"},
		"image config":   {"ImagePolicyWebhook", "imagePolicy: {kubeConfigFile: /none/such}", "no such file"},
		"pod security":   {"PodSecurity", "apiVersion: pod-security.admission.config.k8s.io/v1\nkind: PodSecurityConfiguration\ndefaults: {enforce: tight}", "enforce: must be one of privileged"},
		"resource quota": {"ResourceQuota", "apiVersion: apiserver.config.k8s.io/v1\nkind: ResourceQuotaConfiguration\nlimitedResources: [{}]", "limitedResources[0].resource: Required value"},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := files(tc.plugin, tc.text)
			kube := fake.NewClientset()
			cfg.Kube, cfg.Informers, cfg.Enable = kube, informers.NewSharedInformerFactory(kube, 0), []string{tc.plugin}
			_, err := New(cfg)
			if err == nil {
				t.Fatal("accepted")
			}
			wantErr(t, err, tc.err)
		})
	}
}

func TestEventRateLimit(t *testing.T) {
	event := func(name string) *corev1.Event {
		return &corev1.Event{Source: corev1.EventSource{Component: "c"}, InvolvedObject: corev1.ObjectReference{Kind: "Pod", Name: name}}
	}
	ann, bob := &user.DefaultInfo{Name: "ann"}, &user.DefaultInfo{Name: "bob"}
	send := func(ns string, u user.Info, obj runtime.Object) write {
		return write{resource: "/events", ns: ns, user: u, obj: obj}
	}
	for kind, tc := range map[string]struct {
		first, same, other write
		key                string
	}{
		"Server":          {send("a", ann, event("x")), send("b", bob, event("y")), write{resource: "/pods", obj: pod(nil)}, ""},
		"Namespace":       {send("a", ann, event("x")), send("a", bob, event("y")), send("b", ann, event("x")), "a"},
		"User":            {send("a", ann, event("x")), send("b", ann, event("y")), send("a", bob, event("x")), "ann"},
		"SourceAndObject": {send("a", ann, event("x")), send("b", bob, event("x")), send("a", ann, event("y")), "cPodx"},
	} {
		t.Run(kind, func(t *testing.T) {
			c, _ := chain(t, files("EventRateLimit", fmt.Sprintf(
				`{apiVersion: eventratelimit.admission.k8s.io/v1alpha1, kind: Configuration, limits: [{type: %s, qps: 1, burst: 1}]}`, kind)), []string{"EventRateLimit"})
			wantErr(t, ask(t, c, tc.first), "")
			err := ask(t, c, tc.same)
			wantErr(t, err, fmt.Sprintf("limit reached on type %s for key %s", kind, tc.key))
			if !apierrors.IsTooManyRequests(err) {
				t.Errorf("got %v", err)
			}
			wantErr(t, ask(t, c, tc.other), "")
		})
	}
	c, _ := chain(t, files("EventRateLimit",
		`{apiVersion: eventratelimit.admission.k8s.io/v1alpha1, kind: Configuration, limits: [{type: SourceAndObject, qps: 1, burst: 1}]}`), []string{"EventRateLimit"})
	wantErr(t, ask(t, c, send("a", ann, event("x"))), "")
	newer := &eventsv1.Event{DeprecatedSource: corev1.EventSource{Component: "c"}, Regarding: corev1.ObjectReference{Kind: "Pod", Name: "x"}}
	wantErr(t, ask(t, c, write{resource: "events.k8s.io/events", obj: newer}), "limit reached")
}

func TestPodNodeSelector(t *testing.T) {
	c, _ := chain(t, files("PodNodeSelector", "podNodeSelectorPluginConfig: {clusterDefaultNodeSelector: env=dev, ns: 'env=dev,disk=ssd'}"), []string{"PodNodeSelector"},
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "ns"}},
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "prod", Annotations: map[string]string{nodeSelectorAnnotation: "env=prod"}}})
	for name, tc := range map[string]struct {
		ns, key, value, err, env string
	}{
		"the cluster's":  {"ns", "", "", "", "dev"},
		"the namespace":  {"prod", "any", "x", "", "prod"},
		"conflict":       {"prod", "env", "dev", "pod node label selector conflicts with its namespace node label selector", ""},
		"allowed":        {"ns", "disk", "ssd", "", "dev"},
		"not allowed":    {"ns", "zone", "a", "pod node label selector labels conflict with its namespace whitelist", ""},
		"no namespace":   {"none", "", "", "not found", ""},
		"same as wanted": {"ns", "env", "dev", "", "dev"},
	} {
		t.Run(name, func(t *testing.T) {
			p := pod(func(p *corev1.Pod) {
				if tc.key != "" {
					p.Spec.NodeSelector = map[string]string{tc.key: tc.value}
				}
			})
			wantErr(t, ask(t, c, write{resource: "/pods", ns: tc.ns, obj: p}), tc.err)
			if tc.err == "" && p.Spec.NodeSelector["env"] != tc.env {
				t.Errorf("got %v", p.Spec.NodeSelector)
			}
		})
	}
}

func TestPodTolerationRestriction(t *testing.T) {
	c, _ := chain(t, files("PodTolerationRestriction", `{apiVersion: podtolerationrestriction.admission.k8s.io/v1alpha1, kind: Configuration,
		default: [{key: team, operator: Exists}], whitelist: [{key: team, operator: Exists}, {key: node.kubernetes.io/memory-pressure, operator: Exists}]}`), []string{"PodTolerationRestriction"},
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "ns"}},
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "own", Annotations: map[string]string{
			defaultTolerationsAnnotation: `[{"key":"gpu","operator":"Equal","value":"a"}]`, allowedTolerationsAnnotation: `[{"operator":"Exists"}]`}}},
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "broken", Annotations: map[string]string{defaultTolerationsAnnotation: `{`}}})
	gpu := corev1.Toleration{Key: "gpu", Operator: corev1.TolerationOpExists}
	for name, tc := range map[string]struct {
		ns   string
		has  []corev1.Toleration
		asks string
		op   admission.Operation
		want int
		err  string
	}{
		"the cluster's":      {ns: "ns", want: 1},
		"covered":            {ns: "ns", has: []corev1.Toleration{{Key: "team", Operator: corev1.TolerationOpEqual, Value: "x"}}, want: 1},
		"not allowed":        {ns: "ns", has: []corev1.Toleration{gpu}, err: "pod tolerations (possibly merged with namespace default tolerations) conflict with its namespace whitelist"},
		"with memory":        {ns: "ns", asks: "memory=1Gi", want: 2},
		"the namespace":      {ns: "own", want: 1},
		"wider than default": {ns: "own", has: []corev1.Toleration{gpu}, want: 1},
		"update adds none":   {ns: "own", op: admission.Update, want: 0},
		"broken":             {ns: "broken", err: "unexpected end of JSON input"},
	} {
		t.Run(name, func(t *testing.T) {
			p := pod(func(p *corev1.Pod) {
				p.Spec.Tolerations = tc.has
				p.Spec.Containers[0].Resources.Requests = amounts(t, tc.asks)
			})
			wantErr(t, ask(t, c, write{resource: "/pods", ns: tc.ns, obj: p, op: tc.op}), tc.err)
			if tc.err == "" && len(p.Spec.Tolerations) != tc.want {
				t.Errorf("got %v", p.Spec.Tolerations)
			}
		})
	}
}

func TestPodResize(t *testing.T) {
	node := func(name, os string) *corev1.Node {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelOSStable: os}},
			Status: corev1.NodeStatus{Allocatable: corev1.ResourceList{"cpu": resource.MustParse("2"), "memory": resource.MustParse("1Gi")}}}
	}
	c, _ := chain(t, Config{}, []string{"PodResizeValidator"}, node("n", "linux"), node("w", "windows"))
	for name, tc := range map[string]struct{ node, asks, err string }{
		"fits":       {"n", "cpu=1 memory=1Gi", ""},
		"too much":   {"n", "cpu=3 memory=2Gi", "node didn't have enough allocatable resources: cpu, requested: 3000, allocatable: 2000; memory, requested: 2147483648, allocatable: 1073741824"},
		"windows":    {"w", "cpu=1", `pod resize is only supported on linux nodes, node "w" is "windows"`},
		"no node":    {"none", "cpu=1", `node "none" not found`},
		"unassigned": {"", "cpu=100", ""},
	} {
		t.Run(name, func(t *testing.T) {
			old := pod(func(p *corev1.Pod) { p.Spec.NodeName, p.Generation = tc.node, 1 })
			p := old.DeepCopy()
			p.Generation, p.Spec.Containers[0].Resources.Requests = 2, amounts(t, tc.asks)
			wantErr(t, ask(t, c, write{op: admission.Update, resource: "/pods", sub: "resize", obj: p, old: old}), tc.err)
			wantErr(t, ask(t, c, write{op: admission.Update, resource: "/pods", obj: p, old: old}), "")
		})
	}
}

func TestDeclaredFeatures(t *testing.T) {
	const level, initial = "InPlacePodLevelResourcesVerticalScaling", "InPlacePodVerticalScalingInitContainers"
	node := func(name string, features ...string) *corev1.Node {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: corev1.NodeStatus{DeclaredFeatures: features}}
	}
	c, _ := chain(t, Config{}, []string{"NodeDeclaredFeatureValidator"}, node("new", level, initial), node("old"))
	always := corev1.ContainerRestartPolicyAlways
	old := pod(func(p *corev1.Pod) {
		p.Generation, p.Spec.InitContainers = 1, []corev1.Container{{Name: "i"}, {Name: "s", RestartPolicy: &always}}
	})
	for name, tc := range map[string]struct {
		node   string
		change func(*corev1.PodSpec)
		err    string
	}{
		"a container's":       {"old", func(s *corev1.PodSpec) { s.Containers[0].Resources.Requests = amounts(t, "cpu=1") }, ""},
		"a sidecar's":         {"old", func(s *corev1.PodSpec) { s.InitContainers[1].Resources.Requests = amounts(t, "cpu=1") }, ""},
		"an init container's": {"old", func(s *corev1.PodSpec) { s.InitContainers[0].Resources.Requests = amounts(t, "cpu=1") }, `pod update requires features ` + initial + ` which are not available on node "old"`},
		"the pod's":           {"old", func(s *corev1.PodSpec) { s.Resources = &corev1.ResourceRequirements{} }, `pod update requires features ` + level + ` which are not available on node "old"`},
		"both, on a new node": {"new", func(s *corev1.PodSpec) {
			s.Resources, s.InitContainers[0].Resources.Requests = &corev1.ResourceRequirements{}, amounts(t, "cpu=1")
		}, ""},
		"no node": {"none", func(s *corev1.PodSpec) { s.Resources = &corev1.ResourceRequirements{} }, `node "none" not found`},
	} {
		t.Run(name, func(t *testing.T) {
			was := old.DeepCopy()
			was.Spec.NodeName = tc.node
			now := was.DeepCopy()
			now.Generation = 2
			tc.change(&now.Spec)
			wantErr(t, ask(t, c, write{op: admission.Update, resource: "/pods", sub: "resize", obj: now, old: was}), tc.err)
			wantErr(t, ask(t, c, write{op: admission.Update, resource: "/pods", sub: "status", obj: now, old: was}), "")
		})
	}
}

// may allows requests of the form "verb resource/subresource namespace".
type may map[string]bool

func (m may) Authorize(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	if m[fmt.Sprintf("%s %s/%s %s", a.GetVerb(), a.GetResource(), a.GetSubresource(), a.GetNamespace())] {
		return authorizer.DecisionAllow, "", nil
	}
	return authorizer.DecisionNoOpinion, "no rule matched", nil
}

func (m may) ConditionsAwareAuthorize(ctx context.Context, a authorizer.Attributes) authorizer.ConditionsAwareDecision {
	return authorizer.ConditionsAwareDecisionFromParts(m.Authorize(ctx, a))
}

func (may) EvaluateConditions(context.Context, authorizer.ConditionsAwareDecision, authorizer.ConditionsData) (authorizer.Decision, string, error) {
	return authorizer.DecisionDeny, "", nil
}

func TestOwnerReferences(t *testing.T) {
	kinds := func(gvk schema.GroupVersionKind) (string, bool) {
		switch gvk.Kind {
		case "ReplicaSet":
			return "replicasets", true
		case "Node":
			return "nodes", false
		}
		return "", false
	}
	yes := true
	owned := func(block *bool, owners ...string) *corev1.Pod {
		return pod(func(p *corev1.Pod) {
			for _, kind := range owners {
				p.OwnerReferences = append(p.OwnerReferences, metav1.OwnerReference{APIVersion: "apps/v1", Kind: kind, Name: "o", UID: "u", BlockOwnerDeletion: block})
			}
		})
	}
	const cannotDelete = "cannot set an ownerRef on a resource you can't delete: no rule matched, <nil>"
	for name, tc := range map[string]struct {
		may      may
		obj, old *corev1.Pod
		sub, err string
	}{
		"no owner":               {nil, owned(nil), nil, "", ""},
		"may not delete":         {nil, owned(nil, "ReplicaSet"), nil, "", cannotDelete},
		"may delete":             {may{"delete pods/ ns": true}, owned(nil, "ReplicaSet"), nil, "", ""},
		"unchanged":              {nil, owned(&yes, "ReplicaSet"), owned(&yes, "ReplicaSet"), "", ""},
		"taken off":              {nil, owned(nil), owned(nil, "ReplicaSet"), "", cannotDelete},
		"the status":             {nil, owned(nil, "ReplicaSet"), nil, "status", ""},
		"may not block":          {may{"delete pods/ ns": true}, owned(&yes, "ReplicaSet"), nil, "", "cannot set blockOwnerDeletion if an ownerReference refers to a resource you can't set finalizers on: no rule matched, <nil>"},
		"may block":              {may{"delete pods/ ns": true, "update replicasets/finalizers ns": true}, owned(&yes, "ReplicaSet"), owned(nil, "ReplicaSet"), "", ""},
		"may block of a cluster": {may{"delete pods/ ns": true, "update nodes/finalizers ": true}, owned(&yes, "Node"), nil, "", ""},
		"unknown kind":           {may{"delete pods/ ns": true}, owned(&yes, "Moon"), nil, "", "cannot set blockOwnerDeletion in this case because cannot find RESTMapping for APIVersion apps/v1 Kind Moon"},
	} {
		t.Run(name, func(t *testing.T) {
			c, _ := chain(t, Config{Authorizer: tc.may, Kinds: kinds}, []string{"OwnerReferencesPermissionEnforcement"})
			w := write{resource: "/pods", ns: "ns", obj: tc.obj, sub: tc.sub}
			if tc.old != nil {
				w.op, w.old = admission.Update, tc.old
			}
			wantErr(t, ask(t, c, w), tc.err)
		})
	}
}

func TestImagePolicy(t *testing.T) {
	asked := 0
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		asked++
		var review imagepolicy.ImageReview
		if err := json.NewDecoder(req.Body).Decode(&review); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		switch review.Spec.Containers[0].Image {
		case "good":
			review.Status.Allowed = review.Spec.Annotations["x.image-policy.k8s.io/ticket"] == "7" && len(review.Spec.Annotations) == 1
		case "bad":
			review.Status.Reason = "it is bad"
		case "lost":
			http.Error(w, "gone", http.StatusNotFound)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(review)
	}))
	defer server.Close()
	dir := t.TempDir()
	ca := filepath.Join(dir, "ca.pem")
	pemBytes := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	kubeconfig := filepath.Join(dir, "kubeconfig")
	config := fmt.Sprintf(`{apiVersion: v1, kind: Config, current-context: c, clusters: [{name: c, cluster: {server: %s, certificate-authority: %s}}],
		users: [{name: c, user: {}}], contexts: [{name: c, context: {cluster: c, user: c}}]}`, server.URL, ca)
	for path, data := range map[string]string{ca: string(pemBytes), kubeconfig: config} {
		if err := os.WriteFile(path, []byte(data), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, open := range []bool{false, true} {
		c, _ := chain(t, files("ImagePolicyWebhook", fmt.Sprintf(`imagePolicy: {kubeConfigFile: %s, defaultAllow: %t, retryBackoff: 2}`, kubeconfig, open)), []string{"ImagePolicyWebhook"})
		of := func(image string) *corev1.Pod {
			return pod(func(p *corev1.Pod) {
				p.Spec.Containers[0].Image = image
				p.Annotations = map[string]string{"x.image-policy.k8s.io/ticket": "7", "other": "1"}
			})
		}
		wantErr(t, ask(t, c, write{resource: "/pods", ns: "ns", obj: of("good")}), "")
		before := asked
		wantErr(t, ask(t, c, write{resource: "/pods", ns: "ns", obj: of("good")}), "")
		if asked != before {
			t.Error("the response was not cached")
		}
		wantErr(t, ask(t, c, write{resource: "/pods", ns: "ns", obj: of("bad")}), "image policy webhook backend denied one or more images: it is bad")
		wantErr(t, ask(t, c, write{resource: "/pods", ns: "ns", obj: of("silent")}), "one or more images rejected by webhook backend")
		lost := of("lost")
		err := ask(t, c, write{resource: "/pods", ns: "ns", obj: lost})
		if open != (err == nil) || open != (lost.Annotations[imageFailedOpen] == "true") {
			t.Errorf("without an answer: %v, %v", err, lost.Annotations)
		}
		wantErr(t, ask(t, c, write{resource: "/pods", ns: "ns", obj: of("bad"), sub: "status"}), "")
	}
}

func TestLimitedResources(t *testing.T) {
	cfg := files("ResourceQuota", `---
{apiVersion: apiserver.config.k8s.io/v1, kind: ResourceQuotaConfiguration, limitedResources: [{resource: pods, matchContains: [requests.memory]}]}`)
	c, _ := chain(t, cfg, []string{"ResourceQuota"}, quotaOf(t, "q", "requests.memory=2", "requests.memory=1"))
	hungry := pod(func(p *corev1.Pod) { p.Spec.Containers[0].Resources.Requests = amounts(t, "memory=1") })
	wantErr(t, ask(t, c, write{resource: "/pods", ns: "ns", obj: hungry}), "")
	wantErr(t, ask(t, c, write{resource: "/pods", ns: "free", obj: hungry}), "insufficient quota to consume: requests.memory")
}

func TestPodSecurityDefaults(t *testing.T) {
	cfg := files("PodSecurity", `---
{apiVersion: pod-security.admission.config.k8s.io/v1, kind: PodSecurityConfiguration, defaults: {enforce: baseline}, exemptions: {namespaces: [free], usernames: [root]}}`)
	c, _ := chain(t, cfg, []string{"PodSecurity"}, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "ns"}}, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "free"}})
	host := pod(func(p *corev1.Pod) { p.Spec.HostNetwork = true })
	wantErr(t, ask(t, c, write{resource: "/pods", ns: "ns", obj: host}), `violates PodSecurity "baseline:latest": host namespaces (hostNetwork=true)`)
	wantErr(t, ask(t, c, write{resource: "/pods", ns: "free", obj: host}), "")
	wantErr(t, ask(t, c, write{resource: "/pods", ns: "ns", obj: host, user: &user.DefaultInfo{Name: "root"}}), "")
}

func TestDurations(t *testing.T) {
	reg := prometheus.NewRegistry()
	c, _ := chain(t, Config{Metrics: reg}, []string{"AlwaysPullImages", "PodResizeValidator"})
	wantErr(t, ask(t, c, write{resource: "/pods", ns: "ns", obj: pod(nil)}), "")
	old := pod(func(p *corev1.Pod) { p.Spec.NodeName = "none" })
	next := old.DeepCopy()
	next.Generation = 2
	wantErr(t, ask(t, c, write{op: admission.Update, resource: "/pods", sub: "resize", obj: next, old: old}), "not found")
	got := map[string]uint64{}
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			key := f.GetName()
			for _, l := range m.GetLabel() {
				key += " " + l.GetValue()
			}
			got[key] = m.GetHistogram().GetSampleCount()
		}
	}
	for key, want := range map[string]uint64{
		"apiserver_admission_controller_admission_duration_seconds AlwaysPullImages CREATE false admit":     1,
		"apiserver_admission_controller_admission_duration_seconds PodResizeValidator UPDATE true validate": 1,
		"apiserver_admission_step_admission_duration_seconds CREATE false admit":                            1,
		"apiserver_admission_step_admission_duration_seconds CREATE false validate":                         1,
		"apiserver_admission_step_admission_duration_seconds UPDATE true validate":                          1,
	} {
		if got[key] != want {
			t.Errorf("%s: %d of %v", key, got[key], got)
		}
	}
}
