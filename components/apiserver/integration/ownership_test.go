package integration

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"hyperkube/components/apiserver"
)

// owners returns the owners of fields in the form "manager operation subresource fields".
func owners(t *testing.T, o *unstructured.Unstructured) []string {
	t.Helper()
	var all []string
	for _, m := range o.GetManagedFields() {
		all = append(all, strings.Join([]string{m.Manager, string(m.Operation), m.Subresource, m.FieldsV1.String()}, " "))
	}
	slices.Sort(all)
	return all
}

func (a *plainClient) apply(path, manager, config string) answer {
	a.t.Helper()
	return a.do("PATCH", path+"?fieldManager="+manager, config, ssa)
}

// TestOwnership checks the owners of fields after server-side apply.
//
// https://kubernetes.io/docs/reference/using-api/server-side-apply/
func TestOwnership(t *testing.T) {
	a := newAPI(t, startServer(t, apiserver.Config{}))
	const (
		deployments = "/apis/apps/v1/namespaces/default/deployments"
		services    = "/api/v1/namespaces/default/services"
	)
	deployment := func(spec string) string {
		return `{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"d"},"spec":` + spec + `}`
	}
	containers := func(r answer) (names []string) {
		list, _, _ := unstructured.NestedSlice(r.object(t).Object, "spec", "template", "spec", "containers")
		for _, c := range list {
			names = append(names, c.(map[string]any)["name"].(string))
		}
		return names
	}
	template := func(containers string) string {
		return `{"selector":{"matchLabels":{"a":"b"}},"template":{"metadata":{"labels":{"a":"b"}},"spec":{"containers":[` + containers + `]}}}`
	}

	t.Run("conflict and force", func(t *testing.T) {
		config := func(v string) string {
			return `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"f"},"data":{"k":"` + v + `","` + v + `":"x"}}`
		}
		if r := a.apply(cms+"/f", "one", config("v")); r.code != 201 {
			t.Fatalf("%+v", r)
		}
		r := a.apply(cms+"/f", "two", config("w"))
		if r.code != 409 || !strings.Contains(r.body, `conflict with \"one\": .data.k`) || !strings.Contains(r.body, `"reason":"FieldManagerConflict"`) {
			t.Errorf("%+v", r)
		}
		r = a.do("PATCH", cms+"/f?fieldManager=two&force=true", config("w"), ssa)
		if want := []string{`one Apply  {"f:data":{"f:v":{}}}`, `two Apply  {"f:data":{"f:k":{},"f:w":{}}}`}; r.code != 200 || !slices.Equal(owners(t, r.object(t)), want) {
			t.Errorf("%d %q", r.code, owners(t, r.object(t)))
		}
		// An equal value is shared, and remains until the last owner removes it.
		if r = a.apply(cms+"/f", "one", config("w")); r.code != 200 {
			t.Errorf("%+v", r)
		}
		a.apply(cms+"/f", "two", `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"f"}}`)
		if v, _, _ := unstructured.NestedString(a.do("GET", cms+"/f", "").object(t).Object, "data", "k"); v != "w" {
			t.Errorf("what another has is gone: %q", v)
		}
		r = a.apply(cms+"/f", "one", `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"f"}}`)
		if _, there, _ := unstructured.NestedString(r.object(t).Object, "data", "k"); there {
			t.Errorf("an unowned field remains: %s", r.body)
		}
	})

	t.Run("elements of lists by their keys", func(t *testing.T) {
		a.apply(deployments+"/d", "one", deployment(template(`{"name":"c1","image":"i"},{"name":"c2","image":"i"}`)))
		r := a.apply(deployments+"/d", "two", deployment(`{"template":{"spec":{"containers":[{"name":"c3","image":"i","ports":[{"containerPort":80},{"containerPort":80,"protocol":"UDP"}]}]}}}`))
		if got := containers(r); r.code != 200 || !slices.Equal(got, []string{"c1", "c2", "c3"}) {
			t.Errorf("%d %q", r.code, got)
		}
		r = a.apply(deployments+"/d", "one", deployment(template(`{"name":"c2","image":"j"}`)))
		if got := containers(r); r.code != 200 || !slices.Equal(got, []string{"c2", "c3"}) {
			t.Errorf("%d %q", r.code, got)
		}
		fields := strings.Join(owners(t, r.object(t)), "\n")
		if !strings.Contains(fields, `k:{\"containerPort\":80,\"protocol\":\"UDP\"}`) && !strings.Contains(fields, `k:{"containerPort":80,"protocol":"UDP"}`) {
			t.Errorf("ports are not had by their keys: %s", fields)
		}
	})

	t.Run("by subresource", func(t *testing.T) {
		r := a.do("PATCH", deployments+"/d/scale?fieldManager=one", `{"apiVersion":"autoscaling/v1","kind":"Scale","metadata":{"name":"d","namespace":"default"},"spec":{"replicas":4}}`, ssa)
		if r.code != 409 || !strings.Contains(r.body, `conflict with \"before-first-apply\" with subresource \"scale\" using autoscaling/v1: .spec.replicas`) {
			t.Errorf("%+v", r)
		}
		r = a.do("PATCH", deployments+"/d/scale?fieldManager=one&force=true", `{"apiVersion":"autoscaling/v1","kind":"Scale","metadata":{"name":"d","namespace":"default"},"spec":{"replicas":4}}`, ssa)
		if d := a.do("GET", deployments+"/d", "").object(t); r.code != 200 || !slices.Contains(owners(t, d), `one Apply scale {"f:spec":{"f:replicas":{}}}`) {
			t.Errorf("%+v %q", r, owners(t, d))
		}
		r = a.do("PATCH", deployments+"/d/status?fieldManager=one", deployment(`{"replicas":9}`)[:len(deployment(`{"replicas":9}`))-1]+`,"status":{"observedGeneration":1}}`, ssa)
		if r.code != 200 {
			t.Fatalf("%+v", r)
		}
		if n, _, _ := unstructured.NestedInt64(r.object(t).Object, "spec", "replicas"); n == 9 {
			t.Error("a status changes the specification")
		}
		if !slices.Contains(owners(t, r.object(t)), `one Apply status {"f:status":{"f:observedGeneration":{}}}`) {
			t.Errorf("%q", owners(t, r.object(t)))
		}
		// Applying the object does not affect the owner of the status.
		r = a.apply(deployments+"/d", "one", deployment(template(`{"name":"c2","image":"k"}`)))
		if n, _, _ := unstructured.NestedInt64(r.object(t).Object, "status", "observedGeneration"); n != 1 {
			t.Errorf("the status is gone: %s", r.body)
		}
	})

	t.Run("atomic fields", func(t *testing.T) {
		service := func(selector string) string {
			return `{"apiVersion":"v1","kind":"Service","metadata":{"name":"s"},"spec":{"clusterIP":"None","selector":` + selector + `}}`
		}
		if r := a.apply(services+"/s", "one", service(`{"a":"b"}`)); r.code != 201 {
			t.Fatalf("%+v", r)
		}
		r := a.apply(services+"/s", "two", service(`{"c":"d"}`))
		if r.code != 409 || !strings.Contains(r.body, `conflict with \"one\": .spec.selector`) {
			t.Errorf("%+v", r)
		}
		r = a.do("PATCH", services+"/s?fieldManager=two&force=true", service(`{"c":"d"}`), ssa)
		if s, _, _ := unstructured.NestedStringMap(r.object(t).Object, "spec", "selector"); len(s) != 1 || s["c"] != "d" {
			t.Errorf("selector %v", s)
		}
	})

	t.Run("from client-side apply", func(t *testing.T) {
		const last = "kubectl.kubernetes.io/last-applied-configuration"
		a.do("POST", cms+"?fieldManager=kubectl-client-side-apply", `{"metadata":{"name":"l","annotations":{"`+last+`":"{}"}},"data":{"k":"v","old":"x"}}`, jsn)
		r := a.do("PATCH", cms+"/l?fieldManager=kubectl&force=true", `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"l"},"data":{"k":"w"}}`, ssa)
		if text := r.object(t).GetAnnotations()[last]; r.code != 200 || !strings.Contains(text, `"k":"w"`) {
			t.Errorf("what was last applied by the client is %q", text)
		}
		// An object from before managed fields existed gets an owner for that time.
		a.do("POST", cms, `{"metadata":{"name":"m"},"data":{"k":"v"}}`, jsn)
		if r = a.do("PATCH", cms+"/m", `{"metadata":{"managedFields":[{}]}}`, mrg); len(r.object(t).GetManagedFields()) != 0 {
			t.Fatalf("not reset: %s", r.body)
		}
		r = a.do("PATCH", cms+"/m?fieldManager=me&force=true", `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"m"},"data":{"l":"w"}}`, ssa)
		if want := []string{`before-first-apply Update  {"f:data":{".":{},"f:k":{}}}`, `me Apply  {"f:data":{"f:l":{}}}`}; !slices.Equal(owners(t, r.object(t)), want) {
			t.Errorf("%q", owners(t, r.object(t)))
		}
	})

	t.Run("many who update", func(t *testing.T) {
		a.do("POST", cms+"?fieldManager=u00", `{"metadata":{"name":"n"},"data":{"k00":"v"}}`, jsn)
		var r answer
		for i := 1; i < 14; i++ {
			r = a.do("PATCH", fmt.Sprintf("%s/n?fieldManager=u%02d", cms, i), fmt.Sprintf(`{"data":{"k%02d":"v"}}`, i), mrg)
		}
		got := owners(t, r.object(t))
		if len(got) != 10 || !slices.ContainsFunc(got, func(s string) bool {
			return strings.HasPrefix(s, "ancient-changes Update") && strings.Contains(s, "f:k00")
		}) {
			t.Errorf("%d: %q", len(got), got)
		}
		before := r.object(t)
		// An apply without changes does not change the times.
		again := a.do("PATCH", cms+"/n?fieldManager=u13", `{"data":{"k13":"v"}}`, mrg).object(t)
		if again.GetResourceVersion() != before.GetResourceVersion() {
			t.Errorf("written for nothing: %s %s", before.GetResourceVersion(), again.GetResourceVersion())
		}
	})
}

// TestScaleOwnership checks that managed fields in a Scale are validated as in all objects,
// although they are not stored, and that each manager has only one entry for the replicas.
func TestScaleOwnership(t *testing.T) {
	a := newAPI(t, startServer(t, apiserver.Config{}))
	const (
		sets = "/apis/apps/v1/namespaces/default/replicasets"
		twos = `"ownerReferences":[{"apiVersion":"v1","kind":"Pod","name":"p","uid":"u"},{"apiVersion":"v1","kind":"Pod","name":"p","uid":"u"}]`
	)
	if r := a.do("POST", sets, `{"metadata":{"name":"r"},"spec":{"selector":{"matchLabels":{"a":"b"}},"template":{"metadata":{"labels":{"a":"b"}},`+
		`"spec":{"containers":[{"name":"c","image":"i"}]}}}}`, jsn); r.code != 201 {
		t.Fatalf("%+v", r)
	}
	// An update without changes adds an entry for the replicas, which the next one merges with the
	// other.
	if r := a.do("PATCH", sets+"/r/scale", `{"status":{"replicas":9}}`, mrg); r.code != 200 {
		t.Errorf("%+v", r)
	}
	if r := a.do("PATCH", sets+"/r", `[{"op":"test","path":"/metadata/name","value":"r"}]`, jpt); r.code != 200 || len(owners(t, r.object(t))) != 1 {
		t.Errorf("more than one entry of one manager: %+v", r)
	}
	scale := `{"apiVersion":"autoscaling/v1","kind":"Scale","metadata":{"name":"r",` + twos + `}}`
	for _, tc := range []struct {
		method, body, header string
		warning              string
	}{
		{"PUT", scale, jsn, ".metadata.ownerReferences contains duplicate entries; API server dedups"},
		{"PATCH", `{"metadata":{` + twos + `}}`, mrg, ".metadata.ownerReferences contains duplicate entries after mutating admission happens;"},
	} {
		r := a.do(tc.method, sets+"/r/scale", tc.body, tc.header)
		if got := r.header.Get("Warning"); r.code != 200 || !strings.Contains(got, tc.warning) {
			t.Errorf("%s: %d, warning %q", tc.method, r.code, got)
		}
	}
	if r := a.apply(sets+"/r/scale", "m", scale); r.code != 500 || !strings.Contains(r.body, "duplicate entries for key") {
		t.Errorf("applied: %+v", r)
	}
	if r := a.apply(sets+"/r/scale", "m", `{"apiVersion":"autoscaling/v1","kind":"Scale","metadata":{"name":1}}`); r.code != 500 ||
		!strings.Contains(r.body, ".metadata.name: expected string, got") {
		t.Errorf("applied name: %+v", r)
	}
}
