package query

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"hyperkube/components/logging/record"
	"hyperkube/components/logging/store"
	"hyperkube/internal/credentials/pki"
)

var quiet = slog.New(slog.DiscardHandler)

// cluster has the agents of two nodes, and an API server that is only a client certificate.
type cluster struct {
	t      *testing.T
	stores []*store.Store
	urls   []string
	client *http.Client
	total  int64
}

func newPair(t *testing.T, ca *pki.CA, spec pki.Spec) tls.Certificate {
	t.Helper()
	pair, err := ca.NewPair(spec)
	if err != nil {
		t.Fatal(err)
	}
	return pair.TLS()
}

func newCA(t *testing.T, name string) *pki.CA {
	t.Helper()
	ca, err := pki.NewCA(name)
	if err != nil {
		t.Fatal(err)
	}
	return ca
}

// newCluster starts two agents. jane may read logs in the namespace shop, and admin everywhere.
func newCluster(t *testing.T) *cluster {
	c := &cluster{t: t}
	proxyCA, agentCA := newCA(t, "proxy"), newCA(t, "agents")
	kube := fake.NewClientset(&corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "extension-apiserver-authentication"},
		Data:       map[string]string{"requestheader-client-ca-file": string(proxyCA.CertPEM), "requestheader-allowed-names": `["front-proxy"]`},
	})
	kube.PrependReactor("create", "subjectaccessreviews", func(a clienttesting.Action) (bool, runtime.Object, error) {
		review := a.(clienttesting.CreateAction).GetObject().(*authorizationv1.SubjectAccessReview)
		r := review.Spec.ResourceAttributes
		review.Status.Allowed = r.Verb == "get" && r.Subresource == "log" && (review.Spec.User == "admin" || review.Spec.User == "jane" && r.Resource == "pods" && r.Namespace == "shop")
		return true, review, nil
	})
	spec := pki.Server("agent", "agent")
	spec.Client = true
	peerTLS := &tls.Config{Certificates: []tls.Certificate{newPair(t, agentCA, spec)}, RootCAs: agentCA.Pool(), ServerName: "agent"}
	for i := range 2 {
		name := fmt.Sprint("node", i)
		s, err := store.Open(store.Config{Dir: t.TempDir(), Log: quiet})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { s.Close() })
		peers := NewEndpoints(kube, "kube-system", "logging", name, peerTLS.Clone())
		t.Cleanup(peers.Close)
		h, err := New(Config{Node: name, Store: s, Kube: kube, PeerCA: agentCA.Pool(), Peers: peers, Log: quiet})
		if err != nil {
			t.Fatal(err)
		}
		server := httptest.NewUnstartedServer(h)
		server.TLS = &tls.Config{Certificates: peerTLS.Certificates, ClientAuth: tls.RequestClientCert}
		server.StartTLS()
		t.Cleanup(server.Close)
		c.stores, c.urls = append(c.stores, s), append(c.urls, server.URL)
		var port int32
		if _, err := fmt.Sscanf(server.URL, "https://127.0.0.1:%d", &port); err != nil {
			t.Fatal(err)
		}
		if _, err := kube.DiscoveryV1().EndpointSlices("kube-system").Create(t.Context(), &discoveryv1.EndpointSlice{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: "logging"}},
			Ports:      []discoveryv1.EndpointPort{{Port: &port}}, Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"127.0.0.1"}, NodeName: &name}},
		}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	transport := &http.Transport{TLSClientConfig: &tls.Config{Certificates: []tls.Certificate{newPair(t, proxyCA, pki.Client("front-proxy"))}, RootCAs: agentCA.Pool(), ServerName: "agent"}}
	t.Cleanup(transport.CloseIdleConnections)
	c.client = &http.Client{Transport: transport}
	return c
}

// add adds records alternately to the stores.
func (c *cluster) add(count int, namespace string) {
	c.t.Helper()
	sources := make([]*record.Source, len(c.stores))
	for i := range sources {
		sources[i] = &record.Source{Node: fmt.Sprint("node", i), Namespace: namespace, Pod: fmt.Sprint("pod", i), Container: "c", Labels: map[string]string{"app": "web"}}
	}
	for range count {
		i := int(c.total) % len(sources)
		c.total++
		c.stores[i].Append(sources[i], record.Record{Time: c.total, Stream: record.Stdout, Text: []byte(fmt.Sprint("record ", c.total))})
	}
	for _, s := range c.stores {
		if err := s.Flush(); err != nil {
			c.t.Fatal(err)
		}
	}
}

func (c *cluster) request(ctx context.Context, user string, p Params) *http.Response {
	c.t.Helper()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.urls[0]+Path(p)+"?"+p.Values().Encode(), nil)
	if err != nil {
		c.t.Fatal(err)
	}
	req.Header.Set("X-Remote-User", user)
	resp, err := c.client.Do(req)
	if err != nil {
		c.t.Fatal(err)
	}
	return resp
}

// get returns the texts of the response, or its status.
func (c *cluster) get(user string, p Params) string {
	c.t.Helper()
	resp := c.request(c.t.Context(), user, p)
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		var status metav1.Status
		if err := json.NewDecoder(resp.Body).Decode(&status); err != nil {
			c.t.Fatal(err)
		}
		return fmt.Sprint(status.Code, " ", status.Message)
	}
	var out []string
	if err := ReadLines(resp.Body, func(l Line) error {
		if l.Warning != "" {
			out = append(out, "warning: "+l.Warning)
		} else {
			out = append(out, strings.TrimPrefix(l.Text, "record "))
		}
		return nil
	}); err != nil {
		c.t.Fatal(err)
	}
	return strings.Join(out, " ")
}

// TestSearch checks that records of all nodes are merged, and which ones are selected.
func TestSearch(t *testing.T) {
	c := newCluster(t)
	c.add(6, "shop")
	c.add(4, "other")
	for _, test := range []struct {
		user string
		p    Params
		want string
	}{
		{"admin", Params{}, "1 2 3 4 5 6 7 8 9 10"},
		{"admin", Params{Tail: 3}, "8 9 10"},
		{"admin", Params{Namespace: "shop"}, "1 2 3 4 5 6"},
		{"jane", Params{Namespace: "shop"}, "1 2 3 4 5 6"},
		{"jane", Params{Namespace: "shop", Pod: "pod1"}, "2 4 6"},
		{"jane", Params{Namespace: "shop", Node: "node0"}, "1 3 5"},
		{"jane", Params{Namespace: "shop", Selector: "app=db"}, ""},
		{"jane", Params{Namespace: "shop", Grep: "[25]"}, "2 5"},
		{"jane", Params{Namespace: "shop", Since: time.Unix(0, 3), Until: time.Unix(0, 5)}, "3 4"},
		{"jane", Params{Namespace: "other"}, "403 pods/log is forbidden: user jane cannot read logs in the namespace other"},
		{"jane", Params{}, "403 pods/log is forbidden: user jane cannot read logs in any namespace"},
		{"jane", Params{NodeLogs: true}, "403 nodes/log is forbidden: user jane cannot read logs of nodes"},
		{"", Params{}, "401 Unauthorized"},
		{"admin", Params{NodeLogs: true}, ""},
		{"admin", Params{Grep: "("}, "400 invalid regular expression: error parsing regexp: missing closing ): `(`"},
		{"admin", Params{Selector: "="}, "400 "},
	} {
		if got := c.get(test.user, test.p); got != test.want && !(strings.HasPrefix(got, test.want) && test.want == "400 ") {
			t.Errorf("%s %+v: %q, want %q", test.user, test.p, got, test.want)
		}
	}
}

// TestFollow checks that a client receives stored records in order, and then new ones of all nodes.
func TestFollow(t *testing.T) {
	c := newCluster(t)
	c.add(4, "shop")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	resp := c.request(ctx, "admin", Params{Follow: true, Tail: 3})
	defer resp.Body.Close()
	var got []string
	err := ReadLines(resp.Body, func(l Line) error {
		got = append(got, l.Text)
		switch len(got) {
		case 3:
			c.add(4, "shop")
		case 7:
			return io.ErrClosedPipe
		}
		return nil
	})
	if !errors.Is(err, io.ErrClosedPipe) || !slices.Equal(got[:3], []string{"record 2", "record 3", "record 4"}) {
		t.Fatalf("%q, %v", got, err)
	}
	slices.Sort(got[3:])
	if !slices.Equal(got[3:], []string{"record 5", "record 6", "record 7", "record 8"}) {
		t.Errorf("%q", got)
	}
}

// TestUnavailablePeer checks that the logs of the other nodes are returned with a warning.
func TestUnavailablePeer(t *testing.T) {
	c := newCluster(t)
	c.add(4, "shop")
	h := httptest.NewServer(http.NotFoundHandler())
	h.Close() // nothing listens there
	peers := []Peer{&remote{node: "gone", host: strings.TrimPrefix(h.URL, "http://"), client: http.DefaultClient}}
	var b bytes.Buffer
	handler := &Handler{cfg: Config{Node: "node0", Store: c.stores[0], Peers: list(peers), Log: quiet}, searching: make(chan struct{}, 1)}
	w := httptest.NewRecorder()
	handler.stream(w, httptest.NewRequest(http.MethodGet, "/", &b), Params{}, func(ctx context.Context, out *lineWriter) error {
		return handler.searchAll(ctx, Params{}, out)
	})
	if text := w.Body.String(); !strings.Contains(text, "record 1") || !strings.Contains(text, `"warning":"node gone: searching: `) {
		t.Error(text)
	}
}

// list is a Peers with a constant list.
type list []Peer

func (l list) List(context.Context) ([]Peer, error) { return l, nil }

// TestAuthentication checks that neither API answers clients without the right certificate.
func TestAuthentication(t *testing.T) {
	c := newCluster(t)
	c.add(2, "shop")
	wrong := newCA(t, "wrong")
	for name, certificates := range map[string][]tls.Certificate{
		"none": nil, "of another CA": {newPair(t, wrong, pki.Client("front-proxy"))}, "of the front proxy": c.client.Transport.(*http.Transport).TLSClientConfig.Certificates,
	} {
		transport := &http.Transport{TLSClientConfig: &tls.Config{Certificates: certificates, InsecureSkipVerify: true}}
		defer transport.CloseIdleConnections()
		for _, path := range []string{Path(Params{}), peerPath, "/apis"} {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, c.urls[0]+path, nil)
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("X-Remote-User", "admin")
			resp, err := (&http.Client{Transport: transport}).Do(req)
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
			want := http.StatusUnauthorized
			if name == "of the front proxy" && path != peerPath {
				want = http.StatusOK
			}
			if resp.StatusCode != want {
				t.Errorf("certificate %s, %s: %s", name, path, resp.Status)
			}
		}
	}
	if _, err := New(Config{PeerCA: x509.NewCertPool()}); err == nil {
		t.Error("a handler without a store")
	}
}

func TestParams(t *testing.T) {
	p := Params{Pod: "p", Container: "c", Node: "n", Selector: "a=b", Since: time.Unix(1, 5).UTC(), Until: time.Unix(2, 0).UTC(), Grep: "x+", Tail: 4, Follow: true}
	got, err := ParseParams(p.Values())
	if err != nil || !reflect.DeepEqual(got, p) {
		t.Errorf("%+v, %v, want %+v", got, err, p)
	}
	for name, value := range map[string]string{"tailLines": "0", "sinceTime": "yesterday", "untilTime": "1", "watch": "x", "grep": "(", "labelSelector": "="} {
		if _, err := ParseParams(map[string][]string{name: {value}}); err == nil {
			t.Errorf("%s=%s is accepted", name, value)
		}
	}
}
