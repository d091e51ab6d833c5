package applyset_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/kubectl/pkg/cmd/apply"
	"sigs.k8s.io/yaml"

	"hyperkube/components/cluster/applyset"
	"hyperkube/components/cluster/internal/testapi"
	"hyperkube/internal/testing/testwait"
)

// parse returns the objects of YAML documents.
func parse(t *testing.T, text string) []*unstructured.Unstructured {
	t.Helper()
	var out []*unstructured.Unstructured
	for doc := range strings.SplitSeq(text, "---\n") {
		obj := &unstructured.Unstructured{}
		if err := yaml.Unmarshal([]byte(doc), &obj.Object); err != nil {
			t.Fatal(err)
		}
		out = append(out, obj)
	}
	return out
}

const (
	configMap = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: NAME, namespace: apps}\ndata: {a: b}\n"
	role      = "apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRole\nmetadata: {name: NAME}\n"
)

// configMaps returns ConfigMaps with the names, in the namespace apps.
func configMaps(t *testing.T, names ...string) []*unstructured.Unstructured {
	t.Helper()
	var out []*unstructured.Unstructured
	for _, name := range names {
		out = append(out, parse(t, strings.ReplaceAll(configMap, "NAME", name))...)
	}
	return out
}

// env is an API server with a set.
type env struct {
	*testing.T
	api *testapi.Server
	set applyset.Set
}

func (e env) apply(objects ...*unstructured.Unstructured) applyset.Result {
	e.Helper()
	r, err := e.api.Client().Apply(e.Context(), e.set, objects)
	if err != nil {
		e.Fatal(err)
	}
	return r
}

// has checks the names of all ConfigMaps in the namespace apps.
func (e env) has(want ...string) {
	e.Helper()
	list, err := e.api.Kube.CoreV1().ConfigMaps("apps").List(e.Context(), metav1.ListOptions{})
	if err != nil {
		e.Fatal(err)
	}
	var got []string
	for i := range list.Items {
		got = append(got, list.Items[i].Name)
	}
	if !slices.Equal(got, want) {
		e.Errorf("ConfigMaps %v, want %v", got, want)
	}
}

func (e env) parent() map[string]string {
	e.Helper()
	cm, err := e.api.Kube.CoreV1().ConfigMaps(applyset.ParentNamespace).Get(e.Context(), e.set.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		e.Fatal(err)
	}
	return cm.Annotations
}

// TestID compares the ID with that of kubectl.
func TestID(t *testing.T) {
	ref := &apply.ApplySetParentRef{Name: "web", Namespace: applyset.ParentNamespace, RESTMapping: &meta.RESTMapping{
		GroupVersionKind: schema.GroupVersionKind{Version: "v1", Kind: "ConfigMap"},
	}}
	if got, want := applyset.ID("web"), apply.NewApplySet(ref, apply.ApplySetTooling{}, nil, nil).ID(); got != want {
		t.Errorf("ID %s, want %s", got, want)
	}
}

// TestApply changes the objects of a set, whose members follow.
func TestApply(t *testing.T) {
	e := env{t, testapi.Start(t), applyset.Set{Name: "set", Data: map[string]string{"file": "a.yaml"}}}
	e.apply(configMaps(t, "a", "b")...)
	e.has("a", "b")
	e.apply(append(parse(t, strings.ReplaceAll(role, "NAME", "r")), configMaps(t, "b", "c")...)...)
	e.has("b", "c")
	p := e.parent()
	for key, want := range map[string]string{
		apply.ApplySetGKsAnnotation:                  "ClusterRole.rbac.authorization.k8s.io,ConfigMap",
		apply.ApplySetAdditionalNamespacesAnnotation: "apps",
	} {
		if p[key] != want {
			t.Errorf("annotation %s: %s, want %s", key, p[key], want)
		}
	}
	if !strings.HasPrefix(p[apply.ApplySetToolingAnnotation], "hyperkube/v1.") || p[applyset.AppliedAnnotation] == "" {
		t.Errorf("annotations %v", p)
	}
	e.apply(configMaps(t, "c")...)
	e.has("c")
	if _, err := e.api.Kube.RbacV1().ClusterRoles().Get(t.Context(), "r", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("ClusterRole: %v", err)
	}
	if got := e.parent()[apply.ApplySetGKsAnnotation]; got != "ConfigMap" {
		t.Errorf("kinds %s", got)
	}
	if err := e.api.Client().Delete(t.Context(), e.set); err != nil {
		t.Fatal(err)
	}
	e.has()
	if e.parent() != nil {
		t.Error("the parent exists")
	}
}

// TestForeign checks that objects of other clients survive, whether the set leaves them unchanged or not.
func TestForeign(t *testing.T) {
	api := testapi.Start(t)
	for _, keep := range []bool{true, false} {
		e := env{t, api, applyset.Set{Name: "set", KeepForeign: keep}}
		own := configMaps(t, "own")[0]
		own.Object["data"] = map[string]any{"a": "own"}
		client := api.Dynamic.Resource(schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}).Namespace("apps")
		if _, err := client.Create(t.Context(), own, metav1.CreateOptions{FieldManager: "kubectl-create"}); err != nil {
			t.Fatal(err)
		}
		r := e.apply(configMaps(t, "own", "other")...)
		if !r.Complete || len(r.Foreign) != 1 || r.Foreign[0].Name != "own" {
			t.Errorf("result %+v", r)
		}
		got, err := client.Get(t.Context(), "own", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		want := map[bool]string{true: "own", false: "b"}[keep]
		if value, _, _ := unstructured.NestedString(got.Object, "data", "a"); value != want {
			t.Errorf("data %q, want %q", value, want)
		}
		e.has("other", "own")
		if err := api.Client().Delete(t.Context(), e.set); err != nil {
			t.Fatal(err)
		}
		e.has("own")
		if err := client.Delete(t.Context(), "own", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
}

// TestOwnership checks which existing objects become members, and which members leave the set alive.
func TestOwnership(t *testing.T) {
	api := testapi.Start(t)
	e := env{t, api, applyset.Set{Name: "set", KeepForeign: true, Adopt: true}}
	client := api.Dynamic.Resource(schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}).Namespace("apps")
	// Earlier versions applied objects without the label.
	if _, err := client.Apply(t.Context(), "former", configMaps(t, "former")[0], metav1.ApplyOptions{FieldManager: "hyperkube"}); err != nil {
		t.Fatal(err)
	}
	if r := e.apply(configMaps(t, "former", "released")...); len(r.Foreign) != 0 {
		t.Errorf("foreign %v", r.Foreign)
	}
	other := env{t, api, applyset.Set{Name: "other"}}
	_, err := api.Client().Apply(t.Context(), other.set, configMaps(t, "former"))
	var of *applyset.Error
	if !errors.As(err, &of) || of.Ref.Name != "former" || !strings.Contains(err.Error(), "member of another ApplySet") {
		t.Errorf("applying a member of another set: %v", err)
	}
	e.set.Release = func(obj *unstructured.Unstructured) bool { return obj.GetName() == "released" }
	if err := api.Client().Delete(t.Context(), e.set); err != nil {
		t.Fatal(err)
	}
	e.has("released")
	if got, err := client.Get(t.Context(), "released", metav1.GetOptions{}); err != nil || len(got.GetLabels()) != 0 {
		t.Errorf("labels %v, %v", got.GetLabels(), err)
	}
	// A ConfigMap of another client is not used as the parent.
	if _, err := api.Dynamic.Resource(schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}).Namespace(applyset.ParentNamespace).
		Create(t.Context(), &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": "set"}}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := api.Client().Apply(t.Context(), e.set, configMaps(t, "new")); !errors.Is(err, applyset.ErrForeignParent) {
		t.Errorf("a parent of another client: %v", err)
	}
}

// TestCustomResources applies and prunes a definition together with an object of its kind.
func TestCustomResources(t *testing.T) {
	e := env{t, testapi.Start(t), applyset.Set{Name: "set"}}
	objects := parse(t, testapi.Widgets+"---\napiVersion: example.com/v1\nkind: Widget\nmetadata: {name: w}\n")
	testwait.Succeed(t, "definition and object", func() error {
		_, err := e.api.Client().Apply(t.Context(), e.set, objects)
		return err
	})
	if got := e.parent()[apply.ApplySetAdditionalNamespacesAnnotation]; got != "default" {
		t.Errorf("namespaces %q", got)
	}
	e.apply(configMaps(t, "a")...)
	widgets := schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "widgets"}
	testwait.Succeed(t, "pruning", func() error {
		_, err := e.api.Dynamic.Resource(widgets).Namespace("default").Get(t.Context(), "w", metav1.GetOptions{})
		if err == nil {
			return errors.New("the custom resource exists")
		}
		return nil
	})
	if got := e.parent()[apply.ApplySetGKsAnnotation]; got != "ConfigMap" {
		t.Errorf("kinds %s", got)
	}
}

// limited is a client that fails after a number of writes.
type limited struct {
	dynamic.Interface
	writes *int
	mu     *sync.Mutex // guards writes
}

var errKilled = errors.New("killed")

func (l limited) Resource(r schema.GroupVersionResource) dynamic.NamespaceableResourceInterface {
	return limitedResource{l.Interface.Resource(r), l.Interface.Resource(r), l.writes, l.mu}
}

type limitedResource struct {
	dynamic.NamespaceableResourceInterface
	in     dynamic.ResourceInterface
	writes *int
	mu     *sync.Mutex // guards writes
}

func (l limitedResource) Namespace(ns string) dynamic.ResourceInterface {
	return limitedResource{l.NamespaceableResourceInterface, l.NamespaceableResourceInterface.Namespace(ns), l.writes, l.mu}
}

func (l limitedResource) spend() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if *l.writes--; *l.writes < 0 {
		return errKilled
	}
	return nil
}

func (l limitedResource) Get(ctx context.Context, name string, o metav1.GetOptions, sub ...string) (*unstructured.Unstructured, error) {
	return l.in.Get(ctx, name, o, sub...)
}

func (l limitedResource) Apply(ctx context.Context, name string, obj *unstructured.Unstructured, o metav1.ApplyOptions, sub ...string) (*unstructured.Unstructured, error) {
	if err := l.spend(); err != nil {
		return nil, err
	}
	return l.in.Apply(ctx, name, obj, o, sub...)
}

func (l limitedResource) Delete(ctx context.Context, name string, o metav1.DeleteOptions, sub ...string) error {
	if err := l.spend(); err != nil {
		return err
	}
	return l.in.Delete(ctx, name, o, sub...)
}

// TestKill stops a change of a set after each possible number of writes, and then repeats or reverts it. In
// both cases no other object is left.
func TestKill(t *testing.T) {
	e := env{t, testapi.Start(t), applyset.Set{Name: "set"}}
	apply := func(objects ...*unstructured.Unstructured) func(*applyset.Client) error {
		return func(c *applyset.Client) error {
			_, err := c.Apply(t.Context(), e.set, objects)
			return err
		}
	}
	before := apply(append(parse(t, strings.ReplaceAll(role, "NAME", "r")), configMaps(t, "a", "b")...)...)
	remove := func(c *applyset.Client) error { return c.Delete(t.Context(), e.set) }
	for _, c := range []struct {
		name         string
		change, then func(*applyset.Client) error
		configMaps   []string
		roles        int
	}{
		{"change", apply(configMaps(t, "b", "c")...), apply(configMaps(t, "b", "c")...), []string{"b", "c"}, 0},
		{"change and revert", apply(configMaps(t, "b", "c")...), before, []string{"a", "b"}, 1},
		{"delete", remove, remove, nil, 0},
		{"delete and revert", remove, before, []string{"a", "b"}, 1},
	} {
		for writes, done := 0, false; !done; writes++ {
			if err := before(e.api.Client()); err != nil {
				t.Fatal(err)
			}
			left := writes
			err := c.change(&applyset.Client{Dynamic: limited{e.api.Dynamic, &left, &sync.Mutex{}}, Mapper: e.api.Mapper, FieldManager: "hyperkube"})
			if done = err == nil; done && writes < 4 {
				t.Errorf("%s: complete after %d writes", c.name, writes)
			}
			if err != nil && !errors.Is(err, errKilled) {
				t.Fatal(err)
			}
			if err := c.then(e.api.Client()); err != nil {
				t.Fatal(err)
			}
			e.has(c.configMaps...)
			roles, err := e.api.Kube.RbacV1().ClusterRoles().List(t.Context(), metav1.ListOptions{})
			if err != nil || len(roles.Items) != c.roles {
				t.Errorf("%s, after %d writes: %d ClusterRoles, %v", c.name, writes, len(roles.Items), err)
			}
		}
	}
}
