package metrics

import (
	"net/http"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	corelisters "k8s.io/client-go/listers/core/v1"

	"hyperkube/components/metrics/history"
	"hyperkube/internal/serving/metricshistory"
)

const historyPrefix = "/apis/" + metricshistory.Group + "/" + metricshistory.Version

// historyAPI answers requests for the history API.
type historyAPI struct {
	store *history.Store
	nodes corelisters.NodeLister
}

// register registers the handlers of the resources. wrap is applied to each of them.
func (a *historyAPI) register(mux *http.ServeMux, wrap func(http.Handler) http.Handler) {
	for _, r := range metricshistory.Resources() {
		list := wrap(handle(func(req *http.Request) (any, error) { return a.list(r, req) }))
		get := wrap(handle(func(req *http.Request) (any, error) { return a.get(r, req) }))
		mux.Handle("GET "+historyPrefix+"/"+r.Name, list)
		if r.Namespaced {
			mux.Handle("GET "+historyPrefix+"/namespaces/{namespace}/"+r.Name, list)
			mux.Handle("GET "+historyPrefix+"/namespaces/{namespace}/"+r.Name+"/{name}", get)
		} else {
			mux.Handle("GET "+historyPrefix+"/"+r.Name+"/{name}", get)
		}
	}
}

// historyResources returns the discovery document of the history API.
func historyResources() metav1.APIResourceList {
	out := metav1.APIResourceList{
		TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}, GroupVersion: metricshistory.GroupVersion().String(),
	}
	for _, r := range metricshistory.Resources() {
		out.APIResources = append(out.APIResources, metav1.APIResource{Name: r.Name, Kind: r.Kind, Namespaced: r.Namespaced, Verbs: metav1.Verbs{"get", "list"}})
	}
	return out
}

// list returns the histories of all objects of a resource, in the namespace of the request if it has one.
func (a *historyAPI) list(r metricshistory.Resource, req *http.Request) (any, error) {
	length, err := lengthOf(req)
	if err != nil {
		return nil, err
	}
	query := req.URL.Query()
	if query.Get("labelSelector") != "" || query.Get("fieldSelector") != "" {
		return nil, apierrors.NewBadRequest("selectors are not supported, because the labels of deleted objects are unknown")
	}
	out := metricshistory.List{TypeMeta: metav1.TypeMeta{Kind: r.Kind + "List", APIVersion: metricshistory.GroupVersion().String()}, Items: []metricshistory.History{}}
	for _, key := range a.store.Keys(r.Name, req.PathValue("namespace")) {
		if h, ok := a.read(r, key, length); ok {
			out.Items = append(out.Items, h)
		}
	}
	return out, nil
}

// get returns the history of the object in the path of the request. It returns a NotFound error if there is no sample.
func (a *historyAPI) get(r metricshistory.Resource, req *http.Request) (any, error) {
	length, err := lengthOf(req)
	if err != nil {
		return nil, err
	}
	key := history.Key{Resource: r.Name, Namespace: req.PathValue("namespace"), Name: req.PathValue("name")}
	h, ok := a.read(r, key, length)
	if !ok {
		return nil, apierrors.NewNotFound(schema.GroupResource{Group: metricshistory.Group, Resource: r.Name}, key.Name)
	}
	return h, nil
}

// read returns the history of an object, or false if there is none. A node that exists gets its capacity.
func (a *historyAPI) read(r metricshistory.Resource, key history.Key, length time.Duration) (metricshistory.History, bool) {
	h, ok := a.store.Read(key, time.Now(), length)
	h.TypeMeta = metav1.TypeMeta{Kind: r.Kind, APIVersion: metricshistory.GroupVersion().String()}
	if ok && r.Name == metricshistory.Nodes {
		if n, err := a.nodes.Get(key.Name); err == nil {
			h.Capacity = map[string]float64{
				metricshistory.CPU:    n.Status.Allocatable.Cpu().AsApproximateFloat64(),
				metricshistory.Memory: n.Status.Allocatable.Memory().AsApproximateFloat64(),
			}
		}
	}
	return h, ok
}

// lengthOf returns the length of the history that a request asks for. It returns a BadRequest error if it is not between
// one sample and the length of the rings.
func lengthOf(req *http.Request) (time.Duration, error) {
	text := req.URL.Query().Get(metricshistory.RangeParameter)
	if text == "" {
		return metricshistory.DefaultRange, nil
	}
	length, err := time.ParseDuration(text)
	if err != nil || length < metricshistory.HourStep || length > metricshistory.DayRange {
		return 0, apierrors.NewBadRequest("the parameter range must be a duration from 15s to 24h, such as 1h")
	}
	return length, nil
}
