package compose_test

import (
	"context"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	tracingapi "k8s.io/component-base/tracing/api/v1"

	"hyperkube/components/apiserver/compose"
	"hyperkube/internal/base/tracing"
	"hyperkube/internal/base/tracing/tracetest"
	"hyperkube/internal/testing/testwait"
)

// clientTrace is the trace ID, and the header traceparent, of a client.
const (
	clientTrace  = "4bf92f3577b34da6a3ce929d0e0e4736"
	clientHeader = "00-" + clientTrace + "-00f067aa0ba902b7-01"
)

// withHeader adds the header traceparent to requests.
type withHeader struct{ next http.RoundTripper }

func (t withHeader) RoundTrip(req *http.Request) (*http.Response, error) {
	req = req.Clone(req.Context())
	req.Header.Set("traceparent", clientHeader)
	return t.next.RoundTrip(req)
}

// TestTraces checks which requests continue the trace of their client, which objects record it, and the spans of a request.
func TestTraces(t *testing.T) {
	collector := tracetest.Start(t)
	e := startOn(t, nil, func(cfg *compose.Config) {
		cfg.Tracing = &tracingapi.TracingConfiguration{Endpoint: &collector.Endpoint}
	})
	as := func(user string, groups ...string) kubernetes.Interface {
		cfg := rest.CopyConfig(e.server.ClientConfig(user, groups...))
		cfg.Wrap(func(next http.RoundTripper) http.RoundTripper { return withHeader{next} })
		kube, err := kubernetes.NewForConfig(cfg)
		if err != nil {
			t.Fatal(err)
		}
		return kube
	}
	admin := as("admin", "system:masters")
	meta := metav1.ObjectMeta{Name: "a", Annotations: map[string]string{tracing.Annotation: "copied"}}
	labels := map[string]string{"app": "a"}
	d := &appsv1.Deployment{ObjectMeta: meta, Spec: appsv1.DeploymentSpec{
		Selector: &metav1.LabelSelector{MatchLabels: labels},
		Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}}},
	}}
	created, err := admin.AppsV1().Deployments("default").Create(t.Context(), d, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	recorded := created.Annotations[tracing.Annotation]
	if !strings.Contains(recorded, clientTrace) {
		t.Errorf("the created Deployment has the trace %q", recorded)
	}
	// Only a change of the desired state has effects whose trace is worth recording.
	created.Status.Replicas = 1
	created.Annotations[tracing.Annotation] = "changed by a client"
	created, err = admin.AppsV1().Deployments("default").UpdateStatus(t.Context(), created, metav1.UpdateOptions{})
	if err != nil || created.Annotations[tracing.Annotation] != recorded {
		t.Errorf("after an update of the status: %q, %v", created.Annotations[tracing.Annotation], err)
	}
	created.Spec.Paused = true
	created, err = admin.AppsV1().Deployments("default").Update(t.Context(), created, metav1.UpdateOptions{})
	if now := created.Annotations[tracing.Annotation]; err != nil || now == recorded || !strings.Contains(now, clientTrace) {
		t.Errorf("after an update of the specification: %q, %v", now, err)
	}
	configMap, err := admin.CoreV1().ConfigMaps("default").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "a"}}, metav1.CreateOptions{})
	if err != nil || len(configMap.Annotations) != 0 {
		t.Errorf("a ConfigMap has %v, %v", configMap.Annotations, err)
	}

	// Other users do not decide what is traced. They must not keep a copied trace either.
	_, err = admin.RbacV1().ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "jane"}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: "jane"}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	d.Name = "b"
	testwait.Succeed(t, "jane creates a Deployment", func() error {
		made, err := as("jane").AppsV1().Deployments("default").Create(t.Context(), d.DeepCopy(), metav1.CreateOptions{})
		if err == nil && len(made.Annotations) != 0 {
			t.Errorf("the Deployment of an untrusted user has %v", made.Annotations)
		}
		return err
	})

	want := map[string]string{ // the parent of the first span with each name
		"POST /apis/apps/v1/namespaces/{:namespace}/deployments": "",
		"authentication": "POST /apis/apps/v1/namespaces/{:namespace}/deployments",
		"Create":         "POST /apis/apps/v1/namespaces/{:namespace}/deployments",
		"Create etcd3":   "Create",
		"PUT /apis/apps/v1/namespaces/{:namespace}/deployments/{:name}/status": "",
		"GuaranteedUpdate etcd3": "Update",
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	spans, ok := collector.Await(ctx, func(all []tracetest.Span) bool {
		return !slices.ContainsFunc(slices.Collect(maps.Keys(want)), func(name string) bool {
			return !slices.ContainsFunc(all, func(s tracetest.Span) bool { return s.Name == name })
		})
	})
	if !ok {
		t.Fatalf("got %+v", spans)
	}
	names := map[string]string{}
	for _, s := range spans {
		names[s.ID] = s.Name
	}
	seen := map[string]bool{}
	for _, s := range spans {
		if s.Trace != clientTrace || s.Service != "apiserver" {
			t.Errorf("the span %s of %s is in the trace %s", s.Name, s.Service, s.Trace)
		}
		if parent, ok := want[s.Name]; ok && !seen[s.Name] && names[s.Parent] != parent {
			t.Errorf("the parent of %s is %q, not %q", s.Name, names[s.Parent], parent)
		}
		seen[s.Name] = true
	}
}
