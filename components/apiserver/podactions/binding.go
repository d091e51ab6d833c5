// Package podactions implements pod operations that are not plain writes: binding and eviction.
package podactions

import (
	"context"
	"fmt"
	"maps"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"hyperkube/components/apiserver/registry"
	"hyperkube/internal/api"
)

var (
	pods        = corev1.SchemeGroupVersion.WithResource("pods")
	bindings    = corev1.SchemeGroupVersion.WithResource("bindings")
	bindingKind = corev1.SchemeGroupVersion.WithKind("Binding")
)

// Bindings returns the API resource "bindings", the legacy way to bind pods. A POST to it is
// equivalent to one to pods/binding.
func Bindings() *api.Resource {
	return api.Kind[*corev1.Binding]{
		Names:   api.Names{Kind: "Binding", Plural: "bindings"},
		Version: "v1",
		Scope:   api.Namespaced,
		New:     func() *corev1.Binding { return &corev1.Binding{} },
		Review:  true,
		Verbs:   []string{"create"},
	}.Resource()
}

// Actions returns the actions of pods, binding and eviction, for the resources that reg serves. It returns none if
// pods are not served. The API server adds them to the registry.
func Actions(reg *registry.Registry) []*registry.Action {
	if reg.Lookup(pods) == nil {
		return nil
	}
	out := []*registry.Action{bindAction(pods, "binding"), evictAction(reg)}
	if reg.Lookup(bindings) != nil {
		out = append(out, bindAction(bindings, ""))
	}
	return out
}

// bindAction returns the registry's action for POST requests that bind a pod to a node. resource and subresource are
// bindings or pods/binding.
func bindAction(resource schema.GroupVersionResource, subresource string) *registry.Action {
	return &registry.Action{
		Resource: resource, Subresource: subresource, Kind: bindingKind,
		New: func() runtime.Object { return &corev1.Binding{} },
		Run: bind,
	}
}

// bind handles a POST of a Binding: it assigns the pod to the node b.Target. It returns a conflict if the pod is
// already assigned, is being deleted or has scheduling gates, or does not have the UID or resource version in the
// Binding.
func bind(ctx context.Context, call registry.ActionCall) (runtime.Object, error) {
	b, ok := call.Object.(*corev1.Binding)
	if !ok {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("not a Binding object: %#v", call.Object))
	}
	if call.Name == "" {
		return nil, unnamed(b)
	}
	if b.Name != call.Name {
		return nil, apierrors.NewBadRequest("name in URL does not match name in Binding object")
	}
	if errs := validateBinding(b); len(errs) > 0 {
		return nil, errs.ToAggregate() // with code 500, as in upstream
	}
	if err := call.Validate(ctx, b); err != nil {
		return nil, err
	}
	meant := registry.ServerChange{Resource: pods, Name: call.Name, DryRun: call.DryRun, UID: b.UID, ResourceVersion: b.ResourceVersion}
	_, err := call.Change(ctx, meant, func(obj api.Object) error {
		pod, ok := obj.(*corev1.Pod)
		if !ok {
			return fmt.Errorf("binding: %s is a %T", call.Name, obj)
		}
		if err := assign(pod, b); err != nil {
			return apierrors.NewConflict(schema.GroupResource{Resource: "pods/binding"}, call.Name, err)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return &metav1.Status{Status: metav1.StatusSuccess}, nil
}

// unnamed returns the error for a Binding without a pod name: the validation errors, if there are
// any, take precedence.
func unnamed(b *corev1.Binding) error {
	if errs := validateBinding(b); len(errs) > 0 {
		return errs.ToAggregate()
	}
	return apierrors.NewBadRequest("Name parameter required.")
}

// validateBinding returns the errors of a Binding: its target must be a Node, or have no kind, with a valid name.
func validateBinding(b *corev1.Binding) field.ErrorList {
	var errs field.ErrorList
	if kind := b.Target.Kind; kind != "" && kind != "Node" {
		errs = append(errs, field.NotSupported(field.NewPath("target", "kind"), kind, []string{"Node", "<empty>"}))
	}
	name := field.NewPath("target", "name")
	switch {
	case b.Target.Name == "":
		errs = append(errs, field.Required(name, ""))
	case b.Target.Kind == "" || b.Target.Kind == "Node":
		for _, msg := range validation.NameIsDNSSubdomain(b.Target.Name, false) {
			errs = append(errs, field.Invalid(name, b.Target.Name, msg))
		}
	}
	return errs
}

// assign sets the node of the pod, its condition PodScheduled, and the labels and annotations of the Binding. It
// returns an error, and changes nothing, if the pod is being deleted, is already assigned, or has scheduling gates.
func assign(pod *corev1.Pod, b *corev1.Binding) error {
	switch {
	case pod.DeletionTimestamp != nil:
		return fmt.Errorf("pod %s is being deleted, cannot be assigned to a host", pod.Name)
	case pod.Spec.NodeName != "":
		return fmt.Errorf("pod %v is already assigned to node %q", pod.Name, pod.Spec.NodeName)
	case len(pod.Spec.SchedulingGates) != 0:
		return fmt.Errorf("pod %v has non-empty .spec.schedulingGates", pod.Name)
	}
	pod.Spec.NodeName = b.Target.Name
	// Clear the nomination, which is only a hint until the pod is bound (KEP-5278).
	pod.Status.NominatedNodeName = ""
	if len(b.Annotations) > 0 && pod.Annotations == nil {
		pod.Annotations = map[string]string{}
	}
	maps.Copy(pod.Annotations, b.Annotations)
	if len(b.Labels) > 0 && pod.Labels == nil {
		pod.Labels = map[string]string{}
	}
	maps.Copy(pod.Labels, b.Labels)
	setCondition(pod, corev1.PodCondition{Type: corev1.PodScheduled, Status: corev1.ConditionTrue})
	return nil
}

// setCondition adds the condition c to the pod's status or replaces the one of the same type. The transition time
// changes only if the status does.
func setCondition(pod *corev1.Pod, c corev1.PodCondition) {
	c.LastTransitionTime = metav1.NewTime(time.Now().Truncate(time.Second))
	for i := range pod.Status.Conditions {
		if old := &pod.Status.Conditions[i]; old.Type == c.Type {
			if old.Status == c.Status {
				c.LastTransitionTime = old.LastTransitionTime
			}
			if c.Type != corev1.PodScheduled {
				c.ObservedGeneration = old.ObservedGeneration
			}
			*old = c
			return
		}
	}
	pod.Status.Conditions = append(pod.Status.Conditions, c)
}
