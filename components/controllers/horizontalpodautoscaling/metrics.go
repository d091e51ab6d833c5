package horizontalpodautoscaling

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
)

// Metrics queries the metrics APIs. Values are in thousandths. Maps of samples are by pod name and belong to the
// caller. An error is returned if there is no metric.
type Metrics interface {
	// Resource returns the usage of a resource by pods, or by one container of each pod if
	// container is not empty.
	Resource(ctx context.Context, name corev1.ResourceName, namespace string, selector labels.Selector, container string) (map[string]sample, error)
	// Pods returns a custom metric of pods.
	Pods(ctx context.Context, metric autoscalingv2.MetricIdentifier, namespace string, selector labels.Selector) (map[string]sample, error)
	// Object returns a custom metric of one object.
	Object(ctx context.Context, metric autoscalingv2.MetricIdentifier, namespace string, of autoscalingv2.CrossVersionObjectReference) (int64, error)
	// External returns an external metric, summed over all series.
	External(ctx context.Context, metric autoscalingv2.MetricIdentifier, namespace string) (int64, error)
}

// REST queries the metrics APIs through the API server's aggregation layer.
type REST struct {
	Client rest.Interface
	Mapper meta.RESTMapper
}

// The responses of the metrics APIs, reduced to the fields that are used.
type (
	podMetricsList struct {
		Items []struct {
			Metadata   metav1.ObjectMeta `json:"metadata"`
			Timestamp  metav1.Time       `json:"timestamp"`
			Window     metav1.Duration   `json:"window"`
			Containers []struct {
				Name  string              `json:"name"`
				Usage corev1.ResourceList `json:"usage"`
			} `json:"containers"`
		} `json:"items"`
	}
	valueList struct {
		Items []struct {
			DescribedObject corev1.ObjectReference `json:"describedObject"`
			Timestamp       metav1.Time            `json:"timestamp"`
			WindowSeconds   *int64                 `json:"windowSeconds"`
			Value           resource.Quantity      `json:"value"`
		} `json:"items"`
	}
)

// get requests a path of an API with query parameters, decodes the JSON response and stores it in into. resource and
// name are only used in errors.
func (r REST) get(ctx context.Context, into any, params map[string]string, resource schema.GroupResource, name string, path ...string) error {
	req := r.Client.Get().AbsPath(path...).SetHeader("Accept", "application/json")
	for k, v := range params {
		if v != "" {
			req.Param(k, v)
		}
	}
	res := req.Do(ctx)
	// Unlike Raw, Error decodes the API's Status.
	if err := res.Error(); err != nil {
		return errorWithResource(err, resource, name)
	}
	data, err := res.Raw()
	if err != nil {
		return err
	}
	return json.Unmarshal(data, into)
}

// errorWithResource adds the resource and name to the error of a response that is not an API Status, as upstream's
// clients do. The client cannot do it, because a request by path does not contain them.
func errorWithResource(err error, resource schema.GroupResource, name string) error {
	var status *apierrors.StatusError
	if !errors.As(err, &status) || status.ErrStatus.Details == nil {
		return err
	}
	for _, c := range status.ErrStatus.Details.Causes {
		if c.Type == metav1.CauseTypeUnexpectedServerResponse {
			return apierrors.NewGenericServerResponse(int(status.ErrStatus.Code), "get", resource, name, c.Message, int(status.ErrStatus.Details.RetryAfterSeconds), true)
		}
	}
	return err
}

const (
	resourceGroup = "metrics.k8s.io"
	customGroup   = "custom.metrics.k8s.io"
	externalGroup = "external.metrics.k8s.io"
)

// customVersions are the supported versions of the custom metrics API. The fields that are used are
// the same in all versions.
var customVersions = []string{customGroup + "/v1beta2", customGroup + "/v1beta1"}

// custom returns the path of the custom metrics API in a served version that is supported, preferably the server's
// preferred version. It returns an error if the API is not served.
func (r REST) custom(ctx context.Context) (string, error) {
	var group metav1.APIGroup
	err := r.get(ctx, &group, nil, schema.GroupResource{Group: customGroup}, "", "/apis/"+customGroup)
	if apierrors.IsNotFound(err) {
		return "", fmt.Errorf("no custom metrics API (%s) registered", customGroup)
	}
	if err != nil {
		return "", err
	}
	for _, v := range append([]metav1.GroupVersionForDiscovery{group.PreferredVersion}, group.Versions...) {
		if slices.Contains(customVersions, v.GroupVersion) {
			return "/apis/" + v.GroupVersion, nil
		}
	}
	return "", errors.New("no known available metric versions found")
}

// Resource returns the usage of a resource from the resource metrics API, which metrics-server serves, by the names
// of the pods. If container is not "", it is the usage of that container only. Pods of which a container has no
// sample are omitted. It returns an error if the API has no metrics of the pods, or a pod's metrics lack the
// container.
func (r REST) Resource(ctx context.Context, name corev1.ResourceName, namespace string, selector labels.Selector, container string) (map[string]sample, error) {
	var list podMetricsList
	err := r.get(ctx, &list, map[string]string{"labelSelector": selector.String()}, schema.GroupResource{Group: resourceGroup, Resource: "pods"}, "",
		"/apis/metrics.k8s.io/v1beta1/namespaces", namespace, "pods")
	if err != nil {
		return nil, fmt.Errorf("unable to fetch metrics from resource metrics API: %w", err)
	}
	if len(list.Items) == 0 {
		return nil, errors.New("no metrics returned from resource metrics API")
	}
	all := make(map[string]sample, len(list.Items))
	for _, p := range list.Items {
		s, found, whole := sample{at: p.Timestamp.Time, window: p.Window.Duration}, false, true
		for _, c := range p.Containers {
			if container != "" && c.Name != container {
				continue
			}
			q, ok := c.Usage[name]
			whole = whole && ok
			found = found || ok
			s.value += q.MilliValue()
		}
		if container != "" && !found {
			return nil, fmt.Errorf("failed to get container metrics: container %s not present in metrics for pod %s/%s", container, namespace, p.Metadata.Name)
		}
		if found && whole {
			all[p.Metadata.Name] = s
		}
	}
	return all, nil
}

// Pods returns the values of a metric from the custom metrics API, by the names of the pods that the selector
// selects. It returns an error if there are no values.
func (r REST) Pods(ctx context.Context, metric autoscalingv2.MetricIdentifier, namespace string, selector labels.Selector) (map[string]sample, error) {
	of, err := metav1.LabelSelectorAsSelector(metric.Selector)
	if err != nil {
		return nil, err
	}
	var list valueList
	params := map[string]string{"labelSelector": selector.String()}
	if metric.Selector != nil {
		params["metricLabelSelector"] = of.String()
	}
	base, err := r.custom(ctx)
	if err == nil {
		err = r.get(ctx, &list, params, schema.GroupResource{Group: customGroup, Resource: "pods"}, "*", base, "namespaces", namespace, "pods/*", metric.Name)
	}
	if err != nil {
		return nil, fmt.Errorf("unable to fetch metrics from custom metrics API: %w", err)
	}
	if len(list.Items) == 0 {
		return nil, errors.New("no metrics returned from custom metrics API")
	}
	all := make(map[string]sample, len(list.Items))
	for _, m := range list.Items {
		s := sample{value: m.Value.MilliValue(), at: m.Timestamp.Time, window: time.Minute}
		if m.WindowSeconds != nil {
			s.window = time.Duration(*m.WindowSeconds) * time.Second
		}
		all[m.DescribedObject.Name] = s
	}
	return all, nil
}

// Object returns a metric of one object from the custom metrics API. It returns an error unless there is exactly one
// value.
func (r REST) Object(ctx context.Context, metric autoscalingv2.MetricIdentifier, namespace string, of autoscalingv2.CrossVersionObjectReference) (int64, error) {
	base, err := r.custom(ctx)
	if err != nil {
		return 0, fmt.Errorf("unable to fetch metrics from custom metrics API: %w", err)
	}
	gvk := schema.FromAPIVersionAndKind(of.APIVersion, of.Kind)
	mapping, err := r.Mapper.RESTMapping(gvk.GroupKind(), gvk.Version)
	if err != nil {
		return 0, fmt.Errorf("unable to fetch metrics from custom metrics API: %w", err)
	}
	path := []string{base}
	if of.Kind == "Namespace" && gvk.Group == "" {
		path = append(path, "namespaces", of.Name, "metrics", metric.Name)
	} else {
		if mapping.Scope.Name() == meta.RESTScopeNameNamespace {
			path = append(path, "namespaces", namespace)
		}
		path = append(path, mapping.Resource.GroupResource().String(), of.Name, metric.Name)
	}
	params := map[string]string{}
	if metric.Selector != nil {
		params["metricLabelSelector"] = metav1.FormatLabelSelector(metric.Selector)
	}
	var list valueList
	if err := r.get(ctx, &list, params, schema.GroupResource{Group: customGroup, Resource: mapping.Resource.GroupResource().String()}, of.Name, path...); err != nil {
		return 0, fmt.Errorf("unable to fetch metrics from custom metrics API: %w", err)
	}
	if n := len(list.Items); n != 1 {
		return 0, fmt.Errorf("unable to fetch metrics from custom metrics API: the custom metrics API server returned %d results when we asked for exactly one", n)
	}
	return list.Items[0].Value.MilliValue(), nil
}

// External returns the sum of all series of a metric in the external metrics API. It returns an error if there are
// none.
func (r REST) External(ctx context.Context, metric autoscalingv2.MetricIdentifier, namespace string) (int64, error) {
	params := map[string]string{}
	if metric.Selector != nil {
		params["labelSelector"] = metav1.FormatLabelSelector(metric.Selector)
	}
	var list valueList
	if err := r.get(ctx, &list, params, schema.GroupResource{Group: externalGroup, Resource: metric.Name}, "",
		"/apis/external.metrics.k8s.io/v1beta1/namespaces", namespace, metric.Name); err != nil {
		return 0, fmt.Errorf("unable to fetch metrics from external metrics API: %w", err)
	}
	if len(list.Items) == 0 {
		return 0, errors.New("no metrics returned from external metrics API")
	}
	var sum int64
	for _, m := range list.Items {
		sum += m.Value.MilliValue()
	}
	return sum, nil
}
