package registry

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"hyperkube/internal/api"
)

// Stream is a subresource whose HTTP requests are handled by another package, such as pods/log,
// pods/exec and services/proxy.
type Stream struct {
	// Resource and Subresource of the stream, e.g. "pods" and "exec".
	Resource    schema.GroupVersionResource
	Subresource string
	// Kind in discovery, e.g. v1 PodExecOptions.
	Kind schema.GroupVersionKind
	// Verbs in discovery, e.g. "create" and "get".
	Verbs []string
	// Options parses the query and the path after the subresource. The result is passed to Serve
	// and to admission. It may be nil.
	Options func(query url.Values, path string) (runtime.Object, error)
	// Admit enables admission of the request as a CONNECT operation.
	Admit bool
	// Proxy is set if the path after the subresource belongs to another server. Methods without a
	// corresponding verb are then allowed.
	Proxy bool
	// Serve handles the request after admission. Errors are sent as a Status. Serve must not return
	// an error after it has started the response.
	Serve func(w http.ResponseWriter, req *http.Request, call StreamCall) error
}

// StreamCall is a request for a Stream, such as exec, as its function gets it.
type StreamCall struct {
	Namespace, Name string
	// Path is the path after the subresource, with its leading slash, for proxies. It is "" for other streams.
	Path string
	// Options is the result of Stream.Options.
	Options  runtime.Object
	Resource *Resource
}

// Compute makes a resource read-only: each request gets the objects that list returns at that time,
// instead of stored objects. It returns an error if the resource is not served.
func (r *Registry) Compute(gr schema.GroupResource, list func(context.Context) ([]api.Object, error)) error {
	for _, res := range r.Resources() {
		if res.GroupResource() == gr {
			res.extra.mu.Lock()
			defer res.extra.mu.Unlock()
			res.extra.computed = list
			return nil
		}
	}
	return fmt.Errorf("computed objects of %s: resource is not served", gr)
}

// Computed returns the function that was passed to Compute and returns the objects of the resource,
// or nil if they are stored.
func (r *Resource) Computed() func(context.Context) ([]api.Object, error) {
	r.extra.mu.RLock()
	defer r.extra.mu.RUnlock()
	return r.extra.computed
}

// newExtra returns an extra without hooks, actions and streams.
func newExtra() *extra {
	return &extra{
		actions: map[schema.GroupVersionResource]map[string]*Action{},
		streams: map[schema.GroupVersionResource]map[string]*Stream{},
	}
}

// AddHook registers hook to be called for each write of a resource, in all its versions, after the hooks that were
// added before. It returns an error if the resource is not served.
func (r *Registry) AddHook(gr schema.GroupResource, hook Hook) error {
	for _, res := range r.Resources() {
		if res.GroupResource() == gr {
			res.extra.mu.Lock()
			defer res.extra.mu.Unlock()
			res.extra.hooks = append(slices.Clip(res.extra.hooks), hook)
			return nil
		}
	}
	return fmt.Errorf("hook for %s: resource is not served", gr)
}

// AddActions makes the registry serve actions. It returns an error if the resource of one is not
// served; those before it are then already added.
func (r *Registry) AddActions(actions ...*Action) error {
	for _, a := range actions {
		res := r.Lookup(a.Resource)
		if res == nil {
			return fmt.Errorf("action %s/%s: resource is not served", a.Resource, a.Subresource)
		}
		res.extra.mu.Lock()
		if res.extra.actions[a.Resource] == nil {
			res.extra.actions[a.Resource] = map[string]*Action{}
		}
		res.extra.actions[a.Resource][a.Subresource] = a
		res.extra.mu.Unlock()
	}
	return nil
}

// AddStreams makes the registry serve streams. It returns an error if the resource of one is not
// served; those before it are then already added.
func (r *Registry) AddStreams(streams ...*Stream) error {
	for _, s := range streams {
		res := r.Lookup(s.Resource)
		if res == nil {
			return fmt.Errorf("stream %s/%s: resource is not served", s.Resource, s.Subresource)
		}
		res.extra.mu.Lock()
		if res.extra.streams[s.Resource] == nil {
			res.extra.streams[s.Resource] = map[string]*Stream{}
		}
		res.extra.streams[s.Resource][s.Subresource] = s
		res.extra.mu.Unlock()
	}
	return nil
}

// Hooks returns the hooks of the resource, in the order of addition.
func (r *Resource) Hooks() []Hook {
	r.extra.mu.RLock()
	defer r.extra.mu.RUnlock()
	return r.extra.hooks
}

// Action returns the action of a subresource, or of a review resource if subresource is empty. It
// returns nil if there is none.
func (r *Resource) Action(subresource string) *Action {
	r.extra.mu.RLock()
	defer r.extra.mu.RUnlock()
	return r.extra.actions[r.GVR()][subresource]
}

// Actions returns a copy of all actions of the resource by subresource, for discovery and OpenAPI. It returns nil for
// a resource that is not part of a registry.
func (r *Resource) Actions() map[string]*Action {
	if r.extra == nil {
		return nil // it is not part of a registry
	}
	r.extra.mu.RLock()
	defer r.extra.mu.RUnlock()
	out := make(map[string]*Action, len(r.extra.actions[r.GVR()]))
	maps.Copy(out, r.extra.actions[r.GVR()])
	return out
}

// Stream returns the Stream that handles requests for a subresource such as exec, or nil if there is none.
func (r *Resource) Stream(subresource string) *Stream {
	r.extra.mu.RLock()
	defer r.extra.mu.RUnlock()
	return r.extra.streams[r.GVR()][subresource]
}

// Streams returns a copy of all streams of the resource by subresource, for discovery and OpenAPI. It returns nil for
// a resource that is not part of a registry.
func (r *Resource) Streams() map[string]*Stream {
	if r.extra == nil {
		return nil
	}
	r.extra.mu.RLock()
	defer r.extra.mu.RUnlock()
	out := make(map[string]*Stream, len(r.extra.streams[r.GVR()]))
	maps.Copy(out, r.extra.streams[r.GVR()])
	return out
}
