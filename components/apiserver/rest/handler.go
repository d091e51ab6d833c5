// Package rest answers requests for API resources: the verbs of
// https://kubernetes.io/docs/reference/using-api/api-concepts/ on what the
// registry serves. Who may do what has been decided before a request comes
// here.
package rest

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/url"
	"runtime"
	"slices"
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
	"hyperkube/components/apiserver/request"
	"hyperkube/internal/store"
)

// Config of a Handler.
type Config struct {
	Registry *registry.Registry
	// Fields keeps managed fields.
	Fields *fieldmanager.Managers
	// Admission may change and refuse writes; nil admits all.
	Admission admission.Interface
	// Objects is what webhooks convert and default with; nil: the scheme of
	// client-go.
	Objects admission.ObjectInterfaces
	// Authorizer is asked whether an update that creates may create.
	Authorizer authorizer.UnconditionalAuthorizer
	// NotFound answers for groups and versions that the registry does not
	// have: aggregated APIs. Nil: 404.
	NotFound http.Handler
	// MaxBody is how many bytes of a body are read; zero means 3 MiB.
	MaxBody int64
	// MinWatch is how long a watch lasts at least whose client did not say;
	// zero means half an hour.
	MinWatch time.Duration
	// SlowReader is for how long a watch waits for its client to take what
	// it was sent before it is cut off; zero means a minute.
	SlowReader time.Duration
	// BookmarkEvery is how often watches that asked for bookmarks get one;
	// zero means a minute.
	BookmarkEvery time.Duration
	// Metrics counts what watches are told, and who uses what is deprecated;
	// nil: nobody does.
	Metrics *metrics.Metrics
	// Stopping ends when the server begins to stop: watches end with it. It
	// may be nil.
	Stopping context.Context //nolint:containedctx // it is the server's, which outlives calls
	Log      *slog.Logger
}

// Handler answers requests for resources. Their RequestInfo and user are in
// the context.
type Handler struct {
	cfg        Config
	negotiator negotiate.Negotiator
	mutate     admission.MutationInterface
	validate   admission.ValidationInterface
	compressor compressor
	turns      *turns
}

// New makes a Handler.
func New(cfg Config) (*Handler, error) {
	if cfg.Registry == nil || cfg.Fields == nil || cfg.Authorizer == nil {
		return nil, errors.New("rest handler needs a registry, field managers and an authorizer")
	}
	if cfg.MaxBody == 0 {
		cfg.MaxBody = 3 << 20
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
	h := &Handler{cfg: cfg, turns: newTurns(max(1, runtime.GOMAXPROCS(0)-1))}
	h.mutate, _ = cfg.Admission.(admission.MutationInterface)
	h.validate, _ = cfg.Admission.(admission.ValidationInterface)
	return h, nil
}

// call is one request for a resource.
type call struct {
	*Handler
	ctx   context.Context //nolint:containedctx // it is this request's, and so is the struct
	w     http.ResponseWriter
	req   *http.Request
	info  *apirequest.RequestInfo
	query url.Values
	began time.Time
	res   *registry.Resource
	// namespace of the object; empty for cluster-wide resources, and for
	// lists of all namespaces.
	namespace string
	name      string
	// former is another version whose bodies read the same; empty but for
	// actions that have one.
	former schema.GroupVersionKind
	// own deletions are the server's, for an action that admission has agreed to.
	own bool
	// body is what was read of the request's, nil before.
	body *readBody
}

// ServeHTTP answers a request.
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
	if c.res == nil || c.strays(c.res) {
		h.NotFound(w, req)
		return
	}
	if c.res.Scope {
		c.namespace = info.Namespace
	}
	if info.Namespace != "" {
		c.ctx = apirequest.WithNamespace(ctx, info.Namespace)
	}
	if c.misplaced() {
		h.NotFound(w, req)
		return
	}
	if err := c.route(); err != nil {
		h.Error(w, req, err)
		return
	}
	c.warnDeprecated()
	err := c.dispatch()
	// Another time means that the definition has changed another time.
	for errors.Is(err, errStopped) {
		now := h.cfg.Registry.Settled(gvr)
		if now == c.res {
			break // it is the server that stops
		}
		if now == nil || c.strays(now) {
			h.NotFound(w, req)
			return
		}
		if ended := c.ctx.Err(); ended != nil {
			err = c.storeError(ended, c.name)
			break
		}
		// Nothing has been written: that its collection is gone is found out by
		// reading, or just before writing.
		c.res = now
		err = c.dispatch()
	}
	if err != nil {
		h.Error(w, req, err)
	}
}

// strays tells whether the path leads into a namespace and the resource is in none.
func (c *call) strays(res *registry.Resource) bool {
	return !bool(res.Scope) && c.info.Namespace != "" && !(c.info.Resource == "namespaces" && c.info.APIGroup == "")
}

// NotFound answers as upstream does for paths that nobody serves: those of
// groups that are built in have a server that says so.
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

// errNoRoute: the resource exists, what was asked of it does not.
var errNoRoute = &apierrors.StatusError{ErrStatus: metav1.Status{
	Status:  metav1.StatusFailure,
	Code:    http.StatusNotFound,
	Reason:  metav1.StatusReasonNotFound,
	Message: "the server could not find the requested resource",
	Details: &metav1.StatusDetails{},
}}

// NoRoute is the error of paths of built-in APIs that are not there, NoMethod
// that of other methods than they have.
func NoRoute() error { return errNoRoute }

// NoMethod is as of NoRoute.
func NoMethod() error { return errNoMethod }

// NoForm answers that there is something only in a form that the client does not take.
func NoForm(only string) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status:  metav1.StatusFailure,
		Code:    http.StatusNotAcceptable,
		Reason:  metav1.StatusReasonNotAcceptable,
		Message: "406: Not Acceptable\n\nAvailable representations: " + only,
		Details: &metav1.StatusDetails{},
	}}
}

// errNoMethod: built-in resources do not have the method there.
var errNoMethod = &apierrors.StatusError{ErrStatus: metav1.Status{
	Status:  metav1.StatusFailure,
	Code:    http.StatusMethodNotAllowed,
	Reason:  metav1.StatusReasonMethodNotAllowed,
	Message: "the server does not allow this method on the requested resource",
	Details: &metav1.StatusDetails{},
}}

func (c *call) dispatch() error {
	if c.info.Verb != "update" { // see wished
		if err := c.checkPathName(); err != nil {
			return err
		}
	}
	if len(c.info.Parts) > 2 {
		if s := c.res.Stream(c.info.Subresource); s != nil {
			return c.stream(s)
		}
	}
	if c.info.Subresource != "" {
		if len(c.info.Parts) > 3 {
			return errNoRoute
		}
		return c.subresource()
	}
	verb := c.info.Verb
	if c.res.Review {
		a := c.res.Action("")
		if a == nil || verb != "create" {
			return c.notAllowed()
		}
		return c.action(a)
	}
	if !slices.Contains(c.res.Verbs, verb) {
		if verb == "watch" && c.res.Computed() != nil {
			return apierrors.NewMethodNotSupported(c.res.GroupResource(), verb)
		}
		return c.notAllowed()
	}
	namespaced := bool(c.res.Scope) && c.namespace == ""
	switch verb {
	case "list":
		return c.list()
	case "watch":
		return c.watch()
	}
	if namespaced {
		// A name, a body for a namespace, or an end to all that there is,
		// without the namespace.
		return c.notAllowed()
	}
	switch verb {
	case "get":
		return c.get()
	case "create":
		if len(c.info.Parts) > 1 {
			return c.notAllowed()
		}
		return c.create()
	case "update":
		if c.name == "" {
			return c.notAllowed()
		}
		return c.update("", &c.res.Update)
	case "patch":
		if c.name == "" {
			return c.notAllowed()
		}
		return c.patch("", &c.res.Update)
	case "delete":
		return c.delete()
	case "deletecollection":
		return c.deleteCollection()
	}
	return c.notAllowed()
}

func (c *call) subresource() error {
	if c.name == "" {
		return errNoRoute
	}
	name := c.info.Subresource
	verb := c.info.Verb
	if v, ok := c.res.Views[name]; ok {
		if !slices.Contains(v.Verbs, verb) {
			return c.notAllowed()
		}
		switch verb {
		case "get":
			return c.get()
		case "update":
			return c.update(name, &v)
		case "patch":
			return c.patch(name, &v)
		}
		return c.notAllowed()
	}
	if name == "scale" && c.res.Scale != nil {
		return c.scale()
	}
	if a := c.res.Action(name); a != nil {
		if verb != "create" {
			return c.notAllowed()
		}
		return c.action(a)
	}
	if c.res.Custom != nil {
		return apierrors.NewNotFound(c.res.GroupResource(), c.name)
	}
	return errNoRoute
}

func (c *call) notAllowed() error {
	if c.res.Custom != nil {
		if c.name == "" && (c.info.Verb == "update" || c.info.Verb == "patch") {
			return apierrors.NewBadRequest("name must be provided")
		}
		return apierrors.NewMethodNotSupported(c.res.GroupResource(), c.info.Verb)
	}
	return errNoMethod
}

// get answers with one object.
func (c *call) get() error {
	format, err := c.format()
	if err != nil {
		return err
	}
	revision, err := request.ResourceVersion(c.query.Get("resourceVersion"))
	if err != nil {
		return err
	}
	ctx := c.ctx
	if revision > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, patience)
		defer cancel()
	}
	if c.res.Computed() != nil {
		entry, err := c.computed(ctx, c.name)
		if err != nil {
			return err
		}
		return c.sendEntry(format, http.StatusOK, entry[0])
	}
	entry, err := c.res.Collection.Get(ctx, c.res.Key(c.namespace, c.name), revision)
	if err = late(ctx, err); errors.Is(err, store.ErrTooNew) && revision > 0 {
		return c.tooNew(revision)
	}
	if err != nil {
		return c.storeError(err, c.name)
	}
	return c.sendEntry(format, http.StatusOK, entry)
}

// format settles the form of the answer when that is of the resource's kind.
func (c *call) format() (negotiate.Format, error) {
	return c.negotiator.Response(c.req, negotiate.Endpoint{
		Protobuf: c.res.HasProtobuf(), Metadata: !c.res.Review, Routed: c.res.Custom == nil, Streams: c.info.Verb == "list",
	})
}
