package controller

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"hyperkube/components/gateway/dataplane"
	"hyperkube/components/gateway/translate"
	"hyperkube/internal/client"
	"hyperkube/internal/testing/testport"
)

// largeCluster is a gateway that serves many HTTPRoutes, each with its own hostname, Service and endpoint. Its informers
// do not run; the tests change their stores.
type largeCluster struct {
	testing.TB
	*Controller
	plain, secure int
	version       int
}

// newLargeCluster returns a gateway that serves n HTTPRoutes for the endpoint. The path of route i is /r, its hostname h<i>.example.com.
func newLargeCluster(t testing.TB, n int, endpoint string) *largeCluster {
	t.Helper()
	plane, err := dataplane.New(dataplane.Config{Host: "127.0.0.1", Metrics: prometheus.NewRegistry(), DrainTimeout: time.Second, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(plane.Stop)
	clients, err := client.New(client.Config{REST: &rest.Config{Host: "127.0.0.1:1"}})
	if err != nil {
		t.Fatal(err)
	}
	c, err := New(Config{Clients: clients, Plane: plane, Namespace: "kube-system", Owner: "gateway", Selector: map[string]string{"a": "b"}, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	l := &largeCluster{TB: t, Controller: c, plain: testport.Port(t), secure: testport.Port(t)}
	l.add(c.src.byKind["gatewayclasses"], &gatewayv1.GatewayClass{ObjectMeta: metav1.ObjectMeta{Name: "hyperkube"}, Spec: gatewayv1.GatewayClassSpec{ControllerName: translate.ControllerName}})
	from := gatewayv1.NamespacesFromAll
	allowed := &gatewayv1.AllowedRoutes{Namespaces: &gatewayv1.RouteNamespaces{From: &from}}
	l.add(c.src.byKind["gateways"], &gatewayv1.Gateway{ObjectMeta: metav1.ObjectMeta{Namespace: "apps", Name: "main"}, Spec: gatewayv1.GatewaySpec{
		GatewayClassName: "hyperkube", Listeners: []gatewayv1.Listener{
			{Name: "http", Port: 80, Protocol: gatewayv1.HTTPProtocolType, AllowedRoutes: allowed},
			{Name: "https", Port: 443, Protocol: gatewayv1.HTTPSProtocolType, AllowedRoutes: allowed, TLS: &gatewayv1.ListenerTLSConfig{CertificateRefs: []gatewayv1.SecretObjectReference{{Name: "main"}}}},
		},
	}})
	l.add(c.src.services, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: translate.SharedFrontend, Labels: map[string]string{managedByLabel: managedBy}},
		Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{
			{Port: 80, TargetPort: intstr.FromInt(l.plain)}, {Port: 443, TargetPort: intstr.FromInt(l.secure)},
		}},
	})
	for i := range n {
		name := fmt.Sprintf("r%d", i)
		l.add(c.src.services, &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "apps", Name: name}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80, Protocol: corev1.ProtocolTCP}}}})
		l.setEndpoint(i, endpoint)
		l.setRoute(i, "/r")
	}
	l.setCertificate()
	l.reconcile(t.Context())
	return l
}

// add adds or replaces an object in an informer.
func (l *largeCluster) add(informer cache.SharedIndexInformer, obj any) {
	l.Helper()
	if err := informer.GetStore().Add(obj); err != nil {
		l.Fatal(err)
	}
}

// setRoute writes route i, which matches the path.
func (l *largeCluster) setRoute(i int, path string) {
	l.Helper()
	l.version++
	name := fmt.Sprintf("r%d", i)
	l.add(l.src.byKind["httproutes"], &gatewayv1.HTTPRoute{
		ObjectMeta: metav1.ObjectMeta{Namespace: "apps", Name: name, Generation: int64(l.version), ResourceVersion: strconv.Itoa(l.version)},
		Spec: gatewayv1.HTTPRouteSpec{
			CommonRouteSpec: gatewayv1.CommonRouteSpec{ParentRefs: []gatewayv1.ParentReference{{Name: "main"}}},
			Hostnames:       []gatewayv1.Hostname{gatewayv1.Hostname(fmt.Sprintf("h%d.example.com", i))},
			Rules: []gatewayv1.HTTPRouteRule{{
				Matches:     []gatewayv1.HTTPRouteMatch{{Path: &gatewayv1.HTTPPathMatch{Type: ptr.To(gatewayv1.PathMatchPathPrefix), Value: &path}}},
				BackendRefs: []gatewayv1.HTTPBackendRef{{BackendRef: gatewayv1.BackendRef{BackendObjectReference: gatewayv1.BackendObjectReference{Name: gatewayv1.ObjectName(name), Port: ptr.To(gatewayv1.PortNumber(80))}}}},
			}},
		},
	})
}

// setEndpoint writes the EndpointSlice of Service i and returns it.
func (l *largeCluster) setEndpoint(i int, address string) *discoveryv1.EndpointSlice {
	l.Helper()
	host, text, err := net.SplitHostPort(address)
	if err != nil {
		l.Fatal(err)
	}
	number, err := strconv.Atoi(text)
	if err != nil {
		l.Fatal(err)
	}
	name := fmt.Sprintf("r%d", i)
	out := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: "apps", Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: name}},
		AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Name: ptr.To(""), Port: ptr.To(int32(number))}}, //nolint:gosec // a port
		Endpoints: []discoveryv1.Endpoint{{Addresses: []string{host}}},
	}
	l.add(l.src.endpointSlices, out)
	return out
}

// setCertificate writes a new certificate for all hosts and returns its serial number.
func (l *largeCluster) setCertificate() int64 {
	l.Helper()
	l.version++
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		l.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(int64(l.version)), DNSNames: []string{"*.example.com"}, NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		l.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		l.Fatal(err)
	}
	l.add(l.src.secrets, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: "apps", Name: "main", ResourceVersion: strconv.Itoa(l.version)},
		Data: map[string][]byte{
			corev1.TLSCertKey:       pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
			corev1.TLSPrivateKeyKey: pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}),
		},
	})
	return int64(l.version)
}

// get sends a request to the host of route i and returns the status code and the body.
func (l *largeCluster) get(ctx context.Context, i int, path string) (int, string) {
	l.Helper()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("http://127.0.0.1:%d%s", l.plain, path), http.NoBody)
	if err != nil {
		l.Fatal(err)
	}
	r.Host, r.Close = fmt.Sprintf("h%d.example.com", i), true
	res, err := http.DefaultTransport.RoundTrip(r)
	if err != nil {
		l.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		l.Fatal(err)
	}
	return res.StatusCode, string(body)
}

// named is a server that answers with its name. It returns its address.
func named(t testing.TB, name string) string {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, name) }))
	t.Cleanup(s.Close)
	return s.Listener.Addr().String()
}

// changes are the kinds of changes, which TestChanges tests and BenchmarkChanges measures. Each checks that a request sees the change.
func changes(l *largeCluster, a, b string) map[string]func(i int) {
	return map[string]func(i int){
		"route": func(i int) {
			path := fmt.Sprintf("/r%d", i)
			l.setRoute(7, path)
			l.reconcile(l.Context())
			if code, body := l.get(l.Context(), 7, path); code != http.StatusOK {
				l.Fatalf("%d %s", code, body)
			}
		},
		"endpoint": func(i int) {
			address, want := a, "a"
			if i%2 == 0 {
				address, want = b, "b"
			}
			l.endpointsChanged(l.setEndpoint(8, address))
			if code, body := l.get(l.Context(), 8, "/r"); body != want {
				l.Fatalf("%d %s", code, body)
			}
		},
		"certificate": func(int) {
			serial := l.setCertificate()
			l.reconcile(l.Context())
			dialer := tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true, ServerName: "h9.example.com"}} //nolint:gosec // the certificate is checked below
			conn, err := dialer.DialContext(l.Context(), "tcp", fmt.Sprintf("127.0.0.1:%d", l.secure))
			if err != nil {
				l.Fatal(err)
			}
			defer conn.Close()
			if got := conn.(*tls.Conn).ConnectionState().PeerCertificates[0].SerialNumber.Int64(); got != serial {
				l.Fatalf("certificate %d, want %d", got, serial)
			}
		},
	}
}

func TestChanges(t *testing.T) {
	a, b := named(t, "a"), named(t, "b")
	l := newLargeCluster(t, 10, a)
	for name, change := range changes(l, a, b) {
		t.Run(name, func(*testing.T) {
			for i := range 3 {
				change(i)
			}
		})
	}
}

// cpuTime returns the CPU time of this process.
func cpuTime() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u) // never fails
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkChanges measures the time from a change in an informer to the first response that shows it, with 5,000
// HTTPRoutes, the CPU time, which includes the request of the client, and the memory of the gateway with them.
func BenchmarkChanges(b *testing.B) {
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	first, second := named(b, "a"), named(b, "b")
	l := newLargeCluster(b, 5000, first)
	runtime.GC()
	runtime.ReadMemStats(&after)
	for _, name := range []string{"route", "endpoint", "certificate"} {
		change := changes(l, first, second)[name]
		b.Run(name, func(b *testing.B) {
			began, n := cpuTime(), 0
			for ; b.Loop(); n++ {
				change(n)
			}
			b.ReportMetric(float64((cpuTime()-began).Microseconds())/float64(n)/1000, "cpu-ms/op")
			b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/(1<<20), "MB-heap")
		})
	}
}
