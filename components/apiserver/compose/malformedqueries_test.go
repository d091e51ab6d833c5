package compose_test

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
)

// malformedQueries returns queries of lists.
func malformedQueries() []malformation {
	token := func(text string) string {
		return "limit=1&continue=" + base64.RawURLEncoding.EncodeToString([]byte(text))
	}
	parameter := func(name string, values ...string) []string {
		var list []string
		for _, v := range values {
			list = append(list, name+"="+url.QueryEscape(v))
		}
		return list
	}
	var list []malformation
	add := func(want []int, queries ...string) {
		for _, q := range queries {
			list = append(list, malformation{query: q, want: want})
		}
	}
	add([]int{400},
		parameter("labelSelector", "=", "a=b=c", "a in b", "a in (", "a in (b", "a in b)", "a notin ()x", "!", "!!a", "a!", ",,", "a,,b", "a b", "a>x", "a<", "a=b c", "(a)", "a==b==c", "\xff\xfe", "é=b",
			"-a=b", "a=-b", "a/b/c=d", "/a=b", "a/=b", strings.Repeat("a", 64)+"=b", "a="+strings.Repeat("b", 64), strings.Repeat("a.", 130)+"x/y=b", "a in ("+strings.Repeat("x,", 10_000)+"-)", strings.Repeat("!", 10_000), strings.Repeat("(", 10_000))...)
	add([]int{400},
		parameter("fieldSelector", "a", "a=b", "metadata.name", "metadata.name>a", "metadata.name=a,b", "metadata.name=a=b", "metadata.name=\\x", "metadata.name=a\\", "spec=x", "metadata.name in (a)", "\x00=b", "\xff=a", "metadata.labels=a",
			strings.Repeat("a=b,", 10_000)+"a=b")...)
	add([]int{400}, parameter("limit", "x", "1.5", "1e3", "99999999999999999999", "0x10", "\x00")...)
	add([]int{400}, parameter("timeoutSeconds", "x", "1.5", "99999999999999999999")...)
	add([]int{400}, parameter("resourceVersion", "x", "-1", "1.5", "99999999999999999999", "0x1", " 1", "1 ", "\x00", "1,2")...)
	add([]int{400, 422}, parameter("resourceVersionMatch", "Exact", "NotOlderThan", "exact", "x", "\xff")...)
	add([]int{400, 422}, "resourceVersion=0&resourceVersionMatch=Exact", "resourceVersion=1&resourceVersionMatch=x", "sendInitialEvents=true", "sendInitialEvents=false",
		"watch=1&sendInitialEvents=true", "watch=1&sendInitialEvents=true&resourceVersionMatch=Exact", "watch=1&resourceVersionMatch=NotOlderThan&resourceVersion=1", "watch=1&resourceVersion=x", "watch=1&resourceVersion=-1",
		"watch=1&fieldSelector=a", "watch=1&labelSelector=a+b")
	add([]int{400, 410}, token("x"), token("{}"), token("[]"), token("null"), token(`{"v":"x"}`), token(`{"v":"meta.k8s.io/v1"}`), token(`{"v":"meta.k8s.io/v1","rv":0,"start":"a"}`), token(`{"v":"meta.k8s.io/v1","rv":1}`),
		token(`{"v":"meta.k8s.io/v1","rv":1e99,"start":"a"}`), token(`{"v":"meta.k8s.io/v1","rv":1,"start":"../../secrets/x"}`), token(`{"v":"meta.k8s.io/v1","rv":1,"start":"/../x"}`),
		token(`{"v":"meta.k8s.io/v1","rv":1,"start":1}`), token(strings.Repeat("[", 20_000)), token(`{"v":"meta.k8s.io/v1","rv":1,"start":"a","rv":`), "continue=!!!&limit=1", "continue=%ff%fe&limit=1", "continue=a&limit=1", "continue="+strings.Repeat("A", 50_000),
		token(`{"v":"meta.k8s.io/v1","rv":5,"start":"a"}`)+"&resourceVersion=5")
	// These are ignored, or mean nothing.
	add([]int{200}, "limit=-1", "limit=9223372036854775807", "limit=", "resourceVersion=", "continue=", "labelSelector=", "fieldSelector=", "labelSelector=+", "labelSelector=%00", "fieldSelector=%3D", "fieldSelector=%2C", "fieldSelector=metadata.name%3D",
		"unknown=x", "pretty=maybe", "watch=0", "watch=false", "allowWatchBookmarks=maybe", "timeoutSeconds=0", strings.Repeat("a=b&", 5000), "a", "=", "&&&&", "fieldValidation=Some", "dryRun=Some", "timeout=1s",
		"labelSelector=a%3Db,"+strings.Repeat("a%3Db,", 3000)+"a%3Db", "labelSelector=a+in+("+strings.Repeat("b,", 5000)+"b)")
	// The queries cannot be parsed.
	add([]int{200, 400}, "limit=%", "limit=%zz", "a=%ff", "labelSelector=a%", "%=%", "limit=1;limit=2", "timeout=x", "timeout=-1s", "timeout=1000000h")
	return list
}

// TestMalformedQueries sends queries that cannot be parsed, or ask for something that does not exist.
func TestMalformedQueries(t *testing.T) {
	m := newMalformedServer(t)
	header := func() http.Header { return http.Header{"Accept": {mediaJSON}} }
	for _, path := range []string{inDefault + "configmaps", inDefault + "pods", "/api/v1/secrets", "/api/v1/nodes", deployments, customThings, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", "/apis/discovery.k8s.io/v1/endpointslices"} {
		for _, q := range malformedQueries() {
			m.check("list", http.MethodGet, path+"?"+q.query, header(), "", q.want)
		}
	}
	// Options of deletions.
	for _, path := range []string{inDefault + "configmaps/target", inDefault + "pods/target", inDefault + "configmaps", deployments + "/target", customThings + "/target", "/api/v1/nodes/target"} {
		for _, q := range []string{"gracePeriodSeconds=x", "gracePeriodSeconds=1.5", "gracePeriodSeconds=99999999999999999999", "propagationPolicy=Sometimes", "propagationPolicy=", "orphanDependents=maybe&propagationPolicy=x", "dryRun=x", "dryRun=All&dryRun=None"} {
			want := []int{400, 422}
			if q == "propagationPolicy=" {
				q, want = "dryRun=All&propagationPolicy=", []int{200, 400, 422}
			}
			m.check("delete", http.MethodDelete, path+"?"+q, header(), "", want)
		}
		for _, body := range []string{"{", "[]", "1", `{"kind":"Pod","apiVersion":"v1"}`, `{"gracePeriodSeconds":"x"}`, `{"gracePeriodSeconds":1e30}`, `{"propagationPolicy":1}`, `{"propagationPolicy":"x"}`, `{"preconditions":[]}`, `{"preconditions":{"uid":1}}`,
			`{"dryRun":"All"}`, `{"dryRun":["x"]}`, `{"orphanDependents":true,"propagationPolicy":"Orphan"}`, strings.Repeat("[", 100_000), `{"preconditions":{"uid":"other"}}`, `{"preconditions":{"resourceVersion":"-1"}}`, "\xff", strings.Repeat(" ", 4<<20)} {
			want := []int{400, 409, 413, 422}
			if strings.Contains(body, "other") || strings.Contains(body, `"-1"`) {
				if strings.HasSuffix(path, "configmaps") {
					continue // a collection is deleted one by one
				}
			}
			h := header()
			h.Set("Content-Type", mediaJSON)
			m.check("delete with options", http.MethodDelete, path, h, body, want)
		}
	}
}

// TestMalformedPaths sends paths and methods that do not exist, and headers that make no sense.
func TestMalformedPaths(t *testing.T) {
	m := newMalformedServer(t)
	missing := []int{400, 404, 405, 415, 422}
	for _, method := range []string{"GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS", "TRACE", "FLY", "PROPFIND"} {
		for _, path := range []string{
			"/api/v1/namespaces/default/configmaps/%2e%2e", "/api/v1/namespaces/%2e%2e/configmaps/x", "/api/v1/namespaces/default/configmaps/a%2fb", "/api/v1/namespaces/default/configmaps/%00", "/api/v1/namespaces/default/configmaps/%ff%fe",
			"/api/v1/namespaces/default/configmaps/" + strings.Repeat("a", 5000), "/api/v1/namespaces/" + strings.Repeat("a", 5000) + "/configmaps/x", "/api/v1/" + strings.Repeat("a/", 5000),
			"/apis/" + strings.Repeat("g", 5000) + "/v1/x", "/apis/a%2fb/v1/x", "/apis/..%2f..%2fapi/v1/secrets", "/api/v9/x", "/apis/none/v1/x", "/api/v1/namespaces/default/configmaps/target/none", "/api/v1/namespaces/default/pods/target/exec/more/and/more",
			"/api/v1/namespaces/default/pods/target/log/more", "/api/v1/nodes/absent/proxy/../../secrets", "/api/v1//secrets/none", "/api/v1/namespaces//secrets/none", "/%2f%2f", "/..", "/../..", "/api/../none", "/none", "/api/v1/watch/none",
			"/openapi/v3/none", "/openapi/v3/apis/../../none", "/version/none", "/healthz/none", "/livez/none/none", "/.well-known/none", "/logs/../../etc/passwd", "/debug/pprof/none", "/api/v1/namespaces/default/services/http:target:none:x/proxy/", "/api/v1/namespaces/default/services/:::/proxy/",
		} {
			m.check("no such path", method, path, http.Header{"Content-Type": {mediaJSON}}, map[bool]string{true: "{}"}[method == "POST" || method == "PUT"], missing)
		}
	}
	long := strings.Repeat("x", 20_000)
	accepted, unacceptable := []int{200}, []int{406}
	for _, h := range []struct {
		name, value string
		want        []int
	}{
		{"Accept", "text/html", unacceptable}, {"Accept", "application/json;as=Table", []int{200, 406}}, {"Accept", "application/json;as=Table;g=meta.k8s.io;v=v9", unacceptable}, {"Accept", ";", []int{200, 406}}, {"Accept", "a/b/c", unacceptable},
		{"Accept", "application/" + long, unacceptable}, {"Accept", strings.Repeat("a/b,", 5000) + "*/*", accepted}, {"Accept", "\xff\xfe", unacceptable}, {"Accept", "*/*;q=x", []int{200, 406}}, {"Accept", "application/json;q=-1", []int{200, 406}},
		{"Accept", "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1", []int{200, 406}}, {"Accept", "application/vnd.kubernetes.protobuf;as=Table;g=meta.k8s.io;v=v1", []int{200, 406}},
		{"Accept-Encoding", "gzip;q=x, br, *;q=-1", accepted}, {"Accept-Encoding", long, accepted}, {"Range", "bytes=0-99999999999999999999", accepted}, {"If-None-Match", long, accepted}, {"If-Modified-Since", "yesterday", accepted},
		{"User-Agent", long, accepted}, {"User-Agent", "\xff\xfe\x80", accepted}, {"Audit-ID", long, accepted}, {"Audit-ID", "\xff", accepted}, {"Traceparent", "00-zz-zz-zz", accepted}, {"Traceparent", long, accepted}, {"Origin", "null", accepted}, {"X-Forwarded-For", strings.Repeat("1.2.3.4,", 1000), accepted},
		{"Content-Type", "\xff", accepted}, {"Content-Encoding", "gzip", accepted}, {"Expect", "200-ok", []int{200, 417}}, {"Cookie", long, accepted}, {"Referer", long, accepted},
		{"Impersonate-Group", "a", []int{400}}, {"Impersonate-Uid", "a", []int{400}}, {"Impersonate-Extra-A", "a", []int{400}}, {"Impersonate-Extra-%zz", "a", []int{400}}, {"Impersonate-Extra-", "a", []int{200, 400}},
		{"Impersonate-User", "bob", []int{403}}, {"Impersonate-User", "system:serviceaccount:a", []int{403}}, {"Impersonate-User", "system:serviceaccount:../..:x", []int{403}}, {"Impersonate-User", "\xff\xfe", []int{403}}, {"Impersonate-User", long, []int{403}},
		{"Impersonate-User", "system:node:" + long, []int{403}}, {"Impersonate-User", "system:anonymous", []int{403}},
		{"Impersonate-User", "", accepted},
		{"Authorization", "Bearer", []int{200, 401}}, {"Authorization", "Bearer " + long, []int{200, 401}}, {"Authorization", "Bearer \xff", []int{200, 401}}, {"Authorization", "Basic !!!", []int{200, 401}}, {"Authorization", "Bearer a b c", []int{200, 401}}, {"Authorization", "Bearer ..", []int{200, 401}},
		{"Authorization", "Bearer e30.e30.", []int{200, 401}}, {"Authorization", "Bearer " + strings.Repeat(".", 10_000), []int{200, 401}},
	} {
		for range 2 { // HTTP/1.1 and HTTP/2
			m.check(fmt.Sprintf("%s: %.40q", h.name, h.value), http.MethodGet, inDefault+"configmaps/target", http.Header{h.name: {h.value}}, "", h.want)
		}
	}
	// Several headers.
	user := func(more ...string) http.Header {
		h := http.Header{"Impersonate-User": {"bob"}}
		for i := 0; i < len(more); i += 2 {
			h[more[i]] = append(h[more[i]], more[i+1])
		}
		return h
	}
	for _, h := range []http.Header{
		user("Impersonate-User", "admin"), user("Impersonate-Uid", "a", "Impersonate-Uid", "b"), user("Impersonate-Group", ""), user("Impersonate-Extra-%00", "a"), user("Impersonate-Extra-%ff", "a"),
		user("Impersonate-Extra-"+strings.Repeat("a", 5000), "a"), user("impersonate-group", "x"), user("Impersonate-Group", strings.Repeat("g", 20_000)), {"Impersonate-User": {"system:masters"}}, {"Impersonate-User": {"bob"}, "Impersonate-Group": manyGroups(2000)},
	} {
		for range 2 {
			m.check(fmt.Sprintf("impersonation %.60q", h), http.MethodGet, inDefault+"configmaps/target", h, "", []int{400, 403, 431})
		}
	}
}

func manyGroups(n int) []string {
	list := make([]string, n)
	for i := range list {
		list[i] = fmt.Sprintf("group-%d", i)
	}
	return list
}
