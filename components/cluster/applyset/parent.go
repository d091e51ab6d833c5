package applyset

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"hyperkube/internal/base/version"
)

// Labels and annotations of ApplySets.
const (
	idLabel              = "applyset.kubernetes.io/id"
	partOfLabel          = "applyset.kubernetes.io/part-of"
	toolingAnnotation    = "applyset.kubernetes.io/tooling"
	kindsAnnotation      = "applyset.kubernetes.io/contains-group-kinds"
	namespacesAnnotation = "applyset.kubernetes.io/additional-namespaces"
	// AppliedAnnotation is the annotation of a parent with the hash of the objects' kinds, namespaces and names. It
	// exists only while the set is applied and pruned completely.
	AppliedAnnotation = "hyperkube.io/applied"
)

const (
	// tool is the name of this tool in toolingAnnotation. parentManager is the field manager of parents.
	tool          = "hyperkube"
	parentManager = tool + "-applyset"
)

// ParentNamespace is the namespace of the ConfigMaps that are the parents of sets.
const ParentNamespace = metav1.NamespaceSystem

// configMaps is the API resource of the parents of sets.
var configMaps = schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}

// ID returns the ID of the set whose parent has the name. Members have it in the label
// applyset.kubernetes.io/part-of.
func ID(name string) string {
	sum := sha256.Sum256([]byte(name + "." + ParentNamespace + ".ConfigMap."))
	return "applyset-" + base64.RawURLEncoding.EncodeToString(sum[:]) + "-v1"
}

// scope lists the kinds and namespaces in which members of a set may exist. Pruning searches only these kinds.
type scope struct {
	// kinds are the kinds of the members, sorted. Their form is Kind.group.
	kinds []string
	// namespaces are the namespaces of the members, sorted, without that of the parent.
	namespaces []string
}

// parent is the parent of a set, the ConfigMap that describes it, as last read or written.
type parent struct {
	scope
	name string
	uid  string
	// hash is the value of AppliedAnnotation, or "".
	hash   string
	object *unstructured.Unstructured
}

// covers reports whether the parent includes all kinds and namespaces of s.
func (p *parent) covers(s scope) bool {
	has := func(in []string) func(string) bool {
		return func(v string) bool { return !slices.Contains(in, v) }
	}
	return !slices.ContainsFunc(s.kinds, has(p.kinds)) && !slices.ContainsFunc(s.namespaces, has(p.namespaces))
}

// matches reports whether the parent has exactly the data of the set, and its labels, among others.
func (p *parent) matches(set Set) bool {
	data, _, err := unstructured.NestedStringMap(p.object.Object, "data")
	labels := p.object.GetLabels()
	for k, v := range set.Labels {
		if labels[k] != v {
			return false
		}
	}
	return err == nil && maps.Equal(data, set.Data)
}

// scopeOf returns the scope of objects before they are applied. For objects that do not specify a namespace, it does
// not include the namespace default.
func scopeOf(objects []*unstructured.Unstructured) scope {
	var s scope
	for _, obj := range objects {
		s.kinds = append(s.kinds, obj.GroupVersionKind().GroupKind().String())
		s.namespaces = append(s.namespaces, obj.GetNamespace())
	}
	return s.normalized()
}

// scopeOfMembers returns the scope of the members of a set.
func scopeOfMembers(members map[Ref]bool) scope {
	var s scope
	for ref, member := range members {
		if member {
			s.kinds = append(s.kinds, ref.GroupKind.String())
			s.namespaces = append(s.namespaces, ref.Namespace)
		}
	}
	return s.normalized()
}

// normalized returns the sorted scope without duplicates, without the namespace of the parent and without the
// empty namespace of cluster-scoped objects.
func (s scope) normalized() scope {
	slices.Sort(s.kinds)
	slices.Sort(s.namespaces)
	namespaces := slices.DeleteFunc(s.namespaces, func(ns string) bool { return ns == "" || ns == ParentNamespace })
	return scope{kinds: slices.Compact(s.kinds), namespaces: slices.Compact(namespaces)}
}

// union returns the scope of the parent, which may be nil, and of s.
func union(p *parent, s scope) scope {
	if p == nil {
		return s
	}
	return scope{kinds: slices.Concat(p.kinds, s.kinds), namespaces: slices.Concat(p.namespaces, s.namespaces)}.normalized()
}

// hashOf returns a hash of the kinds, namespaces and names of objects.
func hashOf(objects []*unstructured.Unstructured) string {
	names := make([]string, len(objects))
	for i, obj := range objects {
		names[i] = obj.GroupVersionKind().GroupKind().String() + "/" + obj.GetNamespace() + "/" + obj.GetName()
	}
	slices.Sort(names)
	sum := sha256.Sum256([]byte(strings.Join(names, "\n")))
	return hex.EncodeToString(sum[:16])
}

// parent reads the parent of a set. It returns nil if there is none, and an error that wraps ErrForeignParent if the
// ConfigMap is not the parent of this set or another tool has created it.
func (c *Client) parent(ctx context.Context, set Set) (*parent, error) {
	obj, err := c.Dynamic.Resource(configMaps).Namespace(ParentNamespace).Get(ctx, set.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading ConfigMap %s/%s: %w", ParentNamespace, set.Name, err)
	}
	p := newParent(obj)
	name, _, _ := strings.Cut(obj.GetAnnotations()[toolingAnnotation], "/")
	if obj.GetLabels()[idLabel] != ID(set.Name) || name != tool {
		return nil, fmt.Errorf("ConfigMap %s/%s %w", ParentNamespace, set.Name, ErrForeignParent)
	}
	return p, nil
}

// newParent returns a parent from its ConfigMap.
func newParent(obj *unstructured.Unstructured) *parent {
	annotations := obj.GetAnnotations()
	list := func(key string) []string {
		return strings.FieldsFunc(annotations[key], func(r rune) bool { return r == ',' })
	}
	return &parent{
		scope: scope{kinds: list(kindsAnnotation), namespaces: list(namespacesAnnotation)},
		name:  obj.GetName(), uid: string(obj.GetUID()), hash: annotations[AppliedAnnotation], object: obj,
	}
}

// writeParent writes the parent of a set with server-side apply, and returns it. hash is the new value of
// AppliedAnnotation; "" removes it. old is the parent as last read, or nil to create it. It fails if the parent was
// replaced since then.
func (c *Client) writeParent(ctx context.Context, set Set, old *parent, s scope, hash string) (*parent, error) {
	obj := &unstructured.Unstructured{}
	obj.SetAPIVersion("v1")
	obj.SetKind("ConfigMap")
	obj.SetNamespace(ParentNamespace)
	obj.SetName(set.Name)
	if old != nil {
		obj.SetUID(old.object.GetUID()) // fails if the parent has been replaced
	}
	labels := map[string]string{idLabel: ID(set.Name)}
	maps.Copy(labels, set.Labels)
	obj.SetLabels(labels)
	annotations := map[string]string{
		toolingAnnotation: tool + "/" + version.Get().GitVersion,
		kindsAnnotation:   strings.Join(s.kinds, ","), namespacesAnnotation: strings.Join(s.namespaces, ","),
	}
	if hash != "" {
		annotations[AppliedAnnotation] = hash
	}
	obj.SetAnnotations(annotations)
	if len(set.Data) > 0 {
		if err := unstructured.SetNestedStringMap(obj.Object, set.Data, "data"); err != nil {
			return nil, err
		}
	}
	got, err := c.Dynamic.Resource(configMaps).Namespace(ParentNamespace).Apply(ctx, set.Name, obj, metav1.ApplyOptions{FieldManager: parentManager, Force: true})
	if err != nil {
		return nil, fmt.Errorf("writing ConfigMap %s/%s: %w", ParentNamespace, set.Name, err)
	}
	return newParent(got), nil
}

// WriteData writes the labels and data of the parent of a set, which is created if it does not exist. Members are not
// affected.
func (c *Client) WriteData(ctx context.Context, set Set) error {
	p, err := c.parent(ctx, set)
	if err != nil {
		return err
	}
	if p == nil {
		p = &parent{object: &unstructured.Unstructured{Object: map[string]any{}}}
	}
	_, err = c.writeParent(ctx, set, p, p.scope, p.hash)
	return err
}

// deleteParent deletes the parent of a set without members. It succeeds if the parent does not exist, and fails if
// another ConfigMap has its name.
func (c *Client) deleteParent(ctx context.Context, p *parent) error {
	err := c.Dynamic.Resource(configMaps).Namespace(ParentNamespace).Delete(ctx, p.name, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(p.uid)})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("deleting ConfigMap %s/%s: %w", ParentNamespace, p.name, err)
	}
	return nil
}
