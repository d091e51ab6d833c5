// Package probe runs the probes of containers: commands, HTTP, TCP and gRPC. It also runs lifecycle
// hooks.
package probe

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"hyperkube/components/kubelet/pod/env"
	"hyperkube/components/kubelet/telemetry"
	"hyperkube/internal/base/lifecycle"
)

// maxBody is the maximum number of bytes that are used of an HTTP response or of the output of a command.
const maxBody = 10 << 10

// Target is a running container that is probed or whose lifecycle hook is run.
type Target struct {
	Pod         *v1.Pod
	Container   *v1.Container
	ContainerID string
	PodIP       string
	// Warn emits a Warning event for the pod. It may be nil.
	Warn func(reason, message string)
}

// Answer is the result of a single probe attempt, before thresholds are applied.
type Answer int

// Unknown and the other constants are the results of a probe attempt. Unknown means that the probe could not be
// run, and Warning that it was successful in a way that may be unintended, for which an event is emitted.
const (
	Unknown Answer = iota
	Success
	Failure
	Warning
)

// Exec runs a command in a container and returns its exit code and output. A timeout of 0 means none. err is
// not nil if the command could not be run, and ErrTimeout if it timed out.
type Exec func(ctx context.Context, containerID string, cmd []string, timeout time.Duration) (code int, output []byte, err error)

// ErrTimeout is returned by Exec if the command did not exit within the timeout.
var ErrTimeout = errors.New("command timed out")

// Prober runs probes and lifecycle hooks of containers. Its methods are safe for concurrent use.
type Prober struct {
	// Metrics counts results. It may be nil. It must be set before the first probe.
	Metrics *Metrics
	// HookMetrics counts exceptional cases of hooks. It may be nil.
	HookMetrics *telemetry.Hooks
	exec        Exec
	userAgent   string
	dialer      *net.Dialer
}

// New returns a Prober that runs commands with exec. version is the Kubernetes minor version, such as "1.37",
// for the user agent.
func New(exec Exec, version string) *Prober {
	return &Prober{exec: exec, userAgent: "kube-probe/" + version, dialer: &net.Dialer{FallbackDelay: -1, Control: setLinger}}
}

// setLinger sets SO_LINGER to one second, because probes open many connections that would otherwise
// stay in TIME_WAIT for a minute.
func setLinger(_, _ string, c syscall.RawConn) error {
	return c.Control(func(fd uintptr) {
		// A failure is harmless: the socket then stays in TIME_WAIT for a minute.
		_ = unix.SetsockoptLinger(int(fd), unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1, Linger: 1})
	})
}

// Probe runs a probe once. The text describes the result for events. err is the cause if the answer is
// Unknown.
func (p *Prober) Probe(ctx context.Context, t Target, spec *v1.Probe) (Answer, string, error) {
	timeout := time.Duration(max(spec.TimeoutSeconds, 1)) * time.Second
	switch {
	case spec.Exec != nil:
		return p.command(ctx, t, env.ExpandMap(spec.Exec.Command, literalVariables(t.Container)), timeout)
	case spec.HTTPGet != nil:
		return p.http(ctx, t, spec.HTTPGet, timeout)
	case spec.TCPSocket != nil:
		port, err := portOf(spec.TCPSocket.Port, t.Container)
		if err != nil {
			return Unknown, "", err
		}
		return p.tcp(ctx, orIP(spec.TCPSocket.Host, t.PodIP), port, timeout)
	case spec.GRPC != nil:
		service := ""
		if spec.GRPC.Service != nil {
			service = *spec.GRPC.Service
		}
		return p.grpc(ctx, t.PodIP, int(spec.GRPC.Port), service, timeout)
	}
	return Unknown, "", fmt.Errorf("missing probe handler for %s:%s", t.Pod.Name, t.Container.Name)
}

// literalVariables returns the values of the container's environment variables that are in its spec, for the
// expansion of commands. Variables whose value comes from another object are empty.
func literalVariables(c *v1.Container) map[string]string {
	out := map[string]string{}
	for _, e := range c.Env {
		out[e.Name] = e.Value
	}
	return out
}

// orIP returns host or, if it is empty, ip.
func orIP(host, ip string) string {
	if host != "" {
		return host
	}
	return ip
}

// command runs an exec probe. A timeout and an exit code other than 0 are a Failure. If the command cannot be
// run, the answer is Unknown.
func (p *Prober) command(ctx context.Context, t Target, cmd []string, timeout time.Duration) (Answer, string, error) {
	code, out, err := p.exec(ctx, t.ContainerID, cmd, timeout)
	if len(out) > maxBody {
		out = out[:maxBody]
	}
	switch {
	case errors.Is(err, ErrTimeout):
		return Failure, fmt.Sprintf("command timed out: %q timed out after %s", strings.Join(cmd, " "), timeout), nil
	case err != nil:
		return Unknown, "", err
	case code != 0:
		return Failure, string(out), nil
	}
	return Success, string(out), nil
}

// http runs an HTTP probe. A status of 2xx is a Success, a redirect to another host a Warning, and everything
// else a Failure, except that an invalid port is Unknown.
func (p *Prober) http(ctx context.Context, t Target, get *v1.HTTPGetAction, timeout time.Duration) (Answer, string, error) {
	req, err := p.request(ctx, t, get)
	if err != nil {
		return Unknown, "", err
	}
	code, body, err := p.do(req, timeout, true)
	if err != nil {
		return Failure, err.Error(), nil
	}
	if code >= 300 && code < 400 {
		return Warning, "Probe terminated redirects, Response body: " + body, nil
	}
	if code >= 200 && code < 300 {
		return Success, body, nil
	}
	return Failure, fmt.Sprintf("HTTP probe failed with statuscode: %d", code), nil
}

// request returns the HTTP request of a probe or hook. It returns an error if the port is not valid.
func (p *Prober) request(ctx context.Context, t Target, get *v1.HTTPGetAction) (*http.Request, error) {
	port, err := portOf(get.Port, t.Container)
	if err != nil {
		return nil, err
	}
	scheme := strings.ToLower(string(get.Scheme))
	if scheme == "" {
		scheme = "http"
	}
	// The path may contain a query.
	u, err := url.Parse(get.Path)
	if err != nil {
		u = &url.URL{Path: get.Path}
	}
	u.Scheme = scheme
	u.Host = net.JoinHostPort(orIP(get.Host, t.PodIP), strconv.Itoa(port))
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return nil, err
	}
	for _, h := range get.HTTPHeaders {
		req.Header.Add(h.Name, h.Value)
	}
	if _, ok := req.Header["User-Agent"]; !ok {
		req.Header.Set("User-Agent", p.userAgent)
	}
	switch accept, ok := req.Header["Accept"]; {
	case !ok:
		req.Header.Set("Accept", "*/*")
	case len(accept) == 1 && accept[0] == "":
		req.Header.Del("Accept")
	}
	if host := req.Header.Get("Host"); host != "" {
		req.Host = host
	}
	return req, nil
}

// do sends a request on a separate connection, and returns the status code and, with read, at most maxBody bytes of
// the body. It follows redirects to the same host; a redirect to another host is returned as the response. A timeout
// of 0 means none.
func (p *Prober) do(req *http.Request, timeout time.Duration, read bool) (code int, body string, err error) {
	transport := &http.Transport{
		DialContext:        p.dialer.DialContext,
		TLSClientConfig:    &tls.Config{InsecureSkipVerify: true}, // probes do not verify certificates, as documented
		DisableKeepAlives:  true,
		DisableCompression: true,
		// A TLS server may support only HTTP/2.
		ForceAttemptHTTP2: true,
	}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport, Timeout: timeout, CheckRedirect: func(next *http.Request, via []*http.Request) error {
		if next.URL.Hostname() != via[0].URL.Hostname() {
			return http.ErrUseLastResponse
		}
		if len(via) >= 10 {
			return errors.New("stopped after 10 redirects")
		}
		return nil
	}}
	resp, err := client.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	if !read {
		return resp.StatusCode, "", nil
	}
	content, err := io.ReadAll(io.LimitReader(resp.Body, maxBody))
	if err != nil {
		return 0, "", err
	}
	return resp.StatusCode, string(content), nil
}

// tcp runs a TCP probe: it succeeds if a connection can be opened.
func (p *Prober) tcp(ctx context.Context, host string, port int, timeout time.Duration) (Answer, string, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	conn, err := p.dialer.DialContext(ctx, "tcp", net.JoinHostPort(host, strconv.Itoa(port)))
	if err != nil {
		return Failure, err.Error(), nil
	}
	conn.Close()
	return Success, "", nil
}

// grpc runs a gRPC probe: the server's health service must report service as serving. An empty service is the
// server as a whole.
func (p *Prober) grpc(ctx context.Context, host string, port int, service string, timeout time.Duration) (Answer, string, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	addr := net.JoinHostPort(host, strconv.Itoa(port))
	conn, err := grpc.NewClient("passthrough:///"+addr,
		grpc.WithUserAgent(p.userAgent),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithNoProxy(),
		grpc.WithContextDialer(func(ctx context.Context, a string) (net.Conn, error) { return p.dialer.DialContext(ctx, "tcp", a) }),
	)
	if err != nil {
		return Failure, fmt.Sprintf("error: failed to connect service at %q: %v", addr, err), nil
	}
	defer conn.Close()
	resp, err := healthpb.NewHealthClient(conn).Check(metadata.NewOutgoingContext(ctx, metadata.MD{}), &healthpb.HealthCheckRequest{Service: service})
	if err != nil {
		switch s := status.Convert(err); s.Code() {
		case codes.Unimplemented:
			return Failure, fmt.Sprintf("error: this server does not implement the grpc health protocol (grpc.health.v1.Health): %s", s.Message()), nil
		case codes.DeadlineExceeded:
			return Failure, fmt.Sprintf("timeout: health rpc did not complete within %v", timeout), nil
		case codes.Unavailable:
			return Failure, fmt.Sprintf("timeout: failed to connect service %q within %v: %s", addr, timeout, s.Message()), nil
		default:
			return Failure, fmt.Sprintf("error: health rpc probe failed: %v", err), nil
		}
	}
	if resp.GetStatus() != healthpb.HealthCheckResponse_SERVING {
		return Failure, fmt.Sprintf("service unhealthy (responded with %q)", resp.GetStatus().String()), nil
	}
	return Success, "service healthy", nil
}

// portOf returns the number of a port, which may be the name of a port of the container. It returns an error
// if the number is not valid or the container has no such port.
func portOf(p intstr.IntOrString, c *v1.Container) (int, error) {
	port := p.IntValue()
	if p.Type == intstr.String {
		for i := range c.Ports {
			if c.Ports[i].Name == p.StrVal {
				port = int(c.Ports[i].ContainerPort)
			}
		}
	}
	if port <= 0 || port > 65535 {
		return 0, fmt.Errorf("invalid port number: %v", p.String())
	}
	return port, nil
}

// isPlainHTTPResponse reports whether err means that the server of an HTTPS request has responded with HTTP.
func isPlainHTTPResponse(err error) bool {
	return strings.Contains(err.Error(), "server gave HTTP response to HTTPS client")
}

// retryWithoutTLS sends the request of an HTTPS hook again with HTTP and without credentials, after the server has
// responded in plain HTTP. Upstream does this for compatibility: before hooks supported HTTPS, they were always called
// with HTTP. A success emits an event.
func (p *Prober) retryWithoutTLS(t Target, req *http.Request) error {
	plain := req.Clone(req.Context())
	plain.URL.Scheme = "http"
	plain.Header.Del("Authorization")
	if _, _, err := p.do(plain, 0, false); err != nil {
		return err
	}
	if t.Warn != nil {
		p.HookMetrics.HookFallback()
		t.Warn("LifecycleHTTPFallback", fmt.Sprintf("request to HTTPS lifecycle hook %s got HTTP response, retry with HTTP succeeded", req.URL.Host))
	}
	return nil
}

// Hook runs the postStart or preStop hook h of a container until it has finished or ctx is done. The error is
// for events. An HTTP hook succeeds if there is a response, regardless of its status code. An HTTPS hook is
// repeated with HTTP if the server does not use TLS.
func (p *Prober) Hook(ctx context.Context, t Target, h *v1.LifecycleHandler) error {
	failed := func(what string, err error) error {
		return fmt.Errorf("%s for Container %q in Pod \"%s_%s(%s)\" failed - error: %w", what, t.Container.Name, t.Pod.Name, t.Pod.Namespace, t.Pod.UID, err)
	}
	switch {
	case h.Exec != nil:
		code, out, err := p.exec(ctx, t.ContainerID, h.Exec.Command, 0)
		if err == nil && code != 0 {
			err = fmt.Errorf("command '%s' exited with %d: %s", strings.Join(h.Exec.Command, " "), code, out)
		}
		if err != nil {
			return fmt.Errorf("%w, message: %q", failed(fmt.Sprintf("Exec lifecycle hook (%v)", h.Exec.Command), err), out)
		}
	case h.HTTPGet != nil:
		what := fmt.Sprintf("HTTP lifecycle hook (%s)", h.HTTPGet.Path)
		req, err := p.request(ctx, t, h.HTTPGet)
		if err != nil {
			return failed(what, err)
		}
		if _, ok := req.Header["User-Agent"]; ok {
			req.Header.Set("User-Agent", strings.Replace(p.userAgent, "kube-probe", "kube-lifecycle", 1))
		}
		if _, _, err := p.do(req, 0, false); err != nil && (!isPlainHTTPResponse(err) || p.retryWithoutTLS(t, req) != nil) {
			return failed(what, err)
		}
	case h.Sleep != nil:
		if !lifecycle.Pause(ctx, time.Duration(h.Sleep.Seconds)*time.Second) {
			p.HookMetrics.SleepTerminatedEarly()
			return failed(fmt.Sprintf("Sleep lifecycle hook (%d)", h.Sleep.Seconds), errors.New("container terminated before sleep hook finished"))
		}
	default:
		return fmt.Errorf("Cannot run handler: invalid handler: %v", h) //nolint:staticcheck // upstream's words, shown in events
	}
	return nil
}
