package garbagecollector

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/apimachinery/pkg/watch"
	fakediscovery "k8s.io/client-go/discovery/fake"
	"k8s.io/client-go/metadata"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/record"

	"hyperkube/components/controllers/internal/control"
)

var (
	mapsGVR  = schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}
	mapsKind = schema.GroupVersionKind{Version: "v1", Kind: "ConfigMap"}
	nodesGVR = schema.GroupVersionResource{Version: "v1", Resource: "nodes"}
	nodeKind = schema.GroupVersionKind{Version: "v1", Kind: "Node"}
	// widgets are custom resources, which do not support strategic merge patch.
	widgetsGVR = schema.GroupVersionResource{Group: "x.io", Version: "v1", Resource: "widgets"}
	widgetKind = schema.GroupVersionKind{Group: "x.io", Version: "v1", Kind: "Widget"}
)

var lists = []*metav1.APIResourceList{
	{GroupVersion: "v1", APIResources: []metav1.APIResource{
		{Name: "configmaps", Kind: "ConfigMap", Namespaced: true, Verbs: []string{"delete", "list", "watch"}},
		{Name: "nodes", Kind: "Node", Verbs: []string{"delete", "list", "watch"}},
		{Name: "events", Kind: "Event", Namespaced: true, Verbs: []string{"delete", "list", "watch"}},
		{Name: "pods/status", Kind: "Pod", Namespaced: true, Verbs: []string{"get"}},
	}},
	{GroupVersion: "x.io/v1", APIResources: []metav1.APIResource{{Name: "widgets", Kind: "Widget", Namespaced: true, Verbs: []string{"delete", "list", "watch"}}}},
}

// fakeAPI stores metadata and deletes objects like the API server. The collector observes changes
// immediately.
type fakeAPI struct {
	mu   sync.Mutex
	objs map[string]*metav1.PartialObjectMetadata
	kind map[string]schema.GroupVersionKind
	rv   int
	c    *Collector
	// blind hides changes from the collector.
	blind bool
}

func newAPI(t *testing.T) *fakeAPI {
	t.Helper()
	api := &fakeAPI{objs: map[string]*metav1.PartialObjectMetadata{}, kind: map[string]schema.GroupVersionKind{}}
	c, err := New(control.Env{Events: record.NewFakeRecorder(100)}, Config{
		Discovery: &fakediscovery.FakeDiscovery{Fake: &clienttesting.Fake{Resources: lists}},
		Metadata:  api,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.deletes.Close)
	t.Cleanup(c.orphans.Close)
	served, err := discoverAll(c.cfg.Discovery)
	if err != nil {
		t.Fatal(err)
	}
	c.served = served
	c.monitorsStarted = true
	close(c.monitorsSynced)
	api.c = c
	return api
}

func place(gvr schema.GroupVersionResource, ns, name string) string {
	return gvr.Resource + "/" + ns + "/" + name
}

func (a *fakeAPI) put(gvr schema.GroupVersionResource, kind schema.GroupVersionKind, m *metav1.PartialObjectMetadata) {
	a.mu.Lock()
	a.rv++
	m.ResourceVersion = fmt.Sprint(a.rv)
	key := place(gvr, m.Namespace, m.Name)
	gone := m.DeletionTimestamp != nil && len(m.Finalizers) == 0
	if gone {
		delete(a.objs, key)
	} else {
		a.objs[key] = m
	}
	a.kind[key] = kind
	a.mu.Unlock()
	if a.blind {
		return
	}
	if gone {
		a.c.graph.forget(m.UID)
	} else {
		a.c.graph.observe(identity{gvk: kind, namespace: m.Namespace, name: m.Name, uid: m.UID}, m)
	}
}

func (a *fakeAPI) kindAt(key string) schema.GroupVersionKind {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.kind[key]
}

func (a *fakeAPI) Resource(gvr schema.GroupVersionResource) metadata.Getter {
	return &fakeResource{api: a, gvr: gvr}
}

type fakeResource struct {
	api *fakeAPI
	gvr schema.GroupVersionResource
	ns  string
	metadata.ResourceInterface
}

func (r *fakeResource) Namespace(ns string) metadata.ResourceInterface {
	return &fakeResource{api: r.api, gvr: r.gvr, ns: ns}
}

func (r *fakeResource) Get(_ context.Context, name string, _ metav1.GetOptions, _ ...string) (*metav1.PartialObjectMetadata, error) {
	r.api.mu.Lock()
	defer r.api.mu.Unlock()
	m := r.api.objs[place(r.gvr, r.ns, name)]
	if m == nil {
		return nil, apierrors.NewNotFound(r.gvr.GroupResource(), name)
	}
	return m.DeepCopy(), nil
}

func (r *fakeResource) Watch(context.Context, metav1.ListOptions) (watch.Interface, error) {
	return watch.NewFake(), nil
}

func (r *fakeResource) Delete(ctx context.Context, name string, opts metav1.DeleteOptions, _ ...string) error {
	m, err := r.Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	if p := opts.Preconditions; p != nil && (p.UID != nil && *p.UID != m.UID || p.ResourceVersion != nil && *p.ResourceVersion != m.ResourceVersion) {
		return apierrors.NewConflict(r.gvr.GroupResource(), name, fmt.Errorf("precondition"))
	}
	m.Finalizers = slices.DeleteFunc(m.Finalizers, func(f string) bool {
		return f == metav1.FinalizerDeleteDependents || f == metav1.FinalizerOrphanDependents
	})
	if opts.PropagationPolicy != nil {
		switch *opts.PropagationPolicy {
		case metav1.DeletePropagationForeground:
			m.Finalizers = append(m.Finalizers, metav1.FinalizerDeleteDependents)
		case metav1.DeletePropagationOrphan:
			m.Finalizers = append(m.Finalizers, metav1.FinalizerOrphanDependents)
		}
	}
	now := metav1.Now()
	m.DeletionTimestamp = &now
	r.api.put(r.gvr, r.api.kindAt(place(r.gvr, r.ns, name)), m)
	return nil
}

func (r *fakeResource) Patch(ctx context.Context, name string, kind types.PatchType, patch []byte, _ metav1.PatchOptions, _ ...string) (*metav1.PartialObjectMetadata, error) {
	if kind == types.StrategicMergePatchType && r.gvr == widgetsGVR {
		return nil, &apierrors.StatusError{ErrStatus: metav1.Status{Reason: metav1.StatusReasonUnsupportedMediaType, Code: 415}}
	}
	m, err := r.Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	old, err := json.Marshal(m)
	if err != nil {
		return nil, err
	}
	var out []byte
	if kind == types.StrategicMergePatchType {
		out, err = strategicpatch.StrategicMergePatch(old, patch, m)
	} else {
		out, err = jsonpatch.MergePatch(old, patch)
	}
	if err != nil {
		return nil, err
	}
	next := &metav1.PartialObjectMetadata{}
	if err := json.Unmarshal(out, next); err != nil {
		return nil, err
	}
	if next.UID != m.UID || next.ResourceVersion != m.ResourceVersion {
		return nil, apierrors.NewConflict(r.gvr.GroupResource(), name, fmt.Errorf("changed"))
	}
	r.api.put(r.gvr, r.api.kindAt(place(r.gvr, r.ns, name)), next)
	return next, nil
}

// settle processes keys until nothing is queued. Delayed retries are ignored.
func (a *fakeAPI) settle(t *testing.T) {
	t.Helper()
	for range 10000 {
		if a.c.deletes.Len()+a.c.orphans.Len() == 0 {
			return
		}
		if err := a.c.deletes.Drain(context.Background()); err != nil {
			t.Fatal(err)
		}
		if err := a.c.orphans.Drain(context.Background()); err != nil {
			t.Fatal(err)
		}
	}
	t.Fatal("keys are enqueued endlessly")
}

func (a *fakeAPI) names() []string {
	return slices.Sorted(maps.Keys(a.objs))
}

func object(ns, name string, owners ...metav1.OwnerReference) *metav1.PartialObjectMetadata {
	return &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name, UID: types.UID(ns + name), OwnerReferences: owners}}
}

func ref(kind schema.GroupVersionKind, ns, name string, block bool) metav1.OwnerReference {
	return metav1.OwnerReference{APIVersion: kind.GroupVersion().String(), Kind: kind.Kind, Name: name, UID: types.UID(ns + name), BlockOwnerDeletion: &block}
}

func TestDiscovery(t *testing.T) {
	a := newAPI(t)
	if n := len(a.c.served.deletable); n != 3 {
		t.Errorf("%d resources to watch: %v", n, a.c.served.deletable)
	}
}

func TestPolicies(t *testing.T) {
	for _, tc := range []struct {
		policy metav1.DeletionPropagation
		gvr    schema.GroupVersionResource
		kind   schema.GroupVersionKind
		left   []string
	}{
		{metav1.DeletePropagationBackground, mapsGVR, mapsKind, nil},
		{metav1.DeletePropagationForeground, mapsGVR, mapsKind, nil},
		{metav1.DeletePropagationOrphan, mapsGVR, mapsKind, []string{"configmaps/ns/child", "configmaps/ns/grandchild"}},
		{metav1.DeletePropagationOrphan, widgetsGVR, widgetKind, []string{"widgets/ns/child", "widgets/ns/grandchild"}},
		{metav1.DeletePropagationForeground, widgetsGVR, widgetKind, nil},
	} {
		t.Run(string(tc.policy)+tc.kind.Kind, func(t *testing.T) {
			a := newAPI(t)
			// The dependents are observed before their owners.
			a.put(tc.gvr, tc.kind, object("ns", "grandchild", ref(tc.kind, "ns", "child", true)))
			a.put(tc.gvr, tc.kind, object("ns", "child", ref(tc.kind, "ns", "parent", true)))
			a.put(tc.gvr, tc.kind, object("ns", "parent"))
			a.settle(t)
			if len(a.objs) != 3 {
				t.Fatalf("left %v", a.names())
			}
			if err := a.Resource(tc.gvr).Namespace("ns").Delete(context.Background(), "parent", metav1.DeleteOptions{PropagationPolicy: &tc.policy}); err != nil {
				t.Fatal(err)
			}
			a.settle(t)
			if got := a.names(); !slices.Equal(got, tc.left) {
				t.Errorf("left %v, want %v", got, tc.left)
			}
			for k, m := range a.objs {
				if strings.HasSuffix(k, "/child") && len(m.OwnerReferences) != 0 {
					t.Errorf("%s still refers to %v", k, m.OwnerReferences)
				}
			}
		})
	}
}

func TestForegroundWaits(t *testing.T) {
	a := newAPI(t)
	held := object("ns", "held", ref(mapsKind, "ns", "owner", true))
	held.Finalizers = []string{"x.io/hold"}
	free := object("ns", "free", ref(mapsKind, "ns", "owner", false))
	free.Finalizers = []string{"x.io/hold"}
	for _, m := range []*metav1.PartialObjectMetadata{object("ns", "owner"), held, free} {
		a.put(mapsGVR, mapsKind, m)
	}
	foreground := metav1.DeletePropagationForeground
	if err := a.Resource(mapsGVR).Namespace("ns").Delete(context.Background(), "owner", metav1.DeleteOptions{PropagationPolicy: &foreground}); err != nil {
		t.Fatal(err)
	}
	a.settle(t)
	if len(a.objs) != 3 {
		t.Fatalf("left %v: the owner did not wait", a.names())
	}
	m := a.objs["configmaps/ns/held"].DeepCopy()
	m.Finalizers = nil
	a.put(mapsGVR, mapsKind, m)
	a.settle(t)
	if got := a.names(); !slices.Equal(got, []string{"configmaps/ns/free"}) {
		t.Errorf("left %v: only the dependent that does not block may remain", got)
	}
}

// TestNoBlockingDependents: an owner stops waiting for a dependent that no longer blocks its deletion or
// no longer refers to it.
func TestNoBlockingDependents(t *testing.T) {
	for name, owners := range map[string][]metav1.OwnerReference{
		"does not block": {ref(mapsKind, "ns", "owner", false)},
		"has no owner":   nil,
	} {
		a := newAPI(t)
		held := object("ns", "held", ref(mapsKind, "ns", "owner", true))
		held.Finalizers = []string{"x.io/hold"}
		a.put(mapsGVR, mapsKind, object("ns", "owner"))
		a.put(mapsGVR, mapsKind, held)
		foreground := metav1.DeletePropagationForeground
		if err := a.Resource(mapsGVR).Namespace("ns").Delete(t.Context(), "owner", metav1.DeleteOptions{PropagationPolicy: &foreground}); err != nil {
			t.Fatal(err)
		}
		a.settle(t)
		if len(a.objs) != 2 {
			t.Fatalf("left %v: the owner did not wait", a.names())
		}
		m := a.objs["configmaps/ns/held"].DeepCopy()
		m.OwnerReferences = owners
		a.put(mapsGVR, mapsKind, m)
		a.settle(t)
		if got := a.names(); !slices.Equal(got, []string{"configmaps/ns/held"}) {
			t.Errorf("%s: left %v", name, got)
		}
	}
}

func TestBadOwners(t *testing.T) {
	a := newAPI(t)
	a.put(mapsGVR, mapsKind, object("other", "owner"))
	// An owner in another namespace is not a valid owner.
	a.put(mapsGVR, mapsKind, object("ns", "foreign", ref(mapsKind, "other", "owner", false)))
	// A reference with a wrong name is not valid either, and does not remove the owner's other
	// dependents from the graph.
	a.put(mapsGVR, mapsKind, object("ns", "good", ref(mapsKind, "ns", "right", false)))
	wrong := ref(mapsKind, "ns", "right", false)
	wrong.Name = "wrong"
	a.put(mapsGVR, mapsKind, object("ns", "bad", wrong))
	a.put(mapsGVR, mapsKind, object("ns", "right"))
	// A cluster-scoped object cannot have a namespaced owner; it is kept.
	a.put(nodesGVR, nodeKind, object("", "node", ref(mapsKind, "ns", "absent", false)))
	a.settle(t)
	if got, want := a.names(), []string{"configmaps/ns/good", "configmaps/ns/right", "configmaps/other/owner", "nodes//node"}; !slices.Equal(got, want) {
		t.Errorf("left %v, want %v", got, want)
	}
	events := a.c.env.Events.(*record.FakeRecorder).Events
	select {
	case e := <-events:
		if !strings.HasPrefix(e, corev1.EventTypeWarning+" OwnerRefInvalidNamespace ") {
			t.Errorf("event %q", e)
		}
	default:
		t.Error("no event about the owner of another namespace")
	}
	background := metav1.DeletePropagationBackground
	if err := a.Resource(mapsGVR).Namespace("ns").Delete(context.Background(), "right", metav1.DeleteOptions{PropagationPolicy: &background}); err != nil {
		t.Fatal(err)
	}
	a.settle(t)
	if got := a.names(); slices.Contains(got, "configmaps/ns/good") {
		t.Errorf("left %v", got)
	}
}

// TestAgainstModel deletes random objects of random graphs, and compares the remaining objects with
// those that a naive fixed point iteration computes.
func TestAgainstModel(t *testing.T) {
	policies := []metav1.DeletionPropagation{metav1.DeletePropagationBackground, metav1.DeletePropagationForeground, metav1.DeletePropagationOrphan}
	for round := range 300 {
		r := rand.New(rand.NewPCG(uint64(round), 5))
		a := newAPI(t)
		model := map[string][]string{} // the owners of each object
		n := 3 + r.IntN(12)
		var all []*metav1.PartialObjectMetadata
		for i := range n {
			name := fmt.Sprint("o", i)
			var owners []string
			var refs []metav1.OwnerReference
			for j := range i {
				if r.IntN(4) == 0 {
					owner := fmt.Sprint("o", j)
					owners = append(owners, owner)
					refs = append(refs, ref(mapsKind, "ns", owner, r.IntN(2) == 0))
				}
			}
			model[name] = owners
			all = append(all, object("ns", name, refs...))
		}
		// Observe the objects in random order, like informers of several resources do. All objects
		// exist in the API before the first is observed.
		a.blind = true
		for _, m := range all {
			a.put(mapsGVR, mapsKind, m)
		}
		a.blind = false
		r.Shuffle(n, func(i, j int) { all[i], all[j] = all[j], all[i] })
		for _, m := range all {
			a.c.graph.observe(identity{gvk: mapsKind, namespace: "ns", name: m.Name, uid: m.UID}, m)
		}
		a.settle(t)
		for range 1 + r.IntN(4) {
			victim, policy := fmt.Sprint("o", r.IntN(n)), policies[r.IntN(3)]
			if _, there := model[victim]; !there {
				continue
			}
			if err := a.Resource(mapsGVR).Namespace("ns").Delete(context.Background(), victim, metav1.DeleteOptions{PropagationPolicy: &policy}); err != nil {
				t.Fatal(err)
			}
			a.settle(t)
			if policy == metav1.DeletePropagationOrphan {
				for k, owners := range model {
					model[k] = slices.DeleteFunc(owners, func(o string) bool { return o == victim })
				}
			}
			delete(model, victim)
			for again := true; again; {
				again = false
				for k, owners := range model {
					if len(owners) > 0 && !slices.ContainsFunc(owners, func(o string) bool { _, ok := model[o]; return ok }) {
						delete(model, k)
						again = true
					}
				}
			}
			// Remaining objects lose their references to deleted owners.
			for k, owners := range model {
				model[k] = slices.DeleteFunc(owners, func(o string) bool { _, ok := model[o]; return !ok })
			}
			var want []string
			for k := range model {
				want = append(want, "configmaps/ns/"+k)
			}
			slices.Sort(want)
			if got := a.names(); !slices.Equal(got, want) {
				t.Fatalf("round %d: after %s of %s left %v, want %v", round, policy, victim, got, want)
			}
		}
	}
}

// TestRecreatedOwner: a dependent is deleted although an object with its owner's name exists, because
// that object was recreated with another UID.
func TestRecreatedOwner(t *testing.T) {
	api := newAPI(t)
	object := func(uid types.UID, version string) *metav1.PartialObjectMetadata {
		return &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "o", UID: uid, ResourceVersion: version}}
	}
	h := api.c.handler(mapsKind)
	h.OnAdd(object("one", "1"), false)
	h.OnUpdate(object("one", "1"), object("two", "2"))
	_, one := api.c.graph.get("one")
	_, two := api.c.graph.get("two")
	if one || !two {
		t.Errorf("former object in the graph: %v, current object in the graph: %v", one, two)
	}
}

// TestLeftAlone: if one owner of a cluster-scoped object cannot be looked up, no owner reference is
// removed.
func TestLeftAlone(t *testing.T) {
	a := newAPI(t)
	a.put(nodesGVR, nodeKind, object("", "node", ref(nodeKind, "", "gone", false), ref(mapsKind, "ns", "absent", false)))
	a.settle(t)
	m := a.objs["nodes//node"]
	if m == nil || len(m.OwnerReferences) != 2 {
		t.Errorf("left %+v", m)
	}
}

// TestOrphansFirst: an object with both the orphan and the foregroundDeletion finalizer orphans its
// dependents.
func TestOrphansFirst(t *testing.T) {
	a := newAPI(t)
	a.put(mapsGVR, mapsKind, object("ns", "child", ref(mapsKind, "ns", "owner", true)))
	owner := object("ns", "owner")
	owner.Finalizers = []string{metav1.FinalizerDeleteDependents, metav1.FinalizerOrphanDependents}
	now := metav1.Now()
	owner.DeletionTimestamp = &now
	a.put(mapsGVR, mapsKind, owner)
	a.settle(t)
	if got := a.names(); !slices.Equal(got, []string{"configmaps/ns/child"}) {
		t.Errorf("left %v", got)
	}
}

// TestUnseenOwner: the dependents of an owner that no monitor observes are deleted when the owner
// is found to be absent.
func TestUnseenOwner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAPI(t)
		defer func() {
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			for _, l := range []*control.Loop{a.c.deletes, a.c.orphans} {
				if err := l.Run(ctx); err != nil {
					t.Error(err)
				}
			}
		}()
		a.blind = true
		a.put(mapsGVR, mapsKind, object("ns", "owner"))
		a.blind = false
		a.put(mapsGVR, mapsKind, object("ns", "child", ref(mapsKind, "ns", "owner", true)))
		a.settle(t)
		delete(a.objs, place(mapsGVR, "ns", "owner"))
		time.Sleep(virtualRecheck)
		synctest.Wait()
		a.settle(t)
		if got := a.names(); len(got) != 0 {
			t.Errorf("left %v", got)
		}
	})
}
