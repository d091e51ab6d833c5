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
	"hyperkube/internal/upgrade"
)

// Config of Streams.
type Config struct {
	Registry   *registry.Registry
	Kubelet    KubeletConfig
	Authorizer authorizer.UnconditionalAuthorizer
	// MaxBytesPerSec bounds each connection in each direction; zero: nothing
	// does.
	MaxBytesPerSec int64
	// Metrics count requests for logs; nil: nothing does.
	Metrics *metrics.Metrics
	// Error answers with a Status, for what goes wrong once a request is on
	// its way.
	Error func(w http.ResponseWriter, req *http.Request, err error)
}

type connector struct {
	*kubelets
	cfg Config
}

// Streams returns all subresources of this package whose resources are served.
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

// podAt returns where the kubelet of a pod answers at that path about one of
// its containers.
func (c *connector) podAt(ctx context.Context, call registry.StreamCall, path, wanted string, query url.Values) (*url.URL, error) {
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
	u, err := c.at(ctx, pod.Spec.NodeName)
	if err != nil {
		return nil, err
	}
	u.Path = fmt.Sprintf("/%s/%s/%s/%s", path, pod.Namespace, pod.Name, name)
	u.RawQuery = query.Encode()
	return u, nil
}

// log copies a container's log.
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
	at, err := c.podAt(ctx, call, "containerLogs", opts.Container, logQuery(opts))
	if err != nil {
		return err
	}
	backend := c.verified
	if opts.InsecureSkipTLSVerifyBackend {
		backend = c.blind
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
		// It loses what is read together with the end: the buffer parts them. A
		// broken copy can only end the connection, as below.
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
		to = flushing(w)
	}
	// The answer has begun; a broken copy can only end it.
	_, _ = io.Copy(to, resp.Body)
	return nil
}

// backendError tells what a kubelet answered.
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

// flushing passes every write on at once.
func flushing(w http.ResponseWriter) io.Writer {
	if f, ok := w.(http.Flusher); ok {
		f.Flush()
		return flushWriter{w, f}
	}
	return w
}

type flushWriter struct {
	io.Writer
	flusher http.Flusher
}

// Write writes and flushes.
func (f flushWriter) Write(p []byte) (int, error) {
	n, err := f.Writer.Write(p)
	f.flusher.Flush()
	return n, err
}

func (c *connector) exec(w http.ResponseWriter, req *http.Request, call registry.StreamCall) error {
	o, ok := call.Options.(*corev1.PodExecOptions)
	if !ok {
		return unexpected(call.Options)
	}
	at, err := c.podAt(req.Context(), call, "exec", o.Container, streamQuery(o.Stdin, o.Stdout, o.Stderr, o.TTY, o.Command))
	if err != nil {
		return err
	}
	return c.remoteCommand(w, req, at, utilproxy.Options{Stdin: o.Stdin, Stdout: o.Stdout, Stderr: o.Stderr, Tty: o.TTY})
}

func (c *connector) attach(w http.ResponseWriter, req *http.Request, call registry.StreamCall) error {
	o, ok := call.Options.(*corev1.PodAttachOptions)
	if !ok {
		return unexpected(call.Options)
	}
	at, err := c.podAt(req.Context(), call, "attach", o.Container, streamQuery(o.Stdin, o.Stdout, o.Stderr, o.TTY, nil))
	if err != nil {
		return err
	}
	return c.remoteCommand(w, req, at, utilproxy.Options{Stdin: o.Stdin, Stdout: o.Stdout, Stderr: o.Stderr, Tty: o.TTY})
}

// remoteCommand connects the client's streams with those of the kubelet. SPDY
// goes through as it is, and so do old WebSocket protocols; WebSocket v5 is
// translated to SPDY, which every kubelet speaks.
func (c *connector) remoteCommand(w http.ResponseWriter, req *http.Request, at *url.URL, opts utilproxy.Options) error {
	if err := c.mayUpgrade(req); err != nil {
		return err
	}
	raw := c.upgrade(at, true)
	translate := utilproxy.NewStreamTranslatorHandler(at, c.verified, c.cfg.MaxBytesPerSec, opts)
	utilproxy.NewTranslatingHandler(raw, translate, wsstream.IsWebSocketRequestWithStreamCloseProtocol).ServeHTTP(w, req)
	return nil
}

func (c *connector) portForward(w http.ResponseWriter, req *http.Request, call registry.StreamCall) error {
	ctx := req.Context()
	pod, err := c.pod(ctx, call.Namespace, call.Name)
	if err != nil {
		return err
	}
	if pod.Spec.NodeName == "" {
		return badRequest("pod %s does not have a host assigned", pod.Name)
	}
	if err := c.mayUpgrade(req); err != nil {
		return err
	}
	at, err := c.at(ctx, pod.Spec.NodeName)
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

// upgrade passes a request that changes the protocol on as it is.
func (c *connector) upgrade(at *url.URL, required bool) *proxy.UpgradeAwareHandler {
	h := upgrade.NewHandler(at, c.verified, false, required, responder{c.cfg.Error})
	h.UseLocationHost, h.MaxBytesPerSec = true, c.cfg.MaxBytesPerSec
	return h
}

type responder struct {
	answer func(w http.ResponseWriter, req *http.Request, err error)
}

// Error answers with a Status.
func (r responder) Error(w http.ResponseWriter, req *http.Request, err error) { r.answer(w, req, err) }

// mayUpgrade asks whether a user who may "get" may "create" as well: a
// WebSocket begins with a GET, whatever is done over it.
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

func unexpected(o runtime.Object) error {
	return apierrors.NewInternalError(fmt.Errorf("invalid options object: %T", o))
}
