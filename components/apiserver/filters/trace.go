package filters

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
	"k8s.io/apiserver/pkg/authentication/user"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"

	"hyperkube/internal/base/tracing"
)

// startSpan starts the span of a request of the user u for a resource, which arrived at start, and returns a context with
// it. It continues the trace of the client if u is trusted to decide what is traced; otherwise the span only has a link to
// the client's. end must be called with the response. Without a Tracer, and for requests that are long-running or not for
// a resource, startSpan returns ctx, and end is nil.
func (c *Chain) startSpan(ctx context.Context, req *http.Request, u user.Info, start time.Time, auditID string) (traced context.Context, end func(*writer)) {
	info, _ := apirequest.RequestInfoFrom(ctx)
	if c.cfg.Tracer == nil || !info.IsResourceRequest {
		return ctx, nil
	}
	options := []trace.SpanStartOption{
		trace.WithSpanKind(trace.SpanKindServer), trace.WithTimestamp(start), trace.WithAttributes(
			attribute.String("http.request.method", req.Method), attribute.String("http.target", req.URL.RequestURI()),
			attribute.String("user_agent.original", req.UserAgent()), attribute.String("audit-id", auditID),
		),
	}
	if parent := tracing.FromHeader(req.Header); parent.IsValid() {
		if trusted(u) {
			ctx = trace.ContextWithRemoteSpanContext(ctx, parent)
		} else {
			options = append(options, trace.WithLinks(trace.Link{SpanContext: parent}))
		}
	}
	ctx, span := c.cfg.Tracer.Start(ctx, spanName(req.Method, info), options...)
	return ctx, func(w *writer) {
		span.SetAttributes(attribute.Int("http.response.status_code", w.status()), attribute.Int("http.response.body.size", w.size))
		if w.status() >= http.StatusInternalServerError {
			span.SetStatus(codes.Error, http.StatusText(w.status()))
		}
		span.End()
	}
}

// traceStage adds a finished span of a stage, which began at began, to the span in ctx. Without a Tracer, it does nothing.
func (c *Chain) traceStage(ctx context.Context, name string, began time.Time) {
	if c.cfg.Tracer == nil {
		return
	}
	_, end := tracing.StartChild(ctx, name, trace.WithTimestamp(began))
	end(nil)
}

// trusted reports whether a trace of the user's client is continued: the sampling of the client then determines how many
// spans this server exports. As in upstream, the users are administrators and monitoring; the components of the cluster,
// which have their own sampling, are added.
func trusted(u user.Info) bool {
	switch u.GetName() {
	case user.APIServerUser, user.KubeControllerManager, user.KubeScheduler:
		return true
	}
	return slices.ContainsFunc(u.GetGroups(), func(group string) bool {
		return slices.Contains([]string{user.SystemPrivilegedGroup, user.MonitoringGroup, user.NodesGroup, "system:serviceaccounts:kube-system"}, group)
	})
}

// spanName returns the name of a request's span, as in upstream: the method and the path with placeholders for names.
func spanName(method string, info *apirequest.RequestInfo) string {
	parts := []string{info.APIPrefix}
	if info.APIGroup != "" {
		parts = append(parts, info.APIGroup)
	}
	parts = append(parts, info.APIVersion)
	if info.Namespace != "" && info.Resource != "namespaces" {
		parts = append(parts, "namespaces", "{:namespace}")
	}
	parts = append(parts, info.Resource)
	if info.Name != "" {
		parts = append(parts, "{:name}")
	}
	if info.Subresource != "" {
		parts = append(parts, info.Subresource)
	}
	return method + " /" + strings.Join(parts, "/")
}
