package api

import (
	"context"
	"maps"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"hyperkube/internal/api/validate"
)

// AllVerbs are the verbs of a resource that supports all operations. Kind.Resource uses them for
// kinds that specify none.
var AllVerbs = []string{"create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"}

// Kind is the definition of a built-in kind, whose published Go type is T, a pointer such as
// *corev1.ConfigMap. The packages of the API groups declare one for each kind; its method Resource
// converts it to the form that the API server uses. All functions except New and NewList may be
// nil. Fields without a comment are those of Resource with the same name, but with T instead of
// Object.
//
// Size: one field for each property of a kind that differs between kinds. Definitions of kinds are
// tables that set a few of them.
type Kind[T Object] struct {
	Names
	Group, Version string
	Scope          Scope
	// Verbs defaults to AllVerbs.
	Verbs []string
	// StoragePath defaults to Plural.
	StoragePath string

	New     func() T
	NewList func() runtime.Object

	Readable      func(obj T) error
	Default       func(obj T)
	Adopt         func(obj T)
	Complete      func(obj T)
	PrepareCreate func(ctx context.Context, obj T)
	// Validate validates the fields that are specific to the kind. Metadata is validated
	// separately, the name with ValidateName.
	Validate func(ctx context.Context, obj T) field.ErrorList
	// ValidateName validates metadata.name, or the prefix of a generated name. If it is nil, names
	// must be DNS subdomains.
	ValidateName func(name string, prefix bool) []string
	// DeclaredName is set if upstream validates the name declaratively, which does not validate
	// prefixes of generated names.
	DeclaredName bool
	// NameOf replaces ValidateName if the validation of the name depends on obj.
	NameOf func(obj T) func(name string, prefix bool) []string
	// PlainMeta selects the metadata validation of custom resources, including names and
	// finalizers. It is set for kinds whose own validation in upstream does not include metadata.
	PlainMeta bool
	// AnyFinalizers allows finalizers without a domain. It is set for kinds whose validation in
	// upstream does not validate finalizers.
	AnyFinalizers bool
	// ReportDuplicates is set if duplicate errors of Validate are reported twice.
	ReportDuplicates bool
	Canonicalize     func(obj T)
	// Warnings returns warnings. old is nil on create.
	Warnings func(ctx context.Context, obj, old T) []string

	// Update describes updates of the object itself. Metadata is validated as well.
	Update                    KindUpdate[T]
	AllowCreateOnUpdate       bool
	ForbidUnconditionalUpdate bool
	// Views describes subresources such as "status".
	Views map[string]KindUpdate[T]
	Scale *KindScale[T]

	BeforeDelete       func(ctx context.Context, obj T, opts *metav1.DeleteOptions) bool
	DefaultPropagation metav1.DeletionPropagation
	// DeleteWarning is the warning for clients that rely on DefaultPropagation.
	DeleteWarning string
	Retain        func(obj T) bool

	// Fields returns field selector fields in addition to metadata.name and metadata.namespace.
	Fields     func(obj T) fields.Set
	FieldNames []string
	// NoField is the format of the error for other field labels, as in Resource.
	NoField string
	// Direct contains individual Fields that are often used in selectors.
	Direct map[string]KindDirect[T]
	// Columns defaults to Name and Age.
	Columns []metav1.TableColumnDefinition
	Row     func(obj T) []any
	// RowOrder sorts table rows. If it is nil, rows have the order of the list.
	RowOrder func(a, b T) int
	// RowConditions returns the conditions of a table row, or nil if the row has none.
	RowConditions func(obj T) []metav1.TableRowCondition
	// StoredAs is only set for kinds that are served in two groups or versions.
	StoredAs *StoredAs
	// StoredJSON selects JSON as the encoding in etcd.
	StoredJSON bool
	Review     bool
}

// KindDirect is the type-safe form of Direct, for objects of the type T. It reads one of Kind's Fields alone, because
// selectors use that field often.
type KindDirect[T Object] struct {
	Of      func(obj T) string
	Path    []int
	Indexed bool
}

// KindUpdate is the type-safe form of Update, for objects of the type T: it describes how requests update the object
// itself or one of its subresources.
type KindUpdate[T Object] struct {
	// Verbs defaults to get, patch and update.
	Verbs       []string
	Prepare     func(ctx context.Context, obj, old T)
	Validate    func(ctx context.Context, obj, old T) field.ErrorList
	ResetFields [][]string
	// Warnings returns warnings for an update of a subresource, as in Update.
	Warnings func(ctx context.Context, obj, old T) []string
	// AsNew also validates the metadata like that of a new object. NewFirst reports these errors
	// before those of immutable metadata.
	AsNew, NewFirst bool
	// Changes validates immutable fields; its errors are reported before those of AsNew. Validate
	// does the rest.
	Changes func(ctx context.Context, obj, old T) field.ErrorList
	// AnyFinalizers allows finalizers without a domain in this update, as Kind.AnyFinalizers does in
	// all requests.
	AnyFinalizers bool
	// ApplyCreates allows server-side apply to a subresource to create the object, as in Update.
	ApplyCreates bool
}

// KindScale is the type-safe form of Scale, for objects of the type T: it maps an object to its "scale" subresource.
type KindScale[T Object] struct {
	SpecReplicasPath []string
	Get              func(obj T) (spec, status int32, selector string)
	Set              func(obj T, replicas int32)
}

// Resource converts k to a Resource, whose functions take an Object instead of a T. It sets the
// defaults of fields that k omits. The functions of the result panic for objects of another type
// than T.
func (k Kind[T]) Resource() *Resource {
	if k.ListKind == "" {
		k.ListKind = k.Kind + "List"
	}
	if k.Singular == "" {
		k.Singular = strings.ToLower(k.Kind)
	}
	if k.Verbs == nil {
		k.Verbs = AllVerbs
	}
	if k.StoragePath == "" {
		k.StoragePath = k.Plural
	}
	if k.ValidateName == nil {
		k.ValidateName = subdomainName
	}
	r := &Resource{
		Names:                    k.Names,
		Group:                    k.Group,
		Version:                  k.Version,
		Scope:                    k.Scope,
		Verbs:                    k.Verbs,
		StoragePath:              k.StoragePath,
		New:                      func() Object { return k.New() },
		NewList:                  k.NewList,
		AllowCreateOnUpdate:      k.AllowCreateOnUpdate,
		AllowUnconditionalUpdate: !k.ForbidUnconditionalUpdate,
		DefaultPropagation:       k.DefaultPropagation,
		DeleteWarning:            k.DeleteWarning,
		StoredAs:                 k.StoredAs,
		StoredJSON:               k.StoredJSON,
		Review:                   k.Review,
		Default:                  func(Object) {},
		PrepareCreate:            func(context.Context, Object) {},
		Warnings:                 func(context.Context, Object, Object) []string { return nil },
	}
	if k.Readable != nil {
		r.Readable = func(obj Object) error { return k.Readable(obj.(T)) }
	}
	if k.Default != nil {
		r.Default = func(obj Object) { k.Default(obj.(T)) }
	}
	if k.Adopt != nil {
		r.Adopt = func(obj Object) { k.Adopt(obj.(T)) }
	}
	if k.Complete != nil {
		r.Complete = func(obj Object) { k.Complete(obj.(T)) }
	}
	if k.PrepareCreate != nil {
		r.PrepareCreate = func(ctx context.Context, obj Object) { k.PrepareCreate(ctx, obj.(T)) }
	}
	r.Validate = func(ctx context.Context, obj Object) field.ErrorList {
		var errs field.ErrorList
		if !k.Review && !k.PlainMeta {
			errs = k.validateMeta(obj)
		}
		if k.Validate != nil {
			errs = append(errs, k.Validate(ctx, obj.(T))...)
		}
		if k.PlainMeta && len(errs) == 0 {
			errs = validatePlainMeta(obj, k.Scope)
		}
		return k.clientErrors(errs)
	}
	if k.Warnings != nil {
		r.Warnings = func(ctx context.Context, obj, old Object) []string {
			var o T
			if old != nil {
				o = old.(T)
			}
			return k.Warnings(ctx, obj.(T), o)
		}
	}
	if k.Canonicalize != nil {
		r.Canonicalize = func(obj Object) { k.Canonicalize(obj.(T)) }
	}
	r.Update = k.Update.erase(&k)
	r.Update.Verbs = nil
	if len(k.Views) > 0 {
		r.Views = make(map[string]Update, len(k.Views))
		for name, v := range k.Views {
			r.Views[name] = v.erase(&k)
		}
	}
	if k.Scale != nil {
		r.Scale = &Scale{
			SpecReplicasPath: k.Scale.SpecReplicasPath,
			Get:              func(obj Object) (int32, int32, string) { return k.Scale.Get(obj.(T)) },
			Set:              func(obj Object, n int32) { k.Scale.Set(obj.(T), n) },
		}
	}
	if k.BeforeDelete != nil {
		r.BeforeDelete = func(ctx context.Context, obj Object, opts *metav1.DeleteOptions) bool {
			return k.BeforeDelete(ctx, obj.(T), opts)
		}
	}
	if k.Retain != nil {
		r.Retain = func(obj Object) bool { return k.Retain(obj.(T)) }
	}
	r.NoField = k.NoField
	r.FieldNames = append([]string{"metadata.name"}, k.FieldNames...)
	if k.Scope == Namespaced {
		r.FieldNames = append(r.FieldNames, "metadata.namespace")
	}
	r.Direct = make(map[string]Direct, len(k.Direct))
	for name, d := range k.Direct {
		r.Direct[name] = Direct{Of: func(obj Object) string { return d.Of(obj.(T)) }, Path: d.Path, Indexed: d.Indexed}
	}
	r.Fields = func(obj Object) fields.Set {
		set := fields.Set{"metadata.name": obj.GetName()}
		if k.Scope == Namespaced {
			set["metadata.namespace"] = obj.GetNamespace()
		}
		if k.Fields != nil {
			maps.Copy(set, k.Fields(obj.(T)))
		}
		return set
	}
	r.Columns, r.Row = k.Columns, func(obj Object) []any { return k.Row(obj.(T)) }
	if k.RowOrder != nil {
		r.RowOrder = func(a, b Object) int { return k.RowOrder(a.(T), b.(T)) }
	}
	if k.RowConditions != nil {
		r.RowConditions = func(obj Object) []metav1.TableRowCondition { return k.RowConditions(obj.(T)) }
	}
	if k.Row == nil {
		r.Columns, r.Row = nameAndAge, func(obj Object) []any {
			return []any{obj.GetName(), Age(obj.GetCreationTimestamp())}
		}
	}
	return r
}

// erase converts u to an Update, the form without a type parameter, whose functions take an Object instead of a T. The
// validation of the Update also validates the metadata, according to the settings of k.
func (u KindUpdate[T]) erase(k *Kind[T]) Update {
	out := Update{Verbs: u.Verbs, ResetFields: u.ResetFields, ApplyCreates: u.ApplyCreates}
	if u.Warnings != nil {
		out.Warnings = func(ctx context.Context, obj, old Object) []string { return u.Warnings(ctx, obj.(T), old.(T)) }
	}
	if out.Verbs == nil {
		out.Verbs = []string{"get", "patch", "update"}
	}
	out.Prepare = func(ctx context.Context, obj, old Object) {
		if u.Prepare != nil {
			u.Prepare(ctx, obj.(T), old.(T))
		}
	}
	out.Validate = func(ctx context.Context, obj, old Object) field.ErrorList {
		errs := validatePlainMeta(obj, k.Scope)
		if u.AsNew && u.NewFirst {
			errs = append(errs, k.validateMeta(obj)...)
		}
		errs = append(errs, validateMetaUpdate(obj, old)...)
		if !k.PlainMeta && !k.AnyFinalizers && !u.AnyFinalizers {
			errs = append(errs, validate.StandardFinalizers(obj.GetFinalizers())...)
		}
		if u.Changes != nil {
			errs = append(errs, u.Changes(ctx, obj.(T), old.(T))...)
		}
		if u.AsNew && !u.NewFirst {
			errs = append(errs, k.validateMeta(obj)...)
		}
		// Several of these functions validate the same fields.
		errs = validate.DistinctAll(errs)
		if u.Validate != nil {
			errs = append(errs, validate.Tolerate(u.Validate(ctx, obj.(T), old.(T)), func() field.ErrorList {
				if k.Validate == nil {
					return nil
				}
				return k.Validate(ctx, old.(T))
			})...)
		}
		return k.clientErrors(errs)
	}
	return out
}

// validateMeta validates the metadata of a new object with the name rules of the kind. The
// finalizers must be standard ones or have a domain, unless k allows any.
func (k *Kind[T]) validateMeta(obj Object) field.ErrorList {
	name := k.ValidateName
	if k.NameOf != nil {
		name = k.NameOf(obj.(T))
	}
	errs := validateMeta(obj, k.Scope, name)
	if k.DeclaredName {
		prefix, whole := "metadata.generateName", "metadata.name"
		errs = slices.DeleteFunc(errs, func(e *field.Error) bool { return e.Field == prefix })
		for _, e := range errs {
			e.CoveredByDeclarative = e.Field == whole && e.Type == field.ErrorTypeInvalid
		}
	}
	if !k.AnyFinalizers {
		errs = append(errs, validate.StandardFinalizers(obj.GetFinalizers())...)
	}
	return errs
}

// clientErrors returns validation errors in the form and order in which upstream reports them to
// clients: without duplicates, declarative errors last, and values formatted with Go field names.
func (k *Kind[T]) clientErrors(errs field.ErrorList) field.ErrorList {
	if !k.ReportDuplicates {
		errs = validate.Distinct(errs)
	}
	return validate.UntaggedValues(validate.DeclaredLast(errs))
}
