package compose_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"hyperkube/components/apiserver/compose"
	"hyperkube/internal/api"
	"hyperkube/internal/api/catalog"
	"hyperkube/internal/credentials/pki"
	"hyperkube/internal/testing/testwait"
)

// Media types of request bodies.
const (
	mediaJSON      = "application/json"
	mediaYAML      = "application/yaml"
	mediaProto     = "application/vnd.kubernetes.protobuf"
	mediaMerge     = "application/merge-patch+json"
	mediaStrategic = "application/strategic-merge-patch+json"
	mediaJSONPatch = "application/json-patch+json"
	mediaApply     = "application/apply-patch+yaml"
)

// malformation is a malformed part of a request: a body, or a query.
type malformation struct {
	name  string
	media string
	query string
	body  string
	// want are the allowed statuses.
	want []int
}

// malformedObjects are the objects that TestMalformedRequests sends requests to.
const malformedObjects = `
apiVersion: v1
kind: ConfigMap
metadata: {name: target, namespace: default}
data: {k: v}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: default, namespace: default}
---
apiVersion: v1
kind: Node
metadata: {name: target}
---
apiVersion: v1
kind: Pod
metadata: {name: target, namespace: default}
spec: {containers: [{name: c, image: i, ports: [{containerPort: 80}], env: [{name: e, value: v}]}]}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: target, namespace: default}
spec: {selector: {matchLabels: {a: b}}, template: {metadata: {labels: {a: b}}, spec: {containers: [{name: c, image: i}]}}}
---
apiVersion: v1
kind: Service
metadata: {name: target, namespace: default}
spec: {ports: [{port: 80}]}
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: things.example.org}
spec:
  group: example.org
  scope: Namespaced
  names: {plural: things, kind: Thing}
  versions:
  - name: v1
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, properties: {spec: {type: object, properties: {n: {type: integer}, l: {type: array, items: {type: string}}}}, free: {type: object, x-kubernetes-preserve-unknown-fields: true}}}}
    subresources: {status: {}, scale: {specReplicasPath: .spec.n, statusReplicasPath: .status.n}}
`

// Paths of collections.
const (
	inDefault    = "/api/v1/namespaces/default/"
	deployments  = "/apis/apps/v1/namespaces/default/deployments"
	customThings = "/apis/example.org/v1/namespaces/default/things"
)

var refused = []int{400}

// brokenBodies returns bodies that no kind can be decoded from.
func brokenBodies() []malformation {
	deep := 200_000
	envelope := func(typeMeta, rest string) string {
		return "k8s\x00\n" + string(rune(len(typeMeta))) + typeMeta + rest
	}
	meta := "\n\x02v1\x12\x03Pod"
	list := []malformation{
		{name: "nothing", media: mediaJSON},
		{name: "blanks", media: mediaJSON, body: " \n\t "},
		{name: "an open object", media: mediaJSON, body: "{"},
		{name: "an open string", media: mediaJSON, body: `{"metadata":{"name":"x`},
		{name: "an open escape", media: mediaJSON, body: `{"metadata":{"name":"\u12`},
		{name: "an array", media: mediaJSON, body: "[]"},
		{name: "an array of objects", media: mediaJSON, body: "[{},{}]"},
		{name: "a string", media: mediaJSON, body: `"x"`},
		{name: "a number", media: mediaJSON, body: "1"},
		{name: "a boolean", media: mediaJSON, body: "true"},
		{name: "noise", media: mediaJSON, body: "\x00\x01\xfe\xff\x80"},
		{name: "UTF-16", media: mediaJSON, body: "\xff\xfe{\x00}\x00"},
		{name: "a byte order mark", media: mediaJSON, body: "\xef\xbb\xbf{}"},
		{name: "two values", media: mediaJSON, body: "{}{}"},
		{name: "a trailing comma", media: mediaJSON, body: `{"metadata":{},}`},
		{name: "a comment", media: mediaJSON, body: `{/* x */}`},
		{name: "a key without quotes", media: mediaJSON, body: `{metadata:{}}`},
		{name: "deep arrays", media: mediaJSON, body: strings.Repeat("[", deep)},
		{name: "deep objects", media: mediaJSON, body: strings.Repeat(`{"a":`, deep)},
		{name: "deep closed objects in metadata", media: mediaJSON, body: `{"metadata":` + strings.Repeat(`{"a":`, deep) + "1" + strings.Repeat("}", deep+1)},
		{name: "deep closed arrays in an unknown field", media: mediaJSON, body: `{"unknown":` + strings.Repeat(`[`, deep) + strings.Repeat("]", deep) + "}"},
		{name: "a number of metadata", media: mediaJSON, body: `{"metadata":1}`},
		{name: "a list of metadata", media: mediaJSON, body: `{"metadata":[{}]}`},
		{name: "a name that is an object", media: mediaJSON, body: `{"metadata":{"name":{}}}`},
		{name: "labels that are a list", media: mediaJSON, body: `{"metadata":{"name":"x","labels":["a"]}}`},
		{name: "a label that is a number", media: mediaJSON, body: `{"metadata":{"name":"x","labels":{"a":1e400}}}`},
		{name: "an overflowing generation", media: mediaJSON, body: `{"metadata":{"name":"x","generation":99999999999999999999999999}}`},
		{name: "an endless exponent", media: mediaJSON, body: `{"metadata":{"name":"x","generation":1e` + strings.Repeat("9", 1000) + `}}`},
		{name: "a time that is none", media: mediaJSON, body: `{"metadata":{"name":"x","creationTimestamp":"yesterday"}}`},
		{name: "an apiVersion that is a number", media: mediaJSON, body: `{"apiVersion":1,"metadata":{"name":"x"}}`},
		{name: "a kind that is a list", media: mediaJSON, body: `{"kind":[],"metadata":{"name":"x"}}`},
		{name: "another kind", media: mediaJSON, body: `{"apiVersion":"v1","kind":"ComponentStatus","metadata":{"name":"x"}}`},
		{name: "a version with slashes", media: mediaJSON, body: `{"apiVersion":"a/b/c","kind":"Pod","metadata":{"name":"x"}}`},

		{name: "a tab in YAML", media: mediaYAML, body: "metadata:\n\tname: x\n"},
		{name: "an open flow in YAML", media: mediaYAML, body: "metadata: {name: x"},
		{name: "deep flow in YAML", media: mediaYAML, body: strings.Repeat("[", 50_000)},
		{name: "deep blocks in YAML", media: mediaYAML, body: strings.Repeat("- ", 20_000)},
		{name: "a recursive alias", media: mediaYAML, body: "metadata: &a {name: x, labels: *a}\n"},
		{name: "an alias without an anchor", media: mediaYAML, body: "metadata: *none\n"},
		{name: "a bomb of aliases", media: mediaYAML, body: aliasBomb(12)},
		{name: "a merge of a string", media: mediaYAML, body: "metadata: {<<: x}\n"},
		{name: "invalid UTF-8 in YAML", media: mediaYAML, body: "metadata: {name: \"\xff\xfe\"}\n"},
		{name: "a control character in YAML", media: mediaYAML, body: "metadata: {name: \"\x01\"}\n"},
		{name: "a number in YAML", media: mediaYAML, body: "1\n"},
		{name: "NaN in YAML", media: mediaYAML, body: "metadata: {name: x, generation: .nan}\n"},
		{name: "infinity in YAML", media: mediaYAML, body: "metadata: {name: x, generation: .inf}\n"},
		{name: "a directive in YAML", media: mediaYAML, body: "%YAML 9.9\n---\nmetadata: {}\n"},
		{name: "a key that is a map", media: mediaYAML, body: "metadata: {{a: b}: c}\n"},

		{name: "no protobuf", media: mediaProto, body: "{}"},
		{name: "only the magic number", media: mediaProto, body: "k8s\x00"},
		{name: "an envelope that is cut off", media: mediaProto, body: "k8s\x00\n\x0f"},
		{name: "a tag of zero", media: mediaProto, body: "k8s\x00\x00\x01"},
		{name: "a varint without an end", media: mediaProto, body: "k8s\x00" + strings.Repeat("\xff", 100)},
		{name: "a length beyond the message", media: mediaProto, body: envelope(meta, "\x12\xff\xff\xff\xff\x0f")},
		{name: "a negative length", media: mediaProto, body: envelope(meta, "\x12\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01")},
		{name: "groups", media: mediaProto, body: envelope(meta, "\x12\x04\x0b\x0b\x0b\x0b")},
		{name: "a message that is cut off", media: mediaProto, body: envelope(meta, "\x12\x02\n\x7f")},
	}
	for i := range list {
		list[i].want = refused
	}
	return append(list,
		malformation{name: "deep protobuf", media: mediaProto, body: envelope(meta, deepProto(30_000)), want: []int{400, 422}},
		malformation{name: "a body beyond the limit", media: mediaJSON, body: `{"metadata":{"name":"` + strings.Repeat("x", 3<<20) + `"}}`, want: []int{413}},
		malformation{name: "a body beyond the limit of YAML", media: mediaYAML, body: "a: " + strings.Repeat("x", 3<<20), want: []int{413}},
		malformation{name: "CBOR", media: "application/cbor", body: "\xd9\xd9\xf7\xa0", want: []int{415}},
		malformation{name: "plain text", media: "text/plain", body: "{}", want: []int{415}},
		malformation{name: "a form", media: "application/x-www-form-urlencoded", body: "a=b", want: []int{415}},
		malformation{name: "two media types", media: "application/json, application/yaml", body: "{}", want: []int{415}},
		malformation{name: "an invalid media type", media: "application/", body: "{}", want: []int{415}},
		malformation{name: "a media type of blanks", media: " ;;; ", body: "{}", want: []int{415}},
		malformation{name: "a long media type", media: strings.Repeat("a", 10_000) + "/b", body: "{}", want: []int{415}},
		malformation{name: "a media type in Latin-1", media: "application/js\xf6n", body: "{}", want: []int{415}},
		malformation{name: "a patch media type", media: mediaMerge, body: "{}", want: []int{415}},
	)
}

// aliasBomb returns a YAML document whose aliases expand to 10^levels values.
func aliasBomb(levels int) string {
	var b strings.Builder
	b.WriteString("l0: &l0 [x, x, x, x, x, x, x, x, x, x]\n")
	for i := range levels {
		alias := fmt.Sprintf("*l%d", i)
		fmt.Fprintf(&b, "l%d: &l%d [%s]\n", i+1, i+1, strings.Repeat(alias+", ", 9)+alias)
	}
	return b.String()
}

// deepProto returns field 2 of an envelope with messages nested in each other.
func deepProto(levels int) string {
	var data []byte
	for range levels {
		inner := data
		data = []byte{0x12}
		data = appendVarint(data, uint64(len(inner)))
		data = append(data, inner...)
		if len(data) > 200_000 {
			break
		}
	}
	out := appendVarint([]byte{0x12}, uint64(len(data)))
	return string(append(out, data...))
}

func appendVarint(b []byte, v uint64) []byte {
	for v >= 0x80 {
		b = append(b, byte(v)|0x80)
		v >>= 7
	}
	return append(b, byte(v))
}

// malformedServer is an API server whose log must not contain a panic, with an administrator's clients.
type malformedServer struct {
	*env
	clients []*http.Client
	sent    int
	seen    map[int]int
}

func newMalformedServer(t *testing.T) *malformedServer {
	t.Helper()
	panics := &panicLog{Handler: slog.DiscardHandler}
	m := &malformedServer{env: startOn(t, nil, func(c *compose.Config) { c.Log = slog.New(panics) }), seen: map[int]int{}}
	m.create(malformedObjects)
	testwait.Until(t, "the custom resource", func() bool {
		status, _ := m.send(&attempt{user: "admin", groups: []string{"system:masters"}, request: "GET " + customThings})
		return status == http.StatusOK
	})
	m.create("{apiVersion: example.org/v1, kind: Thing, metadata: {name: target, namespace: default}, spec: {n: 1}}")
	for _, http2 := range []bool{true, false} {
		transport := &http.Transport{TLSClientConfig: m.adminTLS(), Protocols: new(http.Protocols)}
		transport.Protocols.SetHTTP1(!http2)
		transport.Protocols.SetHTTP2(http2)
		t.Cleanup(transport.CloseIdleConnections)
		m.clients = append(m.clients, &http.Client{Transport: transport, Timeout: time.Minute, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }})
	}
	t.Cleanup(func() {
		for _, text := range panics.texts() {
			t.Error("the server logged a panic:", text)
		}
		t.Logf("%d requests, by status: %v", m.sent, m.seen)
	})
	return m
}

// adminTLS returns the TLS configuration of an administrator.
func (e *env) adminTLS() *tls.Config {
	e.Helper()
	pair, err := e.pki.CA.NewPair(pki.Client("admin", "system:masters"))
	if err != nil {
		e.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(e.pki.CA.Cert)
	return &tls.Config{RootCAs: pool, Certificates: []tls.Certificate{pair.TLS()}}
}

// check sends a request over HTTP/2 and HTTP/1.1 in turn, and compares the status of the response with want.
func (m *malformedServer) check(name, method, path string, header http.Header, body string, want []int) {
	m.Helper()
	req, err := http.NewRequestWithContext(m.Context(), method, m.url+path, strings.NewReader(body))
	if err != nil {
		m.Fatalf("%s: %v", name, err)
	}
	req.Header = header
	m.sent++
	resp, err := m.clients[m.sent%2].Do(req)
	if err != nil {
		m.Errorf("%s: %s %.200s: %v", name, method, path, err)
		return
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err != nil {
		m.Errorf("%s: %s %.200s: reading the response: %v", name, method, path, err)
		return
	}
	m.seen[resp.StatusCode]++
	if !slices.Contains(want, resp.StatusCode) {
		m.Errorf("%s: %s %.200s: %d, want %v: %.400s", name, method, path, resp.StatusCode, want, text)
	}
}

// panicLog is a log handler that keeps the messages about panics.
type panicLog struct {
	slog.Handler
	mu   sync.Mutex
	list []string
}

// Enabled implements slog.Handler.
func (*panicLog) Enabled(context.Context, slog.Level) bool { return true }

// WithAttrs implements slog.Handler.
func (l *panicLog) WithAttrs([]slog.Attr) slog.Handler { return l }

// WithGroup implements slog.Handler.
func (l *panicLog) WithGroup(string) slog.Handler { return l }

// Handle implements slog.Handler.
func (l *panicLog) Handle(_ context.Context, r slog.Record) error {
	text := r.Message
	r.Attrs(func(a slog.Attr) bool { text += " " + a.String(); return true })
	if strings.Contains(strings.ToLower(text), "panic") {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.list = append(l.list, text)
	}
	return nil
}

func (l *panicLog) texts() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.list)
}

// TestMalformedBodies sends each broken body to each resource that can be created, and to subresources.
func TestMalformedBodies(t *testing.T) {
	m := newMalformedServer(t)
	type target struct{ method, path string }
	var targets []target
	for _, r := range catalog.Resources() {
		if !slices.Contains(r.Verbs, "create") && !r.Review {
			continue
		}
		path := "/apis/" + r.Group + "/" + r.Version
		if r.Group == "" {
			path = "/api/" + r.Version
		}
		if r.Scope == api.Namespaced {
			path += "/namespaces/default"
		}
		targets = append(targets, target{"POST", path + "/" + r.Plural})
	}
	if len(targets) < 50 {
		t.Fatalf("only %d resources", len(targets))
	}
	targets = append(targets, []target{
		{"POST", customThings}, {"PUT", customThings + "/target"},
		{"PUT", inDefault + "configmaps/target"}, {"PUT", inDefault + "pods/target"}, {"PUT", inDefault + "pods/target/status"},
		{"PUT", deployments + "/target/scale"}, {"POST", inDefault + "pods/target/eviction"}, {"POST", inDefault + "pods/target/binding"},
		{"POST", inDefault + "serviceaccounts/default/token"}, {"PUT", "/api/v1/namespaces/default/finalize"}, {"PUT", "/api/v1/nodes/target/status"},
		{"PUT", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/things.example.org"},
	}...)
	bodies := brokenBodies()
	for _, target := range targets {
		for _, b := range bodies {
			m.check(b.name, target.method, target.path+"?dryRun=All", http.Header{"Content-Type": {b.media}}, b.body, b.want)
		}
	}
}
