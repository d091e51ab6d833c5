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

// Owner returns the object that ref names, as get finds it by its name; the zero T if ref is
// nil or of another kind, or what has that name is another object.
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

// Claimer settles which objects a controller owns: those that refer to it and
// match its selector. Matching orphans are adopted, owned ones that no longer
// match are released.
type Claimer[T metav1.Object] struct {
	// Owner is the controlling object and Kind its kind.
	Owner metav1.Object
	Kind  schema.GroupVersionKind
	// Selector chooses among objects by their labels.
	Selector labels.Selector
	// Match narrows what may be adopted and kept, besides Selector. Nil: all.
	Match func(T) bool
	// Finalizers are put on adopted objects.
	Finalizers []string
	// CanAdopt looks the owner up in the API before the first adoption: an
	// owner that is being deleted there adopts nothing.
	CanAdopt func(ctx context.Context) error
	// Patch sends a patch for an object.
	Patch func(ctx context.Context, obj T, kind types.PatchType, patch []byte) error
	// Release, if not nil, makes the patch that releases an object.
	Release func(obj T) ([]byte, error)

	once     sync.Once
	adoptErr error
}

// Claim returns those of objs that are the owner's, after adoption and
// release. It goes on after an error and returns all of them joined.
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

func (c *Claimer[T]) matches(obj T) bool {
	return c.Selector.Matches(labels.Set(obj.GetLabels())) && (c.Match == nil || c.Match(obj))
}

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
	// Not found: it is gone. Invalid: it is another object of that name, or
	// refers to the owner no more. Both are as good as released.
	if apierrors.IsNotFound(err) || apierrors.IsInvalid(err) {
		return nil
	}
	return err
}

// ReleasePatch is a strategic merge patch that takes the references to owner
// and some finalizers off obj.
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

// CanAdopt makes Claimer's function of that name: get asks the API for the
// owner itself, past all caches.
func CanAdopt[T metav1.Object](owner metav1.Object, get func(ctx context.Context) (T, error)) func(ctx context.Context) error {
	return func(ctx context.Context) error {
		fresh, err := get(ctx)
		if err != nil {
			return err
		}
		if fresh.GetUID() != owner.GetUID() {
			return fmt.Errorf("original %s/%s is gone: got uid %s, wanted %s", owner.GetNamespace(), owner.GetName(), fresh.GetUID(), owner.GetUID())
		}
		if at := fresh.GetDeletionTimestamp(); at != nil {
			return fmt.Errorf("%s/%s has just been deleted at %s", owner.GetNamespace(), owner.GetName(), at)
		}
		return nil
	}
}

// Selects tells whether a selector is valid and selects these labels. One that would
// select everything selects nothing.
func Selects(selector *metav1.LabelSelector, of map[string]string) bool {
	s, err := metav1.LabelSelectorAsSelector(selector)
	return err == nil && !s.Empty() && s.Matches(labels.Set(of))
}

// byController is the name of the index that AddOwnerIndex adds.
const byController = "controllerUID"

func orphanKey(namespace string) string { return "orphans/" + namespace }

// AddOwnerIndex indexes the objects of each informer by their controller, and
// orphans by namespace, unless somebody did already. It is called by one goroutine
// at a time.
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

// controllerOf is the key of an object in the index.
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

// Owned returns from an index made by AddOwnerIndex what refers to owner as
// its controller, in its own namespace, and all orphans of the namespace too if
// wanted.
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
