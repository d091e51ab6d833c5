package integration

import (
	"strings"
	"testing"

	"hyperkube/components/apiserver"
)

// TestUnusualRequests compares the responses to unusual requests with those of upstream.
func TestUnusualRequests(t *testing.T) {
	a := newAPI(t, startServer(t, apiserver.Config{}))
	const (
		deployments  = "/apis/apps/v1/namespaces/default/deployments"
		pods         = "/api/v1/namespaces/default/pods"
		partial      = "Accept: application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io"
		undetermined = "the name of the object (a based on URL) was undeterminable: name must be provided"
	)
	for path, body := range map[string]string{
		cms:             `{"metadata":{"name":"a"}}`,
		deployments:     `{"metadata":{"name":"a"},"spec":{"replicas":3,"selector":{"matchLabels":{"a":"b"}},"template":{"metadata":{"labels":{"a":"b"}},"spec":{"containers":[{"name":"c","image":"i"}]}}}}`,
		pods:            `{"metadata":{"name":"a"},"spec":{"containers":[{"name":"c","image":"i"}]}}`,
		"/api/v1/nodes": `{"metadata":{"name":"a"}}`,
	} {
		if r := a.do("POST", path, body, jsn); r.code != 201 {
			t.Fatalf("%+v", r)
		}
	}
	for _, tc := range []struct {
		name, method, path, body string
		header                   []string
		code                     int
		want                     string
	}{
		{"head of status", "HEAD", deployments + "/a/status", "", nil, 405, ""},
		{"head of scale", "HEAD", deployments + "/a/scale", "", nil, 405, ""},
		{"head of scale of none", "HEAD", deployments + "/none/scale", "", nil, 405, ""},
		{"head of an action", "HEAD", pods + "/a/eviction", "", nil, 405, ""},
		{"head of no subresource", "HEAD", deployments + "/a/none", "", nil, 404, ""},
		{"post to a watch", "POST", "/api/v1/watch/configmaps?timeoutSeconds=1", `{}`, []string{jsn}, 405, "the server does not allow this method"},
		{"head of a watch", "HEAD", "/api/v1/watch/configmaps?timeoutSeconds=1", "", nil, 405, ""},
		{"beside", "GET", cms + "/../secrets", "", nil, 404, "the server could not find the requested resource"},
		{"put dots", "PUT", cms + "/..", `{}`, []string{jsn}, 400, "the name of the object (.. based on URL) was undeterminable"},
		{"put named dots", "PUT", cms + "/..", `{"metadata":{"name":".."}}`, []string{jsn}, 400, `Name parameter invalid: \"..\": may not be '..'`},
		{"put with a UID to nothing", "PUT", cms + "/none", `{"metadata":{"name":"none","uid":"x"}}`, []string{jsn}, 404, `configmaps \"none\" not found`},

		{"scale as table", "GET", deployments + "/a/scale", "", []string{tabl}, 200, `"rows":[{"cells":["a",3,0,"`},
		{"columns of scales", "GET", deployments + "/a/scale", "", []string{tabl}, 200, `{"name":"Desired","type":"integer","format":"","description":"replicas is the desired number`},
		{"scale in a table", "GET", deployments + "/a/scale?includeObject=Object", "", []string{tabl}, 200, `"object":{"kind":"Scale","apiVersion":"autoscaling/v1","metadata":{"name":"a"`},
		{"patched scale as table", "PATCH", deployments + "/a/scale", `{"spec":{"replicas":4}}`, []string{tabl, mrg}, 200, `"rows":[{"cells":["a",4,0,"`},
		{"metadata of a scale", "GET", deployments + "/a/scale", "", []string{partial}, 200, `{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","metadata":{"name":"a"`},
		{"scale in no form", "GET", deployments + "/a/scale", "", []string{"Accept: application/cbor"}, 406, "406: Not Acceptable"},

		{"patch to another kind", "PATCH", deployments + "/a", `{"kind":"Foo"}`, []string{mrg}, 422, `no kind \"Foo\" is registered for version \"apps/v1\" in scheme`},
		{"patch to a known kind", "PATCH", deployments + "/a", `[{"op":"replace","path":"/kind","value":"ReplicaSet"}]`, []string{jpt}, 422, `converting (v1.ReplicaSet) to (apps.Deployment): unknown conversion`},
		{"patch to no version", "PATCH", deployments + "/a", `{"apiVersion":null}`, []string{mrg}, 400, undetermined},
		{"strict patch to no version", "PATCH", deployments + "/a?fieldValidation=Strict", `{"apiVersion":null}`, []string{mrg}, 422, `strict decoding error: unknown field \"metadata\", unknown field \"spec\", unknown field \"status\"`},
		{"patch to no version and a fault", "PATCH", deployments + "/a", `{"apiVersion":null,"spec":{"replicas":"x"}}`, []string{mrg}, 400, undetermined},
		{"patch to another version and a fault", "PATCH", deployments + "/a", `{"apiVersion":"b","spec":{"replicas":"x"}}`, []string{mrg}, 422, `no kind \"Deployment\" is registered for version \"b\" in scheme`},
		{"patch to a malformed version", "PATCH", deployments + "/a", `{"apiVersion":"a/b/c"}`, []string{mrg}, 422, `unexpected GroupVersion string: a/b/c`},
		{"patch to a kind that is no text", "PATCH", deployments + "/a", `[{"op":"replace","path":"/kind","value":3}]`, []string{jpt}, 422, `couldn't get version/kind; json parse error: json: cannot unmarshal number into Go struct field .kind of type string`},
		{"patch to an old version", "PATCH", deployments + "/a", `{"apiVersion":"apps/v1beta1"}`, []string{mrg}, 200, ""},
		{"patch to no kind", "PATCH", deployments + "/a", `{"kind":""}`, []string{mrg}, 200, ""},
		{"patch scale to another kind", "PATCH", deployments + "/a/scale", `{"apiVersion":"extensions/v1beta1"}`, []string{mrg}, 422, `converting (v1beta1.Scale) to (autoscaling.Scale): unknown conversion`},
		{"put scale of another kind", "PUT", deployments + "/a/scale", `{"kind":"Scale","apiVersion":"extensions/v1beta1","metadata":{"name":"a"}}`, []string{jsn}, 400, "the API version in the data (extensions/v1beta1) does not match the expected API version (autoscaling/v1)"},
		{"strategic patch to another kind", "PATCH", deployments + "/a", `{"kind":"Foo"}`, []string{smp}, 200, `"kind":"Deployment"`},
		{"put a kind without version", "PUT", deployments + "/a/scale", `{"kind":"Foo"}`, []string{jsn}, 400, `Foo in version \"v1\" cannot be handled as a Scale`},

		{"an error in no form that is taken", "GET", cms + "/none", "", []string{"Accept: text/plain"}, 406, "{\n  \"kind\": \"Status\",\n"},
		{"limit before selectors", "GET", cms + "?labelSelector=bad+sel&limit=x", "", nil, 400, `strconv.ParseInt: parsing \"x\": invalid syntax`},

		{"proxy to no address", "GET", "/api/v1/nodes/a/proxy/", "", nil, 500, `"message":"no preferred addresses found; known addresses: []","code":500`},
		{"log of what is nowhere", "GET", pods + "/a/log", "", nil, 204, ""},

		{"a role named for what is above", "POST", "/apis/rbac.authorization.k8s.io/v1/clusterroles?dryRun=All", `{"metadata":{"generateName":".."}}`, []string{jsn}, 422, `metadata.generateName: Invalid value: \"..\": may not be '..'`},
		{"no rows of a kind with generic columns", "GET", "/apis/rbac.authorization.k8s.io/v1/namespaces/none/roles", "", []string{tabl}, 200, `"rows":null}`},
		{"no rows of definitions", "GET", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", "", []string{tabl}, 200, `"rows":null}`},
		{"no rows of another kind", "GET", "/api/v1/namespaces/none/pods", "", []string{tabl}, 200, `"rows":[]}`},
		{"one more", "POST", cms, `{"metadata":{"name":"b"}}`, []string{jsn}, 201, ""},
		{"a page of deletions", "DELETE", cms + "?limit=1&dryRun=All", "", nil, 200, `","remainingItemCount":`},
		{"a page of deletions goes on", "DELETE", cms + "?limit=1&dryRun=All", "", nil, 200, `"continue":"ey`},
		{"binding of another pod", "POST", pods + "/a/binding", `{"metadata":{"name":"a","uid":"x"},"target":{"name":"n"}}`, []string{jsn}, 409,
			`Operation cannot be fulfilled on pods \"a\": StorageError: invalid object, Code: 4, Key: /registry/pods/default/a, ResourceVersion: 0, AdditionalErrorMsg: Precondition failed: UID in precondition: x, UID in object meta: `},
		{"binding of another version", "POST", pods + "/a/binding?dryRun=All", `{"metadata":{"name":"a","resourceVersion":"1"},"target":{"name":"n"}}`, []string{jsn}, 409,
			`Key: /pods/default/a, ResourceVersion: 0, AdditionalErrorMsg: Precondition failed: ResourceVersion in precondition: 1, ResourceVersion in object meta: `},
		{"a policy made by its status", "PATCH", "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies/none/status?fieldManager=m",
			`{"apiVersion":"admissionregistration.k8s.io/v1","kind":"ValidatingAdmissionPolicy","metadata":{"name":"none"}}`, []string{ssa}, 422, `spec.matchConstraints: Required value`},
		{"no other is made by its status", "PATCH", deployments + "/none/status?fieldManager=m", `{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"none"}}`, []string{ssa}, 404, ""},
		{"a partition of no use", "POST", "/apis/apps/v1/namespaces/default/statefulsets",
			`{"metadata":{"name":"a"},"spec":{"updateStrategy":{"type":"OnDelete","rollingUpdate":{}},"selector":{"matchLabels":{"a":"b"}},"template":{"metadata":{"labels":{"a":"b"}},"spec":{"containers":[{"name":"c","image":"i"}]}}}}`,
			[]string{jsn}, 422, `{\"Partition\":0,\"MaxUnavailable\":null}`},
		{"a pod to orphan", "POST", pods, `{"metadata":{"name":"b","finalizers":["orphan"]},"spec":{"containers":[{"name":"c","image":"i"}]}}`, []string{jsn}, 201, ""},
		{"it stays", "DELETE", pods + "/b", "", nil, 200, `"finalizers":["orphan"]`},
		{"it would go", "DELETE", pods + "/b?dryRun=All&propagationPolicy=Background", "", nil, 200, `"finalizers":["orphan"]`},
		{"it goes", "DELETE", pods + "/b?propagationPolicy=Background", "", nil, 200, `"finalizers":["orphan"]`},
		{"it is gone", "GET", pods + "/b", "", nil, 404, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := a.do(tc.method, tc.path, tc.body, tc.header...)
			if r.code != tc.code || !strings.Contains(r.body, tc.want) {
				t.Errorf("got %d %s\nwant %d %s", r.code, r.body, tc.code, tc.want)
			}
		})
	}
}
