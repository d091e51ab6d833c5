package compose_test

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	registrationv1 "k8s.io/api/admissionregistration/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"hyperkube/internal/testing/testwait"
)

// hooks is a webhook server that records its requests.
type hooks struct {
	*httptest.Server
	mu   sync.Mutex
	seen []*admissionv1.AdmissionRequest
	// stop cancels delayed responses.
	stop chan struct{}
}

func newHooks(t *testing.T) *hooks {
	t.Helper()
	h := &hooks{stop: make(chan struct{})}
	h.Server = httptest.NewTLSServer(h)
	t.Cleanup(func() { close(h.stop); h.Close() })
	return h
}

// ServeHTTP responds according to the path: the part after the first slash selects the behavior.
func (h *hooks) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	var review admissionv1.AdmissionReview
	if err := json.NewDecoder(req.Body).Decode(&review); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	h.mu.Lock()
	h.seen = append(h.seen, review.Request)
	h.mu.Unlock()
	answer := &admissionv1.AdmissionResponse{UID: review.Request.UID, Allowed: true}
	switch what := strings.TrimPrefix(req.URL.Path, "/"); what {
	case "deny":
		answer.Allowed, answer.Result = false, &metav1.Status{Message: "not here", Code: http.StatusForbidden, Reason: metav1.StatusReasonForbidden}
	case "annotate":
		answer.AuditAnnotations = map[string]string{"who": "hook"}
	case "warn":
		answer.Warnings = []string{"mind the gap"}
	case "slow":
		select {
		case <-h.stop:
		case <-req.Context().Done():
		}
	default:
		patch := admissionv1.PatchTypeJSONPatch
		answer.PatchType = &patch
		path := "/data"
		var obj struct{ Data map[string]string }
		_ = json.Unmarshal(review.Request.Object.Raw, &obj)
		if len(obj.Data) > 0 {
			answer.Patch = fmt.Appendf(nil, `[{"op":"add","path":"%s/%s","value":"%d"}]`, path, what, len(obj.Data))
		}
	}
	review.Response, review.Request = answer, nil
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(review)
}

// asked returns the requests since the last call.
func (h *hooks) asked() []*admissionv1.AdmissionRequest {
	h.mu.Lock()
	defer h.mu.Unlock()
	out := h.seen
	h.seen = nil
	return out
}

func (h *hooks) config(path string) registrationv1.WebhookClientConfig {
	url := h.URL + "/" + path
	return registrationv1.WebhookClientConfig{
		URL:      &url,
		CABundle: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: h.Certificate().Raw}),
	}
}

func rule(group, version, resource string, ops ...registrationv1.OperationType) []registrationv1.RuleWithOperations {
	return []registrationv1.RuleWithOperations{{
		Operations: ops,
		Rule:       registrationv1.Rule{APIGroups: []string{group}, APIVersions: []string{version}, Resources: []string{resource}},
	}}
}

// only limits a webhook to the namespaces of a test.
func only(label string) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: map[string]string{"test": label}}
}

func newNamespace(t *testing.T, kube kubernetes.Interface, name string) {
	t.Helper()
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"test": name}}}
	if _, err := kube.CoreV1().Namespaces().Create(context.Background(), ns, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// TestDynamicAdmission tests webhooks and policies in the complete API server.
func TestDynamicAdmission(t *testing.T) {
	e := start(t)
	clients, err := e.server.Clients("test", "admin", "system:masters")
	if err != nil {
		t.Fatal(err)
	}
	kube := clients.Kube
	t.Run("mutating", func(t *testing.T) { testMutating(t, kube) })
	t.Run("validating", func(t *testing.T) { testValidating(t, kube) })
	t.Run("equivalent", func(t *testing.T) { testEquivalent(t, kube) })
	t.Run("not themselves", func(t *testing.T) { testExempt(t, kube) })
	t.Run("policy", func(t *testing.T) { testPolicy(t, kube) })
	t.Run("mutating policy", func(t *testing.T) { testMutatingPolicy(t, kube) })

	// The server's outgoing requests and its work queues are measured.
	page, err := kube.CoreV1().RESTClient().Get().AbsPath("/metrics").DoRaw(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, series := range []string{
		`rest_client_requests_total{code="200",host="127.0.0.1:`, `rest_client_requests_total{code="200",host="kubernetes.in-memory"`,
		`workqueue_adds_total{name="priority_and_fairness_config_queue"}`, `workqueue_depth{name="priority_and_fairness_config_queue"}`,
		`apiserver_storage_list_total{group="",index="",resource="namespaces",storage="watchcache"}`,
	} {
		if !strings.Contains(string(page), "\n"+series) {
			t.Errorf("/metrics has no %s", series)
		}
	}
}

func testMutating(t *testing.T, kube kubernetes.Interface) {
	ctx, h, none := context.Background(), newHooks(t), registrationv1.SideEffectClassNone
	newNamespace(t, kube, "mutating")
	again := registrationv1.IfNeededReinvocationPolicy
	hook := func(path string, r *registrationv1.ReinvocationPolicyType) registrationv1.MutatingWebhook {
		return registrationv1.MutatingWebhook{
			Name: path + ".example.com", ClientConfig: h.config(path), SideEffects: &none, AdmissionReviewVersions: []string{"v1"},
			NamespaceSelector: only("mutating"), Rules: rule("", "v1", "configmaps", "CREATE"), ReinvocationPolicy: r,
			MatchConditions: []registrationv1.MatchCondition{{Name: "wanted", Expression: "!('skip' in object.data)"}},
		}
	}
	_, err := kube.AdmissionregistrationV1().MutatingWebhookConfigurations().Create(ctx, &registrationv1.MutatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "mutating"}, Webhooks: []registrationv1.MutatingWebhook{hook("first", &again), hook("second", nil)},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	create := func(name, key string, dry bool) (*corev1.ConfigMap, error) {
		opts := metav1.CreateOptions{}
		if dry {
			opts.DryRun = []string{metav1.DryRunAll}
		}
		return kube.CoreV1().ConfigMaps("mutating").Create(ctx, &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string]string{key: "x"},
		}, opts)
	}
	testwait.Succeed(t, "informers to catch up", func() error {
		c, err := create("dry", "a", true)
		if err == nil && c.Data["second"] == "" {
			err = errors.New("the webhook is not asked")
		}
		return err
	})
	h.asked()
	c, err := create("one", "a", false)
	if err != nil {
		t.Fatal(err)
	}
	// The first webhook is reinvoked because the second one changed the object.
	if want := map[string]string{"a": "x", "first": "3", "second": "2"}; fmt.Sprint(c.Data) != fmt.Sprint(want) {
		t.Errorf("data %v, want %v", c.Data, want)
	}
	seen := h.asked()
	if len(seen) != 3 || seen[0].Operation != "CREATE" || seen[0].Namespace != "mutating" || seen[0].Name != "one" ||
		seen[0].Kind.Kind != "ConfigMap" || seen[0].Options.Raw == nil || !strings.Contains(string(seen[0].Options.Raw), "CreateOptions") {
		t.Errorf("requests: %+v", seen)
	}
	if c, err = create("two", "skip", false); err != nil || len(c.Data) != 1 || len(h.asked()) != 0 {
		t.Errorf("match conditions are ignored: %v %v", c.Data, err)
	}
	if c, err = kube.CoreV1().ConfigMaps("default").Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "one"}, Data: map[string]string{"a": "b"}}, metav1.CreateOptions{}); err != nil || len(c.Data) != 1 {
		t.Errorf("namespace selectors are ignored: %v %v", c.Data, err)
	}
}

func testValidating(t *testing.T, kube kubernetes.Interface) {
	ctx, h := context.Background(), newHooks(t)
	newNamespace(t, kube, "validating")
	none, ignore := registrationv1.SideEffectClassNone, registrationv1.Ignore
	hook := func(path, resource string, f *registrationv1.FailurePolicyType, ops ...registrationv1.OperationType) registrationv1.ValidatingWebhook {
		seconds := int32(30)
		if path == "slow" {
			seconds = 1
		}
		return registrationv1.ValidatingWebhook{
			Name: path + ".example.com", ClientConfig: h.config(path), SideEffects: &none, AdmissionReviewVersions: []string{"v1"},
			NamespaceSelector: only("validating"), Rules: rule("", "v1", resource, ops...), FailurePolicy: f, TimeoutSeconds: &seconds,
		}
	}
	other := hook("slow", "secrets", &ignore, "CREATE")
	other.Name = "ignored.example.com"
	_, err := kube.AdmissionregistrationV1().ValidatingWebhookConfigurations().Create(ctx, &registrationv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "validating"}, Webhooks: []registrationv1.ValidatingWebhook{
			hook("deny", "configmaps", nil, "DELETE"), hook("slow", "services", nil, "CREATE"), other, hook("warn", "pods/exec", nil, "CONNECT"),
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	maps := kube.CoreV1().ConfigMaps("validating")
	if _, err := maps.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "one"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	testwait.Succeed(t, "informers to catch up", func() error {
		err := maps.Delete(ctx, "one", metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}})
		if err == nil {
			return errors.New("the webhook is not asked")
		}
		return nil
	})
	h.asked()
	want := `admission webhook "deny.example.com" denied the request: not here`
	if err := maps.Delete(ctx, "one", metav1.DeleteOptions{}); err == nil || err.Error() != want {
		t.Errorf("deleting: %v, want %s", err, want)
	}
	if seen := h.asked(); len(seen) != 1 || !strings.Contains(string(seen[0].OldObject.Raw), `"name":"one"`) || len(seen[0].Object.Raw) > 0 && string(seen[0].Object.Raw) != "null" {
		t.Errorf("requests: %+v", seen)
	}
	if err := maps.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}); err == nil || err.Error() != want {
		t.Errorf("deleting all: %v, want %s", err, want)
	}
	_, err = kube.CoreV1().Services("validating").Create(ctx, &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "s"}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}}}, metav1.CreateOptions{})
	if err == nil || !strings.Contains(err.Error(), `Internal error occurred: failed calling webhook "slow.example.com": failed to call webhook: Post "`+h.URL+`/slow?timeout=1s": context deadline exceeded`) {
		t.Errorf("a slow webhook: %v", err)
	}
	if _, err = kube.CoreV1().Secrets("validating").Create(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "s"}}, metav1.CreateOptions{}); err != nil {
		t.Errorf("a slow webhook that may be ignored: %v", err)
	}
	h.asked()
	_ = kube.CoreV1().RESTClient().Post().Namespace("validating").Resource("pods").Name("p").SubResource("exec").Param("command", "sh").Do(ctx).Error()
	if seen := h.asked(); len(seen) != 1 || seen[0].Kind.Kind != "PodExecOptions" || !strings.Contains(string(seen[0].Object.Raw), `"command":["sh"]`) {
		t.Errorf("exec: asked %+v", seen)
	}
}

// testEquivalent checks that a webhook for one version of a kind is called for another version,
// with an object converted to its own version.
func testEquivalent(t *testing.T, kube kubernetes.Interface) {
	ctx, h, none := context.Background(), newHooks(t), registrationv1.SideEffectClassNone
	newNamespace(t, kube, "equivalent")
	_, err := kube.AdmissionregistrationV1().ValidatingWebhookConfigurations().Create(ctx, &registrationv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "equivalent"}, Webhooks: []registrationv1.ValidatingWebhook{{
			Name: "deny.example.com", ClientConfig: h.config("deny"), SideEffects: &none, AdmissionReviewVersions: []string{"v1"},
			NamespaceSelector: only("equivalent"), Rules: rule("autoscaling", "v2", "horizontalpodautoscalers", "CREATE"),
		}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var max int32 = 3
	scaler := &autoscalingv1.HorizontalPodAutoscaler{
		ObjectMeta: metav1.ObjectMeta{Name: "h"},
		Spec:       autoscalingv1.HorizontalPodAutoscalerSpec{MaxReplicas: max, TargetCPUUtilizationPercentage: &max, ScaleTargetRef: autoscalingv1.CrossVersionObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "d"}},
	}
	testwait.Succeed(t, "informers to catch up", func() error {
		_, err := kube.AutoscalingV1().HorizontalPodAutoscalers("equivalent").Create(ctx, scaler, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if err == nil {
			return errors.New("the webhook is not asked")
		}
		if !apierrors.IsForbidden(err) && !strings.Contains(err.Error(), "denied the request") {
			t.Fatal(err)
		}
		return nil
	})
	seen := h.asked()
	if len(seen) != 1 || seen[0].Kind.Version != "v2" || seen[0].RequestKind.Version != "v1" || !strings.Contains(string(seen[0].Object.Raw), `"averageUtilization":3`) {
		t.Errorf("requests: %+v", seen)
	}
}

func testExempt(t *testing.T, kube kubernetes.Interface) {
	ctx, h, none := context.Background(), newHooks(t), registrationv1.SideEffectClassNone
	all := registrationv1.ValidatingWebhook{
		Name: "deny.example.com", ClientConfig: h.config("deny"), SideEffects: &none, AdmissionReviewVersions: []string{"v1"},
		Rules: rule("admissionregistration.k8s.io", "*", "*", "*"),
	}
	configurations := kube.AdmissionregistrationV1().ValidatingWebhookConfigurations()
	for _, name := range []string{"guard", "guarded"} {
		if _, err := configurations.Create(ctx, &registrationv1.ValidatingWebhookConfiguration{
			ObjectMeta: metav1.ObjectMeta{Name: name}, Webhooks: []registrationv1.ValidatingWebhook{all},
		}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"guarded", "guard"} {
		if err := configurations.Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	}
	if seen := h.asked(); len(seen) > 0 {
		t.Errorf("requests: %+v", seen)
	}
}

func testPolicy(t *testing.T, kube kubernetes.Interface) {
	ctx := context.Background()
	newNamespace(t, kube, "policy")
	v1 := kube.AdmissionregistrationV1()
	if _, err := kube.CoreV1().ConfigMaps("policy").Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "limit"}, Data: map[string]string{"most": "2"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	_, err := v1.ValidatingAdmissionPolicies().Create(ctx, &registrationv1.ValidatingAdmissionPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: "few"},
		Spec: registrationv1.ValidatingAdmissionPolicySpec{
			ParamKind: &registrationv1.ParamKind{APIVersion: "v1", Kind: "ConfigMap"},
			MatchConstraints: &registrationv1.MatchResources{
				ResourceRules: []registrationv1.NamedRuleWithOperations{{RuleWithOperations: rule("", "v1", "secrets", "CREATE", "UPDATE")[0]}},
			},
			Variables:   []registrationv1.Variable{{Name: "n", Expression: "size(object.data)"}},
			Validations: []registrationv1.Validation{{Expression: "variables.n <= int(params.data.most)", MessageExpression: "'too many keys: ' + string(variables.n)"}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	deny := registrationv1.DenyAction
	_, err = v1.ValidatingAdmissionPolicyBindings().Create(ctx, &registrationv1.ValidatingAdmissionPolicyBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "few"},
		Spec: registrationv1.ValidatingAdmissionPolicyBindingSpec{
			PolicyName: "few", ValidationActions: []registrationv1.ValidationAction{registrationv1.Deny},
			ParamRef:       &registrationv1.ParamRef{Name: "limit", Namespace: "policy", ParameterNotFoundAction: &deny},
			MatchResources: &registrationv1.MatchResources{NamespaceSelector: only("policy")},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	want := `secrets "s" is forbidden: ValidatingAdmissionPolicy 'few' with binding 'few' denied request: too many keys: 3`
	testwait.Succeed(t, "informers to catch up", func() error {
		_, err := kube.CoreV1().Secrets("policy").Create(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "s"}, StringData: map[string]string{"a": "", "b": "", "c": ""}}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if err == nil || err.Error() != want {
			return fmt.Errorf("%w, want %s", err, want)
		}
		return nil
	})
	if _, err := kube.CoreV1().Secrets("policy").Create(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "s"}, StringData: map[string]string{"a": ""}}, metav1.CreateOptions{}); err != nil {
		t.Error(err)
	}
}

func testMutatingPolicy(t *testing.T, kube kubernetes.Interface) {
	ctx := context.Background()
	newNamespace(t, kube, "mutatingpolicy")
	v1 := kube.AdmissionregistrationV1()
	_, err := v1.MutatingAdmissionPolicies().Create(ctx, &registrationv1.MutatingAdmissionPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: "label"},
		Spec: registrationv1.MutatingAdmissionPolicySpec{
			ReinvocationPolicy: registrationv1.NeverReinvocationPolicy,
			MatchConstraints: &registrationv1.MatchResources{
				ResourceRules: []registrationv1.NamedRuleWithOperations{{RuleWithOperations: rule("", "v1", "configmaps", "CREATE")[0]}},
			},
			Mutations: []registrationv1.Mutation{
				{PatchType: registrationv1.PatchTypeApplyConfiguration, ApplyConfiguration: &registrationv1.ApplyConfiguration{Expression: `Object{metadata: Object.metadata{labels: {"by": "apply"}}}`}},
				{PatchType: registrationv1.PatchTypeJSONPatch, JSONPatch: &registrationv1.JSONPatch{Expression: `[JSONPatch{op: "add", path: "/data/by", value: "patch"}]`}},
			},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = v1.MutatingAdmissionPolicyBindings().Create(ctx, &registrationv1.MutatingAdmissionPolicyBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "label"},
		Spec:       registrationv1.MutatingAdmissionPolicyBindingSpec{PolicyName: "label", MatchResources: &registrationv1.MatchResources{NamespaceSelector: only("mutatingpolicy")}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	testwait.Succeed(t, "informers to catch up", func() error {
		c, err := kube.CoreV1().ConfigMaps("mutatingpolicy").Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "c"}, Data: map[string]string{"a": "b"}}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if apierrors.IsServiceUnavailable(err) {
			t.Fatal(err) // the plugin must have the schema of ConfigMaps when it evaluates the first object
		}
		if err == nil && (c.Labels["by"] != "apply" || c.Data["by"] != "patch") {
			err = fmt.Errorf("got labels %v, data %v", c.Labels, c.Data)
		}
		return err
	})
}
