package compose_test

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	aggregator "k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset"

	"hyperkube/internal/testing/testwait"
)

// TestMetricsOfRequests checks the names and labels of upstream's request metrics.
func TestMetricsOfRequests(t *testing.T) {
	e := start(t)
	cfg := e.server.ClientConfig("admin", "system:masters")
	kube, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	if _, err := kube.CoreV1().ConfigMaps("default").Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "a"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := kube.CoreV1().ConfigMaps("default").DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := kube.CoreV1().Events("default").Create(ctx, &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{Name: "a"}, InvolvedObject: corev1.ObjectReference{Namespace: "default"},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := kube.CoreV1().ServiceAccounts("default").Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := kube.CoreV1().Pods("default").Create(ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := kube.CoreV1().Pods("default").GetLogs("a", &corev1.PodLogOptions{}).Do(ctx).Error(); err != nil {
		t.Error(err)
	}
	for _, user := range []string{"alice", "admin"} {
		as := e.server.ClientConfig(user)
		if user == "admin" {
			as = rest.CopyConfig(cfg)
		}
		as.Impersonate.UserName = "bob"
		other, err := kubernetes.NewForConfig(as)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := other.CoreV1().ConfigMaps("default").List(ctx, metav1.ListOptions{}); err == nil {
			t.Errorf("%s as bob may list", user)
		}
	}
	// A request for an aggregated server that is not reachable
	others, err := aggregator.NewForConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := others.ApiregistrationV1().APIServices().Create(ctx, &apiregistrationv1.APIService{
		ObjectMeta: metav1.ObjectMeta{Name: "v1.gone.example.com"}, Spec: apiregistrationv1.APIServiceSpec{
			Group: "gone.example.com", Version: "v1", GroupPriorityMinimum: 1, VersionPriority: 1, InsecureSkipTLSVerify: true,
			Service: &apiregistrationv1.ServiceReference{Namespace: "default", Name: "gone"},
		},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	testwait.Succeed(t, "the other server's API to be unavailable", func() error {
		var code int
		kube.RESTClient().Get().AbsPath("/apis/gone.example.com/v1/things").Do(ctx).StatusCode(&code)
		if code != http.StatusServiceUnavailable {
			return fmt.Errorf("status %d", code)
		}
		return nil
	})
	// A client that does not use TLS
	far, err := clientcmd.BuildConfigFromFlags("", e.conf)
	if err != nil {
		t.Fatal(err)
	}
	at, err := url.Parse(far.Host)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := net.Dial("tcp", at.Host)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Write([]byte("hello, is this the door?\n")); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadAll(conn); err != nil {
		t.Log(err)
	}
	_ = conn.Close()
	remote, err := kubernetes.NewForConfig(far)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := remote.Discovery().ServerGroups(); err != nil {
		t.Fatal(err)
	}

	text, err := kube.RESTClient().Get().AbsPath("/metrics").DoRaw(ctx)
	if err != nil {
		t.Fatal(err)
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	found, err := parser.TextToMetricFamilies(strings.NewReader(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`apiserver_tls_handshake_errors_total`,
		`apiserver_impersonation_attempts_total{decision="denied",mode=""}`,
		`apiserver_impersonation_attempts_total{decision="allowed",mode="user-info"}`,
		`apiserver_impersonation_attempts_duration_seconds{decision="allowed",mode="user-info"}`,
		`apiserver_impersonation_authorization_attempts_total{decision="denied",mode="legacy"}`,
		`apiserver_impersonation_authorization_attempts_duration_seconds{decision="allowed",mode="user-info"}`,
		`apiserver_request_body_size_bytes{group="",resource="configmaps",verb="create"}`,
		`apiserver_request_body_size_bytes{group="",resource="configmaps",verb="delete_collection"}`,
		`apiserver_request_filter_duration_seconds{filter="authentication"}`,
		`apiserver_request_filter_duration_seconds{filter="audit"}`,
		`apiserver_request_filter_duration_seconds{filter="constrainedimpersonation"}`,
		`apiserver_request_filter_duration_seconds{filter="priorityandfairness"}`,
		`apiserver_request_filter_duration_seconds{filter="authorization"}`,
		`apiserver_request_terminations_total{code="503",component="aggregator",group="gone.example.com",resource="",scope="cluster",subresource="",verb="LIST",version="v1"}`,
		`apiserver_watch_cache_initialization_duration_seconds{group="",resource="namespaces"}`,
		`aggregator_discovery_aggregation_count_total`,
		`kube_apiserver_pod_logs_insecure_backend_total{usage="enforce_tls"}`,
		`rest_client_response_size_bytes{host="kubernetes.in-memory",verb="GET"}`,
		`version_info{binary="1.37.2",component="kube",emulation="1.37",min_compat="1.36"}`,
	} {
		if sample(found, want) == 0 {
			t.Errorf("no %s", want)
		}
	}
	for _, name := range []string{
		"apiserver_current_inqueue_requests", "apiserver_kube_aggregator_x509_missing_san_total", "apiserver_kube_aggregator_x509_insecure_sha1_total",
		"apiserver_nodeport_repair_reconcile_errors_total", "etcd_lease_object_counts", "kube_apiserver_pod_logs_backend_tls_failure_total",
	} {
		if found[name] == nil {
			t.Errorf("no %s", name)
		}
	}
}

// sample returns the value of a series, or its number of observations, or zero if it does not
// exist. The series is written in the exposition format, with sorted labels.
func sample(in map[string]*dto.MetricFamily, series string) float64 {
	name, _, _ := strings.Cut(series, "{")
	for _, m := range in[name].GetMetric() {
		var labels []string
		for _, l := range m.GetLabel() {
			labels = append(labels, fmt.Sprintf("%s=%q", l.GetName(), l.GetValue()))
		}
		slices.Sort(labels)
		full := name
		if len(labels) > 0 {
			full += "{" + strings.Join(labels, ",") + "}"
		}
		if full == series {
			return m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	return 0
}
