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

// Stream is a subresource that answers HTTP by itself: log, exec, proxy.
type Stream struct {
	// Resource and Subresource that this is, e.g. "pods" and "exec".
	Resource    schema.GroupVersionResource
	Subresource string
	// Kind that discovery tells, e.g. v1 PodExecOptions.
	Kind schema.GroupVersionKind
	// Verbs that discovery tells, e.g. "create" and "get".
	Verbs []string
	// Options makes of the query, and of the path behind the subresource, what
	// Serve is told and admission is shown; it may be nil.
	Options func(query url.Values, path string) (runtime.Object, error)
	// Admit asks admission whether to CONNECT.
	Admit bool
	// Proxy: what is below its path is another server's, and so are methods
	// that are no verbs.
	Proxy bool
	// Serve answers, once admission has agreed. Errors that it returns are
	// written as a Status; after the first byte it returns none.
	Serve func(w http.ResponseWriter, req *http.Request, call StreamCall) error
}

// StreamCall is one request for a Stream.
type StreamCall struct {
	Namespace, Name string
	// Path behind the subresource, with its leading slash; for proxies.
	Path string
	// Options is what Stream.Options made.
	Options  runtime.Object
	Resource *Resource
}

// Compute makes the objects of a resource be what list returns at the time of a
// request, instead of what is stored. Such a resource can only be read.
func (r *Registry) Compute(gr schema.GroupResource, list func(context.Context) ([]api.Object, error)) error {
	for _, res := range r.Resources() {
		if res.GroupResource() == gr {
			res.extra.mu.Lock()
			defer res.extra.mu.Unlock()
			res.extra.computed = list
			return nil
		}
	}
	return fmt.Errorf("objects of %s, which is not served", gr)
}

// Computed returns what Compute was given, or nil.
func (r *Resource) Computed() func(context.Context) ([]api.Object, error) {
	r.extra.mu.RLock()
	defer r.extra.mu.RUnlock()
	return r.extra.computed
}

func newExtra() *extra {
	return &extra{
		actions: map[schema.GroupVersionResource]map[string]*Action{},
		streams: map[schema.GroupVersionResource]map[string]*Stream{},
	}
}

// AddHook makes hook take part in the writes of a resource, in all versions.
func (r *Registry) AddHook(gr schema.GroupResource, hook Hook) error {
	for _, res := range r.Resources() {
		if res.GroupResource() == gr {
			res.extra.mu.Lock()
			defer res.extra.mu.Unlock()
			res.extra.hooks = append(slices.Clip(res.extra.hooks), hook)
			return nil
		}
	}
	return fmt.Errorf("hook for %s, which is not served", gr)
}

// AddActions serves actions. Their resources must have been added before.
func (r *Registry) AddActions(actions ...*Action) error {
	for _, a := range actions {
		res := r.Lookup(a.Resource)
		if res == nil {
			return fmt.Errorf("action %s/%s of what is not served", a.Resource, a.Subresource)
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

// AddStreams serves streams. Their resources must have been added before.
func (r *Registry) AddStreams(streams ...*Stream) error {
	for _, s := range streams {
		res := r.Lookup(s.Resource)
		if res == nil {
			return fmt.Errorf("stream %s/%s of what is not served", s.Resource, s.Subresource)
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

// Hooks of the resource, in the order in which they were added.
func (r *Resource) Hooks() []Hook {
	r.extra.mu.RLock()
	defer r.extra.mu.RUnlock()
	return r.extra.hooks
}

// Action returns that of a subresource, or of the review itself for "".
func (r *Resource) Action(subresource string) *Action {
	r.extra.mu.RLock()
	defer r.extra.mu.RUnlock()
	return r.extra.actions[r.GVR()][subresource]
}

// Actions returns all, by subresource.
func (r *Resource) Actions() map[string]*Action {
	if r.extra == nil {
		return nil // it is in no registry
	}
	r.extra.mu.RLock()
	defer r.extra.mu.RUnlock()
	out := make(map[string]*Action, len(r.extra.actions[r.GVR()]))
	maps.Copy(out, r.extra.actions[r.GVR()])
	return out
}

// Stream returns that of a subresource, or nil.
func (r *Resource) Stream(subresource string) *Stream {
	r.extra.mu.RLock()
	defer r.extra.mu.RUnlock()
	return r.extra.streams[r.GVR()][subresource]
}

// Streams returns all, by subresource.
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
