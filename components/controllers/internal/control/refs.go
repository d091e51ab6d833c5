package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
)

// Owner returns the object of a kind that the owner reference ref refers to. get returns an object by name, usually
// from a cache. Owner returns the zero T if ref is nil or of another kind, or if the object does not exist or has
// another UID.
func Owner[T metav1.Object](ref *metav1.OwnerReference, kind schema.GroupVersionKind, get func(name string) (T, error)) (owner T) {
	if ref == nil || ref.Kind != kind.Kind {
		return owner
	}
	found, err := get(ref.Name)
	if err != nil || found.GetUID() != ref.UID {
		return owner
	}
	return found
}

// Claimer determines which objects an owner controls: those that have a controller reference to it and match its
// selector. It adopts matching objects without a controller, and releases owned objects that do not match any more.
type Claimer[T metav1.Object] struct {
	// Owner is the controlling object and Kind its kind.
	Owner metav1.Object
	Kind  schema.GroupVersionKind
	// Selector matches labels of the objects.
	Selector labels.Selector
	// Match is an additional filter besides Selector. If nil, it matches all objects.
	Match func(T) bool
	// Finalizers are added to adopted objects.
	Finalizers []string
	// CanAdopt gets the owner from the API server before the first adoption. It returns an error if
	// the owner is being deleted.
	CanAdopt func(ctx context.Context) error
	// Patch patches an object.
	Patch func(ctx context.Context, obj T, kind types.PatchType, patch []byte) error
	// Release returns the patch that releases an object. If nil, the default patch is used.
	Release func(obj T) ([]byte, error)

	once     sync.Once
	adoptErr error
}

// Claim adopts and releases objects, and returns those of objs that the owner controls afterwards. It continues after
// errors and returns all of them joined, together with the other objects.
func (c *Claimer[T]) Claim(ctx context.Context, objs []T) ([]T, error) {
	var mine []T
	var errs []error
	for _, obj := range objs {
		ok, err := c.claim(ctx, obj)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if ok {
			mine = append(mine, obj)
		}
	}
	return mine, errors.Join(errs...)
}

// matches reports whether an object matches the Claimer's label selector and its function Match, if that is set.
func (c *Claimer[T]) matches(obj T) bool {
	return c.Selector.Matches(labels.Set(obj.GetLabels())) && (c.Match == nil || c.Match(obj))
}

// claim adopts a matching object without a controller, or releases one of the owner that does not match any more. It
// reports whether the owner controls the object afterwards. If the owner is being deleted, it neither adopts nor
// releases; an object that is being deleted is not adopted.
func (c *Claimer[T]) claim(ctx context.Context, obj T) (bool, error) {
	ref := metav1.GetControllerOfNoCopy(obj)
	if ref != nil {
		if ref.UID != c.Owner.GetUID() {
			return false, nil
		}
		if c.matches(obj) {
			return true, nil
		}
		if c.Owner.GetDeletionTimestamp() != nil {
			return false, nil
		}
		return false, c.release(ctx, obj)
	}
	if c.Owner.GetDeletionTimestamp() != nil || !c.matches(obj) || obj.GetDeletionTimestamp() != nil ||
		c.Owner.GetNamespace() != "" && c.Owner.GetNamespace() != obj.GetNamespace() {
		return false, nil
	}
	err := c.adopt(ctx, obj)
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	return err == nil, err
}

// adopt adds the controller reference and the finalizers to an object. It returns an error if the owner must not
// adopt, which is checked with CanAdopt for the first object only.
func (c *Claimer[T]) adopt(ctx context.Context, obj T) error {
	c.once.Do(func() {
		if c.CanAdopt != nil {
			c.adoptErr = c.CanAdopt(ctx)
		}
	})
	if c.adoptErr != nil {
		return fmt.Errorf("can't adopt %s/%s (%s): %w", obj.GetNamespace(), obj.GetName(), obj.GetUID(), c.adoptErr)
	}
	meta := map[string]any{
		"uid":             obj.GetUID(),
		"ownerReferences": []metav1.OwnerReference{*metav1.NewControllerRef(c.Owner, c.Kind)},
	}
	if len(c.Finalizers) > 0 {
		meta["finalizers"] = c.Finalizers
	}
	patch, err := json.Marshal(map[string]any{"metadata": meta})
	if err != nil {
		return err
	}
	return c.Patch(ctx, obj, types.StrategicMergePatchType, patch)
}

// release removes the controller reference from an object. It is not an error if the object was deleted or released
// already.
func (c *Claimer[T]) release(ctx context.Context, obj T) error {
	var patch []byte
	var err error
	if c.Release != nil {
		patch, err = c.Release(obj)
	} else {
		patch, err = ReleasePatch(obj, c.Owner.GetUID(), nil)
	}
	if err != nil {
		return err
	}
	err = c.Patch(ctx, obj, types.StrategicMergePatchType, patch)
	// Not found: the object was deleted. Invalid: the name belongs to another object, or the owner
	// reference is already removed. In both cases the object counts as released.
	if apierrors.IsNotFound(err) || apierrors.IsInvalid(err) {
		return nil
	}
	return err
}

// ReleasePatch returns a strategic merge patch that removes the owner references to the UID owner, and the given
// finalizers, from obj.
func ReleasePatch(obj metav1.Object, owner types.UID, finalizers []string) ([]byte, error) {
	meta := map[string]any{
		"uid":             obj.GetUID(),
		"ownerReferences": []map[string]any{{"$patch": "delete", "uid": owner}},
	}
	if len(finalizers) > 0 {
		meta["$deleteFromPrimitiveList/finalizers"] = finalizers
	}
	return json.Marshal(map[string]any{"metadata": meta})
}

// CanAdopt returns a function for Claimer.CanAdopt. It returns an error if the owner was deleted or recreated or is
// being deleted. get must return the owner from the API server, because a cache may not show the deletion yet.
func CanAdopt[T metav1.Object](owner metav1.Object, get func(ctx context.Context) (T, error)) func(ctx context.Context) error {
	return func(ctx context.Context) error {
		fresh, err := get(ctx)
		if err != nil {
			return err
		}
		if fresh.GetUID() != owner.GetUID() {
			return fmt.Errorf("original %s/%s was deleted: got uid %s, want %s", owner.GetNamespace(), owner.GetName(), fresh.GetUID(), owner.GetUID())
		}
		if at := fresh.GetDeletionTimestamp(); at != nil {
			return fmt.Errorf("%s/%s has just been deleted at %s", owner.GetNamespace(), owner.GetName(), at)
		}
		return nil
	}
}

// Selects reports whether a label selector is valid and matches the labels. Unlike in the API, an empty selector
// matches nothing.
func Selects(selector *metav1.LabelSelector, of map[string]string) bool {
	s, err := metav1.LabelSelectorAsSelector(selector)
	return err == nil && !s.Empty() && s.Matches(labels.Set(of))
}

// byController is the name of the index that AddOwnerIndex adds.
const byController = "controllerUID"

// orphanKey returns the key under which the index lists the objects in a namespace that have no controller.
func orphanKey(namespace string) string { return "orphans/" + namespace }

// AddOwnerIndex adds an index to each informer, by the UID of an object's controller, and for objects without a
// controller by namespace. Informers that already have the index are not changed. It returns an error if an informer
// was stopped. It is not safe for concurrent use.
func AddOwnerIndex(informers ...cache.SharedIndexInformer) error {
	for _, i := range informers {
		if _, ok := i.GetIndexer().GetIndexers()[byController]; ok {
			continue
		}
		if err := i.AddIndexers(cache.Indexers{byController: controllerOf}); err != nil {
			return err
		}
	}
	return nil
}

// controllerOf is the index function of AddOwnerIndex. It returns the UID of the object's controller, or the orphanKey
// of its namespace.
func controllerOf(obj any) ([]string, error) {
	m, ok := obj.(metav1.Object)
	if !ok {
		return nil, nil
	}
	if ref := metav1.GetControllerOfNoCopy(m); ref != nil {
		return []string{string(ref.UID)}, nil
	}
	return []string{orphanKey(m.GetNamespace())}, nil
}

// Owned returns the objects in owner's namespace whose controller is owner. If orphans is true, it also returns all
// objects of the namespace without a controller, which owner may adopt. index is the indexer of an informer to which
// AddOwnerIndex has added the index.
func Owned[T metav1.Object](index cache.Indexer, owner metav1.Object, orphans bool) ([]T, error) {
	objs, err := index.ByIndex(byController, string(owner.GetUID()))
	if err != nil {
		return nil, err
	}
	if orphans {
		more, err := index.ByIndex(byController, orphanKey(owner.GetNamespace()))
		if err != nil {
			return nil, err
		}
		objs = append(objs, more...)
	}
	out := make([]T, 0, len(objs))
	for _, o := range objs {
		if t, ok := o.(T); ok && t.GetNamespace() == owner.GetNamespace() {
			out = append(out, t)
		}
	}
	return out, nil
}
