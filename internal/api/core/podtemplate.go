package core

import (
	"context"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"hyperkube/internal/api"
	"hyperkube/internal/api/core/pod"
)

func podTemplate() api.Kind[*corev1.PodTemplate] {
	path := field.NewPath("template")
	check := func(t *corev1.PodTemplate) field.ErrorList { return pod.ValidateTemplate(&t.Template, path) }
	return api.Kind[*corev1.PodTemplate]{
		Names:   api.Names{Kind: "PodTemplate", Plural: "podtemplates"},
		Version: "v1",
		Scope:   api.Namespaced,
		New:     func() *corev1.PodTemplate { return &corev1.PodTemplate{} },
		NewList: func() runtime.Object { return &corev1.PodTemplateList{} },
		Default: func(t *corev1.PodTemplate) { pod.DefaultTemplate(&t.Template) },
		PrepareCreate: func(_ context.Context, t *corev1.PodTemplate) {
			t.Generation = 1
			pod.DropDisabled(&t.Template.Spec, nil)
		},
		Validate: func(_ context.Context, t *corev1.PodTemplate) field.ErrorList { return check(t) },
		Warnings: func(_ context.Context, t, old *corev1.PodTemplate) []string {
			if old != nil && t.Generation == old.Generation {
				return nil
			}
			return pod.TemplateWarnings(&t.Template, path)
		},
		Update: api.KindUpdate[*corev1.PodTemplate]{
			Prepare: func(_ context.Context, t, old *corev1.PodTemplate) {
				t.Generation = old.Generation
				pod.DropDisabled(&t.Template.Spec, &old.Template.Spec)
				if !apiequality.Semantic.DeepEqual(t.Template, old.Template) {
					t.Generation++
				}
			},
			Validate: func(_ context.Context, t, old *corev1.PodTemplate) field.ErrorList {
				return check(t)
			},
		},
		Columns: []metav1.TableColumnDefinition{
			api.NameColumn,
			api.Column("Containers", "string", "Names of each container in the template."),
			api.Column("Images", "string", "Images referenced by each container in the template."),
			api.Column("Pod Labels", "string", "The labels for the pod template."),
		},
		Row: func(t *corev1.PodTemplate) []any {
			names, images := formatContainers(t.Template.Spec.Containers)
			return []any{t.Name, names, images, labels.FormatLabels(t.Template.Labels)}
		},
	}
}

// formatContainers returns the cells of the columns Containers and Images: the names and the images
// of containers, joined with commas.
func formatContainers(containers []corev1.Container) (string, string) {
	names, images := make([]string, len(containers)), make([]string, len(containers))
	for i := range containers {
		names[i], images[i] = containers[i].Name, containers[i].Image
	}
	return strings.Join(names, ","), strings.Join(images, ",")
}
