package storage

import (
	"context"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"hyperkube/internal/api"
	"hyperkube/internal/api/validate"
)

const (
	maxParameters     = 512
	maxParametersSize = 256 << 10 // bytes
)

func storageClass() api.Kind[*storagev1.StorageClass] {
	return api.Kind[*storagev1.StorageClass]{
		Names:   api.Names{Kind: "StorageClass", Plural: "storageclasses", ShortNames: []string{"sc"}},
		Group:   group,
		Version: version,
		Scope:   api.Cluster,
		New:     func() *storagev1.StorageClass { return &storagev1.StorageClass{} },
		NewList: func() runtime.Object { return &storagev1.StorageClassList{} },
		Default: func(c *storagev1.StorageClass) {
			if c.ReclaimPolicy == nil {
				policy := corev1.PersistentVolumeReclaimDelete
				c.ReclaimPolicy = &policy
			}
			if c.VolumeBindingMode == nil {
				mode := storagev1.VolumeBindingImmediate
				c.VolumeBindingMode = &mode
			}
		},
		Validate: func(_ context.Context, c *storagev1.StorageClass) field.ErrorList { return validateStorageClass(c) },
		Update: api.KindUpdate[*storagev1.StorageClass]{
			AsNew: true, NewFirst: true,
			Validate: func(_ context.Context, c, old *storagev1.StorageClass) field.ErrorList {
				return append(validateStorageClass(c), validateStorageClassUpdate(c, old)...)
			},
		},
		Warnings: func(_ context.Context, c, _ *storagev1.StorageClass) []string {
			var out []string
			for i, term := range c.AllowedTopologies {
				for j, r := range term.MatchLabelExpressions {
					if text := validate.DeprecatedNodeLabel(r.Key); text != "" {
						at := field.NewPath("allowedTopologies").Index(i).Child("matchLabelExpressions").Index(j).Child("key")
						out = append(out, at.String()+": "+text)
					}
				}
			}
			return out
		},
		Columns: []metav1.TableColumnDefinition{
			api.NameColumn,
			api.Column("Provisioner", "string", storagev1.StorageClass{}.SwaggerDoc()["provisioner"]),
			api.Column("ReclaimPolicy", "string", storagev1.StorageClass{}.SwaggerDoc()["reclaimPolicy"]),
			api.Column("VolumeBindingMode", "string", storagev1.StorageClass{}.SwaggerDoc()["volumeBindingMode"]),
			api.Column("AllowVolumeExpansion", "string", storagev1.StorageClass{}.SwaggerDoc()["allowVolumeExpansion"]),
			api.AgeColumn,
		},
		Row: storageClassRow,
	}
}

// storageClassRow returns the cells of a StorageClass. The name of a default class has the suffix "(default)".
func storageClassRow(c *storagev1.StorageClass) []any {
	name := c.Name
	if c.Annotations["storageclass.kubernetes.io/is-default-class"] == "true" ||
		c.Annotations["storageclass.beta.kubernetes.io/is-default-class"] == "true" {
		name += " (default)"
	}
	policy, mode := corev1.PersistentVolumeReclaimDelete, storagev1.VolumeBindingImmediate
	if c.ReclaimPolicy != nil {
		policy = *c.ReclaimPolicy
	}
	if c.VolumeBindingMode != nil {
		mode = *c.VolumeBindingMode
	}
	expand := ptr.Deref(c.AllowVolumeExpansion, false)
	return []any{name, c.Provisioner, string(policy), string(mode), expand, api.Age(c.CreationTimestamp)}
}

func validateStorageClass(c *storagev1.StorageClass) field.ErrorList {
	errs := validateProvisioner(c.Provisioner, field.NewPath("provisioner"))
	errs = append(errs, validateParameters(c.Parameters, true, field.NewPath("parameters"))...)
	if p := c.ReclaimPolicy; p != nil && *p != "" {
		allowed := []corev1.PersistentVolumeReclaimPolicy{corev1.PersistentVolumeReclaimDelete, corev1.PersistentVolumeReclaimRetain}
		if !slices.Contains(allowed, *p) {
			errs = append(errs, field.NotSupported(field.NewPath("reclaimPolicy"), *p, allowed))
		}
	}
	modes := []storagev1.VolumeBindingMode{storagev1.VolumeBindingImmediate, storagev1.VolumeBindingWaitForFirstConsumer}
	if m := c.VolumeBindingMode; m == nil {
		errs = append(errs, field.Required(field.NewPath("volumeBindingMode"), ""))
	} else if !slices.Contains(modes, *m) {
		errs = append(errs, field.NotSupported(field.NewPath("volumeBindingMode"), *m, modes))
	}
	return append(errs, validateTopologies(c.AllowedTopologies, field.NewPath("allowedTopologies"))...)
}

// validateStorageClassUpdate checks that the provisioner, the parameters, the reclaim policy and the binding mode of a
// StorageClass do not change.
func validateStorageClassUpdate(c, old *storagev1.StorageClass) field.ErrorList {
	var errs validate.Errors
	validate.Unchanged(&errs, field.NewPath("provisioner"), c.Provisioner, old.Provisioner)
	validate.Unchanged(&errs, field.NewPath("parameters"), c.Parameters, old.Parameters)
	validate.Unchanged(&errs, field.NewPath("reclaimPolicy"), c.ReclaimPolicy, old.ReclaimPolicy)
	validate.Unchanged(&errs, field.NewPath("volumeBindingMode"), c.VolumeBindingMode, old.VolumeBindingMode)
	return errs.List
}

func validateProvisioner(provisioner string, path *field.Path) field.ErrorList {
	if provisioner == "" {
		var errs validate.Errors
		errs.Declared(field.Required(path, ""))
		return errs.List
	}
	var errs field.ErrorList
	name := strings.ToLower(provisioner)
	for _, msg := range validation.IsQualifiedName(name) {
		errs = append(errs, field.Invalid(path, name, msg))
	}
	return errs
}

// validateParameters validates the number and the total size of parameters. allowEmpty specifies whether there may be
// none.
func validateParameters(parameters map[string]string, allowEmpty bool, path *field.Path) field.ErrorList {
	if len(parameters) > maxParameters {
		return field.ErrorList{field.TooLong(path, "", maxParameters)}
	}
	var errs field.ErrorList
	size := 0
	for key, value := range parameters {
		if key == "" {
			errs = append(errs, field.Invalid(path, key, "field can not be empty."))
		}
		size += len(key) + len(value)
	}
	if size > maxParametersSize {
		errs = append(errs, field.TooLong(path, "", maxParametersSize))
	}
	if !allowEmpty && len(parameters) == 0 {
		errs = append(errs, field.Required(path, "must contain at least one key/value pair"))
	}
	return errs
}

func validateTopologies(terms []corev1.TopologySelectorTerm, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i := range terms {
		at := path.Index(i).Child("matchLabelExpressions")
		keys := map[string]bool{}
		for j, r := range terms[i].MatchLabelExpressions {
			at := at.Index(j)
			values := map[string]bool{}
			if len(r.Values) == 0 {
				errs = append(errs, field.Required(at.Child("values"), ""))
			}
			for k, v := range r.Values {
				if values[v] {
					errs = append(errs, field.Duplicate(at.Child("values").Index(k), v))
				}
				values[v] = true
			}
			errs = append(errs, metav1validation.ValidateLabelName(r.Key, at.Child("key"))...)
			if keys[r.Key] {
				errs = append(errs, field.Duplicate(at.Child("key"), r.Key))
			}
			keys[r.Key] = true
		}
		// As in upstream, compare each term with as many empty terms as there are terms, and then
		// with the previous terms.
		twice := field.Duplicate(at, "")
		if len(terms[i].MatchLabelExpressions) == 0 {
			for range terms {
				errs = append(errs, twice)
			}
		}
		is := topologies(terms[i])
		for _, earlier := range terms[:i] {
			if apiequality.Semantic.DeepEqual(topologies(earlier), is) {
				errs = append(errs, twice)
			}
		}
	}
	return errs
}

// topologies returns the values that a topology selector term allows for each label key.
func topologies(term corev1.TopologySelectorTerm) map[string]sets.Set[string] {
	out := map[string]sets.Set[string]{}
	for _, r := range term.MatchLabelExpressions {
		out[r.Key] = sets.New(r.Values...)
	}
	return out
}
