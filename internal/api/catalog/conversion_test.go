package catalog

import (
	"encoding/json"
	"strings"
	"testing"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"

	"hyperkube/internal/api/autoscaling"
	"hyperkube/internal/api/events"
)

// TestEventConversion checks that conversion between the two kinds of events is lossless.
func TestEventConversion(t *testing.T) {
	fill := filler(3)
	for range 100 {
		core, newer := &corev1.Event{}, &eventsv1.Event{}
		fill.Fill(core)
		fill.Fill(newer)
		same(t, "core/v1", events.ToCore(events.FromCore(core)), core)
		same(t, "events.k8s.io/v1", events.FromCore(events.ToCore(newer)), newer)
	}
}

const autoscaler = `{"metadata":{"name":"h","namespace":"x","annotations":{"a":"b"}},"spec":{"scaleTargetRef":{"kind":"Deployment","name":"d","apiVersion":"apps/v1"},
"minReplicas":2,"maxReplicas":9,
"behavior":{"scaleUp":{"stabilizationWindowSeconds":0,"selectPolicy":"Max","policies":[{"type":"Pods","value":4,"periodSeconds":15}]},"scaleDown":{"tolerance":"50m"}},
"metrics":[
{"type":"Resource","resource":{"name":"memory","target":{"type":"AverageValue","averageValue":"1Gi"}}},
{"type":"ContainerResource","containerResource":{"name":"cpu","container":"c","target":{"type":"Utilization","averageUtilization":60}}},
{"type":"Pods","pods":{"metric":{"name":"p","selector":{"matchLabels":{"a":"b"}}},"target":{"type":"AverageValue","averageValue":"5"}}},
{"type":"Object","object":{"describedObject":{"kind":"Ingress","name":"i"},"metric":{"name":"o"},"target":{"type":"Value","value":"7"}}},
{"type":"Object","object":{"describedObject":{"kind":"Ingress","name":"i"},"metric":{"name":"o"},"target":{"type":"AverageValue","averageValue":"7"}}},
{"type":"External","external":{"metric":{"name":"e"},"target":{"type":"Value","value":"7"}}},
{"type":"External","external":{"metric":{"name":"e"},"target":{"type":"AverageValue","averageValue":"7"}}},
{"type":"Resource","resource":{"name":"cpu","target":{"type":"Utilization","averageUtilization":70}}}]},
"status":{"observedGeneration":3,"lastScaleTime":"2026-01-01T00:00:00Z","currentReplicas":2,"desiredReplicas":3,
"conditions":[{"type":"AbleToScale","status":"True","lastTransitionTime":"2026-01-01T00:00:00Z","reason":"R","message":"M"}],
"currentMetrics":[
{"type":"Resource","resource":{"name":"cpu","current":{"averageUtilization":7,"averageValue":"70m"}}},
{"type":"Pods","pods":{"metric":{"name":"p"},"current":{"averageValue":"5"}}},
{"type":"External","external":{"metric":{"name":"e"},"current":{"value":"1","averageValue":"7"}}}]}}`

// TestAutoscalerConversion checks that conversion of an autoscaler to v1 and back is lossless, and
// the v1 object. CPU utilization, for which v1 has a field, is the last metric after the
// conversion.
func TestAutoscalerConversion(t *testing.T) {
	v2 := &autoscalingv2.HorizontalPodAutoscaler{}
	if err := json.Unmarshal([]byte(autoscaler), v2); err != nil {
		t.Fatal(err)
	}
	v1, err := autoscaling.FromV2(v2)
	if err != nil {
		t.Fatal(err)
	}
	if p := v1.Spec.TargetCPUUtilizationPercentage; p == nil || *p != 70 {
		t.Errorf("target %v", p)
	}
	if p := v1.Status.CurrentCPUUtilizationPercentage; p == nil || *p != 7 {
		t.Errorf("current %v", p)
	}
	for key, part := range map[string]string{
		"metrics":         `[{"type":"Resource","resource":{"name":"memory","targetAverageValue":"1Gi"}},{"type":"ContainerResource","containerResource":{"name":"cpu","targetAverageUtilization":60,"container":"c"}},{"type":"Pods","pods":{"metricName":"p","targetAverageValue":"5"`,
		"current-metrics": `[{"type":"Resource","resource":{"name":"cpu","currentAverageUtilization":7,"currentAverageValue":"70m"}}`,
		"conditions":      `[{"type":"AbleToScale","status":"True","lastTransitionTime":"2026-01-01T00:00:00Z","reason":"R","message":"M"}]`,
		"behavior":        `{"ScaleUp":{"StabilizationWindowSeconds":0,"SelectPolicy":"Max","Policies":[{"Type":"Pods","Value":4,"PeriodSeconds":15}],"Tolerance":null},"ScaleDown":{`,
	} {
		if got := v1.Annotations["autoscaling.alpha.kubernetes.io/"+key]; !strings.HasPrefix(got, part) {
			t.Errorf("%s: %s", key, got)
		}
	}
	back, err := autoscaling.ToV2(v1)
	if err != nil {
		t.Fatal(err)
	}
	same(t, "through v1", back, v2)

	// An object created with v1.
	plain := &autoscalingv1.HorizontalPodAutoscaler{}
	if err := json.Unmarshal([]byte(`{"metadata":{"annotations":{"autoscaling.alpha.kubernetes.io/metrics":"nonsense"}},"spec":{"maxReplicas":3,"targetCPUUtilizationPercentage":5}}`), plain); err != nil {
		t.Fatal(err)
	}
	if v2, err = autoscaling.ToV2(plain); err != nil {
		t.Fatal(err)
	}
	if len(v2.Spec.Metrics) != 1 || *v2.Spec.Metrics[0].Resource.Target.AverageUtilization != 5 || v2.Annotations != nil {
		t.Errorf("%+v", v2)
	}
}

// TestBehaviorAnnotation checks that missing values in the behavior annotation are defaulted.
func TestBehaviorAnnotation(t *testing.T) {
	v1 := &autoscalingv1.HorizontalPodAutoscaler{}
	if err := json.Unmarshal([]byte(`{"metadata":{"annotations":{"autoscaling.alpha.kubernetes.io/behavior":"{\"ScaleUp\":{\"Policies\":[{\"Type\":\"Pods\",\"Value\":1,\"PeriodSeconds\":5}]}}"}}}`), v1); err != nil {
		t.Fatal(err)
	}
	stored, err := kinds()["autoscaling/v1 HorizontalPodAutoscaler"].StoredAs.ToStored(v1)
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(stored.(*autoscalingv2.HorizontalPodAutoscaler).Spec.Behavior)
	if want := `{"scaleUp":{"stabilizationWindowSeconds":0,"selectPolicy":"Max","policies":[{"type":"Pods","value":1,"periodSeconds":5}]},"scaleDown":{"selectPolicy":"Max","policies":[{"type":"Percent","value":100,"periodSeconds":15}]}}`; err != nil || string(text) != want {
		t.Errorf("%v: %s", err, text)
	}
}
