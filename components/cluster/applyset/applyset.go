// Package applyset applies sets of objects to a cluster and prunes objects that have left their set, as
// specified by ApplySets (KEP-3659). A parent ConfigMap represents a set; each member has a label with the ID
// of the set. All state is in the cluster, so that a set converges after a crash at any point:
//
//  1. The parent is written with the kinds of the previous and the new members, without a hash.
//  2. The members are applied with server-side apply, namespaces and definitions first, workloads last.
//  3. Members that are not desired are deleted.
//  4. The parent is written with the kinds of the new members, and the hash of their names. If the hash of the
//     desired objects is the same later, nothing has to be pruned.
//
// kubectl contains an implementation too. It is not used because it cannot be canceled, cannot prune a set
// whose CustomResourceDefinition has been deleted, and makes every existing object a member that it deletes
// later.
//
// https://git.k8s.io/enhancements/keps/sig-cli/3659-kubectl-apply-prune
package applyset

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
)

// Mapper finds the resource of a kind. If the cluster does not serve the kind, the error is a
// meta.NoKindMatchError.
type Mapper interface {
	RESTMapping(gk schema.GroupKind, versions ...string) (*meta.RESTMapping, error)
}

// Client applies sets of objects, and prunes them: it deletes members that are not desired anymore. It is safe for
// concurrent use for different sets.
type Client struct {
	Dynamic dynamic.Interface
	Mapper  Mapper
	// FieldManager is the field manager of the members.
	FieldManager string
}

// Set is an ApplySet (KEP-3659): a set of objects that are applied and pruned together. Its parent is a ConfigMap
// that describes it, and each member has its ID as a label.
type Set struct {
	// Name is the name of the parent ConfigMap in kube-system.
	Name string
	// Labels are additional labels of the parent.
	Labels map[string]string
	// Data is the data of the parent.
	Data map[string]string
	// KeepForeign leaves objects unchanged that exist but are not members. Otherwise they are updated, but do
	// not become members, so they are never pruned.
	KeepForeign bool
	// Adopt makes existing objects without the label of a set members if FieldManager wrote them, which happened before
	// sets existed.
	Adopt bool
	// adoptUnmanaged also makes objects members that have no field managers. See adoptsUnmanaged.
	adoptUnmanaged bool
	// CreateOnly selects objects that are created but not updated. It may be nil.
	CreateOnly func(*unstructured.Unstructured) bool
	// Release selects members that are removed from the set instead of being deleted, because another client
	// has taken them over. It may be nil.
	Release func(*unstructured.Unstructured) bool
}

// Ref identifies an object.
type Ref struct {
	schema.GroupKind
	Namespace, Name string
}

// String returns the kind, namespace and name, as "Deployment kube-system/dns".
func (r Ref) String() string {
	if r.Namespace == "" {
		return r.Kind + " " + r.Name
	}
	return r.Kind + " " + r.Namespace + "/" + r.Name
}

// Error is the error of applying or pruning one object of a set.
type Error struct {
	Ref Ref
	// Object is the desired object. It is nil if the object is not desired.
	Object *unstructured.Unstructured
	Err    error
}

// Error implements error.
func (e *Error) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Result is the result of Apply: which of the desired objects exist and are members of the set.
type Result struct {
	// Complete reports whether all desired objects exist, although applying some of them may have failed.
	Complete bool
	// Foreign are the desired objects that are not members of the set, because another client created them.
	Foreign []Ref
}

// ErrForeignParent is the error if the ConfigMap of a set exists and is not the parent of that set.
var ErrForeignParent = errors.New("is not the parent of this set: rename or delete it")

// target is a desired object, its resource and its reference. The reference includes the default namespace.
type target struct {
	object  *unstructured.Unstructured
	mapping *meta.RESTMapping
	ref     Ref
	// member reports whether the object is a member of the set after it has been applied.
	member bool
}

// Apply applies objects, which become the members of the set, and prunes members that are not among them. It does not
// modify objects. Objects that fail do not prevent others from being applied, unless these depend on them, but they
// prevent pruning. It does not prune if the last Apply of the same names, labels and data was complete. The error joins
// an *Error for each failed object.
func (c *Client) Apply(ctx context.Context, set Set, objects []*unstructured.Unstructured) (Result, error) {
	var result Result
	p, err := c.parent(ctx, set)
	if err != nil {
		return result, err
	}
	desired, hash := scopeOf(objects), hashOf(objects)
	fresh := p == nil
	if set.Adopt && (fresh || p.hash == "") {
		if set.adoptUnmanaged, err = c.adoptsUnmanaged(ctx, objects); err != nil {
			return result, err
		}
	}
	if fresh || p.hash != "" && p.hash != hash || !p.covers(desired) {
		if p, err = c.writeParent(ctx, set, p, union(p, desired), ""); err != nil {
			return result, err
		}
	}
	members := map[Ref]bool{}
	result.Complete = true
	var errs []error
	for _, phase := range phases(objects) {
		done, err := c.applyPhase(ctx, set, phase)
		errs = append(errs, err...)
		complete := len(done) == len(phase)
		for _, t := range done {
			members[t.ref] = t.member
			if !t.member {
				result.Foreign = append(result.Foreign, t.ref)
			}
		}
		if !complete {
			result.Complete = false
			break // later objects depend on the missing ones
		}
	}
	slices.SortFunc(result.Foreign, func(a, b Ref) int { return strings.Compare(a.String(), b.String()) })
	if len(errs) > 0 {
		return result, errors.Join(errs...)
	}
	if p.hash == hash && p.matches(set) {
		return result, nil
	}
	if !fresh {
		if err := c.prune(ctx, set, p, func(r Ref) bool { return members[r] }); err != nil {
			return result, err
		}
	}
	_, err = c.writeParent(ctx, set, p, scopeOfMembers(members), hash)
	return result, err
}

// Adopt makes those objects members of the set that FieldManager has written before sets existed, and creates the
// parent of the set. The next Apply prunes them unless they are desired.
func (c *Client) Adopt(ctx context.Context, set Set, objects []*unstructured.Unstructured) error {
	set.Adopt = true
	var err error
	if set.adoptUnmanaged, err = c.adoptsUnmanaged(ctx, objects); err != nil {
		return err
	}
	p, err := c.parent(ctx, set)
	if err != nil {
		return err
	}
	if _, err := c.writeParent(ctx, set, p, union(p, scopeOf(objects)), ""); err != nil {
		return err
	}
	for _, obj := range objects {
		resource, live, err := c.live(ctx, obj)
		if err != nil {
			return err
		}
		if live == nil || !c.adopts(set, live) {
			continue
		}
		if err := c.label(ctx, resource, live, ID(set.Name)); err != nil {
			return err
		}
	}
	return nil
}

// adopts reports whether an existing object without the label of a set becomes a member when it is applied.
func (c *Client) adopts(set Set, live *unstructured.Unstructured) bool {
	return set.Adopt && (writtenBy(live, c.FieldManager) || set.adoptUnmanaged && len(live.GetManagedFields()) == 0)
}

// adoptsUnmanaged reports whether objects without field managers were written before sets existed. An object that
// has only a name, such as a ServiceAccount, has no field managers, whichever client has created it. It is adopted
// if FieldManager has written another object of the same set before sets existed.
func (c *Client) adoptsUnmanaged(ctx context.Context, objects []*unstructured.Unstructured) (bool, error) {
	for _, obj := range objects {
		_, live, err := c.live(ctx, obj)
		if err != nil {
			return false, err
		}
		if live != nil && live.GetLabels()[partOfLabel] == "" && writtenBy(live, c.FieldManager) {
			return true, nil
		}
	}
	return false, nil
}

// live reads an object from the cluster, and returns it with the client of its resource. The object is nil if it does
// not exist. Both are nil if the cluster does not serve the kind, because the set itself may define it.
func (c *Client) live(ctx context.Context, obj *unstructured.Unstructured) (dynamic.ResourceInterface, *unstructured.Unstructured, error) {
	gvk := obj.GroupVersionKind()
	mapping, err := c.Mapper.RESTMapping(gvk.GroupKind(), gvk.Version)
	if meta.IsNoMatchError(err) {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, fmt.Errorf("finding the resource of %s: %w", RefOf(obj), err)
	}
	resource := c.resource(mapping, obj.GetNamespace())
	live, err := resource.Get(ctx, obj.GetName(), metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return resource, nil, nil
	}
	if err != nil {
		return nil, nil, fmt.Errorf("reading %s: %w", RefOf(obj), err)
	}
	return resource, live, nil
}

// Exists reports whether an object exists. Its namespace must be set if its kind is namespaced.
func (c *Client) Exists(ctx context.Context, obj *unstructured.Unstructured) (bool, error) {
	_, live, err := c.live(ctx, obj)
	return live != nil, err
}

// Delete deletes or releases all members of the set, and then deletes its parent. It does nothing if there is no
// parent. If a member cannot be deleted, the parent is kept.
func (c *Client) Delete(ctx context.Context, set Set) error {
	p, err := c.parent(ctx, set)
	if err != nil || p == nil {
		return err
	}
	if err := c.prune(ctx, set, p, func(Ref) bool { return false }); err != nil {
		return err
	}
	return c.deleteParent(ctx, p)
}

// applyPhase applies the objects of one phase, up to 16 concurrently. It returns those that exist afterwards, and an
// *Error for each object that failed.
func (c *Client) applyPhase(ctx context.Context, set Set, objects []*unstructured.Unstructured) (exist []target, errs []error) {
	var mu sync.Mutex // guards exist and errs
	var group sync.WaitGroup
	slots := make(chan struct{}, 16)
	for _, obj := range objects {
		slots <- struct{}{}
		group.Go(func() {
			defer func() { <-slots }()
			t := target{object: obj, ref: RefOf(obj)}
			exists, err := c.applyOne(ctx, set, &t)
			mu.Lock()
			defer mu.Unlock()
			if exists {
				exist = append(exist, t)
			}
			if err != nil {
				errs = append(errs, &Error{Ref: t.ref, Object: obj, Err: err})
			}
		})
	}
	group.Wait()
	return exist, errs
}

// applyOne applies the object of t, and sets the other fields of t. It reports whether the object exists, which is
// possible even if an error is returned. An object that is being deleted or is a member of another set is an error.
func (c *Client) applyOne(ctx context.Context, set Set, t *target) (exists bool, err error) {
	gvk := t.object.GroupVersionKind()
	if t.mapping, err = c.Mapper.RESTMapping(gvk.GroupKind(), gvk.Version); err != nil {
		return false, fmt.Errorf("applying %s: %w", t.ref, err)
	}
	obj := t.object.DeepCopy()
	if err := place(obj, t.mapping); err != nil {
		return false, err
	}
	t.ref = RefOf(obj)
	resource := c.resource(t.mapping, obj.GetNamespace())
	live, err := resource.Get(ctx, obj.GetName(), metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return false, fmt.Errorf("reading %s: %w", t.ref, err)
	}
	exists = err == nil
	if exists && live.GetDeletionTimestamp() != nil {
		return false, fmt.Errorf("applying %s: it is being deleted", t.ref)
	}
	id := ID(set.Name)
	if exists {
		switch owner := live.GetLabels()[partOfLabel]; {
		case owner == id:
			t.member = true
		case owner != "":
			return true, fmt.Errorf("applying %s: it is a member of another ApplySet, %s", t.ref, owner)
		case c.adopts(set, live):
			t.member = true
		case set.KeepForeign:
			return true, nil
		}
	} else {
		t.member = true
	}
	if exists && set.CreateOnly != nil && set.CreateOnly(obj) {
		return true, c.label(ctx, resource, live, id)
	}
	if t.member {
		setLabel(obj, partOfLabel, id)
	}
	if _, err := resource.Apply(ctx, obj.GetName(), obj, metav1.ApplyOptions{FieldManager: c.FieldManager, Force: true}); err != nil {
		return exists, fmt.Errorf("applying %s: %w", t.ref, err)
	}
	return true, nil
}

// resource returns the client of the objects of a mapping in a namespace, or in all if namespace is empty.
func (c *Client) resource(m *meta.RESTMapping, namespace string) dynamic.ResourceInterface {
	if m.Scope.Name() == meta.RESTScopeNameNamespace && namespace != "" {
		return c.Dynamic.Resource(m.Resource).Namespace(namespace)
	}
	return c.Dynamic.Resource(m.Resource)
}

// place sets the default namespace of a namespaced object, and returns an error for a cluster-scoped object
// with a namespace and for an object without a name.
func place(obj *unstructured.Unstructured, m *meta.RESTMapping) error {
	if obj.GetName() == "" {
		return fmt.Errorf("%s has no metadata.name", obj.GetKind())
	}
	switch namespaced := m.Scope.Name() == meta.RESTScopeNameNamespace; {
	case namespaced && obj.GetNamespace() == "":
		obj.SetNamespace(corev1.NamespaceDefault)
	case !namespaced && obj.GetNamespace() != "":
		return fmt.Errorf("%s %s is not namespaced, but has the namespace %s", obj.GetKind(), obj.GetName(), obj.GetNamespace())
	}
	return nil
}

// setLabel sets a label of an object.
func setLabel(obj *unstructured.Unstructured, key, value string) {
	labels := obj.GetLabels()
	if labels == nil {
		labels = map[string]string{}
	}
	labels[key] = value
	obj.SetLabels(labels)
}

// writtenBy reports whether a field manager owns fields of an object that were not written through a subresource.
func writtenBy(obj *unstructured.Unstructured, manager string) bool {
	return slices.ContainsFunc(obj.GetManagedFields(), func(m metav1.ManagedFieldsEntry) bool {
		return m.Manager == manager && m.Subresource == ""
	})
}

// RefOf returns the reference of an object as it is, without a default namespace.
func RefOf(obj *unstructured.Unstructured) Ref {
	return Ref{GroupKind: obj.GroupVersionKind().GroupKind(), Namespace: obj.GetNamespace(), Name: obj.GetName()}
}

// phases returns objects in the order in which they are applied: definitions and namespaces, then all
// others, then workloads, whose pods need the service accounts and RBAC rules.
func phases(objects []*unstructured.Unstructured) [][]*unstructured.Unstructured {
	var out [3][]*unstructured.Unstructured
	for _, obj := range objects {
		i := 1
		switch gk := obj.GroupVersionKind().GroupKind(); {
		case isContainer(gk):
			i = 0
		case gk.Group == "apps" || gk.Group == "batch" || gk == schema.GroupKind{Kind: "Pod"}:
			i = 2
		}
		out[i] = append(out[i], obj)
	}
	return slices.DeleteFunc(out[:], func(p []*unstructured.Unstructured) bool { return len(p) == 0 })
}

// isContainer reports whether gk is Namespace or CustomResourceDefinition. Other objects require such an object to
// exist.
func isContainer(gk schema.GroupKind) bool {
	return gk == schema.GroupKind{Kind: "Namespace"} || gk == schema.GroupKind{Group: "apiextensions.k8s.io", Kind: "CustomResourceDefinition"}
}
