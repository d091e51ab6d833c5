package integration

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	clientrest "k8s.io/client-go/rest"
	kjson "sigs.k8s.io/json"

	"hyperkube/components/apiserver"
)

// plainClient sends plain HTTP requests to a server in process.
type plainClient struct {
	t      testing.TB
	client *http.Client
}

func newAPI(t testing.TB, s *apiserver.Server) *plainClient {
	t.Helper()
	c, err := clientrest.HTTPClientFor(admin(s))
	if err != nil {
		t.Fatal(err)
	}
	return &plainClient{t, c}
}

type answer struct {
	code   int
	header http.Header
	body   string
}

// do sends a request. header contains lines of the form "Name: value".
func (a *plainClient) do(method, path, body string, header ...string) answer {
	a.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, "http://x"+path, strings.NewReader(body))
	if err != nil {
		a.t.Fatal(err)
	}
	for _, h := range header {
		name, value, _ := strings.Cut(h, ": ")
		req.Header.Set(name, value)
	}
	resp, err := a.client.Do(req)
	if err != nil {
		a.t.Fatal(err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		a.t.Fatal(err)
	}
	return answer{resp.StatusCode, resp.Header, string(data)}
}

func (r answer) object(t testing.TB) *unstructured.Unstructured {
	t.Helper()
	u := &unstructured.Unstructured{}
	if err := kjson.UnmarshalCaseSensitivePreserveInts([]byte(r.body), &u.Object); err != nil {
		t.Fatalf("%v: %s", err, r.body)
	}
	return u
}

const (
	cms  = "/api/v1/namespaces/default/configmaps"
	jsn  = "Content-Type: application/json"
	yml  = "Content-Type: application/yaml"
	smp  = "Content-Type: application/strategic-merge-patch+json"
	mrg  = "Content-Type: application/merge-patch+json"
	jpt  = "Content-Type: application/json-patch+json"
	ssa  = "Content-Type: application/apply-patch+yaml"
	tabl = "Accept: application/json;as=Table;v=v1;g=meta.k8s.io"
)

// TestErrors checks error responses.
func TestErrors(t *testing.T) {
	a := newAPI(t, startServer(t, apiserver.Config{}))
	if r := a.do("POST", cms, `{"metadata":{"name":"a"},"data":{"k":"v"}}`, jsn); r.code != 201 {
		t.Fatalf("%+v", r)
	}
	for _, tc := range []struct {
		name, method, path, body string
		header                   []string
		code                     int
		want                     string
	}{
		{"not found", "GET", cms + "/b", "", nil, 404, `configmaps \"b\" not found`},
		{"unknown resource", "GET", "/api/v1/nothings", "", nil, 404, "the server could not find the requested resource"},
		{"unknown group", "GET", "/apis/none.io/v1/nothings", "", nil, 404, "404 page not found"},
		{"exists", "POST", cms, `{"metadata":{"name":"a"}}`, []string{jsn}, 409, `configmaps \"a\" already exists`},
		{"wrong namespace", "POST", cms, `{"metadata":{"name":"x","namespace":"other"}}`, []string{jsn}, 400, "the namespace of the provided object does not match the namespace sent on the request"},
		{"no name", "POST", cms, `{"metadata":{}}`, []string{jsn}, 422, "name or generateName is required"},
		{"bad name", "POST", cms, `{"metadata":{"name":"A_b"}}`, []string{jsn}, 422, `metadata.name`},
		{"wrong kind", "POST", cms, `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"x"}}`, []string{jsn}, 400, `Pod in version \"v1\" cannot be handled as a ConfigMap`},
		{"wrong version", "POST", cms, `{"apiVersion":"apps/v1","kind":"ConfigMap","metadata":{"name":"x"}}`, []string{jsn}, 400, `no kind \"ConfigMap\" is registered for version \"apps/v1\" in scheme`},
		{"other version", "POST", cms, `{"apiVersion":"autoscaling/v1","kind":"Scale","metadata":{"name":"x"}}`, []string{jsn}, 400, `Scale in version \"v1\" cannot be handled as a ConfigMap: converting (v1.Scale) to (core.ConfigMap): unknown conversion`},
		{"version that is no text", "POST", cms, `{"kind":"ConfigMap","apiVersion":1,"metadata":{"name":"x"}}`, []string{jsn}, 400, `the object provided is unrecognized (must be of type ConfigMap): couldn't get version/kind; json parse error: json: cannot unmarshal number into Go struct field .apiVersion of type string ({\"kind\":\"ConfigMap\",\"apiVersio ...)`},
		{"version of three parts", "POST", cms, `{"apiVersion":"v1/v1/v1","kind":"ConfigMap","metadata":{"name":"x"}}`, []string{jsn}, 400, `the object provided is unrecognized (must be of type ConfigMap): unexpected GroupVersion string: v1/v1/v1 (`},
		{"group without version", "POST", cms, `{"apiVersion":"a.b/","kind":"ConfigMap","metadata":{"name":"x"}}`, []string{jsn}, 400, `ConfigMap in version \"\" cannot be handled as a ConfigMap: Object 'apiVersion' is missing in '{\"apiVersion\":\"a.b/\"`},
		{"not JSON", "POST", cms, `{`, []string{jsn}, 400, "the object provided is unrecognized (must be of type ConfigMap)"},
		{"with version", "POST", cms, `{"metadata":{"name":"x","resourceVersion":"5"}}`, []string{jsn}, 500, "resourceVersion should not be set on objects to be created"},
		{"media type", "POST", cms, `x`, []string{"Content-Type: text/plain"}, 415, "the body of the request was in an unknown format - accepted media types include: application/json, application/yaml, application/vnd.kubernetes.protobuf"},
		{"accept", "GET", cms, ``, []string{"Accept: text/html"}, 406, "406: Not Acceptable"},
		{"strict", "POST", cms + "?fieldValidation=Strict", `{"metadata":{"name":"x"},"foo":1}`, []string{jsn}, 400, `strict decoding error: unknown field \"foo\"`},
		{"strict twice", "POST", cms + "?fieldValidation=Strict", `{"metadata":{"name":"x"},"data":{"a":"1","a":"2"}}`, []string{jsn}, 400, `duplicate field`},
		{"field validation", "POST", cms + "?fieldValidation=Maybe", `{"metadata":{"name":"x"}}`, []string{jsn}, 422, "fieldValidation"},
		{"dry run", "POST", cms + "?dryRun=Maybe", `{"metadata":{"name":"x"}}`, []string{jsn}, 422, "dryRun"},
		{"put other name", "PUT", cms + "/a", `{"metadata":{"name":"b"}}`, []string{jsn}, 400, "the name of the object (b) does not match the name on the URL (a)"},
		{"put nothing", "PUT", cms + "/zz", `{"metadata":{"name":"zz"}}`, []string{jsn}, 404, "not found"},
		{"put uid", "PUT", cms + "/a", `{"metadata":{"name":"a","uid":"zz"}}`, []string{jsn}, 409, "Precondition failed: UID in precondition: zz"},
		{"put old", "PUT", cms + "/a", `{"metadata":{"name":"a","resourceVersion":"1"}}`, []string{jsn}, 409, "the object has been modified; please apply your changes to the latest version and try again"},
		{"patch type", "PATCH", cms + "/a", `{}`, []string{jsn}, 415, `"message":"415: Unsupported Media Type","reason":"UnsupportedMediaType","details":{}`},
		{"apply cbor", "PATCH", cms + "/a", `x`, []string{"Content-Type: application/apply-patch+cbor"}, 415, "415: Unsupported Media Type"},
		{"patch no JSON", "PATCH", cms + "/none", `x`, []string{jpt}, 400, `"invalid JSON patch"`},
		{"apply no YAML", "PATCH", cms + "/none?fieldManager=m", "a: b: c", []string{ssa}, 400, `error encoding patch: yaml: mapping values are not allowed`},
		{"accept nearly", "GET", cms, ``, []string{"Accept: application/json-seq"}, 406, "406: Not Acceptable"},
		{"accept as", "GET", cms, ``, []string{"Accept: application/json;as=Bogus;v=v1;g=meta.k8s.io"}, 406, "only the following media types are accepted: application/json, application/yaml, application/vnd.kubernetes.protobuf"},
		{"watch as", "GET", cms + "?watch=1", ``, []string{"Accept: application/json;as=Bogus;v=v1;g=meta.k8s.io"}, 406, "only the following media types are accepted: application/json, application/yaml, application/vnd.kubernetes.protobuf"},
		{"watch yaml", "GET", cms + "?watch=1", ``, []string{"Accept: application/yaml"}, 406, "only the following media types are accepted: application/json;stream=watch,"},
		{"accept group", "GET", "/apis/apps", ``, []string{"Accept: text/html"}, 406, "only the following media types are accepted"},
		{"accept version", "GET", "/apis/apps/v1", ``, []string{"Accept: text/html"}, 406, "406: Not Acceptable"},
		{"accept none", "GET", "/api/v9", ``, []string{"Accept: text/html"}, 404, ""},
		{"accept /version", "GET", "/version", ``, []string{"Accept: text/html"}, 406, "Available representations: application/json"},
		{"watch path", "GET", "/api/v1/watch", ``, nil, 500, `Internal Server Error: "/api/v1/watch": failed to create RequestInfo: unable to determine kind and namespace from url, /api/v1/watch`},
		{"version that is no number", "POST", cms, `{"metadata":{"name":"unversioned","resourceVersion":"x"}}`, []string{jsn}, 201, `"name":"unversioned"`},
		{"protobuf that ends early", "POST", cms, "k8s\x00\n\x0f", []string{"Content-Type: application/vnd.kubernetes.protobuf"}, 400, "the object provided is unrecognized (must be of type ConfigMap): unexpected EOF (6b3873000a0f)"},
		{"protobuf that is none", "POST", cms, "k8s\x00\x00\x01", []string{"Content-Type: application/vnd.kubernetes.protobuf"}, 400, "proto: Unknown: illegal tag 0 (wire type 0) (6b3873000001)"},
		{"no protobuf", "POST", cms, `x`, []string{"Content-Type: application/vnd.kubernetes.protobuf"}, 400, "does not appear to be a protobuf message, expected prefix [107 56 115 0] (78)"},
		{"empty protobuf", "POST", cms, ``, []string{"Content-Type: application/vnd.kubernetes.protobuf"}, 400, "empty data ("},
		{"empty eviction", "POST", "/api/v1/namespaces/default/pods/none/eviction", ``, []string{jsn}, 400, "the object provided is unrecognized (must be of type Eviction): couldn't get version/kind; json parse error: unexpected end of JSON input ("},
		{"delete with another", "DELETE", cms + "/a", `{"apiVersion":"v1","kind":"ConfigMap"}`, []string{jsn}, 400, `no kind \"ConfigMap\" is registered for version \"v1\" in scheme`},
		{"delete as metadata", "DELETE", cms + "?labelSelector=none", ``, []string{"Accept: application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io"}, 406, "you requested PartialObjectMetadata, but the requested object is a list (*core.ConfigMapList)"},
		{"dry claims", "POST", "/apis/apps/v1/namespaces/default/statefulsets?dryRun=All", `{"metadata":{"name":"s"},"spec":{"serviceName":"s","selector":{"matchLabels":{"a":"b"}},"template":{"metadata":{"labels":{"a":"b"}},"spec":{"containers":[{"name":"c","image":"i"}]}},` +
			`"volumeClaimTemplates":[{"metadata":{"name":"v"},"spec":{"accessModes":["ReadWriteOnce"],"resources":{"requests":{"storage":"1Gi"}}}}]}}`, []string{jsn}, 201, `"volumeClaimTemplates":[{"kind":"PersistentVolumeClaim","apiVersion":"v1"`},
		{"dry autoscaler", "POST", "/apis/autoscaling/v1/namespaces/default/horizontalpodautoscalers?dryRun=All", `{"metadata":{"name":"h","annotations":{"autoscaling.alpha.kubernetes.io/behavior":` +
			`"{\"ScaleUp\":{\"Policies\":[{\"Type\":\"Pods\",\"Value\":1,\"PeriodSeconds\":5}]}}"}},"spec":{"maxReplicas":2,"scaleTargetRef":{"apiVersion":"apps/v1","kind":"Deployment","name":"d"}}}`, []string{jsn}, 201, `{\"ScaleUp\":{\"StabilizationWindowSeconds\":0,`},
		{"delete as table", "DELETE", cms + "?labelSelector=none", ``, []string{tabl}, 200, `"kind":"Table"`},
		{"patch not JSON", "PATCH", cms + "/a", `{`, []string{mrg}, 400, ""},
		{"patch missing path", "PATCH", cms + "/a", `[{"op":"remove","path":"/data/zz"}]`, []string{jpt}, 422, ""},
		{"patch test", "PATCH", cms + "/a", `[{"op":"test","path":"/data/k","value":"zz"}]`, []string{jpt}, 422, ""},
		{"patch old version", "PATCH", cms + "/a", `{"metadata":{"resourceVersion":"1"},"data":{"k":"z"}}`, []string{mrg}, 409, "the object has been modified"},
		{"patch strict", "PATCH", cms + "/a?fieldValidation=Strict", `{"foo":1}`, []string{mrg}, 422, `unknown field \"foo\"`},
		{"strategic strict", "PATCH", cms + "/a?fieldValidation=Strict", `{"foo":1}`, []string{smp}, 422, `unknown field \"foo\"`},
		{"apply without manager", "PATCH", cms + "/a", `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a"}}`, []string{ssa}, 422, "is required for apply patch"},
		{"apply a certain one", "PATCH", cms + "/none?fieldManager=m", `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"uid":"x"}}`, []string{ssa}, 409, `configmaps \"none\": uid mismatch: the provided object specified uid x, and no existing object was found`},
		{"apply a new one of no version", "PATCH", cms + "/none?fieldManager=m", `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"none","resourceVersion":"x"}}`, []string{ssa}, 400, "invalid resource version"},
		{"apply unknown field", "PATCH", cms + "/a?fieldManager=m", `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a"},"foo":1}`, []string{ssa}, 500, "field not declared in schema"},
		{"apply conflict", "PATCH", cms + "/a?fieldManager=m", `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a"},"data":{"k":"w"}}`, []string{ssa}, 409, `Apply failed with 1 conflict`},
		{"delete precondition", "DELETE", cms + "/a", `{"preconditions":{"uid":"zz"}}`, []string{jsn}, 409, "the UID in the precondition (zz) does not match the UID in record"},
		{"a namespace", "POST", "/api/v1/namespaces", `{"metadata":{"name":"wanted"}}`, []string{jsn}, 201, ""},
		{"delete namespace precondition", "DELETE", "/api/v1/namespaces/wanted", `{"preconditions":{"uid":"zz"}}`, []string{jsn}, 409, `on namespaces \"wanted\": Precondition failed: UID in precondition: zz, UID in object meta: `},
		{"an event", "POST", "/api/v1/namespaces/default/events", `{"metadata":{"name":"e"},"involvedObject":{"namespace":"default"}}`, []string{jsn}, 201, ""},
		{"delete event precondition", "DELETE", "/apis/events.k8s.io/v1/namespaces/default/events/e", `{"preconditions":{"uid":"zz"}}`, []string{jsn}, 409, `on Event \"e\": the UID in the precondition (zz)`},
		{"delete policy", "DELETE", cms + "/a", `{"propagationPolicy":"Sometimes"}`, []string{jsn}, 422, "propagationPolicy"},
		{"list match", "GET", cms + "?resourceVersionMatch=Exact", "", nil, 422, "resourceVersionMatch is forbidden unless resourceVersion is provided"},
		{"list version", "GET", cms + "?resourceVersion=x", "", nil, 400, "invalid resource version"},
		{"list future", "GET", cms + "?resourceVersion=999999&timeoutSeconds=1", "", nil, 504, "Too large resource version: 999999"},
		{"list continue", "GET", cms + "?continue=zz!", "", nil, 400, "continue key is not valid"},
		{"field selector", "GET", cms + "?fieldSelector=spec.x%3Dy", "", nil, 400, `\"spec.x\" is not a known field selector: only \"metadata.name\", \"metadata.namespace\"`},
		{"field of volumes", "GET", "/api/v1/persistentvolumes?fieldSelector=name%3Dy", "", nil, 400, `\"name\" is not a known field selector: only`},
		{"field of sets", "GET", "/apis/apps/v1/replicasets?fieldSelector=status.replicas%3D1", "", nil, 400, `\"status.replicas\" is not a known field selector: only`},
		{"field of jobs", "GET", "/apis/batch/v1/jobs?fieldSelector=type%3D1", "", nil, 400, `field label \"type\" not supported for Job`},
		{"field of slices", "GET", "/apis/resource.k8s.io/v1/resourceslices?fieldSelector=type%3D1", "", nil, 400, `field label not supported for resource.k8s.io/v1, Kind=ResourceSlice: type`},
		{"namespace of nodes", "GET", "/api/v1/nodes?fieldSelector=metadata.namespace%3D1", "", nil, 400, `field label not supported: metadata.namespace`},
		{"namespace of roles", "GET", "/apis/rbac.authorization.k8s.io/v1/clusterroles?fieldSelector=metadata.namespace%3D1", "", nil, 200, ""},
		{"no path", "GET", cms + "/..", "", nil, 400, `Name parameter invalid: \"..\": may not be '..'`},
		{"no namespace", "GET", "/api/v1/pods/a", "", nil, 404, "the server could not find the requested resource"},
		{"namespaces in one", "GET", "/api/v1/namespaces/default/namespaces", "", nil, 404, "the server could not find the requested resource"},
		{"old proxy", "GET", "/api/v1/proxy/namespaces/default/pods/a", "", nil, 404, "the server could not find the requested resource"},
		{"head", "HEAD", cms + "/a", "", nil, 405, ""},
		{"head of all", "HEAD", cms, "", nil, 405, ""},
		{"head of a version", "HEAD", "/api/v1", "", nil, 405, ""},
		{"named review", "POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews/a", `{}`, []string{jsn}, 404, "the server could not find the requested resource"},
		{"review nowhere", "POST", "/apis/authorization.k8s.io/v1/localsubjectaccessreviews", `{}`, []string{jsn}, 404, "the server could not find the requested resource"},
		{"post to none", "POST", "/apis/apps/v9", `{}`, []string{jsn}, 404, "the server could not find the requested resource"},
		{"post to a version", "POST", "/apis/apps/v1", `{}`, []string{jsn}, 405, "the server does not allow this method on the requested resource"},
		{"below a check", "GET", "/healthz/", "", nil, 404, "404 page not found"},
		{"below schemas", "GET", "/openapi/v2/", "", nil, 404, "404 page not found"},
		{"below more schemas", "GET", "/openapi/v3/", "", nil, 404, ""},
		{"delete another", "DELETE", cms + "/a?uid=zz", "", nil, 409, "the UID in the precondition (zz) does not match the UID in record"},
		{"delete an old one", "DELETE", cms + "/a?resourceVersion=1", "", nil, 409, "the ResourceVersion in the precondition (1) does not match the ResourceVersion in record"},
		{"nameless limits", "POST", "/api/v1/namespaces/default/limitranges", `{}`, []string{jsn}, 201, `"name":"`},
		{"log of few lines", "GET", "/api/v1/namespaces/default/pods/none/log?tailLines=-1", "", nil, 422, `PodLogOptions \"none\" is invalid: tailLines`},
		{"log below", "GET", "/api/v1/namespaces/default/pods/none/log/x", "", nil, 404, "the server could not find the requested resource"},
		{"large port", "GET", "/api/v1/namespaces/default/pods/none/portforward?ports=70000", "", nil, 400, `cannot convert to []int32: strconv.ParseUint: parsing \"70000\": value out of range`},
		{"head of a stream", "HEAD", "/api/v1/namespaces/default/pods/none/exec", "", nil, 405, ""},
		{"no service", "GET", "/api/v1/namespaces/default/services/none/proxy/", "", nil, 503, `no endpoints available for service \"none\"`},
		{"no service with a port", "GET", "/api/v1/namespaces/default/services/none:80/proxy/", "", nil, 404, `services \"none\" not found`},
		{"former eviction", "POST", "/api/v1/namespaces/default/pods/none/eviction", `{"apiVersion":"policy/v1beta1","kind":"Eviction","metadata":{"name":"none"}}`, []string{jsn}, 404, `pods \"none\" not found`},
		{"evict half dry", "POST", "/api/v1/namespaces/default/pods/none/eviction?dryRun=All", `{"metadata":{"name":"none"},"deleteOptions":{"dryRun":["All","All"]}}`, []string{jsn}, 500, "Non-matching dry-run options in request and content: [All] and [All All]"},
		{"evict somewhat dry", "POST", "/api/v1/namespaces/default/pods/none/eviction", `{"metadata":{"name":"none"},"deleteOptions":{"dryRun":["x"]}}`, []string{jsn}, 422, "dryRun: Unsupported value"},
		{"a driver", "POST", "/apis/storage.k8s.io/v1/csidrivers", `{"metadata":{"name":"d"},"spec":{}}`, []string{jsn}, 201, ""},
		{"driver of any version", "PUT", "/apis/storage.k8s.io/v1/csidrivers/d", `{"metadata":{"name":"d"},"spec":{}}`, []string{jsn}, 422, "metadata.resourceVersion: Invalid value: 0: must be specified for an update"},
		{"a webhook", "POST", "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations", `{"metadata":{"name":"d"}}`, []string{jsn}, 201, ""},
		{"webhook of any version", "PUT", "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/d", `{"metadata":{"name":"d"}}`, []string{jsn}, 422, "must be specified for an update"},
		{"an account", "POST", "/api/v1/namespaces/default/serviceaccounts", `{"metadata":{"name":"d"}}`, []string{jsn}, 201, ""},
		{"account of any version", "PUT", "/api/v1/namespaces/default/serviceaccounts/d", `{"metadata":{"name":"d"}}`, []string{jsn}, 200, ""},
		{"a fixed map", "POST", cms, `{"metadata":{"name":"fixed"},"immutable":true}`, []string{jsn}, 201, ""},
		{"emptied", "PUT", cms + "/fixed", `{"metadata":{"name":"fixed"},"immutable":true,"data":{}}`, []string{jsn}, 200, ""},
		{"both names", "POST", cms, `{"metadata":{"name":"a","generateName":"a-"}}`, []string{jsn}, 409, `configmaps \"a\" already exists, the server was not able to generate a unique name for the object`},
		{"table of something", "GET", cms + "?includeObject=Foo", "", []string{tabl}, 400, `Unable to convert to Table as requested: includeObject: Invalid value: \"Foo\"`},
		{"watch a table of something", "GET", cms + "?watch=1&timeoutSeconds=1&includeObject=Foo", "", []string{tabl}, 400, `Unable to convert to Table as requested: includeObject: Invalid value: \"Foo\"`},
		{"a set", "POST", "/apis/apps/v1/namespaces/default/replicasets", `{"metadata":{"name":"r"},"spec":{"selector":{"matchLabels":{"a":"b"}},"template":{"metadata":{"labels":{"a":"b"}},"spec":{"containers":[{"name":"c","image":"i"}]}}}}`, []string{jsn}, 201, ""},
		{"scale of another", "PATCH", "/apis/apps/v1/namespaces/default/replicasets/r/scale", `{"metadata":{"name":"x"}}`, []string{mrg}, 400, "the name of the object (x) does not match the name on the URL (r)"},
		{"scale elsewhere", "PATCH", "/apis/apps/v1/namespaces/default/replicasets/r/scale", `{"metadata":{"namespace":"x"}}`, []string{mrg}, 400, "the namespace of the provided object does not match the namespace sent on the request"},
		{"label selector", "GET", cms + "?labelSelector=a%3D%3D%3Db", "", nil, 400, "unable to parse requirement"},
		{"method", "POST", cms + "/a", `{}`, []string{jsn}, 405, "the server does not allow this method on the requested resource"},
		{"all namespaces", "DELETE", "/api/v1/configmaps", ``, nil, 405, "the server does not allow this method on the requested resource"},
		{"no kind", "POST", cms + "?fieldValidation=Strict", `{"metadata":{"name":"x"},"foo":1}`, []string{jsn}, 400, `ConfigMap in version \"v1\" cannot be handled as a ConfigMap: strict decoding error: unknown field \"foo\"`},
		{"a list", "POST", cms, `[]`, []string{jsn}, 400, `couldn't get version/kind; json parse error: json: cannot unmarshal array`},
		{"subresource", "GET", cms + "/a/status", "", nil, 404, "the server could not find the requested resource"},
		{"too large", "POST", cms, strings.Repeat(" ", 3<<20+1), []string{jsn}, 413, "Request entity too large: limit is 3145728"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := a.do(tc.method, tc.path, tc.body, tc.header...)
			if r.code != tc.code || !strings.Contains(r.body, tc.want) {
				t.Errorf("got %d %s\nwant %d %s", r.code, r.body, tc.code, tc.want)
			}
		})
	}
}

// TestDuplicateAppliedFields checks the warnings about duplicate fields in an applied
// configuration: YAML reports all of them in one error.
func TestDuplicateAppliedFields(t *testing.T) {
	a := newAPI(t, startServer(t, apiserver.Config{}))
	r := a.do("PATCH", cms+"/a?fieldManager=m", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata: {k: v, k: w, l: v, l: w}", ssa)
	want := []string{`299 - "line 4: key \"k\" already set in map"`, `299 - "line 4: key \"l\" already set in map"`}
	if got := r.header.Values("Warning"); r.code != 201 || !slices.Equal(got, want) {
		t.Errorf("%d %q", r.code, got)
	}
}

// TestDefaultPropagationWarns checks the warning for deleting a Job without a propagation policy:
// its pods are orphaned.
func TestDefaultPropagationWarns(t *testing.T) {
	a := newAPI(t, startServer(t, apiserver.Config{}))
	const jobs = "/apis/batch/v1/namespaces/default/jobs"
	create := func() {
		t.Helper()
		r := a.do("POST", jobs, `{"metadata":{"name":"j","labels":{"a":"b"}},"spec":{"template":{"spec":{"restartPolicy":"Never","containers":[{"name":"c","image":"i"}]}}}}`, jsn)
		if r.code != 201 {
			t.Fatalf("%+v", r)
		}
	}
	for _, tc := range []struct {
		path, body string
		warns      bool
	}{
		{jobs + "/j", "", true},
		{jobs + "/j", `{"gracePeriodSeconds":0}`, true},
		{jobs + "/j", `{"propagationPolicy":"Background"}`, false},
		{jobs + "/j", `{"orphanDependents":false}`, false},
		{jobs + "?labelSelector=a%3Db", "", true},
		{jobs + "?labelSelector=a%3Db", `{"propagationPolicy":"Background"}`, false},
	} {
		create()
		r := a.do("DELETE", tc.path, tc.body, jsn)
		if warned := strings.Contains(r.header.Get("Warning"), "child pods are preserved by default"); r.code != 200 || warned != tc.warns {
			t.Errorf("%s %s: %d, warning %q", tc.path, tc.body, r.code, r.header.Get("Warning"))
		}
		a.do("PATCH", jobs+"/j", `{"metadata":{"finalizers":null}}`, mrg)
	}
	a.do("POST", cms, `{"metadata":{"name":"nothing-to-keep"}}`, jsn)
	if r := a.do("DELETE", cms+"/nothing-to-keep", ""); r.code != 200 || r.header.Get("Warning") != "" {
		t.Errorf("%+v", r)
	}
}

func TestWrites(t *testing.T) {
	s := startServer(t, apiserver.Config{})
	a := newAPI(t, s)
	t.Run("generateName", func(t *testing.T) {
		r := a.do("POST", cms, `{"metadata":{"generateName":"gen-"}}`, jsn)
		if name := r.object(t).GetName(); r.code != 201 || len(name) != 9 {
			t.Errorf("%d %s", r.code, name)
		}
	})
	t.Run("YAML", func(t *testing.T) {
		r := a.do("POST", cms, "metadata:\n  name: yy\ndata:\n  k: v\n", yml, "Accept: application/yaml")
		if r.code != 201 || !strings.Contains(r.body, "kind: ConfigMap") || r.header.Get("Content-Type") != "application/yaml" {
			t.Errorf("%+v", r)
		}
	})
	t.Run("namespace in an hour", func(t *testing.T) {
		a.do("POST", "/api/v1/namespaces", `{"metadata":{"name":"hour"}}`, jsn)
		o := a.do("DELETE", "/api/v1/namespaces/hour?gracePeriodSeconds=3600", "").object(t)
		if at := o.GetDeletionTimestamp(); at == nil || at.After(time.Now()) || o.GetDeletionGracePeriodSeconds() != nil {
			t.Errorf("it is deleted at %v, given %v s", at, o.GetDeletionGracePeriodSeconds())
		}
	})
	t.Run("dry run", func(t *testing.T) {
		r := a.do("POST", cms+"?dryRun=All", `{"metadata":{"name":"dry"}}`, jsn)
		if o := r.object(t); r.code != 201 || o.GetUID() == "" || o.GetResourceVersion() != "" {
			t.Errorf("%+v", r)
		}
		if r := a.do("GET", cms+"/dry", ""); r.code != 404 {
			t.Errorf("%+v", r)
		}
		before := a.do("GET", cms+"/yy", "").object(t)
		after := a.do("PATCH", cms+"/yy?dryRun=All", `{"data":{"k":"w"}}`, mrg).object(t)
		if v, _, _ := unstructured.NestedString(after.Object, "data", "k"); v != "w" || after.GetResourceVersion() != before.GetResourceVersion() {
			t.Errorf("%+v", after)
		}
		if r := a.do("DELETE", cms+"/yy?dryRun=All", ""); r.code != 200 {
			t.Errorf("%+v", r)
		}
		if r := a.do("GET", cms+"/yy", ""); r.code != 200 || r.object(t).GetResourceVersion() != before.GetResourceVersion() {
			t.Errorf("%+v", r)
		}
	})
	t.Run("warning", func(t *testing.T) {
		r := a.do("POST", cms, `{"metadata":{"name":"w"},"foo":1}`, jsn)
		if r.code != 201 || r.header.Get("Warning") != `299 - "unknown field \"foo\""` {
			t.Errorf("%+v", r)
		}
	})
	t.Run("same", func(t *testing.T) {
		before := a.do("GET", cms+"/w", "").object(t).GetResourceVersion()
		for _, h := range []string{mrg, smp} {
			if r := a.do("PATCH", cms+"/w", `{"metadata":{"labels":null}}`, h); r.object(t).GetResourceVersion() != before {
				t.Errorf("%s: %+v", h, r)
			}
		}
		config := `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"w"},"data":{"applied":"x"}}`
		first := a.do("PATCH", cms+"/w?fieldManager=m", config, ssa).object(t).GetResourceVersion()
		if second := a.do("PATCH", cms+"/w?fieldManager=m", config, ssa).object(t).GetResourceVersion(); first != second {
			t.Errorf("applied twice: %s %s", first, second)
		}
	})
	t.Run("finalizers", func(t *testing.T) {
		a.do("POST", cms, `{"metadata":{"name":"f","finalizers":["example.com/x"]}}`, jsn)
		r := a.do("DELETE", cms+"/f", "")
		marked := r.object(t).GetResourceVersion()
		if o := r.object(t); r.code != 200 || o.GetDeletionTimestamp() == nil || *o.GetDeletionGracePeriodSeconds() != 0 {
			t.Errorf("%+v", r)
		}
		if r := a.do("PATCH", cms+"/f", `{"metadata":{"deletionTimestamp":null}}`, mrg); r.object(t).GetDeletionTimestamp() == nil {
			t.Errorf("undeleted: %+v", r)
		}
		if r := a.do("PATCH", cms+"/f", `{"metadata":{"finalizers":null}}`, mrg); r.code != 200 || r.object(t).GetResourceVersion() != marked {
			t.Errorf("%+v, want version %s", r, marked)
		}
		if r := a.do("GET", cms+"/f", ""); r.code != 404 {
			t.Errorf("%+v", r)
		}
	})
	t.Run("propagation", func(t *testing.T) {
		for policy, want := range map[string]string{"Foreground": "foregroundDeletion", "Orphan": "orphan"} {
			a.do("POST", cms, `{"metadata":{"name":"p"}}`, jsn)
			r := a.do("DELETE", cms+"/p", fmt.Sprintf(`{"propagationPolicy":%q}`, policy), jsn)
			if f := r.object(t).GetFinalizers(); len(f) != 1 || f[0] != want {
				t.Errorf("%s: %v", policy, f)
			}
			a.do("PATCH", cms+"/p", `{"metadata":{"finalizers":null}}`, mrg)
		}
	})
	t.Run("table", func(t *testing.T) {
		r := a.do("GET", cms+"/yy", "", tabl)
		var table struct {
			Kind              string
			ColumnDefinitions []struct{ Name string }
			Rows              []struct {
				Cells  []any
				Object map[string]any
			}
		}
		if err := json.Unmarshal([]byte(r.body), &table); err != nil {
			t.Fatalf("%v %s", err, r.body)
		}
		if table.Kind != "Table" || len(table.ColumnDefinitions) != 3 || len(table.Rows) != 1 || table.Rows[0].Object["kind"] != "PartialObjectMetadata" {
			t.Errorf("%s", r.body)
		}
		r = a.do("GET", cms+"?includeObject=Object", "", tabl)
		if !strings.Contains(r.body, `"object":{"kind":"ConfigMap"`) {
			t.Errorf("%s", r.body)
		}
	})
	t.Run("partial", func(t *testing.T) {
		r := a.do("GET", cms, "", "Accept: application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io")
		if !strings.HasPrefix(r.body, `{"kind":"PartialObjectMetadataList","apiVersion":"meta.k8s.io/v1","metadata":{"resourceVersion":`) || strings.Contains(r.body, `"data"`) {
			t.Errorf("%s", r.body)
		}
	})
	t.Run("pretty", func(t *testing.T) {
		if r := a.do("GET", cms+"/yy?pretty=true", ""); !strings.HasPrefix(r.body, "{\n  \"kind\"") {
			t.Errorf("%s", r.body)
		}
	})
	t.Run("delete collection", func(t *testing.T) {
		a.do("POST", cms, `{"metadata":{"name":"d1","labels":{"x":"y"}}}`, jsn)
		a.do("POST", cms, `{"metadata":{"name":"d2","labels":{"x":"z"}}}`, jsn)
		r := a.do("DELETE", cms+"?labelSelector=x%3Dy", "")
		if r.code != 200 || !strings.Contains(r.body, `"ConfigMapList"`) {
			t.Errorf("%+v", r)
		}
		if a.do("GET", cms+"/d1", "").code != 404 || a.do("GET", cms+"/d2", "").code != 200 {
			t.Error("wrong objects deleted")
		}
	})
	t.Run("namespace", func(t *testing.T) {
		const path = "/api/v1/namespaces/gone"
		if r := a.do("POST", "/api/v1/namespaces", `{"metadata":{"name":"gone"}}`, jsn); r.code != 201 {
			t.Fatalf("%+v", r)
		}
		r := a.do("DELETE", path, "")
		if phase, _, _ := unstructured.NestedString(r.object(t).Object, "status", "phase"); r.code != 200 || phase != "Terminating" {
			t.Errorf("%+v", r)
		}
		ns := a.do("DELETE", path, "").object(t)
		if ns.GetDeletionTimestamp() == nil {
			t.Errorf("%+v", ns)
		}
		unstructured.RemoveNestedField(ns.Object, "spec", "finalizers")
		data, _ := json.Marshal(ns.Object)
		if r := a.do("PUT", path+"/finalize", string(data), jsn); r.code != 200 {
			t.Errorf("%+v", r)
		}
		if r := a.do("GET", path, ""); r.code != 404 {
			t.Errorf("%+v", r)
		}
	})
	t.Run("events in both groups", func(t *testing.T) {
		r := a.do("POST", "/api/v1/namespaces/default/events", `{"metadata":{"name":"e"},"involvedObject":{"kind":"Pod","name":"p","namespace":"default"},"reason":"R","message":"M","type":"Normal","source":{"component":"c"},"firstTimestamp":"2026-01-01T00:00:00Z","lastTimestamp":"2026-01-01T00:00:00Z","count":1}`, jsn)
		if r.code != 201 {
			t.Fatalf("%+v", r)
		}
		r = a.do("GET", "/apis/events.k8s.io/v1/namespaces/default/events/e", "")
		if !strings.HasPrefix(r.body, `{"kind":"Event","apiVersion":"events.k8s.io/v1"`) || !strings.Contains(r.body, `"note":"M"`) {
			t.Errorf("%+v", r)
		}
		r = a.do("GET", "/apis/events.k8s.io/v1/namespaces/default/events", "", "Accept: application/vnd.kubernetes.protobuf")
		if r.code != 200 || !bytes.Contains([]byte(r.body), []byte("events.k8s.io/v1")) {
			t.Errorf("%+v", r)
		}
	})
}

func TestNonResources(t *testing.T) {
	a := newAPI(t, startServer(t, apiserver.Config{Profiling: true}))
	for _, tc := range []struct {
		path, want string
		header     []string
	}{
		{"/api", `"versions":["v1"]`, nil},
		{"/apis", `"kind":"APIGroupList"`, nil},
		{"/apis/apps", `"kind":"APIGroup"`, nil},
		{"/apis/apps/v1", `"deployments/scale"`, nil},
		{"/api/v1", `"pods/exec"`, nil},
		{"/api", `"kind":"APIGroupDiscoveryList"`, []string{"Accept: application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"}},
		{"/apis", `"subresource":"scale"`, []string{"Accept: application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"}},
		{"/version", `"gitVersion": "v1.37`, nil},
		{"/metrics", `apiserver_request_total{code="200"`, nil},
		{"/livez", "ok", nil},
		{"/livez/ping", "ok", nil},
		{"/metrics", `apiserver_resource_objects{group="",resource="namespaces"}`, nil},
		{"/readyz?verbose", "[+]etcd ok", nil},
		{"/metrics/slis", `kubernetes_healthcheck{name="etcd",type="readyz"} 1`, nil},
		{"/readyz?verbose&exclude=etcd", "[+]etcd excluded: ok", nil},
		{"/healthz", "ok", nil},
		{"/", `"/apis/apps/v1"`, nil},
		{"/openapi/v2", `"swagger":"2.0"`, nil},
		{"/openapi/v3", `api/v1`, nil},
		{"/statusz", "apiserver statusz", nil},
		{"/statusz", `"kind": "Statusz"`, []string{"Accept: application/json;v=v1beta1;g=config.k8s.io;as=Statusz"}},
		{"/flagz", "apiserver flagz", nil},
		{"/debug/pprof/", "goroutine", nil},
	} {
		if r := a.do("GET", tc.path, "", tc.header...); r.code != 200 || !strings.Contains(r.body, tc.want) {
			t.Errorf("%s %v: %d %.2000s", tc.path, tc.header, r.code, r.body)
		}
	}
	r := a.do("GET", "/apis", "", "Accept: application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList")
	if r.header.Get("Content-Type") != "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList" {
		t.Errorf("%v", r.header)
	}
	if r := a.do("GET", "/apis", "", "Accept: application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList", "If-None-Match: "+r.header.Get("Etag")); r.code != 304 {
		t.Errorf("%+v", r.header)
	}
}
