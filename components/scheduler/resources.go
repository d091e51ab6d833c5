package scheduler

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	corelisters "k8s.io/client-go/listers/core/v1"
	resourcehelper "k8s.io/component-helpers/resource"

	"hyperkube/internal/pod/podutil"
	"hyperkube/internal/serving/componentmetrics"
)

// Metrics returns the metrics for the path /metrics. If Config.Metrics is set, the scheduler's own metrics are
// registered there and not included.
func (s *Scheduler) Metrics() prometheus.Gatherer {
	if s.registry == nil {
		return componentmetrics.Page()
	}
	return componentmetrics.Page(s.registry)
}

// Resources returns the metrics for the path /metrics/resources: the resource requests and limits of all pods.
func (s *Scheduler) Resources() prometheus.Gatherer {
	r := prometheus.NewRegistry()
	r.MustRegister(podResources{s.cfg.Clients.Informers.Core().V1().Pods().Lister()})
	return r
}

// podResources collects the resource requests and limits of all pods from the informer's cache. It implements
// prometheus.Collector.
type podResources struct{ pods corelisters.PodLister }

var (
	podLabels   = []string{"namespace", "pod", "node", "scheduler", "priority", "resource", "unit"}
	requestDesc = prometheus.NewDesc("kube_pod_resource_request",
		"[STABLE] Resources requested by workloads on the cluster, broken down by pod. This shows the resource usage the scheduler and kubelet expect per pod for resources along with the unit for the resource if any.", podLabels, nil)
	limitDesc = prometheus.NewDesc("kube_pod_resource_limit",
		"[STABLE] Resources limit for workloads on the cluster, broken down by pod. This shows the resource usage the scheduler and kubelet expect per pod for resources along with the unit for the resource if any.", podLabels, nil)
)

// Describe sends the descriptions of both metrics.
func (podResources) Describe(ch chan<- *prometheus.Desc) {
	ch <- requestDesc
	ch <- limitDesc
}

// Collect sends the requests and limits of each pod. It omits pods that have terminated on their node, and zero values.
func (c podResources) Collect(ch chan<- prometheus.Metric) {
	pods, err := c.pods.List(labels.Everything())
	if err != nil {
		ch <- prometheus.NewInvalidMetric(requestDesc, err)
		return
	}
	for _, p := range pods {
		if p.Spec.NodeName != "" && podutil.Terminal(p) {
			continue
		}
		priority := ""
		if p.Spec.Priority != nil {
			priority = strconv.Itoa(int(*p.Spec.Priority))
		}
		for desc, list := range map[*prometheus.Desc]corev1.ResourceList{
			requestDesc: resourcehelper.PodRequests(p, resourcehelper.PodResourcesOptions{}),
			limitDesc:   resourcehelper.PodLimits(p, resourcehelper.PodResourcesOptions{}),
		} {
			for name, value := range list {
				if !value.IsZero() {
					ch <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value.AsApproximateFloat64(),
						p.Namespace, p.Name, p.Spec.NodeName, p.Spec.SchedulerName, priority, string(name), unit(name))
				}
			}
		}
	}
}

// unit returns the unit of a resource for the label "unit". It is empty for extended resources and pods, which are
// counted.
func unit(name corev1.ResourceName) string {
	switch name {
	case corev1.ResourceCPU:
		return "cores"
	case corev1.ResourceMemory, corev1.ResourceStorage, corev1.ResourceEphemeralStorage:
		return "bytes"
	}
	switch text := string(name); {
	case len(text) > len(corev1.ResourceHugePagesPrefix) && text[:len(corev1.ResourceHugePagesPrefix)] == corev1.ResourceHugePagesPrefix:
		return "bytes"
	case len(text) > len(corev1.ResourceAttachableVolumesPrefix) && text[:len(corev1.ResourceAttachableVolumesPrefix)] == corev1.ResourceAttachableVolumesPrefix:
		return "integer"
	}
	return ""
}
