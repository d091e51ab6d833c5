package probe

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"hyperkube/components/kubelet/pod/podstate"
	"hyperkube/internal/testing/testport"
)

func target(t *testing.T, addr string) (Target, intstr.IntOrString) {
	t.Helper()
	a, err := net.ResolveTCPAddr("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	c := &v1.Container{Name: "c", Ports: []v1.ContainerPort{{Name: "web", ContainerPort: int32(a.Port)}}}
	return Target{Pod: &v1.Pod{}, Container: c, ContainerID: "id", PodIP: a.IP.String()}, intstr.FromString("web")
}

func TestHTTP(t *testing.T) {
	code := http.StatusOK
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path == "/away":
			http.Redirect(w, r, "http://elsewhere.invalid/", http.StatusFound)
		case r.Header.Get("User-Agent") != "kube-probe/1.37" || r.URL.RawQuery != "a=b" || r.Header.Get("X-Test") != "y":
			t.Errorf("request %v %v", r.URL, r.Header)
		default:
			w.WriteHeader(code)
		}
	}))
	defer s.Close()
	to, port := target(t, s.Listener.Addr().String())
	p := New(nil, "1.37")
	spec := &v1.Probe{ProbeHandler: v1.ProbeHandler{HTTPGet: &v1.HTTPGetAction{Path: "/x?a=b", Port: port, HTTPHeaders: []v1.HTTPHeader{{Name: "X-Test", Value: "y"}}}}, TimeoutSeconds: 60}
	for want, codes := range map[Answer][]int{Success: {200, 204, 299}, Warning: {300, 304, 399}, Failure: {400, 404, 500}} {
		for _, code = range codes {
			if got, text, err := p.Probe(context.Background(), to, spec); got != want || err != nil {
				t.Errorf("%d: %v %q %v", code, got, text, err)
			}
		}
	}
	spec.HTTPGet.Path = "/away"
	if got, text, err := p.Probe(context.Background(), to, spec); got != Warning || text != "Probe terminated redirects, Response body: <a href=\"http://elsewhere.invalid/\">Found</a>.\n\n" || err != nil {
		t.Errorf("redirect to another host: %v %q %v", got, text, err)
	}
	s.Close()
	to, port = target(t, testport.Address(t))
	spec.HTTPGet.Port = port
	if got, text, _ := p.Probe(context.Background(), to, spec); got != Failure || !strings.Contains(text, "connection refused") {
		t.Errorf("no server: %v %q", got, text)
	}
}

func TestTCPAndGRPC(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer()
	h := health.NewServer()
	healthpb.RegisterHealthServer(s, h)
	go func() { _ = s.Serve(l) }()
	defer s.Stop()
	to, port := target(t, l.Addr().String())
	p := New(nil, "1.37")
	if got, _, err := p.Probe(context.Background(), to, &v1.Probe{ProbeHandler: v1.ProbeHandler{TCPSocket: &v1.TCPSocketAction{Port: port}}, TimeoutSeconds: 60}); got != Success || err != nil {
		t.Error(got, err)
	}
	spec := &v1.Probe{ProbeHandler: v1.ProbeHandler{GRPC: &v1.GRPCAction{Port: to.Container.Ports[0].ContainerPort}}, TimeoutSeconds: 60}
	if got, text, err := p.Probe(context.Background(), to, spec); got != Success || err != nil {
		t.Error(got, text, err)
	}
	h.SetServingStatus("", healthpb.HealthCheckResponse_NOT_SERVING)
	if got, text, _ := p.Probe(context.Background(), to, spec); got != Failure || text != `service unhealthy (responded with "NOT_SERVING")` {
		t.Error(got, text)
	}
}

func TestGroup(t *testing.T) {
	var calls atomic.Int32
	var sick atomic.Bool
	p := New(func(_ context.Context, _ string, cmd []string, _ time.Duration) (int, []byte, error) {
		calls.Add(1)
		if sick.Load() && cmd[0] == "live" {
			return 1, []byte("sick"), nil
		}
		return 0, nil, nil
	}, "1.37")
	exec := func(cmd string) *v1.Probe {
		return &v1.Probe{ProbeHandler: v1.ProbeHandler{Exec: &v1.ExecAction{Command: []string{cmd}}}, PeriodSeconds: 1, TimeoutSeconds: 1, FailureThreshold: 1, SuccessThreshold: 1}
	}
	changed := make(chan struct{}, 100)
	events := make(chan string, 100)
	g := p.Start(Options{
		Target:  Target{Pod: &v1.Pod{}, Container: &v1.Container{StartupProbe: exec("start"), LivenessProbe: exec("live"), ReadinessProbe: exec("ready")}},
		Started: time.Now(), Changed: func() { changed <- struct{}{} }, Event: func(_ bool, _, message string) { events <- message },
	})
	defer g.Stop()
	if h := g.Health(); h.Startup != podstate.Pending || h.Readiness != podstate.Pending || h.Liveness != podstate.Success {
		t.Errorf("at first: %+v", h)
	}
	wait := func(is func(podstate.Health) bool) {
		t.Helper()
		timeout := time.After(2 * time.Minute)
		for !is(g.Health()) {
			select {
			case <-changed:
			case <-timeout:
				t.Fatalf("not reached: %+v", g.Health())
			}
		}
	}
	wait(func(h podstate.Health) bool { return h.Startup == podstate.Success && h.Readiness == podstate.Success })
	sick.Store(true)
	wait(func(h podstate.Health) bool { return h.Liveness == podstate.Failure })
	if got := <-events; got != "Liveness probe failed: sick" {
		t.Errorf("event %q", got)
	}
}

// TestReadinessAfterStartup checks that a container is probed for readiness immediately after its
// startup probe has succeeded.
func TestReadinessAfterStartup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const startup = 32 * time.Second
		began := time.Now()
		p := New(func(_ context.Context, _ string, command []string, _ time.Duration) (int, []byte, error) {
			if command[0] == "start" && time.Since(began) < startup {
				return 1, nil, nil
			}
			return 0, nil, nil
		}, "1.37")
		exec := func(command string, period int32) *v1.Probe {
			return &v1.Probe{ProbeHandler: v1.ProbeHandler{Exec: &v1.ExecAction{Command: []string{command}}}, PeriodSeconds: period, FailureThreshold: 120}
		}
		changed := make(chan struct{}, 100)
		g := p.Start(Options{
			Target:  Target{Pod: &v1.Pod{}, Container: &v1.Container{StartupProbe: exec("start", 5), ReadinessProbe: exec("ready", 30)}},
			Started: began, Changed: func() { changed <- struct{}{} }, Event: func(bool, string, string) {},
		})
		defer g.Stop()
		for g.Health().Readiness != podstate.Success {
			<-changed
		}
		if took := time.Since(began); took < startup || took > startup+6*time.Second {
			t.Errorf("ready after %s, started up after %s", took, startup)
		}
	})
}

// TestHookTexts checks that the messages of failed hooks equal upstream's.
func TestHookTexts(t *testing.T) {
	p := New(func(context.Context, string, []string, time.Duration) (int, []byte, error) {
		return 3, []byte("no such file"), nil
	}, "1.37")
	to := Target{Pod: &v1.Pod{}, Container: &v1.Container{Name: "c"}, ContainerID: "id", PodIP: "127.0.0.1"}
	to.Pod.Name, to.Pod.Namespace, to.Pod.UID = "p", "ns", "u"
	err := p.Hook(context.Background(), to, &v1.LifecycleHandler{Exec: &v1.ExecAction{Command: []string{"cat", "x"}}})
	want := `Exec lifecycle hook ([cat x]) for Container "c" in Pod "p_ns(u)" failed - error: command 'cat x' exited with 3: no such file, message: "no such file"`
	if err == nil || err.Error() != want {
		t.Errorf("%v\nwant %s", err, want)
	}
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	err = p.Hook(ended, to, &v1.LifecycleHandler{Sleep: &v1.SleepAction{Seconds: 5}})
	want = `Sleep lifecycle hook (5) for Container "c" in Pod "p_ns(u)" failed - error: container terminated before sleep hook finished`
	if err == nil || err.Error() != want {
		t.Errorf("%v\nwant %s", err, want)
	}
}

// TestHookFallback checks that an HTTPS hook of a server without TLS is retried with HTTP and
// without credentials, and that an event is emitted.
func TestHookFallback(t *testing.T) {
	var got http.Header
	s := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { got = r.Header }))
	defer s.Close()
	host, port, err := net.SplitHostPort(s.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	var events []string
	to := Target{Pod: &v1.Pod{}, Container: &v1.Container{Name: "c"}, PodIP: host, Warn: func(reason, message string) { events = append(events, reason+" "+message) }}
	hook := &v1.LifecycleHandler{HTTPGet: &v1.HTTPGetAction{
		Scheme: v1.URISchemeHTTPS, Port: intstr.Parse(port),
		HTTPHeaders: []v1.HTTPHeader{{Name: "Authorization", Value: "secret"}, {Name: "X-Test", Value: "y"}},
	}}
	if err := New(nil, "1.37").Hook(t.Context(), to, hook); err != nil {
		t.Fatal(err)
	}
	if got.Get("Authorization") != "" || got.Get("X-Test") != "y" {
		t.Errorf("headers %v", got)
	}
	want := "LifecycleHTTPFallback request to HTTPS lifecycle hook " + net.JoinHostPort(host, port) + " got HTTP response, retry with HTTP succeeded"
	if len(events) != 1 || events[0] != want {
		t.Errorf("got events %q", events)
	}
}

// TestCommandOfVariables checks that variables with literal values are expanded in a command.
func TestCommandOfVariables(t *testing.T) {
	var ran []string
	p := New(func(_ context.Context, _ string, cmd []string, _ time.Duration) (int, []byte, error) {
		ran = cmd
		return 0, nil, nil
	}, "1.37")
	to := Target{Pod: &v1.Pod{}, Container: &v1.Container{Env: []v1.EnvVar{{Name: "FILE", Value: "/ready"}}}}
	spec := &v1.Probe{ProbeHandler: v1.ProbeHandler{Exec: &v1.ExecAction{Command: []string{"cat", "$(FILE)", "$(OTHER)", "$$(FILE)"}}}}
	if got, _, err := p.Probe(t.Context(), to, spec); got != Success || err != nil {
		t.Fatal(got, err)
	}
	if got := strings.Join(ran, " "); got != "cat /ready $(OTHER) $(FILE)" {
		t.Errorf("ran %q", got)
	}
}

// TestHTTP2 checks that a TLS server can negotiate HTTP/2.
func TestHTTP2(t *testing.T) {
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ProtoMajor != 2 {
			w.WriteHeader(http.StatusHTTPVersionNotSupported)
		}
	}))
	s.EnableHTTP2 = true
	s.StartTLS()
	defer s.Close()
	to, port := target(t, s.Listener.Addr().String())
	spec := &v1.Probe{ProbeHandler: v1.ProbeHandler{HTTPGet: &v1.HTTPGetAction{Path: "/", Port: port, Scheme: v1.URISchemeHTTPS}}, TimeoutSeconds: 60}
	if got, text, err := New(nil, "1.37").Probe(t.Context(), to, spec); got != Success || err != nil {
		t.Errorf("%v %q %v", got, text, err)
	}
}
