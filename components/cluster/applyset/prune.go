package applyset

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
)

// Member is an object in the cluster that has the label of a set.
type Member struct {
	Ref    Ref
	Object *unstructured.Unstructured

	mapping *meta.RESTMapping
}

// State is the state of a set in the cluster: its parent and its members.
type State struct {
	// Exists reports whether the set has a parent.
	Exists bool
	// Applied reports whether the last change of the set was applied and pruned completely.
	Applied bool
	Data    map[string]string
	Members []Member
}

// State returns the state of a set with its members. It returns the zero State if the set has no parent.
func (c *Client) State(ctx context.Context, set Set) (State, error) {
	p, err := c.parent(ctx, set)
	if err != nil || p == nil {
		return State{}, err
	}
	data, _, err := unstructured.NestedStringMap(p.object.Object, "data")
	if err != nil {
		return State{}, fmt.Errorf("reading ConfigMap %s/%s: %w", ParentNamespace, p.name, err)
	}
	members, err := c.members(ctx, p)
	return State{Exists: true, Applied: p.hash != "", Data: data, Members: members}, err
}

// Applied reports whether the last change of a set was applied and pruned completely. It returns false if the set has
// no parent.
func (c *Client) Applied(ctx context.Context, set Set) (bool, error) {
	p, err := c.parent(ctx, set)
	return p != nil && p.hash != "", err
}

// members lists the objects of the parent's kinds with the label of the set. Kinds that the cluster does not
// serve anymore have no objects.
func (c *Client) members(ctx context.Context, p *parent) ([]Member, error) {
	var out []Member
	for _, text := range p.kinds {
		mapping, err := c.Mapper.RESTMapping(schema.ParseGroupKind(text))
		if meta.IsNoMatchError(err) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("finding the resource of %s: %w", text, err)
		}
		list, err := c.Dynamic.Resource(mapping.Resource).List(ctx, metav1.ListOptions{LabelSelector: partOfLabel + "=" + ID(p.name)})
		if apierrors.IsNotFound(err) {
			continue // the definition of the custom resource has been deleted
		}
		if err != nil {
			return nil, fmt.Errorf("listing members of kind %s: %w", text, err)
		}
		for i := range list.Items {
			obj := &list.Items[i]
			obj.SetGroupVersionKind(mapping.GroupVersionKind)
			out = append(out, Member{Ref: RefOf(obj), Object: obj, mapping: mapping})
		}
	}
	return out, nil
}

// prune deletes or releases all members of a set except those that keep selects and those that are being deleted.
// Namespaces and definitions are deleted last. The error joins an *Error for each object that failed.
func (c *Client) prune(ctx context.Context, set Set, p *parent, keep func(Ref) bool) error {
	members, err := c.members(ctx, p)
	if err != nil {
		return err
	}
	slices.SortStableFunc(members, func(a, b Member) int { return order(a) - order(b) })
	var errs []error
	for _, m := range members {
		if keep(m.Ref) || m.Object.GetDeletionTimestamp() != nil {
			continue
		}
		if err := c.remove(ctx, set, m); err != nil {
			errs = append(errs, &Error{Ref: m.Ref, Err: err})
		}
	}
	return errors.Join(errs...)
}

// order returns 1 for namespaces and definitions, which are deleted after other members, and 0 for all others.
func order(m Member) int {
	if isContainer(m.Ref.GroupKind) {
		return 1
	}
	return 0
}

// remove deletes a member, or only removes its label if Release of the set selects it. It succeeds if the object does
// not exist, and fails if the object has changed since it was listed.
func (c *Client) remove(ctx context.Context, set Set, m Member) error {
	resource := c.resource(m.mapping, m.Object.GetNamespace())
	if set.Release != nil && set.Release(m.Object) {
		return c.label(ctx, resource, m.Object, "")
	}
	uid, revision, propagation := m.Object.GetUID(), m.Object.GetResourceVersion(), metav1.DeletePropagationBackground
	// The revision prevents the deletion of an object that has left the set in the meantime.
	err := resource.Delete(ctx, m.Object.GetName(), metav1.DeleteOptions{
		Preconditions: &metav1.Preconditions{UID: &uid, ResourceVersion: &revision}, PropagationPolicy: &propagation,
	})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("pruning %s: %w", m.Ref, err)
	}
	return nil
}

// label sets the label of the set on an object, or removes it if id is empty. It does nothing if the object does not
// exist anymore.
func (c *Client) label(ctx context.Context, resource dynamic.ResourceInterface, live *unstructured.Unstructured, id string) error {
	if live.GetLabels()[partOfLabel] == id {
		return nil
	}
	var value any
	if id != "" {
		value = id
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": live.GetUID(), "labels": map[string]any{partOfLabel: value}}})
	if err != nil {
		return err
	}
	if _, err := resource.Patch(ctx, live.GetName(), types.MergePatchType, patch, metav1.PatchOptions{FieldManager: c.FieldManager}); err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("labeling %s: %w", RefOf(live), err)
	}
	return nil
}
