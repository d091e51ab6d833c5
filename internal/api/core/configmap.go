package core

import (
	"context"
	"maps"
	"reflect"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"hyperkube/internal/api"
)

const immutableWhenSet = "field is immutable when `immutable` is set"

func configMap() api.Kind[*corev1.ConfigMap] {
	return api.Kind[*corev1.ConfigMap]{
		Names: api.Names{
			Kind:       "ConfigMap",
			Plural:     "configmaps",
			ShortNames: []string{"cm"},
		},
		Version: "v1",
		Scope:   api.Namespaced,
		New:     func() *corev1.ConfigMap { return &corev1.ConfigMap{} },
		NewList: func() runtime.Object { return &corev1.ConfigMapList{} },
		Default: func(cm *corev1.ConfigMap) {
			if cm.Data == nil {
				cm.Data = map[string]string{}
			}
		},
		Validate: func(_ context.Context, cm *corev1.ConfigMap) field.ErrorList {
			return validateConfigMap(cm)
		},
		Update: api.KindUpdate[*corev1.ConfigMap]{
			AsNew:    true,
			Changes:  validateConfigMapChanges,
			Validate: func(_ context.Context, cm, _ *corev1.ConfigMap) field.ErrorList { return validateConfigMap(cm) },
		},
		Columns: []metav1.TableColumnDefinition{
			api.NameColumn,
			api.Column("Data", "string", corev1.ConfigMap{}.SwaggerDoc()["data"]),
			api.AgeColumn,
		},
		Row: func(cm *corev1.ConfigMap) []any {
			return []any{cm.Name, int64(len(cm.Data) + len(cm.BinaryData)), api.Age(cm.CreationTimestamp)}
		},
	}
}

func validateConfigMap(cm *corev1.ConfigMap) field.ErrorList {
	var errs field.ErrorList
	size := 0
	for _, key := range slices.Sorted(maps.Keys(cm.Data)) {
		path := field.NewPath("data").Key(key)
		for _, msg := range validation.IsConfigMapKey(key) {
			errs = append(errs, field.Invalid(path, key, msg))
		}
		if _, twice := cm.BinaryData[key]; twice {
			errs = append(errs, field.Invalid(path, key, "duplicate of key present in binaryData"))
		}
		size += len(cm.Data[key])
	}
	for _, key := range slices.Sorted(maps.Keys(cm.BinaryData)) {
		for _, msg := range validation.IsConfigMapKey(key) {
			errs = append(errs, field.Invalid(field.NewPath("binaryData").Key(key), key, msg))
		}
		size += len(cm.BinaryData[key])
	}
	if size > corev1.MaxSecretSize {
		// An empty path refers to the whole object.
		errs = append(errs, field.TooLong(field.NewPath(""), "", corev1.MaxSecretSize))
	}
	return errs
}

// validateConfigMapChanges checks that data of an immutable ConfigMap does not change, and that it remains immutable.
func validateConfigMapChanges(_ context.Context, cm, old *corev1.ConfigMap) field.ErrorList {
	var errs field.ErrorList
	if ptr.Deref(old.Immutable, false) {
		if !ptr.Deref(cm.Immutable, false) {
			errs = append(errs, field.Forbidden(field.NewPath("immutable"), immutableWhenSet))
		}
		if !apiequality.Semantic.DeepEqual(cm.Data, old.Data) {
			errs = append(errs, field.Forbidden(field.NewPath("data"), immutableWhenSet))
		}
		// Here, an empty map differs from a missing one.
		if !reflect.DeepEqual(cm.BinaryData, old.BinaryData) {
			errs = append(errs, field.Forbidden(field.NewPath("binaryData"), immutableWhenSet))
		}
	}
	return errs
}
