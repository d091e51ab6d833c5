package integration

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clientrest "k8s.io/client-go/rest"

	"hyperkube/components/apiserver"
)

// BenchmarkRequests measures requests within the process. It includes etcd and a client that does
// not decode responses, but not TLS and HTTP.
func BenchmarkRequests(b *testing.B) {
	s := startServer(b, apiserver.Config{})
	ctx := contextOf(b)
	kube := kubeOf(b, s, protobuf)
	for i := range 1000 {
		if _, err := kube.CoreV1().Pods("default").Create(ctx, somePod(fmt.Sprintf("p%d", i)), metav1.CreateOptions{}); err != nil {
			b.Fatal(err)
		}
	}
	c, err := clientrest.HTTPClientFor(admin(s))
	if err != nil {
		b.Fatal(err)
	}
	do := func(b *testing.B, method, path, body string, header ...string) {
		req, err := http.NewRequest(method, "http://x"+path, strings.NewReader(body))
		if err != nil {
			b.Fatal(err)
		}
		for _, h := range header {
			name, value, _ := strings.Cut(h, ": ")
			req.Header.Set(name, value)
		}
		resp, err := c.Do(req)
		if err != nil {
			b.Fatal(err)
		}
		defer resp.Body.Close()
		if _, err := io.Copy(io.Discard, resp.Body); err != nil || resp.StatusCode >= 300 {
			b.Fatal(resp.Status, err)
		}
	}
	const pods = "/api/v1/namespaces/default/pods"
	const proto = "Accept: " + protobuf
	for _, bench := range []struct {
		name string
		f    func(b *testing.B, i int)
	}{
		{"get", func(b *testing.B, _ int) { do(b, "GET", pods+"/p1", "", proto) }},
		{"list-protobuf", func(b *testing.B, _ int) { do(b, "GET", pods, "", proto) }},
		{"list-json", func(b *testing.B, _ int) { do(b, "GET", pods, "") }},
		{"list-table", func(b *testing.B, _ int) { do(b, "GET", pods, "", tabl) }},
		{"create", func(b *testing.B, _ int) {
			do(b, "POST", cms, `{"metadata":{"generateName":"b-"},"data":{"k":"v"}}`, jsn, proto)
		}},
		{"patch-status", func(b *testing.B, i int) {
			do(b, "PATCH", pods+"/p1/status", fmt.Sprintf(`{"status":{"conditions":[{"type":"Ready","status":"True","reason":"R%d"}]}}`, i),
				"Content-Type: "+string(types.StrategicMergePatchType), proto)
		}},
		{"apply", func(b *testing.B, i int) {
			do(b, "PATCH", cms+"/applied?fieldManager=b&force=true",
				fmt.Sprintf(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"applied"},"data":{"k":"%d"}}`, i), ssa, proto)
		}},
	} {
		b.Run(bench.name, func(b *testing.B) {
			b.ReportAllocs()
			for i := range b.N {
				bench.f(b, i)
			}
		})
	}
}
