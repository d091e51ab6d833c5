package integration

import (
	"strings"
	"testing"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"hyperkube/components/apiserver"
)

// TestMetrics checks the format of the metrics and the presence of well-known names.
func TestMetrics(t *testing.T) {
	s := startServer(t, apiserver.Config{})
	kube, err := kubernetes.NewForConfig(admin(s))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := kube.CoreV1().Namespaces().List(t.Context(), metav1.ListOptions{}); err != nil {
		t.Fatal(err)
	}
	for path, names := range map[string][]string{
		"/metrics": {
			"apiserver_request_total", "apiserver_request_duration_seconds", "apiserver_request_sli_duration_seconds",
			"apiserver_current_inflight_requests", "apiserver_storage_objects", "watch_cache_capacity",
			"apiserver_storage_list_total", "apiserver_storage_list_fetched_objects_total",
			"apiserver_storage_list_evaluated_objects_total", "apiserver_storage_list_returned_objects_total",
			"apiserver_watch_cache_read_wait_seconds", "apiserver_storage_list_duration_seconds",
			"apiserver_storage_size_bytes", "kubernetes_build_info", "process_cpu_seconds_total", "go_goroutines",
		},
		"/metrics/slis": nil,
	} {
		text, err := kube.RESTClient().Get().AbsPath(path).DoRaw(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		parser := expfmt.NewTextParser(model.UTF8Validation)
		found, err := parser.TextToMetricFamilies(strings.NewReader(string(text)))
		if err != nil {
			t.Errorf("%s cannot be read: %v", path, err)
		}
		for _, name := range names {
			if found[name] == nil {
				t.Errorf("%s has no %s", path, name)
			}
		}
	}
}
