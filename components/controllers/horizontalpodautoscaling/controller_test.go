package horizontalpodautoscaling

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	scalefake "k8s.io/client-go/scale/fake"
	clienttesting "k8s.io/client-go/testing"

	"hyperkube/components/controllers/internal/controltest"
)

// fixed is a Metrics with constant values.
type fixed struct {
	cpu   map[string]int64 // in thousandths, by pod
	whole int64
	err   error
}

func (f fixed) Resource(context.Context, corev1.ResourceName, string, labels.Selector, string) (map[string]sample, error) {
	if f.err != nil {
		return nil, f.err
	}
	all := map[string]sample{}
	for p, v := range f.cpu {
		all[p] = sample{value: v, at: controltest.Now, window: time.Minute}
	}
	return all, nil
}

func (f fixed) Pods(ctx context.Context, _ autoscalingv2.MetricIdentifier, ns string, s labels.Selector) (map[string]sample, error) {
	return f.Resource(ctx, "", ns, s, "")
}

func (f fixed) Object(context.Context, autoscalingv2.MetricIdentifier, string, autoscalingv2.CrossVersionObjectReference) (int64, error) {
	return f.whole, f.err
}

func (f fixed) External(context.Context, autoscalingv2.MetricIdentifier, string) (int64, error) {
	return f.whole, f.err
}

func cpuAt(percent int32) autoscalingv2.MetricSpec {
	return autoscalingv2.MetricSpec{Type: autoscalingv2.ResourceMetricSourceType, Resource: &autoscalingv2.ResourceMetricSource{
		Name: corev1.ResourceCPU, Target: autoscalingv2.MetricTarget{Type: autoscalingv2.UtilizationMetricType, AverageUtilization: &percent},
	}}
}

func external(value string) autoscalingv2.MetricSpec {
	q := resource.MustParse(value)
	return autoscalingv2.MetricSpec{Type: autoscalingv2.ExternalMetricSourceType, External: &autoscalingv2.ExternalMetricSource{
		Metric: autoscalingv2.MetricIdentifier{Name: "m"}, Target: autoscalingv2.MetricTarget{Type: autoscalingv2.AverageValueMetricType, AverageValue: &q},
	}}
}

// pods returns n ready pods, each requesting one CPU.
func pods(n int) []runtime.Object {
	var all []runtime.Object
	for i := range n {
		start := metav1.NewTime(controltest.Now.Add(-time.Hour))
		all = append(all, &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("p%d", i), Namespace: "ns", Labels: map[string]string{"a": "b"}},
			Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{"cpu": resource.MustParse("1")}}}}},
			Status: corev1.PodStatus{Phase: corev1.PodRunning, StartTime: &start, Conditions: []corev1.PodCondition{
				{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: start},
			}},
		})
	}
	return all
}

func uses(each int64, n int) map[string]int64 {
	all := map[string]int64{}
	for i := range n {
		all[fmt.Sprintf("p%d", i)] = each
	}
	return all
}

func TestScale(t *testing.T) {
	disabled := autoscalingv2.DisabledPolicySelect
	zero := int32(0)
	noStabilization := &autoscalingv2.HorizontalPodAutoscalerBehavior{ScaleDown: &autoscalingv2.HPAScalingRules{StabilizationWindowSeconds: &zero, Policies: []autoscalingv2.HPAScalingPolicy{{Type: autoscalingv2.PercentScalingPolicy, Value: 100, PeriodSeconds: 15}}}}
	for _, tc := range []struct {
		name     string
		current  int32
		min, max int32
		metrics  []autoscalingv2.MetricSpec
		behavior *autoscalingv2.HorizontalPodAutoscalerBehavior
		answers  fixed
		want     int32
		// the condition to check
		condition autoscalingv2.HorizontalPodAutoscalerConditionType
		reason    string
	}{
		{"up", 3, 1, 9, []autoscalingv2.MetricSpec{cpuAt(30)}, nil, fixed{cpu: uses(500, 3)}, 5, autoscalingv2.AbleToScale, "SucceededRescale"},
		{"within tolerance", 3, 1, 9, []autoscalingv2.MetricSpec{cpuAt(50)}, nil, fixed{cpu: uses(520, 3)}, 3, autoscalingv2.ScalingActive, "ValidMetricFound"},
		{"stabilized scale-down", 3, 1, 9, []autoscalingv2.MetricSpec{cpuAt(50)}, nil, fixed{cpu: uses(100, 3)}, 3, autoscalingv2.AbleToScale, "ScaleDownStabilized"},
		{"down without stabilization", 3, 1, 9, []autoscalingv2.MetricSpec{cpuAt(50)}, &autoscalingv2.HorizontalPodAutoscalerBehavior{ScaleDown: &autoscalingv2.HPAScalingRules{StabilizationWindowSeconds: &zero, Policies: []autoscalingv2.HPAScalingPolicy{{Type: autoscalingv2.PercentScalingPolicy, Value: 100, PeriodSeconds: 15}}}}, fixed{cpu: uses(100, 3)}, 1, autoscalingv2.AbleToScale, "SucceededRescale"},
		{"down by one pod", 3, 1, 9, []autoscalingv2.MetricSpec{cpuAt(50)}, &autoscalingv2.HorizontalPodAutoscalerBehavior{ScaleDown: &autoscalingv2.HPAScalingRules{StabilizationWindowSeconds: &zero, Policies: []autoscalingv2.HPAScalingPolicy{{Type: autoscalingv2.PodsScalingPolicy, Value: 1, PeriodSeconds: 15}}}}, fixed{cpu: uses(100, 3)}, 2, autoscalingv2.ScalingLimited, "ScaleDownLimit"},
		{"never down", 3, 1, 9, []autoscalingv2.MetricSpec{cpuAt(50)}, &autoscalingv2.HorizontalPodAutoscalerBehavior{ScaleDown: &autoscalingv2.HPAScalingRules{StabilizationWindowSeconds: &zero, SelectPolicy: &disabled}}, fixed{cpu: uses(100, 3)}, 3, autoscalingv2.ScalingLimited, "ScaleDownLimit"},
		{"scale-up policy", 3, 1, 4, []autoscalingv2.MetricSpec{cpuAt(10)}, nil, fixed{cpu: uses(900, 3)}, 4, autoscalingv2.ScalingLimited, "TooManyReplicas"},
		{"default scale-up limit", 3, 1, 90, []autoscalingv2.MetricSpec{cpuAt(10)}, nil, fixed{cpu: uses(900, 3)}, 6, autoscalingv2.ScalingLimited, "ScaleUpLimit"},
		{"above the maximum", 5, 1, 4, []autoscalingv2.MetricSpec{cpuAt(50)}, nil, fixed{}, 4, autoscalingv2.AbleToScale, "SucceededRescale"},
		{"below the minimum", 1, 2, 4, []autoscalingv2.MetricSpec{cpuAt(50)}, nil, fixed{}, 2, autoscalingv2.AbleToScale, "SucceededRescale"},
		{"scaled to zero by a user", 0, 1, 4, []autoscalingv2.MetricSpec{cpuAt(50)}, nil, fixed{}, 0, autoscalingv2.ScalingActive, "ScalingDisabled"},
		{"no metrics", 3, 1, 9, []autoscalingv2.MetricSpec{cpuAt(50)}, nil, fixed{err: errors.New("none")}, 3, autoscalingv2.ScalingActive, "FailedGetResourceMetric"},
		{"a pod without metrics limits scale-up", 3, 1, 9, []autoscalingv2.MetricSpec{cpuAt(50)}, nil, fixed{cpu: uses(600, 2)}, 3, autoscalingv2.ScalingActive, "ValidMetricFound"},
		{"external", 3, 1, 9, []autoscalingv2.MetricSpec{external("10")}, nil, fixed{whole: 45_000}, 5, autoscalingv2.AbleToScale, "SucceededRescale"},
		{"to zero", 3, 0, 9, []autoscalingv2.MetricSpec{external("10")}, noStabilization, fixed{}, 0, autoscalingv2.ScaledToZero, "ScaledToZero"},
		{"from zero", 0, 0, 9, []autoscalingv2.MetricSpec{external("10")}, nil, fixed{whole: 30_000}, 3, autoscalingv2.ScaledToZero, "NotScaledToZero"},
		{"from zero to the minimum", 0, 2, 9, []autoscalingv2.MetricSpec{external("10")}, nil, fixed{}, 2, autoscalingv2.ScaledToZero, "NotScaledToZero"},
		{"zero is sufficient", 0, 0, 9, []autoscalingv2.MetricSpec{external("10")}, nil, fixed{}, 0, autoscalingv2.ScalingActive, "ScalingDisabled"},
		{"the largest proposal wins", 3, 1, 9, []autoscalingv2.MetricSpec{cpuAt(50), external("10")}, nil, fixed{cpu: uses(500, 3), whole: 60_000}, 6, autoscalingv2.AbleToScale, "SucceededRescale"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			ctx := context.Background()
			h := &autoscalingv2.HorizontalPodAutoscaler{
				ObjectMeta: metav1.ObjectMeta{Name: "h", Namespace: "ns"},
				Spec: autoscalingv2.HorizontalPodAutoscalerSpec{
					ScaleTargetRef: autoscalingv2.CrossVersionObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "d"},
					MinReplicas:    &tc.min, MaxReplicas: tc.max, Metrics: tc.metrics, Behavior: tc.behavior,
				},
			}
			if strings.HasPrefix(tc.name, "from zero") { // the controller scaled it to zero
				h.Status.Conditions = []autoscalingv2.HorizontalPodAutoscalerCondition{{Type: autoscalingv2.ScaledToZero, Status: corev1.ConditionTrue}}
			}
			f := controltest.New(t, append(pods(3), h)...)
			mapper := meta.NewDefaultRESTMapper([]schema.GroupVersion{appsv1.SchemeGroupVersion})
			mapper.Add(appsv1.SchemeGroupVersion.WithKind("Deployment"), meta.RESTScopeNamespace)
			scales := &scalefake.FakeScaleClient{}
			got := tc.current
			scales.AddReactor("get", "deployments", func(clienttesting.Action) (bool, runtime.Object, error) {
				return true, &autoscalingv1.Scale{
					ObjectMeta: metav1.ObjectMeta{Name: "d", Namespace: "ns"}, Spec: autoscalingv1.ScaleSpec{Replicas: got},
					Status: autoscalingv1.ScaleStatus{Replicas: got, Selector: "a=b"},
				}, nil
			})
			scales.AddReactor("update", "deployments", func(a clienttesting.Action) (bool, runtime.Object, error) {
				s := a.(clienttesting.UpdateAction).GetObject().(*autoscalingv1.Scale)
				got = s.Spec.Replicas
				return true, s, nil
			})
			c, err := New(f.Env, Config{Metrics: tc.answers, Scales: scales, Mapper: mapper})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(c.Close)
			c.Add("ns/h")
			if err := c.Drain(ctx); err != nil {
				t.Fatal(err)
			}
			if got != tc.want {
				t.Errorf("%d replicas, want %d", got, tc.want)
			}
			after, err := f.Kube.AutoscalingV2().HorizontalPodAutoscalers("ns").Get(ctx, "h", metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			reason := ""
			for _, x := range after.Status.Conditions {
				if x.Type == tc.condition {
					reason = x.Reason
				}
			}
			if reason != tc.reason {
				t.Errorf("%s %q, want %q: %+v", tc.condition, reason, tc.reason, after.Status.Conditions)
			}
		})
	}
}
