package horizontalpodautoscaling

import (
	"errors"
	"net/http"
	"testing"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"

	"hyperkube/components/controllers/internal/controltest"
)

// TestFailures checks the events and conditions of metrics that fail.
func TestFailures(t *testing.T) {
	each, whole := autoscalingv2.MetricTarget{Type: autoscalingv2.AverageValueMetricType, AverageValue: resource.NewQuantity(1, resource.DecimalSI)},
		autoscalingv2.MetricTarget{Type: autoscalingv2.ValueMetricType, Value: resource.NewQuantity(1, resource.DecimalSI)}
	part := autoscalingv2.MetricTarget{Type: autoscalingv2.UtilizationMetricType, AverageUtilization: ptr.To[int32](50)}
	object := func(target autoscalingv2.MetricTarget) autoscalingv2.MetricSpec {
		return autoscalingv2.MetricSpec{Type: autoscalingv2.ObjectMetricSourceType, Object: &autoscalingv2.ObjectMetricSource{
			DescribedObject: autoscalingv2.CrossVersionObjectReference{Kind: "Service", Name: "s"}, Metric: autoscalingv2.MetricIdentifier{Name: "hits"}, Target: target,
		}}
	}
	outside := func(target autoscalingv2.MetricTarget) autoscalingv2.MetricSpec {
		return autoscalingv2.MetricSpec{Type: autoscalingv2.ExternalMetricSourceType, External: &autoscalingv2.ExternalMetricSource{
			Metric: autoscalingv2.MetricIdentifier{Name: "queue"}, Target: target,
		}}
	}
	for _, c := range []struct {
		name, why, err string
		metric         autoscalingv2.MetricSpec
	}{
		{"resource", "failed to get cpu utilization: unable to get metrics for resource cpu: none",
			"failed to get cpu resource metric value: failed to get cpu utilization: unable to get metrics for resource cpu: none",
			autoscalingv2.MetricSpec{Type: autoscalingv2.ResourceMetricSourceType, Resource: &autoscalingv2.ResourceMetricSource{Name: corev1.ResourceCPU, Target: part}}},
		{"container", "failed to get cpu utilization: unable to get metrics for resource cpu: none",
			"failed to get web container metric value: failed to get cpu utilization: unable to get metrics for resource cpu: none",
			autoscalingv2.MetricSpec{Type: autoscalingv2.ContainerResourceMetricSourceType, ContainerResource: &autoscalingv2.ContainerResourceMetricSource{Name: corev1.ResourceCPU, Container: "web", Target: part}}},
		{"object", "unable to get metric hits on Service ns/s: none", "failed to get object metric value: unable to get metric hits on Service ns/s: none", object(whole)},
		{"object per pod", "unable to get metric hits on Service ns/s: none",
			"failed to get object metric value: failed to get hits object metric: unable to get metric hits on Service ns/s: none", object(each)},
		{"external", "unable to get external metric ns/queue/nil: none",
			"failed to get queue external metric value: failed to get external metric queue: unable to get external metric ns/queue/nil: none", outside(whole)},
		{"external per pod", "unable to get external metric ns/queue/nil: none",
			"failed to get queue external metric value: failed to get queue external metric: unable to get external metric ns/queue/nil: none", outside(each)},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := controltest.New(t)
			control := &Controller{env: f.Env, cfg: Config{Metrics: fixed{err: errors.New("none")}}}
			r := &evaluation{Controller: control, hpa: &autoscalingv2.HorizontalPodAutoscaler{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "h"}}}
			_, failed := r.metricProposal(t.Context(), &c.metric, scaleTarget{scale: &autoscalingv1.Scale{}, selector: labels.Everything()})
			if failed == nil {
				t.Fatal("no failure")
			}
			if failed.why.Error() != c.why || failed.Error() != c.err {
				t.Errorf("%q and %q, want %q and %q", failed.why, failed, c.why, c.err)
			}
		})
	}
}

func TestResourceInError(t *testing.T) {
	pods := schema.GroupResource{Group: resourceGroup, Resource: "pods"}
	bare := apierrors.NewGenericServerResponse(http.StatusServiceUnavailable, "get", schema.GroupResource{}, "", "down", 0, true)
	if got, want := errorWithResource(bare, pods, "").Error(), "the server is currently unable to handle the request (get pods.metrics.k8s.io)"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	own := apierrors.NewInternalError(errors.New("broken"))
	if got := errorWithResource(own, pods, ""); got.Error() != own.Error() {
		t.Errorf("%q, want the API's own %q", got, own)
	}
}
