// Package rest handles requests for API resources: the verbs of
// https://kubernetes.io/docs/reference/using-api/api-concepts/ on the resources of the
// registry. Requests are authorized before they reach this package.
package rest

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/url"
	"runtime"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/client-go/kubernetes/scheme"

	"hyperkube/components/apiserver/fieldmanager"
	"hyperkube/components/apiserver/metrics"
	"hyperkube/components/apiserver/negotiate"
	"hyperkube/components/apiserver/registry"
)

// Config is the configuration of a Handler, which handles all requests for resources.
type Config struct {
	Registry *registry.Registry
	// Fields updates the managed fields of objects and performs server-side apply.
	Fields *fieldmanager.Managers
	// Admission mutates and validates writes. Nil admits all.
	Admission admission.Interface
	// Objects creates, converts and defaults objects for admission webhooks. Nil means those of
	// client-go's scheme.
	Objects admission.ObjectInterfaces
	// Authorizer checks whether the user of an update may create a missing object.
	Authorizer authorizer.UnconditionalAuthorizer
	// NotFound handles paths of groups that are not built in: those of aggregated API servers. Nil
	// means 404.
	NotFound http.Handler
	// MaxBody is the maximum size of a request body in bytes. Zero means 3 MiB.
	MaxBody int64
	// MaxStored is the size in bytes above which etcd certainly rejects an object. Custom resources above it are
	// rejected before their managed fields are computed. Zero means 2 MiB, the maximum message size of etcd's client.
	MaxStored int64
	// MinWatch is the minimum duration of watches without a timeout of their client. Zero means 30
	// minutes.
	MinWatch time.Duration
	// SlowReader is how long a watch waits until its client reads pending data before it is closed.
	// Zero means one minute.
	SlowReader time.Duration
	// BookmarkEvery is the interval of bookmarks for watches that request them. Zero means one
	// minute.
	BookmarkEvery time.Duration
	// RecordTraces records the trace of a write in workloads and pods, so that controllers, the scheduler and the kubelet
	// continue it (see tracing.Record).
	RecordTraces bool
	// Metrics counts watch events and uses of deprecated APIs. It may be nil.
	Metrics *metrics.Metrics
	// Stopping is canceled when the server starts to shut down. This closes all watches. It may be
	// nil.
	Stopping context.Context //nolint:containedctx // the context of the server outlives calls
	// Log receives messages about failed requests. Nil means slog's default.
	Log *slog.Logger
}

// Handler handles requests for resources. The request context must contain RequestInfo and the
// user.
type Handler struct {
	cfg        Config
	negotiator negotiate.Negotiator
	mutate     admission.MutationInterface
	validate   admission.ValidationInterface
	compressor compressor
	cpuSlots   *cpuSlots
}

// New validates cfg, sets its defaults and returns a Handler. Registry, Fields and Authorizer are
// required.
func New(cfg Config) (*Handler, error) {
	if cfg.Registry == nil || cfg.Fields == nil || cfg.Authorizer == nil {
		return nil, errors.New("rest handler needs a registry, field managers and an authorizer")
	}
	if cfg.MaxBody == 0 {
		cfg.MaxBody = 3 << 20
	}
	if cfg.MaxStored == 0 {
		cfg.MaxStored = 2 << 20
	}
	if cfg.MinWatch <= 0 {
		cfg.MinWatch = minWatch
	}
	if cfg.SlowReader <= 0 {
		cfg.SlowReader = time.Minute
	}
	if cfg.BookmarkEvery == 0 {
		cfg.BookmarkEvery = time.Minute
	}
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	if cfg.Objects == nil {
		cfg.Objects = admission.NewObjectInterfacesFromScheme(scheme.Scheme)
	}
	h := &Handler{cfg: cfg, cpuSlots: newCPUSlots(max(1, runtime.GOMAXPROCS(0)-1))}
	h.mutate, _ = cfg.Admission.(admission.MutationInterface)
	h.validate, _ = cfg.Admission.(admission.ValidationInterface)
	return h, nil
}

// call is one request for a resource and the state that its handlers share. Each handler is a
// separate type, for a verb or for a step of several verbs, which contains only a pointer to the
// call.
type call struct {
	*Handler
	ctx   context.Context //nolint:containedctx // the struct lives as long as the request
	w     http.ResponseWriter
	req   *http.Request
	info  *apirequest.RequestInfo
	query url.Values
	began time.Time
	res   *registry.Resource
	// namespace of the object. Empty for cluster-scoped resources, and for lists of all namespaces.
	namespace string
	name      string
	// former is another version of the kind with the same schema that the body may have. It is only
	// set for some actions.
	former schema.GroupVersionKind
	// byServer is set if the server deletes the object as part of an action, such as an eviction.
	// Admission has already reviewed the action.
	byServer bool
	// body is the request body, or nil before it has been read.
	body *readBody
}

// The handlers of a call. They are values, so creating one allocates nothing.

func (c *call) router() router           { return router{c} }
func (c *call) reader() reader           { return reader{c} }
func (c *call) lister() lister           { return lister{c} }
func (c *call) watchServer() watchServer { return watchServer{c} }
func (c *call) creator() creator         { return creator{c} }
func (c *call) changer() changer         { return changer{c} }
func (c *call) deleter() deleter         { return deleter{c} }
func (c *call) scaler() scaler           { return scaler{c} }
func (c *call) actor() actor             { return actor{c} }
func (c *call) bodyDecoder() bodyDecoder { return bodyDecoder{c} }
func (c *call) admitter() admitter       { return admitter{c} }
func (c *call) committer() committer     { return committer{c} }
func (c *call) responder() responder     { return responder{c} }

// ServeHTTP handles an authorized request for an object or a list of a resource. Paths that the registry does not
// contain are passed to NotFound. If a custom resource definition changes during the request and nothing has been
// written, the request is repeated with the new definition.
func (h *Handler) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	ctx := req.Context()
	info, ok := apirequest.RequestInfoFrom(ctx)
	if !ok {
		h.Error(w, req, apierrors.NewInternalError(errors.New("no request information in the context")))
		return
	}
	gvr := schema.GroupVersionResource{Group: info.APIGroup, Version: info.APIVersion, Resource: info.Resource}
	c := &call{Handler: h, ctx: ctx, w: w, req: req, info: info, began: time.Now(), res: h.cfg.Registry.Lookup(gvr), name: info.Name}
	if req.URL.RawQuery != "" {
		c.query = req.URL.Query()
	}
	if c.res == nil || c.wrongScope(c.res) {
		h.NotFound(w, req)
		return
	}
	if c.res.Scope {
		c.namespace = info.Namespace
	}
	if info.Namespace != "" {
		c.ctx = apirequest.WithNamespace(ctx, info.Namespace)
	}
	if c.lacksNamespace() {
		h.NotFound(w, req)
		return
	}
	if err := c.router().route(); err != nil {
		h.Error(w, req, err)
		return
	}
	c.warnDeprecated()
	err := c.router().traceDispatch()
	// Each iteration means that the definition has changed once more.
	for errors.Is(err, errStopped) {
		now := h.cfg.Registry.LookupSettled(gvr)
		if now == c.res {
			break // the server is shutting down
		}
		if now == nil || c.wrongScope(now) {
			h.NotFound(w, req)
			return
		}
		if ended := c.ctx.Err(); ended != nil {
			err = c.storeError(ended, c.name)
			break
		}
		// A retry is safe because nothing has been written: a dropped collection is detected when
		// reading, or right before writing.
		c.res = now
		err = c.router().traceDispatch()
	}
	if err != nil {
		h.Error(w, req, err)
	}
}

// wrongScope reports whether the path contains a namespace but the resource res is cluster-scoped. Namespaces
// themselves are an exception, because their name is in this place.
func (c *call) wrongScope(res *registry.Resource) bool {
	return !bool(res.Scope) && c.info.Namespace != "" && !(c.info.Resource == "namespaces" && c.info.APIGroup == "")
}

// NotFound responds to paths that the registry does not contain. For built-in groups the response is a Status with
// the code 404. Others are passed to Config.NotFound, or get a plain 404 if that is nil.
func (h *Handler) NotFound(w http.ResponseWriter, req *http.Request) {
	parts := strings.Split(strings.Trim(req.URL.Path, "/"), "/")
	if parts[0] == "api" || len(parts) > 1 && h.cfg.Registry.BuiltIn(parts[1]) {
		h.Error(w, req, errNoRoute)
		return
	}
	if h.cfg.NotFound != nil {
		h.cfg.NotFound.ServeHTTP(w, req)
		return
	}
	http.Error(w, "404 page not found", http.StatusNotFound)
}

// errNoRoute is the error for an unknown path below an existing resource.
var errNoRoute = &apierrors.StatusError{ErrStatus: metav1.Status{
	Status:  metav1.StatusFailure,
	Code:    http.StatusNotFound,
	Reason:  metav1.StatusReasonNotFound,
	Message: "the server could not find the requested resource",
	Details: &metav1.StatusDetails{},
}}

// NoRoute returns the error 404 for an unknown path of a built-in API.
func NoRoute() error { return errNoRoute }

// NoMethod returns the error 405 for a method that a path of a built-in API does not support.
func NoMethod() error { return errNoMethod }

// NoForm returns the error 406 for an endpoint that supports only the media type only, which the
// client does not accept.
func NoForm(only string) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status:  metav1.StatusFailure,
		Code:    http.StatusNotAcceptable,
		Reason:  metav1.StatusReasonNotAcceptable,
		Message: "406: Not Acceptable\n\nAvailable representations: " + only,
		Details: &metav1.StatusDetails{},
	}}
}

// errNoMethod is the error for an unsupported method of a built-in resource.
var errNoMethod = &apierrors.StatusError{ErrStatus: metav1.Status{
	Status:  metav1.StatusFailure,
	Code:    http.StatusMethodNotAllowed,
	Reason:  metav1.StatusReasonMethodNotAllowed,
	Message: "the server does not allow this method on the requested resource",
	Details: &metav1.StatusDetails{},
}}

// format negotiates the format of a response that contains objects of the resource's kind. It
// returns an error 406 if the client accepts none.
func (c *call) format() (negotiate.Format, error) {
	return c.negotiator.Response(c.req, negotiate.Endpoint{
		Protobuf: c.res.HasProtobuf(), Metadata: !c.res.Review, Routed: c.res.Custom == nil, Streams: c.info.Verb == "list",
	})
}
