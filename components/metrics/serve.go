package metrics

import (
	"cmp"
	"net/http"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	corelisters "k8s.io/client-go/listers/core/v1"
	metricsv1beta1 "k8s.io/metrics/pkg/apis/metrics/v1beta1"

	"hyperkube/internal/pod/podutil"
	"hyperkube/internal/serving/frontproxy"
)

const prefix = "/apis/metrics.k8s.io"

var version = metricsv1beta1.SchemeGroupVersion.String()

// handler returns the HTTP handler of the health endpoints and of both APIs with their discovery
// documents. Requests for the APIs must come from an API server.
func (s *Server) handler() http.Handler {
	mux := http.NewServeMux()
	alive := func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("ok")) }
	mux.HandleFunc("GET /livez", alive)
	mux.HandleFunc("GET /healthz", alive)
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, req *http.Request) {
		select {
		case <-s.ready:
			alive(w, req)
		default:
			http.Error(w, "kubelets have not been scraped yet", http.StatusServiceUnavailable)
		}
	})
	authenticated := func(h http.Handler) http.Handler { return s.auth.Require(h, s.cfg.Log) }
	frontproxy.RegisterDiscovery(mux, authenticated, resources(), historyResources())
	s.api.registerResources(mux, authenticated)
	s.historyAPI.register(mux, authenticated)
	return mux
}

// api answers requests for the metrics API from the stored scrapes.
type api struct {
	nodes   corelisters.NodeLister
	pods    corelisters.PodLister
	scrapes *scrapeStore
}

// registerResources registers the handlers of nodes and pods.
func (s *api) registerResources(mux *http.ServeMux, wrap func(http.Handler) http.Handler) {
	for pattern, answer := range map[string]func(*http.Request) (any, error){
		"/nodes": s.listNodes, "/nodes/{name}": s.getNode,
		"/pods": s.listPods, "/namespaces/{namespace}/pods": s.listPods, "/namespaces/{namespace}/pods/{name}": s.getPod,
	} {
		mux.Handle("GET "+prefix+"/v1beta1"+pattern, wrap(handle(answer)))
	}
}

// handle returns a handler that sends the object or the error that answer returns.
func handle(answer func(*http.Request) (any, error)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		obj, err := answer(req)
		if err != nil {
			frontproxy.SendError(w, err)
			return
		}
		frontproxy.Send(w, http.StatusOK, obj)
	})
}

func resources() metav1.APIResourceList {
	verbs := metav1.Verbs{"get", "list"}
	return metav1.APIResourceList{
		TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}, GroupVersion: version,
		APIResources: []metav1.APIResource{
			{Name: "nodes", Kind: "NodeMetrics", Verbs: verbs},
			{Name: "pods", Kind: "PodMetrics", Namespaced: true, Verbs: verbs},
		},
	}
}

// selectorFilter returns a function that reports whether an object matches the label and field
// selectors of a list request. An invalid selector is a BadRequest error.
func selectorFilter(req *http.Request) (func(metav1.Object) bool, error) {
	query := req.URL.Query()
	byLabel, err := labels.Parse(query.Get("labelSelector"))
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	byField, err := fields.ParseSelector(query.Get("fieldSelector"))
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	for _, r := range byField.Requirements() {
		if r.Field != "metadata.name" && r.Field != "metadata.namespace" {
			return nil, apierrors.NewBadRequest("field label not supported: " + r.Field)
		}
	}
	return func(obj metav1.Object) bool {
		return byLabel.Matches(labels.Set(obj.GetLabels())) &&
			byField.Matches(fields.Set{"metadata.name": obj.GetName(), "metadata.namespace": obj.GetNamespace()})
	}, nil
}

func (s *api) listNodes(req *http.Request) (any, error) {
	match, err := selectorFilter(req)
	if err != nil {
		return nil, err
	}
	nodes, err := s.nodes.List(labels.Everything())
	if err != nil {
		return nil, err
	}
	out := metricsv1beta1.NodeMetricsList{TypeMeta: metav1.TypeMeta{Kind: "NodeMetricsList", APIVersion: version}, Items: []metricsv1beta1.NodeMetrics{}}
	for _, n := range nodes {
		if m, ok := s.nodeMetrics(n); ok && match(n) {
			out.Items = append(out.Items, m)
		}
	}
	slices.SortFunc(out.Items, func(a, b metricsv1beta1.NodeMetrics) int { return cmp.Compare(a.Name, b.Name) })
	return out, nil
}

func (s *api) getNode(req *http.Request) (any, error) {
	name := req.PathValue("name")
	if n, err := s.nodes.Get(name); err == nil {
		if m, ok := s.nodeMetrics(n); ok {
			return m, nil
		}
	}
	return nil, apierrors.NewNotFound(schema.GroupResource{Group: metricsv1beta1.GroupName, Resource: "nodes"}, name)
}

func (s *api) nodeMetrics(n *corev1.Node) (metricsv1beta1.NodeMetrics, bool) {
	u, ok := s.scrapes.node(n.Name)
	return metricsv1beta1.NodeMetrics{
		TypeMeta:   metav1.TypeMeta{Kind: "NodeMetrics", APIVersion: version},
		ObjectMeta: metav1.ObjectMeta{Name: n.Name, Labels: n.Labels, CreationTimestamp: metav1.NewTime(time.Now())},
		Timestamp:  metav1.NewTime(u.at), Window: metav1.Duration{Duration: u.window}, Usage: u.list,
	}, ok
}

func (s *api) listPods(req *http.Request) (any, error) {
	match, err := selectorFilter(req)
	if err != nil {
		return nil, err
	}
	var pods []*corev1.Pod
	if namespace := req.PathValue("namespace"); namespace == "" {
		pods, err = s.pods.List(labels.Everything())
	} else {
		pods, err = s.pods.Pods(namespace).List(labels.Everything())
	}
	if err != nil {
		return nil, err
	}
	out := metricsv1beta1.PodMetricsList{TypeMeta: metav1.TypeMeta{Kind: "PodMetricsList", APIVersion: version}, Items: []metricsv1beta1.PodMetrics{}}
	for _, p := range pods {
		if !match(p) {
			continue
		}
		if m, ok := s.podMetrics(p); ok {
			out.Items = append(out.Items, m)
		}
	}
	slices.SortFunc(out.Items, func(a, b metricsv1beta1.PodMetrics) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return out, nil
}

func (s *api) getPod(req *http.Request) (any, error) {
	namespace, name := req.PathValue("namespace"), req.PathValue("name")
	if p, err := s.pods.Pods(namespace).Get(name); err == nil {
		if m, ok := s.podMetrics(p); ok {
			return m, nil
		}
	}
	return nil, apierrors.NewNotFound(schema.GroupResource{Group: metricsv1beta1.GroupName, Resource: "pods"}, namespace+"/"+name)
}

func (s *api) podMetrics(p *corev1.Pod) (metricsv1beta1.PodMetrics, bool) {
	out := metricsv1beta1.PodMetrics{
		TypeMeta:   metav1.TypeMeta{Kind: "PodMetrics", APIVersion: version},
		ObjectMeta: metav1.ObjectMeta{Name: p.Name, Namespace: p.Namespace, Labels: p.Labels, CreationTimestamp: metav1.NewTime(time.Now())},
	}
	if podutil.Terminal(p) {
		return out, false
	}
	for _, c := range s.scrapes.pod(p.Spec.NodeName, p.Namespace, p.Name) {
		// The timestamp of the pod is the oldest of its containers.
		if at := metav1.NewTime(c.at); out.Timestamp.IsZero() || at.Before(&out.Timestamp) {
			out.Timestamp, out.Window = at, metav1.Duration{Duration: c.window}
		}
		out.Containers = append(out.Containers, metricsv1beta1.ContainerMetrics{Name: c.name, Usage: c.list})
	}
	return out, len(out.Containers) > 0
}
