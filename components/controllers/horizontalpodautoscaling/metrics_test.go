package horizontalpodautoscaling

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"hyperkube/components/controllers/internal/controltest"
)

// TestCustomVersions: custom metrics are requested in a served version; many adapters serve only
// the older one.
func TestCustomVersions(t *testing.T) {
	for name, c := range map[string]struct {
		versions []string // the preferred one first; empty: there is no such API
		want     string   // requested version, or the end of the error message
	}{
		"both":                 {[]string{"v1beta2", "v1beta1"}, "v1beta2"},
		"only the old version": {[]string{"v1beta1"}, "v1beta1"},
		"preferred":            {[]string{"v1beta1", "v1beta2"}, "v1beta1"},
		"unknown":              {[]string{"v2"}, "unable to fetch metrics from custom metrics API: no known available metric versions found"},
		"none":                 {nil, "unable to fetch metrics from custom metrics API: no custom metrics API (custom.metrics.k8s.io) registered"},
	} {
		t.Run(name, func(t *testing.T) {
			var asked []string
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				path, ok := strings.CutPrefix(r.URL.Path, "/apis/custom.metrics.k8s.io")
				if !ok || c.versions == nil {
					http.NotFound(w, r)
					return
				}
				w.Header().Set("Content-Type", "application/json")
				if path != "" {
					asked = append(asked, path)
					_, _ = w.Write([]byte(`{"items":[{"describedObject":{"name":"p0"},"value":"1500m"}]}`))
					return
				}
				group := metav1.APIGroup{Name: customGroup}
				for _, v := range c.versions {
					group.Versions = append(group.Versions, metav1.GroupVersionForDiscovery{GroupVersion: customGroup + "/" + v, Version: v})
				}
				group.PreferredVersion = group.Versions[0]
				_ = json.NewEncoder(w).Encode(group)
			}))
			defer server.Close()
			kube, err := kubernetes.NewForConfig(&rest.Config{Host: server.URL})
			if err != nil {
				t.Fatal(err)
			}
			mapper := meta.NewDefaultRESTMapper([]schema.GroupVersion{corev1.SchemeGroupVersion})
			mapper.Add(corev1.SchemeGroupVersion.WithKind("Service"), meta.RESTScopeNamespace)
			api := REST{Client: kube.Discovery().RESTClient(), Mapper: mapper}
			hits := autoscalingv2.MetricIdentifier{Name: "hits"}
			samples, podsErr := api.Pods(t.Context(), hits, "ns", labels.Everything())
			value, objectErr := api.Object(t.Context(), hits, "ns", autoscalingv2.CrossVersionObjectReference{APIVersion: "v1", Kind: "Service", Name: "s"})
			if podsErr != nil || objectErr != nil {
				if podsErr == nil || objectErr == nil || podsErr.Error() != c.want || objectErr.Error() != c.want {
					t.Errorf("%v, %v, want %s", podsErr, objectErr, c.want)
				}
				return
			}
			want := "/" + c.want + "/namespaces/ns/pods/*/hits /" + c.want + "/namespaces/ns/services/s/hits"
			if got := strings.Join(asked, " "); got != want || samples["p0"].value != 1500 || value != 1500 {
				t.Errorf("%s: %v, %d, want %s", got, samples, value, want)
			}
		})
	}
}

// TestHold: without behavior, the size is the maximum of the recent recommendations, even if that
// exceeds the current size because scale-up was limited.
func TestHold(t *testing.T) {
	now := controltest.Now
	m := &scalingHistory{recommendations: []recommendation{{9, now.Add(-6 * time.Minute)}, {8, now.Add(-time.Minute)}}}
	if v := m.stabilizeDefault(now, 5*time.Minute, 3); v.replicas != 8 || v.reason != scaleDownStabilized {
		t.Errorf("%+v", v)
	}
	if v := m.stabilizeDefault(now.Add(5*time.Minute), 5*time.Minute, 3); v.replicas != 3 || v.reason != readyForNewScale {
		t.Errorf("%+v after the window", v)
	}
	control := &Controller{cfg: Config{Stabilization: 5 * time.Minute}}
	r := &evaluation{Controller: control, hpa: &autoscalingv2.HorizontalPodAutoscaler{}, now: now, history: &scalingHistory{recommendations: []recommendation{{8, now}}}}
	if n := r.normalize(4, 3, limits{1, 20}); n != 8 {
		t.Errorf("target of 4 with a recommendation of 8 gets %d", n)
	}
}

// TestWholeWithoutPods: a value for all pods does not scale down a target whose pods do not exist.
func TestWholeWithoutPods(t *testing.T) {
	f := controltest.New(t)
	control := &Controller{env: f.Env, cfg: Config{Metrics: fixed{whole: 2000}, Tolerance: 0.1}}
	r := &evaluation{Controller: control, hpa: &autoscalingv2.HorizontalPodAutoscaler{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "h"}}}
	metric := autoscalingv2.MetricSpec{Type: autoscalingv2.ExternalMetricSourceType, External: &autoscalingv2.ExternalMetricSource{
		Metric: autoscalingv2.MetricIdentifier{Name: "queue"},
		Target: autoscalingv2.MetricTarget{Type: autoscalingv2.ValueMetricType, Value: resource.NewQuantity(10, resource.DecimalSI)},
	}}
	_, failed := r.metricProposal(t.Context(), &metric, scaleTarget{scale: &autoscalingv1.Scale{Spec: autoscalingv1.ScaleSpec{Replicas: 3}}, selector: labels.Everything()})
	const want = "failed to get queue external metric value: failed to get external metric queue: unable to calculate ready pods: no pods returned by selector while calculating replica count"
	if failed == nil || failed.Error() != want {
		t.Errorf("%v, want %s", failed, want)
	}
	p, failed := r.metricProposal(t.Context(), &metric, scaleTarget{scale: &autoscalingv1.Scale{}, selector: labels.Everything()})
	if failed != nil || p.replicas != 1 {
		t.Errorf("from zero: %v, %v", p, failed)
	}
}

// TestRequests: the utilization of a pod with pod-level requests is relative to these; for
// resources without a pod-level request it is relative to the containers' requests.
func TestRequests(t *testing.T) {
	list := func(cpu, memory string) corev1.ResourceList {
		out := corev1.ResourceList{}
		for name, text := range map[corev1.ResourceName]string{corev1.ResourceCPU: cpu, corev1.ResourceMemory: memory} {
			if text != "" {
				out[name] = resource.MustParse(text)
			}
		}
		return out
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Spec: corev1.PodSpec{
		Resources: &corev1.ResourceRequirements{Requests: list("3", "")},
		Containers: []corev1.Container{
			{Name: "a", Resources: corev1.ResourceRequirements{Requests: list("1", "1")}},
			{Name: "b"},
		},
	}}
	for name, want := range map[corev1.ResourceName]int64{corev1.ResourceCPU: 3000, corev1.ResourceMemory: 1000} {
		if got, err := requestsOf([]*corev1.Pod{pod}, "", name); err != nil || got["p"] != want {
			t.Errorf("%s: %v, %v, want %d", name, got, err, want)
		}
	}
	pod.Spec.Containers[0].Resources.Requests = nil
	if _, err := requestsOf([]*corev1.Pod{pod}, "", corev1.ResourceMemory); err == nil || err.Error() != "missing pod-level request for memory in Pod p" {
		t.Error(err)
	}
}
