package rest

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"

	"hyperkube/components/apiserver/registry"
	"hyperkube/internal/api"
	"hyperkube/internal/store"
)

// selected describes which objects of a collection a list, watch or deletecollection request
// selects.
type selected struct {
	// prefix of their keys. Continue tokens are relative to it.
	prefix string
	// key, if set, is the only selected key.
	key string
	// match is nil if all objects with the prefix or key are selected.
	match func(*store.Entry) bool
	// direct means that match is very cheap.
	direct bool
	// index and value, if set, name an index of the collection and the value in it of all objects
	// that match may select. The store then checks only those.
	index, value string
	// filtered means that the client sent a selector.
	filtered bool
}

// selectObjects converts the namespace and the selectors of a request to the fastest way to select the objects: by
// key, by key prefix, by index, or by evaluating each object. It returns a BadRequest error for fields that the
// resource does not support. Objects that cannot be decoded are not selected by a selector.
func selectObjects(res *registry.Resource, namespace string, o *internalversion.ListOptions) (selected, error) {
	var s selected
	if namespace != "" {
		s.prefix = namespace + "/"
	}
	fieldSelector, err := checkFields(res, o.FieldSelector)
	if err != nil {
		return s, err
	}
	s.filtered = !fieldSelector.Empty() || !o.LabelSelector.Empty()

	// Names and namespaces are part of the key.
	rest := fieldSelector.Requirements()
	if bool(res.Scope) && namespace == "" {
		if ns, ok := fieldSelector.RequiresExactMatch("metadata.namespace"); ok && ns != "" {
			namespace = ns
			s.prefix = ns + "/"
			rest = without(rest, "metadata.namespace", ns)
		}
	}
	if name, ok := fieldSelector.RequiresExactMatch("metadata.name"); ok && name != "" && (namespace != "" || !bool(res.Scope)) {
		s.key = res.Key(namespace, name)
		rest = without(rest, "metadata.name", name)
	}
	byLabel := o.LabelSelector
	if len(rest) == 0 && byLabel.Empty() {
		return s, nil
	}
	byField := fields.Everything()
	if len(rest) > 0 {
		byField = fieldSelector
	}
	if res.Custom == nil && res.StoredAs == nil {
		s.chooseIndex(res, rest)
	}
	if byLabel.Empty() && res.Custom == nil && res.StoredAs == nil {
		if wanted, ok := directFields(res, rest); ok {
			s.direct = true
			s.match = func(e *store.Entry) bool { return matches(res, e, wanted) }
			return s, nil
		}
	}
	if byField.Empty() && res.Custom == nil {
		s.match = func(e *store.Entry) bool { return res.Labelled(e, byLabel) }
		return s, nil
	}
	s.match = func(e *store.Entry) bool {
		obj, err := res.Read(e)
		if err != nil {
			return false
		}
		if !byLabel.Empty() && !byLabel.Matches(labels.Set(obj.GetLabels())) {
			return false
		}
		return byField.Empty() || byField.Matches(res.Fields(obj))
	}
	return s, nil
}

// chooseIndex selects an index for the field requirements rs, if one of the fields is indexed and must equal a value.
// If several are, it uses the field whose name sorts first: for pods, spec.nodeName is more selective than
// status.phase.
func (s *selected) chooseIndex(res *registry.Resource, rs fields.Requirements) {
	for _, r := range rs {
		if res.Direct[r.Field].Indexed && r.Operator != selection.NotEquals && (s.index == "" || r.Field < s.index) {
			s.index, s.value = r.Field, r.Value
		}
	}
}

// matches reports whether an entry meets all requirements. An entry whose fields cannot be read
// does not.
func matches(res *registry.Resource, e *store.Entry, wanted []directField) bool {
	for i := range wanted {
		w := &wanted[i]
		if value, ok := res.FieldOf(e, w.field); !ok || (value == w.value) == w.not {
			return false
		}
	}
	return true
}

// directField is a requirement of a field selector on a field that can be read without building the
// set of all fields of the object. not means that the field must not have the value.
type directField struct {
	field api.Direct
	value string
	not   bool
}

// directFields converts requirements to directFields. It returns false if not all of them can be
// converted.
func directFields(res *registry.Resource, rs fields.Requirements) ([]directField, bool) {
	out := make([]directField, len(rs))
	for i, r := range rs {
		field, ok := res.Direct[r.Field]
		if !ok {
			return nil, false
		}
		out[i] = directField{field: field, value: r.Value, not: r.Operator == selection.NotEquals}
	}
	return out, true
}

// without returns a copy of the requirements rs without those that field equals value.
func without(rs fields.Requirements, field, value string) fields.Requirements {
	return slices.DeleteFunc(slices.Clone(rs), func(r fields.Requirement) bool {
		return r.Field == field && r.Value == value && r.Operator != selection.NotEquals
	})
}

// checkFields returns the field selector unchanged, or a BadRequest error if it contains a field
// that the resource does not support.
func checkFields(res *registry.Resource, s fields.Selector) (fields.Selector, error) {
	if s.Empty() {
		return s, nil
	}
	// Kinds without their own fields support both metadata fields regardless of their scope.
	plain := onlyMeta(res.FieldNames)
	refusal := cmp.Or(res.NoField, "field label not supported: %s")
	if res.Custom == nil && plain {
		refusal = "%q is not a known field selector: only \"metadata.name\", \"metadata.namespace\""
	}
	for _, r := range s.Requirements() {
		if slices.Contains(res.FieldNames, r.Field) || (plain || res.Custom != nil) && r.Field == "metadata.namespace" {
			continue
		}
		return nil, apierrors.NewBadRequest(fmt.Sprintf(refusal, r.Field))
	}
	return s, nil
}

// onlyMeta reports whether all selectable fields are metadata fields.
func onlyMeta(names []string) bool {
	return !slices.ContainsFunc(names, func(n string) bool { return !strings.HasPrefix(n, "metadata.") })
}

// listPrefix returns the key prefix for a list, which is the complete key if only one is selected.
func (s selected) listPrefix() string {
	if s.key != "" {
		return s.key
	}
	return s.prefix
}

// listMatch returns the function that selects entries of a list, or nil if all entries match. Lists in the store
// support a key prefix but not a single key, so the function also compares the key.
func (s selected) listMatch() func(*store.Entry) bool {
	if s.key == "" {
		return s.match
	}
	return func(e *store.Entry) bool {
		return e.Key() == s.key && (s.match == nil || s.match(e))
	}
}
