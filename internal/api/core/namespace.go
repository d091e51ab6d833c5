package core

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"hyperkube/internal/api"
	"hyperkube/internal/api/validate"
)

// namespace returns the kind Namespace. A namespace is created with the finalizer "kubernetes" in
// its spec and phase Active. A delete request only sets its deletionTimestamp and the phase
// Terminating. The namespace controller then deletes its content and removes the finalizer with the
// finalize subresource, after which the API server deletes the namespace.
func namespace() api.Kind[*corev1.Namespace] {
	return api.Kind[*corev1.Namespace]{
		Names: api.Names{
			Kind:       "Namespace",
			Plural:     "namespaces",
			ShortNames: []string{"ns"},
		},
		Version: "v1",
		Scope:   api.Cluster,
		// There is no deletecollection, because the namespace controller deletes the content of
		// each namespace.
		Verbs:   []string{"create", "delete", "get", "list", "patch", "update", "watch"},
		New:     func() *corev1.Namespace { return &corev1.Namespace{} },
		NewList: func() runtime.Object { return &corev1.NamespaceList{} },
		Default: func(ns *corev1.Namespace) {
			if ns.Name != "" {
				setNameLabel(ns)
			}
			if ns.Status.Phase == "" {
				ns.Status.Phase = corev1.NamespaceActive
			}
		},
		PrepareCreate: func(_ context.Context, ns *corev1.Namespace) {
			ns.Status = corev1.NamespaceStatus{Phase: corev1.NamespaceActive}
			if !slices.Contains(ns.Spec.Finalizers, corev1.FinalizerKubernetes) {
				ns.Spec.Finalizers = append(ns.Spec.Finalizers, corev1.FinalizerKubernetes)
			}
			if ns.Name != "" {
				setNameLabel(ns)
			}
		},
		ValidateName: apivalidation.NameIsDNSLabel,
		Validate: func(_ context.Context, ns *corev1.Namespace) field.ErrorList {
			return validateNamespaceFinalizers(ns, func(path *field.Path, _ int) *field.Path { return path })
		},
		Update: api.KindUpdate[*corev1.Namespace]{
			AsNew: true, NewFirst: true,
			Prepare: func(_ context.Context, ns, old *corev1.Namespace) {
				old.Spec.DeepCopyInto(&ns.Spec)
				old.Status.DeepCopyInto(&ns.Status)
			},
			ResetFields: [][]string{{"status"}},
		},
		Views: map[string]api.KindUpdate[*corev1.Namespace]{
			"status": {
				Prepare: func(_ context.Context, ns, old *corev1.Namespace) {
					old.Spec.DeepCopyInto(&ns.Spec)
				},
				Validate:    validateNamespaceStatus,
				ResetFields: [][]string{{"spec"}},
			},
			"finalize": {
				Verbs: []string{"update"},
				Prepare: func(_ context.Context, ns, old *corev1.Namespace) {
					old.Status.DeepCopyInto(&ns.Status)
				},
				Validate: func(_ context.Context, ns, _ *corev1.Namespace) field.ErrorList {
					return validateNamespaceFinalizers(ns, (*field.Path).Index)
				},
				ResetFields: [][]string{{"status"}},
			},
		},
		BeforeDelete: func(_ context.Context, ns *corev1.Namespace, _ *metav1.DeleteOptions) bool {
			ns.Status.Phase = corev1.NamespaceTerminating
			return len(ns.Spec.Finalizers) > 0
		},
		Retain: func(ns *corev1.Namespace) bool { return len(ns.Spec.Finalizers) > 0 },
		Fields: func(ns *corev1.Namespace) fields.Set {
			return fields.Set{"status.phase": string(ns.Status.Phase)}
		},
		FieldNames: []string{"status.phase"},
		Columns: []metav1.TableColumnDefinition{
			api.NameColumn,
			api.Column("Status", "string", "The status of the namespace"),
			api.AgeColumn,
		},
		Row: func(ns *corev1.Namespace) []any {
			return []any{ns.Name, string(ns.Status.Phase), api.Age(ns.CreationTimestamp)}
		},
	}
}

// setNameLabel sets the label kubernetes.io/metadata.name to the name, so that label selectors can
// select the namespace by name.
func setNameLabel(ns *corev1.Namespace) {
	if ns.Labels == nil {
		ns.Labels = map[string]string{}
	}
	ns.Labels[corev1.LabelMetadataName] = ns.Name
}

// validateNamespaceFinalizers validates the finalizers in a namespace's spec. at returns the path
// to report for a finalizer, from the path of the list and the index: as in upstream, requests for
// the namespace itself report the path of the list.
func validateNamespaceFinalizers(ns *corev1.Namespace, at func(*field.Path, int) *field.Path) field.ErrorList {
	var errs field.ErrorList
	path := field.NewPath("spec", "finalizers")
	for i, f := range ns.Spec.Finalizers {
		errs = append(errs, validate.Finalizer(string(f), at(path, i))...)
	}
	return errs
}

func validateNamespaceStatus(_ context.Context, ns, _ *corev1.Namespace) field.ErrorList {
	path := field.NewPath("status", "Phase")
	switch {
	case ns.DeletionTimestamp.IsZero() && ns.Status.Phase != corev1.NamespaceActive:
		return field.ErrorList{field.Invalid(path, ns.Status.Phase, "may only be 'Active' if `deletionTimestamp` is empty")}
	case !ns.DeletionTimestamp.IsZero() && ns.Status.Phase != corev1.NamespaceTerminating:
		return field.ErrorList{field.Invalid(path, ns.Status.Phase, "may only be 'Terminating' if `deletionTimestamp` is not empty")}
	}
	return nil
}
