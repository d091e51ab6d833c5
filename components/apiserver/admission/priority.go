package admission

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/validation/path"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/client-go/kubernetes"
	schedulinglisters "k8s.io/client-go/listers/scheduling/v1"

	"hyperkube/components/apiserver/syncgate"
)

// priority is the plugin Priority. It sets the priority and preemption policy of pods from their
// PriorityClass, and rejects a second global default class.
type priority struct {
	operations
	lister schedulinglisters.PriorityClassLister
	kube   kubernetes.Interface
	gate   *syncgate.Gate
}

// newPriority creates the plugin Priority. It returns nil, which disables the plugin, if PriorityClasses are not
// served.
func newPriority(cfg *Config) (admission.Interface, error) {
	if !cfg.Serves(schedulingv1.SchemeGroupVersion.WithResource("priorityclasses")) {
		return nil, nil
	}
	inf := cfg.Informers.Scheduling().V1().PriorityClasses()
	return &priority{
		operations: onCreateUpdate,
		lister:     inf.Lister(),
		kube:       cfg.Kube,
		gate:       syncgate.NewGate(inf.Informer().HasSyncedChecker()),
	}, nil
}

// Admit sets the priority and preemption policy of a new pod from its PriorityClass, or from the global default
// class. It rejects a pod whose class does not exist or that contains other values. In an update of a pod it fills in
// both from the stored pod if they are missing.
func (p *priority) Admit(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if !isRequestFor(a, "", "pods") {
		return nil
	}
	pod, ok := a.GetObject().(*corev1.Pod)
	if !ok {
		return nil
	}
	if a.GetOperation() == admission.Update {
		old, ok := a.GetOldObject().(*corev1.Pod)
		if !ok {
			return nil
		}
		// A client that replaces a pod by its manifest does not set the priority.
		if pod.Spec.Priority == nil && old.Spec.Priority != nil {
			v := *old.Spec.Priority
			pod.Spec.Priority = &v
		}
		if pod.Spec.PreemptionPolicy == nil && old.Spec.PreemptionPolicy != nil {
			v := *old.Spec.PreemptionPolicy
			pod.Spec.PreemptionPolicy = &v
		}
		return nil
	}
	value, policy := int32(0), corev1.PreemptLowerPriority
	class, err := p.class(ctx, pod.Spec.PriorityClassName)
	switch {
	case apierrors.IsNotFound(err):
		return forbid(a, "no PriorityClass with name %v was found", pod.Spec.PriorityClassName)
	case err != nil:
		return apierrors.NewInternalError(err)
	case class != nil:
		pod.Spec.PriorityClassName = class.Name
		value = class.Value
		if class.PreemptionPolicy != nil {
			policy = *class.PreemptionPolicy
		}
	}
	if pod.Spec.Priority != nil && *pod.Spec.Priority != value {
		return forbid(a, "the integer value of priority (%d) must not be provided in pod spec; priority admission controller computed %d from the given PriorityClass name", *pod.Spec.Priority, value)
	}
	if pod.Spec.PreemptionPolicy != nil && *pod.Spec.PreemptionPolicy != policy {
		return forbid(a, "the string value of PreemptionPolicy (%s) must not be provided in pod spec; priority admission controller computed %s from the given PriorityClass name", *pod.Spec.PreemptionPolicy, policy)
	}
	pod.Spec.Priority = &value
	pod.Spec.PreemptionPolicy = &policy
	return nil
}

// class returns the PriorityClass with the name, from the API if the informer does not have it, or a NotFound error.
// For an empty name it waits until the informer has synced and returns the global default class, or nil if there is
// none.
func (p *priority) class(ctx context.Context, name string) (*schedulingv1.PriorityClass, error) {
	if name == "" {
		if err := p.gate.Wait(ctx); err != nil {
			return nil, fmt.Errorf("failed to get default priority class: %w", err)
		}
		return p.defaultClass()
	}
	if class, err := p.lister.Get(name); err == nil {
		return class, nil
	}
	if len(path.IsValidPathSegmentName(name)) > 0 {
		return nil, apierrors.NewNotFound(schedulingv1.Resource("priorityclasses"), name) // not a valid object name
	}
	return p.kube.SchedulingV1().PriorityClasses().Get(ctx, name, metav1.GetOptions{})
}

// defaultClass returns the global default class, or nil if there is none. If a race has created
// several, it returns the one with the lowest value.
func (p *priority) defaultClass() (*schedulingv1.PriorityClass, error) {
	all, err := p.lister.List(labels.Everything())
	if err != nil {
		return nil, fmt.Errorf("failed to get default priority class: %w", err)
	}
	var found *schedulingv1.PriorityClass
	for _, c := range all {
		if c.GlobalDefault && (found == nil || c.Value < found.Value) {
			found = c
		}
	}
	return found, nil
}

// Validate rejects a new or updated PriorityClass with globalDefault if another class is the global default.
func (p *priority) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if !isRequestFor(a, schedulingv1.GroupName, "priorityclasses") {
		return nil
	}
	class, ok := a.GetObject().(*schedulingv1.PriorityClass)
	if !ok || !class.GlobalDefault {
		return nil
	}
	if err := p.gate.Wait(ctx); err != nil {
		return apierrors.NewInternalError(err)
	}
	current, err := p.defaultClass()
	if err != nil {
		return apierrors.NewInternalError(err)
	}
	if current != nil && current.Name != class.Name {
		return forbid(a, "PriorityClass %v is already marked as default. Only one default can exist", current.Name)
	}
	return nil
}
