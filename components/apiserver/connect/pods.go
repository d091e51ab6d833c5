package connect

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/proxy"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	utilproxy "k8s.io/apiserver/pkg/util/proxy"
	"k8s.io/streaming/pkg/httpstream/wsstream"

	"hyperkube/components/apiserver/metrics"
	"hyperkube/components/apiserver/registry"
	"hyperkube/components/apiserver/rest"
	"hyperkube/internal/serving/upgradeproxy"
)

// Config is the configuration of Streams, which connect clients with kubelets, pods and Services.
type Config struct {
	Registry *registry.Registry
	Kubelet  KubeletConfig
	// Authorizer authorizes WebSocket requests for the verb "create". Nil means that they are not checked.
	Authorizer authorizer.UnconditionalAuthorizer
	// MaxBytesPerSec limits each connection in each direction. Zero means no limit.
	MaxBytesPerSec int64
	// Metrics counts requests for logs. It may be nil.
	Metrics *metrics.Metrics
	// Error responds with a Status for err. It is called if a request cannot be forwarded to a kubelet, pod or
	// endpoint.
	Error func(w http.ResponseWriter, req *http.Request, err error)
}

// connector handles the requests for the streams of this package, such as exec, log and proxy: it finds the pod and
// its node, and forwards the request to the kubelet or the pod.
type connector struct {
	*kubelets
	cfg Config
}

// Streams returns the registry streams of this package (log, exec, attach, portforward and proxy)
// for the resources that are served. It returns an error if a certificate or CA file is unusable.
func Streams(cfg Config) ([]*registry.Stream, error) {
	k, err := newKubelets(cfg.Registry, cfg.Kubelet)
	if err != nil {
		return nil, err
	}
	c := &connector{kubelets: k, cfg: cfg}
	kind := func(name string) schema.GroupVersionKind { return corev1.SchemeGroupVersion.WithKind(name) }
	proxyVerbs := []string{"create", "delete", "get", "patch", "update"}
	all := []*registry.Stream{
		{Resource: pods, Subresource: "log", Kind: kind("Pod"), Verbs: []string{"get"}, Options: logOptions, Serve: c.log},
		{Resource: pods, Subresource: "exec", Kind: kind("PodExecOptions"), Verbs: []string{"create", "get"}, Options: execOptions, Admit: true, Serve: c.exec},
		{Resource: pods, Subresource: "attach", Kind: kind("PodAttachOptions"), Verbs: []string{"create", "get"}, Options: attachOptions, Admit: true, Serve: c.attach},
		{Resource: pods, Subresource: "portforward", Kind: kind("PodPortForwardOptions"), Verbs: []string{"create", "get"}, Options: portForwardOptions, Admit: true, Serve: c.portForward},
		{Resource: pods, Subresource: "proxy", Kind: kind("PodProxyOptions"), Verbs: proxyVerbs, Proxy: true, Options: podProxyOptions, Admit: true, Serve: c.podProxy},
		{Resource: services, Subresource: "proxy", Kind: kind("ServiceProxyOptions"), Verbs: proxyVerbs, Proxy: true, Options: serviceProxyOptions, Admit: true, Serve: c.serviceProxy},
		{Resource: nodes, Subresource: "proxy", Kind: kind("NodeProxyOptions"), Verbs: proxyVerbs, Proxy: true, Options: nodeProxyOptions, Admit: true, Serve: c.nodeProxy},
	}
	var out []*registry.Stream
	for _, s := range all {
		if cfg.Registry.Lookup(s.Resource) != nil {
			out = append(out, s)
		}
	}
	return out, nil
}

// podURL returns the URL at the pod's kubelet for an operation, path ("exec", …), on a container of the pod. wanted
// is the container that the client requests, or "" for the default one. It returns an error if the pod or its node
// does not exist, the container is wrong, or the pod is not assigned to a node.
func (c *connector) podURL(ctx context.Context, call registry.StreamCall, path, wanted string, query url.Values) (*url.URL, error) {
	pod, err := c.pod(ctx, call.Namespace, call.Name)
	if err != nil {
		return nil, err
	}
	name, err := container(wanted, pod)
	if err != nil {
		return nil, err
	}
	if pod.Spec.NodeName == "" {
		return nil, badRequest("pod %s does not have a host assigned", pod.Name)
	}
	u, err := c.kubeletURL(ctx, pod.Spec.NodeName)
	if err != nil {
		return nil, err
	}
	u.Path = fmt.Sprintf("/%s/%s/%s/%s", path, pod.Namespace, pod.Name, name)
	u.RawQuery = query.Encode()
	return u, nil
}

// log responds with the log of a container, which it reads from the kubelet. For a pod that is not assigned to a node
// it responds with 204 and no content. It returns an error if the kubelet rejects the request or cannot be reached.
func (c *connector) log(w http.ResponseWriter, req *http.Request, call registry.StreamCall) error {
	opts, ok := call.Options.(*corev1.PodLogOptions)
	if !ok {
		return unexpected(call.Options)
	}
	if err := validateLog(call.Name, opts); err != nil {
		return err
	}
	c.cfg.Metrics.Logs(opts.InsecureSkipTLSVerifyBackend)
	ctx := req.Context()
	pod, err := c.pod(ctx, call.Namespace, call.Name)
	if err != nil {
		return err
	}
	if _, err := container(opts.Container, pod); err != nil {
		return err
	}
	if pod.Spec.NodeName == "" {
		w.WriteHeader(http.StatusNoContent)
		return nil
	}
	at, err := c.podURL(ctx, call, "containerLogs", opts.Container, logQuery(opts))
	if err != nil {
		return err
	}
	backend := c.verified
	if opts.InsecureSkipTLSVerifyBackend {
		backend = c.insecure
	}
	out, err := http.NewRequestWithContext(ctx, http.MethodGet, at.String(), nil)
	if err != nil {
		return apierrors.NewInternalError(err)
	}
	resp, err := backend.RoundTrip(out)
	if err != nil {
		if _, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
			c.cfg.Metrics.LogsDistrusted()
		}
		return apierrors.NewInternalError(fmt.Errorf("Get %q: %w", at.String(), err))
	}
	defer resp.Body.Close()
	if resp.StatusCode < http.StatusOK || resp.StatusCode > http.StatusPartialContent {
		return backendError(resp, call)
	}
	if wsstream.IsWebSocketRequest(req) {
		// The WebSocket reader loses data that is returned together with EOF. The buffer separates
		// them. As below, an error can only close the connection.
		_ = wsstream.NewReader(bufio.NewReader(resp.Body), true, wsstream.NewDefaultReaderProtocols()).Copy(w, req)
		return nil
	}
	contentType := resp.Header.Get("Content-Type")
	if contentType == "" {
		contentType = "text/plain"
	}
	w.Header().Set("Content-Type", contentType)
	w.WriteHeader(http.StatusOK)
	to := io.Writer(w)
	if opts.Follow {
		to = newFlushWriter(w)
	}
	// The response has started, so an error can only terminate it.
	_, _ = io.Copy(to, resp.Body)
	return nil
}

// backendError returns the Status error for an error response of a kubelet to a log request. It contains the first 50
// KiB of the kubelet's message.
func backendError(resp *http.Response, call registry.StreamCall) error {
	const most = 50 * 1024
	text := "unable to read the body"
	if data, err := io.ReadAll(io.LimitReader(resp.Body, most)); err == nil {
		text = string(data)
	}
	switch {
	case resp.StatusCode == http.StatusInternalServerError:
		return apierrors.NewInternalError(errors.New(text))
	case resp.StatusCode == http.StatusBadRequest:
		return apierrors.NewBadRequest(text)
	}
	return apierrors.NewGenericServerResponse(resp.StatusCode, http.MethodGet, schema.GroupResource{Resource: "pods/log"}, call.Name, text, 0, false)
}

// newFlushWriter returns a writer that sends each write to the client immediately, for logs that are followed. It
// returns w itself if w cannot flush.
func newFlushWriter(w http.ResponseWriter) io.Writer {
	if f, ok := w.(http.Flusher); ok {
		f.Flush()
		return flushWriter{w, f}
	}
	return w
}

// flushWriter is a response writer that sends each part immediately, for logs that are followed.
type flushWriter struct {
	io.Writer
	flusher http.Flusher
}

// Write implements io.Writer. It flushes after the write.
func (f flushWriter) Write(p []byte) (int, error) {
	n, err := f.Writer.Write(p)
	f.flusher.Flush()
	return n, err
}

// exec connects the client with the kubelet, which runs the command in a container of the pod. It returns an error if
// the user may not exec over a WebSocket, or the pod, its container or its node does not exist.
func (c *connector) exec(w http.ResponseWriter, req *http.Request, call registry.StreamCall) error {
	if err := c.mayUpgrade(req); err != nil {
		return err
	}
	o, ok := call.Options.(*corev1.PodExecOptions)
	if !ok {
		return unexpected(call.Options)
	}
	at, err := c.podURL(req.Context(), call, "exec", o.Container, streamQuery(o.Stdin, o.Stdout, o.Stderr, o.TTY, o.Command))
	if err != nil {
		return err
	}
	return c.remoteCommand(w, req, at, utilproxy.Options{Stdin: o.Stdin, Stdout: o.Stdout, Stderr: o.Stderr, Tty: o.TTY})
}

// attach connects the client with the kubelet, which attaches to the main process of a container of the pod. It
// returns an error if the user may not attach over a WebSocket, or the pod, its container or its node does not exist.
func (c *connector) attach(w http.ResponseWriter, req *http.Request, call registry.StreamCall) error {
	if err := c.mayUpgrade(req); err != nil {
		return err
	}
	o, ok := call.Options.(*corev1.PodAttachOptions)
	if !ok {
		return unexpected(call.Options)
	}
	at, err := c.podURL(req.Context(), call, "attach", o.Container, streamQuery(o.Stdin, o.Stdout, o.Stderr, o.TTY, nil))
	if err != nil {
		return err
	}
	return c.remoteCommand(w, req, at, utilproxy.Options{Stdin: o.Stdin, Stdout: o.Stdout, Stderr: o.Stderr, Tty: o.TTY})
}

// remoteCommand connects the client's streams of exec or attach with the kubelet at the URL at, until one side closes
// the connection. SPDY and old WebSocket protocols are forwarded unchanged. WebSocket v5 is translated to SPDY, which
// every kubelet supports. It always returns nil, because it responds to errors itself.
func (c *connector) remoteCommand(w http.ResponseWriter, req *http.Request, at *url.URL, opts utilproxy.Options) error {
	raw := c.upgrade(at, true)
	translate := utilproxy.NewStreamTranslatorHandler(at, c.verified, c.cfg.MaxBytesPerSec, opts)
	utilproxy.NewTranslatingHandler(raw, translate, wsstream.IsWebSocketRequestWithStreamCloseProtocol).ServeHTTP(w, req)
	return nil
}

// portForward connects the client with the kubelet of the pod, which forwards connections to ports of the pod. It
// returns an error if the user may not do that over a WebSocket, or the pod or its node does not exist.
func (c *connector) portForward(w http.ResponseWriter, req *http.Request, call registry.StreamCall) error {
	if err := c.mayUpgrade(req); err != nil {
		return err
	}
	ctx := req.Context()
	pod, err := c.pod(ctx, call.Namespace, call.Name)
	if err != nil {
		return err
	}
	if pod.Spec.NodeName == "" {
		return badRequest("pod %s does not have a host assigned", pod.Name)
	}
	at, err := c.kubeletURL(ctx, pod.Spec.NodeName)
	if err != nil {
		return err
	}
	at.Path = fmt.Sprintf("/portForward/%s/%s", pod.Namespace, pod.Name)
	if o, ok := call.Options.(*corev1.PodPortForwardOptions); ok && len(o.Ports) > 0 {
		q := url.Values{}
		for _, p := range o.Ports {
			q.Add("port", fmt.Sprint(p))
		}
		at.RawQuery = q.Encode()
	}
	raw := c.upgrade(at, true)
	tunnel := utilproxy.NewTunnelingHandler(raw)
	utilproxy.NewTranslatingHandler(raw, tunnel, wsstream.IsWebSocketRequestWithTunnelingProtocol).ServeHTTP(w, req)
	return nil
}

// upgrade returns a handler that forwards requests to the kubelet at the URL at, including upgraded connections. If
// required is set, it rejects requests without an upgrade.
func (c *connector) upgrade(at *url.URL, required bool) *proxy.UpgradeAwareHandler {
	h := upgradeproxy.NewHandler(at, c.verified, false, required, responder{c.cfg.Error})
	h.UseLocationHost, h.MaxBytesPerSec = true, c.cfg.MaxBytesPerSec
	return h
}

// responder is the proxy.ErrorResponder of requests that are forwarded to a kubelet, pod or endpoint. It sends the
// error of the proxy to the client.
type responder struct {
	answer func(w http.ResponseWriter, req *http.Request, err error)
}

// Error implements proxy.ErrorResponder. It responds with a Status for err.
func (r responder) Error(w http.ResponseWriter, req *http.Request, err error) { r.answer(w, req, err) }

// mayUpgrade returns a Forbidden error if the user of a WebSocket request is not authorized for the verb "create". A
// WebSocket starts with a GET request, for which "get" was authorized, but it may also be used for writing. It
// returns nil for other requests. Call it before the pod and its node are read, so that errors do not reveal them.
func (c *connector) mayUpgrade(req *http.Request) error {
	if req.Method != http.MethodGet || !wsstream.IsWebSocketRequest(req) || c.cfg.Authorizer == nil {
		return nil
	}
	ctx := req.Context()
	info, ok := apirequest.RequestInfoFrom(ctx)
	if !ok {
		return nil
	}
	user, _ := apirequest.UserFrom(ctx)
	attributes := authorizer.AttributesRecord{
		User: user, Verb: "create", Namespace: info.Namespace, APIGroup: info.APIGroup, APIVersion: info.APIVersion,
		Resource: info.Resource, Subresource: info.Subresource, Name: info.Name, ResourceRequest: true, Path: info.Path,
	}
	decision, reason, err := c.cfg.Authorizer.Authorize(ctx, attributes)
	if decision == authorizer.DecisionAllow {
		return nil
	}
	if err != nil {
		return apierrors.NewInternalError(err)
	}
	return rest.Forbidden(attributes, reason)
}

// unexpected returns the error for options of the wrong type, which the registry never passes.
func unexpected(o runtime.Object) error {
	return apierrors.NewInternalError(fmt.Errorf("invalid options object: %T", o))
}
