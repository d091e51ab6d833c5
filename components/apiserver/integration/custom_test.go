package integration

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/yaml"

	"hyperkube/components/apiserver"
)

var definitions = apiextensionsv1.SchemeGroupVersion.WithResource("customresourcedefinitions")

// custom is a dynamic client for definitions and their instances.
type custom struct {
	*testing.T
	dynamic.Interface
	ctx context.Context
}

func newCustom(t *testing.T) *custom {
	t.Helper()
	return customOf(t, startServer(t, apiserver.Config{}))
}

func customOf(t *testing.T, s *apiserver.Server) *custom {
	t.Helper()
	d, err := dynamic.NewForConfig(admin(s))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	t.Cleanup(cancel)
	return &custom{t, d, ctx}
}

func object(t *testing.T, text string) *unstructured.Unstructured {
	t.Helper()
	obj := &unstructured.Unstructured{}
	data, err := yaml.YAMLToJSON([]byte(text))
	if err == nil {
		err = obj.UnmarshalJSON(data)
	}
	if err != nil {
		t.Fatal(err)
	}
	return obj
}

// define creates a definition and waits for a condition.
func (c *custom) define(text string, condition string) *unstructured.Unstructured {
	c.Helper()
	made, err := c.Resource(definitions).Create(c.ctx, object(c.T, text), metav1.CreateOptions{})
	if err != nil {
		c.Fatal(err)
	}
	return c.await(made.GetName(), condition)
}

// await waits until a definition has a condition of the form "Type=Status".
func (c *custom) await(name, condition string) *unstructured.Unstructured {
	c.Helper()
	w, err := c.Resource(definitions).Watch(c.ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + name})
	if err != nil {
		c.Fatal(err)
	}
	defer w.Stop()
	for e := range w.ResultChan() {
		obj := e.Object.(*unstructured.Unstructured)
		all, _, _ := unstructured.NestedSlice(obj.Object, "status", "conditions")
		for _, one := range all {
			m := one.(map[string]any)
			if fmt.Sprint(m["type"], "=", m["status"]) == condition {
				return obj
			}
		}
	}
	c.Fatalf("%s never has %s", name, condition)
	return nil
}

const foos = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: foos.example.com}
spec:
  group: example.com
  scope: Namespaced
  names: {plural: foos, kind: Foo}
  versions:
  - name: v1
    served: true
    storage: true
    selectableFields: [{jsonPath: .spec.color}]
    subresources: {status: {}, scale: {specReplicasPath: .spec.replicas, statusReplicasPath: .status.replicas}}
    schema: &schema
      openAPIV3Schema:
        type: object
        properties:
          spec:
            type: object
            x-kubernetes-validations: [{rule: "self.replicas < 10", message: "too many"}]
            properties:
              color: {type: string}
              replicas: {type: integer, default: 1}
              host: {type: string}
              hostPort: {type: string}
              whole: {type: object, x-kubernetes-embedded-resource: true, x-kubernetes-preserve-unknown-fields: true}
          status: {type: object, properties: {replicas: {type: integer}}}
  - name: v2
    served: true
    storage: false
    selectableFields: [{jsonPath: .spec.color}]
    schema: *schema
`

var (
	fooV1 = schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "foos"}
	fooV2 = schema.GroupVersionResource{Group: "example.com", Version: "v2", Resource: "foos"}
)

func foo(t *testing.T, name, rest string) *unstructured.Unstructured {
	return object(t, "{apiVersion: example.com/v1, kind: Foo, metadata: {name: "+name+"}, "+rest+"}")
}

func TestCustomResource(t *testing.T) {
	c := newCustom(t)
	c.define(foos, "Established=True")
	all := c.Resource(fooV1).Namespace("default")

	informers := dynamicinformer.NewDynamicSharedInformerFactory(c, 0)
	seen := make(chan string, 100)
	informer := informers.ForResource(fooV1).Informer()
	if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { seen <- "+" + o.(metav1.Object).GetName() },
		UpdateFunc: func(_, o any) { seen <- "~" + o.(metav1.Object).GetName() },
		DeleteFunc: func(o any) { seen <- "-" + o.(metav1.Object).GetName() },
	}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(c.ctx)
	informers.Start(ctx.Done())
	defer informers.Shutdown()
	defer cancel()
	expect := func(want string) {
		t.Helper()
		select {
		case got := <-seen:
			if got != want {
				t.Errorf("informer event %s, want %s", got, want)
			}
		case <-c.ctx.Done():
			t.Fatalf("no informer event %s", want)
		}
	}

	a, err := all.Create(c.ctx, foo(t, "a", "spec: {color: red, bogus: 1}, status: {replicas: 7}"), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	expect("+a")
	spec, _, _ := unstructured.NestedMap(a.Object, "spec")
	if len(spec) != 2 || spec["replicas"] != int64(1) || a.Object["status"] != nil || a.GetGeneration() != 1 {
		t.Errorf("created is %v", a.Object)
	}
	for _, test := range []struct{ body, want string }{
		{"spec: {replicas: 10}", "spec: Invalid value: too many"},
		{"spec: {replicas: x}", `spec.replicas: Invalid value: "string": spec.replicas in body must be of type integer: "string"`},
		{"spec: {bogus: 1}", `strict decoding error: unknown field "spec.bogus"`},
		{"spec: {whole: {apiVersion: v1, kind: X, metadata: {name: x, oh: no}}}", `unknown field "spec.whole.metadata.oh"`},
		{"spec: {whole: {apiVersion: v1}}", "spec.whole.kind: Required value"},
	} {
		_, err := all.Create(c.ctx, foo(t, "b", test.body), metav1.CreateOptions{FieldValidation: "Strict"})
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v, want %s", test.body, err, test.want)
		}
	}
	if a, err = all.Patch(c.ctx, "a", types.MergePatchType, []byte(`{"status":{"replicas":3}}`), metav1.PatchOptions{}, "status"); err != nil || a.GetGeneration() != 1 {
		t.Errorf("status: %v %v", a, err)
	}
	expect("~a")
	if _, err := all.Patch(c.ctx, "a", types.StrategicMergePatchType, []byte(`{}`), metav1.PatchOptions{}); !apierrors.IsUnsupportedMediaType(err) {
		t.Errorf("strategic merge patch: %v", err)
	}
	if a, err = all.Patch(c.ctx, "a", types.JSONPatchType, []byte(`[{"op":"add","path":"/spec/host","value":"h"}]`), metav1.PatchOptions{}); err != nil || a.GetGeneration() != 2 {
		t.Errorf("JSON patch: %v %v", a, err)
	}
	expect("~a")
	scale, err := all.Patch(c.ctx, "a", types.MergePatchType, []byte(`{"spec":{"replicas":4}}`), metav1.PatchOptions{}, "scale")
	if replicas, _, _ := unstructured.NestedInt64(scale.Object, "spec", "replicas"); err != nil || replicas != 4 {
		t.Errorf("scale: %v %v", scale, err)
	}
	expect("~a")
	if _, err := all.Apply(c.ctx, "a", foo(t, "a", "spec: {color: blue}"), metav1.ApplyOptions{FieldManager: "m"}); !apierrors.IsConflict(err) {
		t.Errorf("apply over another's field: %v", err)
	}
	if _, err := all.Apply(c.ctx, "c", foo(t, "c", "spec: {color: blue}"), metav1.ApplyOptions{FieldManager: "m"}); err != nil {
		t.Error(err)
	}
	expect("+c")
	blue, err := all.List(c.ctx, metav1.ListOptions{FieldSelector: "spec.color=blue"})
	if err != nil || len(blue.Items) != 1 || blue.Items[0].GetName() != "c" || blue.GetKind() != "FooList" {
		t.Errorf("selected %v %v", blue, err)
	}
	v2, err := c.Resource(fooV2).List(c.ctx, metav1.ListOptions{})
	if err != nil || len(v2.Items) != 2 || v2.Items[0].GetAPIVersion() != "example.com/v2" {
		t.Errorf("v2 has %v %v", v2, err)
	}
	if err := all.DeleteCollection(c.ctx, metav1.DeleteOptions{}, metav1.ListOptions{FieldSelector: "spec.color=blue"}); err != nil {
		t.Error(err)
	}
	expect("-c")

	// Deleting a definition deletes its instances.
	if err := c.Resource(definitions).Delete(c.ctx, "foos.example.com", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	expect("-a")
	w, err := c.Resource(definitions).Watch(c.ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	for {
		if _, err := c.Resource(definitions).Get(c.ctx, "foos.example.com", metav1.GetOptions{}); apierrors.IsNotFound(err) {
			break
		}
		<-w.ResultChan()
	}
}

// TestCustomNames creates two definitions with conflicting names.
func TestCustomNames(t *testing.T) {
	c := newCustom(t)
	short := func(plural, kind string) string {
		text := strings.NewReplacer("foos", plural, "kind: Foo", "shortNames: [f], kind: "+kind).Replace(foos)
		return text
	}
	c.define(short("foos", "Foo"), "Established=True")
	second := c.define(short("bars", "Bar"), "NamesAccepted=False")
	conditions, _, _ := unstructured.NestedSlice(second.Object, "status", "conditions")
	if text := fmt.Sprint(conditions); !strings.Contains(text, "ShortNamesConflict") || !strings.Contains(text, `"f" is already in use`) || !strings.Contains(text, "NotAccepted") {
		t.Errorf("conditions %s", text)
	}
	if err := c.Resource(definitions).Delete(c.ctx, "foos.example.com", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	c.await("bars.example.com", "Established=True")
	bars := fooV1
	bars.Resource = "bars"
	if _, err := c.Resource(bars).List(c.ctx, metav1.ListOptions{}); err != nil {
		t.Error(err)
	}
}

// TestCustomConversion converts with a webhook: v2 combines two fields of v1 into one.
func TestCustomConversion(t *testing.T) {
	calls := make(chan int, 100)
	var broken atomic.Bool // the webhook returns no objects
	hook := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		review := &apiextensionsv1.ConversionReview{}
		if err := json.NewDecoder(req.Body).Decode(review); err != nil {
			t.Error(err)
			return
		}
		calls <- len(review.Request.Objects)
		review.Response = &apiextensionsv1.ConversionResponse{UID: review.Request.UID, Result: metav1.Status{Status: metav1.StatusSuccess}}
		for _, raw := range review.Request.Objects {
			obj := &unstructured.Unstructured{}
			if err := obj.UnmarshalJSON(raw.Raw); err != nil {
				t.Error(err)
			}
			spec, _, _ := unstructured.NestedStringMap(obj.Object, "spec")
			if review.Request.DesiredAPIVersion == "example.com/v2" {
				spec = map[string]string{"hostPort": spec["host"] + ":" + spec["color"]}
			} else {
				host, port, _ := strings.Cut(spec["hostPort"], ":")
				spec = map[string]string{"host": host, "color": port}
			}
			if err := unstructured.SetNestedStringMap(obj.Object, spec, "spec"); err != nil {
				t.Error(err)
			}
			obj.SetAPIVersion(review.Request.DesiredAPIVersion)
			review.Response.ConvertedObjects = append(review.Response.ConvertedObjects, runtime.RawExtension{Object: obj})
		}
		if broken.Load() {
			review.Response.ConvertedObjects = nil
		}
		review.Request = nil
		if err := json.NewEncoder(w).Encode(review); err != nil {
			t.Error(err)
		}
	}))
	defer hook.Close()
	bundle := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: hook.Certificate().Raw})

	c := newCustom(t)
	d := object(t, strings.ReplaceAll(foos, `replicas: {type: integer, default: 1}`, `replicas: {type: integer}`))
	for _, v := range d.Object["spec"].(map[string]any)["versions"].([]any) {
		delete(v.(map[string]any)["schema"].(map[string]any)["openAPIV3Schema"].(map[string]any)["properties"].(map[string]any)["spec"].(map[string]any), "x-kubernetes-validations")
	}
	d.Object["spec"].(map[string]any)["conversion"] = map[string]any{
		"strategy": "Webhook",
		"webhook": map[string]any{
			"conversionReviewVersions": []any{"v1"},
			"clientConfig":             map[string]any{"url": hook.URL + "/convert", "caBundle": bundle},
		},
	}
	text, err := yaml.Marshal(d.Object)
	if err != nil {
		t.Fatal(err)
	}
	c.define(string(text), "Established=True")

	v1 := c.Resource(fooV1).Namespace("default")
	v2 := c.Resource(fooV2).Namespace("default")
	if _, err := v1.Create(c.ctx, foo(t, "a", "spec: {host: h, color: '80'}"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	b := object(t, "{apiVersion: example.com/v2, kind: Foo, metadata: {name: b}, spec: {hostPort: 'i:81'}}")
	if got, err := v2.Create(c.ctx, b, metav1.CreateOptions{}); err != nil || spec(got, "hostPort") != "i:81" {
		t.Fatalf("created %v %v", got, err)
	}
	if got, err := v1.Get(c.ctx, "b", metav1.GetOptions{}); err != nil || spec(got, "host") != "i" || spec(got, "color") != "81" {
		t.Errorf("v1 of b is %v %v", got, err)
	}
	broken.Store(true)
	if _, err := v1.Patch(c.ctx, "a", types.MergePatchType, []byte(`{"metadata":{"labels":{"x":"y"}}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	const lost = "StorageError: corrupt object, Code: 7, Key: /example.com/foos/default/a"
	if _, err := v2.Get(c.ctx, "a", metav1.GetOptions{}); !apierrors.IsInternalError(err) || !strings.Contains(err.Error(), lost) || !strings.Contains(err.Error(), "returned 0 objects, expected 1") {
		t.Errorf("without an answer: %v", err)
	}
	broken.Store(false)
	if got, err := v2.Get(c.ctx, "a", metav1.GetOptions{}); err != nil || spec(got, "hostPort") != "h:80" {
		t.Errorf("with an answer again: %v, %v", got, err)
	}
	// From now on v2 is the storage version. Existing objects are not rewritten.
	patch := `[{"op":"replace","path":"/spec/versions/0/storage","value":false},{"op":"replace","path":"/spec/versions/1/storage","value":true}]`
	if _, err := c.Resource(definitions).Patch(c.ctx, "foos.example.com", types.JSONPatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	for {
		// The new definition is served shortly after it is stored.
		got, err := v2.Create(c.ctx, object(t, "{apiVersion: example.com/v2, kind: Foo, metadata: {generateName: c-}, spec: {hostPort: 'k:82'}}"), metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		stored, err := c.Resource(definitions).Get(c.ctx, "foos.example.com", metav1.GetOptions{})
		if err != nil || got == nil {
			t.Fatal(err)
		}
		if versions, _, _ := unstructured.NestedStringSlice(stored.Object, "status", "storedVersions"); slices.Equal(versions, []string{"v1", "v2"}) {
			break
		}
	}
	for _, list := range []struct {
		dynamic.ResourceInterface
		field, want string
	}{{v1, "host", "h"}, {v2, "hostPort", "h:80"}} {
		items, err := list.List(c.ctx, metav1.ListOptions{})
		if err != nil || len(items.Items) < 3 || spec(&items.Items[0], list.field) != list.want {
			t.Errorf("a list of both: %v %v", items, err)
		}
	}
	// Remove a version although objects are stored in it.
	remove := `[{"op":"replace","path":"/status/storedVersions","value":["v2"]}]`
	if _, err := c.Resource(definitions).Patch(c.ctx, "foos.example.com", types.JSONPatchType, []byte(remove), metav1.PatchOptions{}, "status"); err != nil {
		t.Fatal(err)
	}
	remove = `[{"op":"remove","path":"/spec/versions/0"}]`
	if _, err := c.Resource(definitions).Patch(c.ctx, "foos.example.com", types.JSONPatchType, []byte(remove), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	for {
		_, err := v2.Get(c.ctx, "a", metav1.GetOptions{})
		if err == nil || apierrors.IsServiceUnavailable(err) || apierrors.IsNotFound(err) {
			continue // the definition is served shortly after it is stored
		}
		if !apierrors.IsInternalError(err) || !strings.Contains(err.Error(), lost) || !strings.Contains(err.Error(), "from an invalid group/version: example.com/v1") {
			t.Errorf("object of a removed version: %v", err)
		}
		break
	}
	// Deletion does not increment the generation, and waits for the instances regardless of the
	// delete options.
	before, err := c.Resource(definitions).Get(c.ctx, "foos.example.com", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	policy := metav1.DeletePropagationForeground
	w, err := c.Resource(definitions).Watch(c.ctx, metav1.ListOptions{ResourceVersion: before.GetResourceVersion()})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	if err := c.Resource(definitions).Delete(c.ctx, "foos.example.com", metav1.DeleteOptions{PropagationPolicy: &policy}); err != nil {
		t.Fatal(err)
	}
	marked, ok := (<-w.ResultChan()).Object.(*unstructured.Unstructured)
	if !ok || marked.GetDeletionTimestamp() == nil || marked.GetDeletionGracePeriodSeconds() != nil ||
		marked.GetGeneration() != before.GetGeneration() || slices.Contains(marked.GetFinalizers(), metav1.FinalizerDeleteDependents) {
		t.Errorf("marked: %v", marked)
	}
	close(calls)
	if len(calls) == 0 {
		t.Error("the webhook was never called")
	}
}

func spec(obj *unstructured.Unstructured, name string) string {
	s, _, _ := unstructured.NestedString(obj.Object, "spec", name)
	return s
}
