package resourcequota

import (
	"context"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	quotav1 "k8s.io/apiserver/pkg/quota/v1"
	discoveryfake "k8s.io/client-go/discovery/fake"
	metadatafake "k8s.io/client-go/metadata/fake"
	"k8s.io/client-go/tools/cache"

	"hyperkube/components/controllers/internal/controltest"
	"hyperkube/internal/testing/testwait"
)

// list parses space-separated "name=quantity" pairs.
func list(t *testing.T, words string) corev1.ResourceList {
	t.Helper()
	out := corev1.ResourceList{}
	for w := range strings.FieldsSeq(words) {
		name, q, _ := strings.Cut(w, "=")
		out[corev1.ResourceName(name)] = resource.MustParse(q)
	}
	return out
}

func quotaOf(t *testing.T, hard, used string, scopes ...corev1.ResourceQuotaScope) *corev1.ResourceQuota {
	q := &corev1.ResourceQuota{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "q"},
		Spec:       corev1.ResourceQuotaSpec{Hard: list(t, hard), Scopes: scopes},
	}
	if used != "" {
		q.Status = corev1.ResourceQuotaStatus{Hard: list(t, hard), Used: list(t, used)}
	}
	return q
}

func read(t *testing.T, f *controltest.Fixture) *corev1.ResourceQuota {
	t.Helper()
	q, err := f.Kube.CoreV1().ResourceQuotas("ns").Get(t.Context(), "q", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return q
}

func TestCount(t *testing.T) {
	pod := func(ns, name string, phase corev1.PodPhase, requests string) *corev1.Pod {
		p := controltest.Pod(ns, name, nil, phase)
		p.Spec.Containers = []corev1.Container{{Name: "c", Resources: corev1.ResourceRequirements{Requests: list(t, requests)}}}
		return p
	}
	for _, tc := range []struct {
		name  string
		quota *corev1.ResourceQuota
		want  string
		write bool
	}{
		{"new", quotaOf(t, "pods=5 requests.cpu=4 count/pods=9 configmaps=3 secrets=1 services=1 services.nodeports=1 persistentvolumeclaims=2 requests.storage=1Gi resourcequotas=1", ""),
			"pods=2 requests.cpu=500m count/pods=3 configmaps=1 secrets=1 services=1 services.nodeports=0 persistentvolumeclaims=0 requests.storage=0 resourcequotas=1", true},
		{"usage already correct", quotaOf(t, "pods=5", "pods=2"), "pods=2", false},
		{"usage above the limit", quotaOf(t, "pods=1", "pods=7"), "pods=2", true},
		{"with a scope", quotaOf(t, "pods=5", "", corev1.ResourceQuotaScopeBestEffort), "pods=1", true},
		{"unknown resource", quotaOf(t, "count/unknown.example.com=1 pods=1", ""), "pods=2", true},
		{"another resource", quotaOf(t, "count/things.example.com=5", ""), "count/things.example.com=2", true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := controltest.New(t, tc.quota,
				pod("ns", "a", corev1.PodRunning, "cpu=500m"), pod("ns", "b", corev1.PodPending, ""), pod("ns", "done", corev1.PodSucceeded, "cpu=1"), pod("other", "c", corev1.PodRunning, "cpu=1"),
				&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "x"}},
				&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "x"}},
				&corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "x"}})
			c, err := New(f.Env, Config{Discovery: discovered(f), Metadata: things(t, "ns/1", "ns/2", "other/1")})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(c.Close)
			ctx, cancel := context.WithCancel(t.Context())
			defer func() { cancel(); c.informers.Wait() }()
			c.Add("ns/q")
			if err := c.Drain(ctx); err != nil {
				t.Fatal(err)
			}
			q := read(t, f)
			if !quotav1.Equals(q.Status.Used, list(t, tc.want)) || !quotav1.Equals(q.Status.Hard, tc.quota.Spec.Hard) {
				t.Errorf("got %v, want %s", q.Status, tc.want)
			}
			if n := len(f.Writes()); (n > 0) != tc.write {
				t.Errorf("%d writes", n)
			}
		})
	}
}

func discovered(f *controltest.Fixture) *discoveryfake.FakeDiscovery {
	f.Kube.Resources = []*metav1.APIResourceList{{GroupVersion: "example.com/v1", APIResources: []metav1.APIResource{
		{Name: "things", Kind: "Thing", Namespaced: true, Verbs: metav1.Verbs{"create", "delete", "list", "watch"}},
	}}}
	d, _ := f.Kube.Discovery().(*discoveryfake.FakeDiscovery)
	return d
}

func things(t *testing.T, names ...string) *metadatafake.FakeMetadataClient {
	t.Helper()
	s := runtime.NewScheme()
	if err := metav1.AddMetaToScheme(s); err != nil {
		t.Fatal(err)
	}
	gvk := schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Thing"}
	var objs []runtime.Object
	for _, n := range names {
		ns, name, _ := strings.Cut(n, "/")
		o := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name}}
		o.SetGroupVersionKind(gvk)
		objs = append(objs, o)
	}
	return metadatafake.NewSimpleMetadataClient(s, objs...)
}

// TestReplenish: which events trigger a recount.
func TestReplenish(t *testing.T) {
	p := controltest.Pod("ns", "a", nil, corev1.PodRunning)
	ended, labelled, limited := p.DeepCopy(), p.DeepCopy(), p.DeepCopy()
	limited.Spec.ActiveDeadlineSeconds = new(int64)
	ended.Status.Phase = corev1.PodFailed
	labelled.Labels = map[string]string{"a": "b"}
	elsewhere := p.DeepCopy()
	elsewhere.Namespace = "other"
	for _, tc := range []struct {
		name, hard string
		old, cur   *corev1.Pod // if cur is nil, old was deleted
		want       int
		scopes     []corev1.ResourceQuotaScope
	}{
		{"in another scope", "pods=1", p, limited, 1, []corev1.ResourceQuotaScope{corev1.ResourceQuotaScopeNotTerminating}},
		{"gets a deadline, any scope", "pods=1", p, limited, 0, nil},
		{"deleted", "pods=1", p, nil, 1, nil},
		{"deleted in another namespace", "pods=1", elsewhere, nil, 0, nil},
		{"deleted, but not limited", "secrets=1", p, nil, 0, nil},
		{"terminated", "pods=1", p, ended, 1, nil},
		{"labelled", "pods=1", p, labelled, 0, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := controltest.New(t, quotaOf(t, tc.hard, "pods=0", tc.scopes...))
			c, err := New(f.Env, Config{})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(c.Close)
			h := c.replenish(c.evaluators.Get(corev1.Resource("pods")))
			if tc.cur == nil {
				h.OnDelete(tc.old)
			} else {
				h.OnUpdate(tc.old, tc.cur)
			}
			if got := c.Len(); got != tc.want {
				t.Errorf("%d quotas enqueued, want %d", got, tc.want)
			}
		})
	}
}

// TestUndefined: a custom resource is no longer watched after its definition is deleted, and is
// counted again as soon as it is recreated.
func TestUndefined(t *testing.T) {
	gr := schema.GroupResource{Group: "example.com", Resource: "things"}
	f := controltest.New(t, quotaOf(t, "count/things.example.com=9", ""))
	definition := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: gr.String()}}
	definition.SetGroupVersionKind(definitions.WithKind("CustomResourceDefinition"))
	metadata := things(t, "ns/1")
	where := definitions.WithResource("customresourcedefinitions")
	if err := metadata.Tracker().Create(where, definition, ""); err != nil {
		t.Fatal(err)
	}
	c, err := New(f.Env, Config{Discovery: discovered(f), Metadata: metadata})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	ctx, cancel := context.WithCancel(t.Context())
	defer func() { cancel(); c.informers.Wait() }()
	count := func() {
		t.Helper()
		c.Add("ns/q")
		if err := c.Drain(ctx); err != nil {
			t.Fatal(err)
		}
	}
	informer := func() cache.SharedIndexInformer {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.dynamic[gr].informer
	}
	count()
	first := informer()
	if first == nil || c.evaluators.Get(gr) == nil {
		t.Fatal("resource is not counted")
	}
	if err := metadata.Tracker().Delete(where, "", gr.String()); err != nil {
		t.Fatal(err)
	}
	testwait.Until(t, "it to be asked for", func() bool {
		return first.IsStopped() && informer() == nil && c.evaluators.Get(gr) == nil && c.Len() == 1
	})
	if err := metadata.Tracker().Create(where, definition, ""); err != nil {
		t.Fatal(err)
	}
	count()
	if again := informer(); again == nil || again == first || c.evaluators.Get(gr) == nil {
		t.Error("recreated resource is not counted")
	}
}
