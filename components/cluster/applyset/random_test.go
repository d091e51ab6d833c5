package applyset_test

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
	"k8s.io/kubectl/pkg/cmd/apply"

	"hyperkube/components/cluster/applyset"
	"hyperkube/components/cluster/internal/testapi"
)

// model is what a cluster with sets must contain.
type model struct {
	// foreign are the objects that the user has created. They survive all changes of sets.
	foreign map[string]bool
	// members are the members of the sets that were changed completely.
	members map[string]map[string]bool
	// uncertain are the sets whose last change was killed. Their members are not known.
	uncertain map[string]bool
	// last are the desired objects of the last complete change of a set.
	last map[string][]string
}

// applied updates the model after a complete change of a set to the desired objects.
func (m *model) applied(set string, desired []string) {
	m.members[set] = map[string]bool{}
	for _, key := range desired {
		if !m.foreign[key] {
			m.members[set][key] = true
		}
	}
	delete(m.uncertain, set)
	m.last[set] = desired
}

// world is an API server whose objects are compared with the model.
type world struct {
	env
	model
	random *rand.Rand
}

// pool returns the keys of all objects that a set may contain. A key is KIND/NAMESPACE/NAME.
func pool(set string) []string {
	var keys []string
	for _, name := range []string{"a", "b", "c"} {
		keys = append(keys, "ConfigMap/one/"+set+name, "ConfigMap/two/"+set+name, "ClusterRole//"+set+name)
	}
	return keys
}

// object returns the object with the key.
func object(key string) *unstructured.Unstructured {
	parts := strings.Split(key, "/")
	obj := &unstructured.Unstructured{}
	obj.SetAPIVersion(map[string]string{"ConfigMap": "v1", "ClusterRole": "rbac.authorization.k8s.io/v1"}[parts[0]])
	obj.SetKind(parts[0])
	obj.SetNamespace(parts[1])
	obj.SetName(parts[2])
	return obj
}

// resource returns the client of the object with the key.
func (w *world) resource(key string) dynamic.ResourceInterface {
	w.Helper()
	obj := object(key)
	mapping, err := w.api.Mapper.RESTMapping(obj.GroupVersionKind().GroupKind(), obj.GroupVersionKind().Version)
	if err != nil {
		w.Fatal(err)
	}
	if obj.GetNamespace() == "" {
		return w.api.Dynamic.Resource(mapping.Resource)
	}
	return w.api.Dynamic.Resource(mapping.Resource).Namespace(obj.GetNamespace())
}

// subset returns at least one of the keys, randomly.
func (w *world) subset(keys []string) []string {
	keys = slices.Clone(keys)
	w.random.Shuffle(len(keys), func(i, j int) { keys[i], keys[j] = keys[j], keys[i] })
	return keys[:1+w.random.IntN(len(keys))]
}

// change applies random objects as a set, or deletes the set. Every third change is killed after a random number of
// writes. It returns a description.
func (w *world) change(name string) string {
	w.Helper()
	set := applyset.Set{Name: name, KeepForeign: w.random.IntN(2) == 0}
	client := w.api.Client()
	writes := w.random.IntN(10)
	killed := w.random.IntN(3) == 0
	if killed {
		client.Dynamic = limited{w.api.Dynamic, &writes, &sync.Mutex{}}
	}
	if w.random.IntN(12) == 0 {
		err := client.Delete(w.Context(), set)
		return w.record(name, nil, err, "delete "+name)
	}
	desired := w.subset(pool(name))
	if w.random.IntN(3) == 0 {
		desired = w.last[name] // also reverts a killed change
	}
	var objects []*unstructured.Unstructured
	for _, key := range desired {
		objects = append(objects, object(key))
	}
	_, err := client.Apply(w.Context(), set, objects)
	return w.record(name, desired, err, fmt.Sprintf("apply %s %v", name, desired))
}

// record updates the model with the result of a change.
func (w *world) record(name string, desired []string, err error, text string) string {
	w.Helper()
	switch {
	case err == nil:
		w.applied(name, desired)
	case errors.Is(err, errKilled):
		w.uncertain[name] = true
		text += ", killed"
	default:
		w.Fatal(err)
	}
	return text
}

// interfere creates or deletes a random object as the user. It returns a description.
func (w *world) interfere(name string) string {
	w.Helper()
	key := pool(name)[w.random.IntN(len(pool(name)))]
	resource, obj := w.resource(key), object(key)
	if w.random.IntN(2) == 0 {
		_, err := resource.Create(w.Context(), obj, metav1.CreateOptions{FieldManager: "kubectl-create"})
		if err == nil {
			w.foreign[key] = true
			delete(w.members[name], key)
		} else if !apierrors.IsAlreadyExists(err) {
			w.Fatal(err)
		}
		return "create " + key
	}
	if err := resource.Delete(w.Context(), obj.GetName(), metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
		w.Fatal(err)
	}
	delete(w.foreign, key)
	delete(w.members[name], key)
	return "delete " + key
}

// compare compares the cluster with the model.
func (w *world) compare(sets []string) error {
	w.Helper()
	for _, name := range sets {
		var want, got []string
		for _, key := range pool(name) {
			_, err := w.resource(key).Get(w.Context(), object(key).GetName(), metav1.GetOptions{})
			if err != nil && !apierrors.IsNotFound(err) {
				return err
			}
			if w.foreign[key] || w.members[name][key] {
				want = append(want, key)
			}
			if err == nil && (!w.uncertain[name] || w.foreign[key]) {
				got = append(got, key)
			}
		}
		if w.uncertain[name] {
			want = slices.DeleteFunc(want, func(key string) bool { return !w.foreign[key] })
		}
		if !slices.Equal(got, want) {
			return fmt.Errorf("set %s: objects %v, want %v", name, got, want)
		}
	}
	return nil
}

// kinds returns the value of the annotation with the kinds for the members of a set after a complete change.
func (m *model) kinds(set string) string {
	kinds := map[string]bool{}
	for key := range m.members[set] {
		kind, _, _ := strings.Cut(key, "/")
		kinds[map[string]string{"ConfigMap": "ConfigMap", "ClusterRole": "ClusterRole.rbac.authorization.k8s.io"}[kind]] = true
	}
	return strings.Join(slices.Sorted(maps.Keys(kinds)), ",")
}

// TestRandom changes two sets in random order, while some changes are killed and a user creates and deletes objects
// with the same names. After each step the cluster has the objects of a naive model: the desired objects of the last
// change of each set, and those of the user.
func TestRandom(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	w := &world{env{t, testapi.Start(t), applyset.Set{}}, model{map[string]bool{}, map[string]map[string]bool{}, map[string]bool{}, map[string][]string{}}, rand.New(rand.NewPCG(seed, 0))} //nolint:gosec // the test must be repeatable
	sets := []string{"x", "y"}
	var steps []string
	for range 300 {
		name := sets[w.random.IntN(len(sets))]
		if w.random.IntN(3) == 0 {
			steps = append(steps, w.interfere(name))
		} else {
			steps = append(steps, w.change(name))
			w.set.Name = name
			if p := w.parent(); !w.uncertain[name] && p != nil && p[apply.ApplySetGKsAnnotation] != w.kinds(name) {
				t.Fatalf("kinds %q, want %q, after:\n%s", p[apply.ApplySetGKsAnnotation], w.kinds(name), strings.Join(steps, "\n"))
			}
		}
		if err := w.compare(sets); err != nil {
			t.Fatalf("%v, after:\n%s", err, strings.Join(steps, "\n"))
		}
	}
}
