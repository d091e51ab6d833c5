package compose_test

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/url"
	"path"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// FuzzRequests sends arbitrary requests as a superuser: any path, query, header and body. No
// request may panic, and none may write anything to etcd except the keys of objects.
func FuzzRequests(f *testing.F) {
	const (
		pod    = `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"%"},"spec":{"containers":[{"name":"c","image":"i"}]}}`
		things = `{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"things.example.org"},"spec":{"group":"example.org","names":{"plural":"things","kind":"Thing"},"scope":"Cluster","versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object","properties":{"a":{"type":"array","items":{"type":"string"},"x-kubernetes-validations":[{"rule":"self.all(x, self.all(y, x == y))"}]}}}}}]}}`
		policy = `{"apiVersion":"admissionregistration.k8s.io/v1","kind":"ValidatingAdmissionPolicy","metadata":{"name":"p"},"spec":{"matchConstraints":{"resourceRules":[{"apiGroups":[""],"apiVersions":["v1"],"operations":["*"],"resources":["configmaps"]}]},"validations":[{"expression":"object.data.all(k, object.data.all(j, k == j))"}]}}`
	)
	for _, seed := range []struct{ method, target, headers, body string }{
		{"GET", "/api/v1/namespaces/../secrets/..%2f..%2fpods?labelSelector=a+in+(b,c),!d&fieldSelector=metadata.name%21%3Dx", "Accept: application/json;as=Table;g=meta.k8s.io;v=v1", ""},
		{"GET", "/api/v1/pods?limit=1&continue=eyJ2IjoibWV0YS5rOHMuaW8vdjEiLCJydiI6MSwic3RhcnQiOiIuLi8uLi9zZWNyZXRzIn0", "Accept: application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1, */*;q=0.1", ""},
		{"GET", "/api/v1/namespaces/default/pods/x/exec?command=sh&stdin=1", "Connection: Upgrade\nUpgrade: websocket\nSec-Websocket-Version: 13\nSec-Websocket-Key: dGhlIHNhbXBsZSBub25jZQ==\nSec-Websocket-Protocol: v5.channel.k8s.io", ""},
		{"POST", "/api/v1/namespaces/default/pods/x/portforward", "Connection: Upgrade\nUpgrade: SPDY/3.1\nX-Stream-Protocol-Version: v4.channel.k8s.io", ""},
		{"GET", "/api/v1/configmaps?watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true", "Accept: application/json;stream=watch\nImpersonate-User: system:serviceaccount:a:b\nImpersonate-Group: x\nImpersonate-Extra-A%2fb: c\nImpersonate-Uid: d", ""},
		{"POST", "/api/v1/namespaces/default/pods?dryRun=All&fieldValidation=Strict", "Content-Type: application/json", pod},
		{"POST", "/api/v1/namespaces/default/configmaps", "Content-Type: application/yaml", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: ../../secrets/x}\ndata: &a {x: y, <<: *a}\n"},
		{"POST", "/api/v1/namespaces", "Content-Type: application/json", `{"metadata":{"name":"a/b","generateName":"../"}}`},
		{"POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions?dryRun=All", "Content-Type: application/json", things},
		{"POST", "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies?dryRun=All", "Content-Type: application/json", policy},
		{"PATCH", "/api/v1/namespaces/default", "Content-Type: application/json-patch+json", `[{"op":"copy","from":"/metadata","path":"/metadata/labels/a"},{"op":"add","path":"/metadata/-","value":[]},{"op":"move","from":"","path":"/a"}]`},
		{"PATCH", "/api/v1/namespaces/default", "Content-Type: application/strategic-merge-patch+json", `{"$patch":"replace","metadata":{"$retainKeys":["a"],"finalizers":[{"$patch":"delete"}],"$setElementOrder/finalizers":[1],"$deleteFromPrimitiveList/finalizers":["x"]}}`},
		{"PATCH", "/api/v1/namespaces/default", "Content-Type: application/merge-patch+json", `{"metadata":{"labels":[],"annotations":{"a":{}},"managedFields":[{"fieldsV1":{"f:a":{"k:{":0}}}]}}`},
		{"PATCH", "/api/v1/namespaces/default/configmaps/c?fieldManager=m&force=true", "Content-Type: application/apply-patch+yaml", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c}\ndata: {a: &a [*a]}\n"},
		{"PUT", "/api/v1/namespaces/default/finalize", "Content-Type: application/vnd.kubernetes.protobuf", "k8s\x00\n\x0f\n\x02v1\x12\tNamespace\x12\x04\xff\xff\xff\x7f"},
		{"DELETE", "/api/v1/namespaces/default/pods?gracePeriodSeconds=-1&propagationPolicy=x", "Content-Type: application/json", `{"preconditions":{"uid":"x"},"dryRun":["All","x"]}`},
		{"POST", "/api/v1/namespaces/default/serviceaccounts/default/token", "Content-Type: application/json", `{"spec":{"expirationSeconds":9223372036854775807,"boundObjectRef":{"kind":"Pod"}}}`},
		{"POST", "/apis/authentication.k8s.io/v1/tokenreviews", "Authorization: Bearer a.b.c\nContent-Type: application/json", `{"spec":{"token":"eyJhbGciOiJub25lIn0.e30."}}`},
		{"GET", "/openapi/v3/apis/../api?hash=x", "Accept: application/com.github.proto-openapi.spec.v3.v1.0+protobuf", ""},
		{"FLY", "/api/\xff/\xfe/portforward", "", ""},
		{"OPTIONS", "//apis/apps/v1//namespaces/%00/deployments/%2e%2e/scale", "", "{}"},
	} {
		f.Add(seed.method, seed.target, seed.headers, []byte(seed.body))
	}
	var etcd *clientv3.Client
	e := startOn(f, func(c *clientv3.Client) { etcd = c })
	way := e.server.ClientConfig("admin", "system:masters").Transport
	first, err := etcd.Get(f.Context(), "/registry/", clientv3.WithCountOnly())
	if err != nil {
		f.Fatal(err)
	}
	seen := first.Header.Revision
	f.Fuzz(func(t *testing.T, method, target, headers string, body []byte) {
		u, err := url.ParseRequestURI(target)
		if err != nil || u.Host != "" || strings.Contains(u.RawQuery, "follow") {
			return
		}
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		defer cancel()
		u.Scheme, u.Host = "http", "x"
		req, err := http.NewRequestWithContext(ctx, method, "http://x/", bytes.NewReader(body))
		if err != nil {
			return
		}
		req.URL = u
		for line := range strings.SplitSeq(headers, "\n") {
			if name, value, ok := strings.Cut(line, ": "); ok {
				req.Header.Add(name, value)
			}
		}
		resp, err := way.RoundTrip(req)
		if err == nil {
			answer, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
			_ = resp.Body.Close()
			if bytes.Contains(answer, []byte("caused apiserver to panic")) {
				t.Errorf("%s %s panicked", method, target)
			}
		}
		// All keys must be below the prefix and must be clean paths.
		all, err := etcd.Get(t.Context(), "\x00", clientv3.WithFromKey(), clientv3.WithKeysOnly(), clientv3.WithMinModRev(seen+1))
		if err != nil {
			t.Fatal(err)
		}
		seen = all.Header.Revision
		for _, kv := range all.Kvs {
			key := string(kv.Key)
			if key != "compact_rev_key" && (!strings.HasPrefix(key, "/registry/") || path.Clean(key) != key) {
				t.Errorf("%s %s wrote %q", method, target, key)
			}
		}
	})
}
