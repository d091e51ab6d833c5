package pod

import (
	"context"
	"fmt"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/warning"

	"hyperkube/internal/api"
	"hyperkube/internal/pod/podutil"
)

// Kind returns the definition of the kind Pod, which package core registers.
func Kind() api.Kind[*corev1.Pod] {
	return api.Kind[*corev1.Pod]{
		Names: api.Names{
			Kind:       "Pod",
			Plural:     "pods",
			ShortNames: []string{"po"},
			Categories: []string{"all"},
		},
		Version: "v1",
		Scope:   api.Namespaced,
		New:     func() *corev1.Pod { return &corev1.Pod{} },
		NewList: func() runtime.Object { return &corev1.PodList{} },
		Default: Default,
		PrepareCreate: func(ctx context.Context, p *corev1.Pod) {
			prepareCreate(p)
			for _, text := range copyAppArmor(p) {
				warning.AddWarning(ctx, "", text)
			}
		},
		Validate: func(_ context.Context, p *corev1.Pod) field.ErrorList { return validateCreate(p) },
		Warnings: func(_ context.Context, p, old *corev1.Pod) []string {
			if old != nil {
				// Updates are frequent and mostly made by components, which do not read warnings.
				return nil
			}
			return warnings(p)
		},
		Update: api.KindUpdate[*corev1.Pod]{
			AsNew: true,
			Prepare: func(_ context.Context, p, old *corev1.Pod) {
				old.Status.DeepCopyInto(&p.Status)
				keepPodResources(p, old)
				DropDisabled(&p.Spec, &old.Spec)
				bumpGeneration(p, old)
			},
			Validate:    func(_ context.Context, p, old *corev1.Pod) field.ErrorList { return validateUpdate(p, old) },
			ResetFields: [][]string{{"status"}},
		},
		Views: map[string]api.KindUpdate[*corev1.Pod]{
			"status": {
				Warnings:    func(_ context.Context, p, _ *corev1.Pod) []string { return statusWarnings(p) },
				Prepare:     func(_ context.Context, p, old *corev1.Pod) { prepareStatus(p, old) },
				Validate:    func(_ context.Context, p, old *corev1.Pod) field.ErrorList { return validateStatus(p, old) },
				ResetFields: [][]string{{"spec"}, {"metadata", "deletionTimestamp"}, {"metadata", "ownerReferences"}},
			},
			"ephemeralcontainers": {
				AsNew: true,
				Prepare: func(_ context.Context, p, old *corev1.Pod) {
					asked := p.Spec.EphemeralContainers
					old.Spec.DeepCopyInto(&p.Spec)
					p.Spec.EphemeralContainers = asked
					DropDisabled(&p.Spec, &old.Spec)
					prepareSpecView(p, old)
				},
				Validate: func(_ context.Context, p, old *corev1.Pod) field.ErrorList { return validateEphemeralUpdate(p, old) },
			},
			"resize": {
				AsNew: true,
				Prepare: func(_ context.Context, p, old *corev1.Pod) {
					keepResize(p, old)
					keepPodResources(p, old)
					defaultPodResources(p)
					prepareSpecView(p, old)
				},
				Validate: func(_ context.Context, p, old *corev1.Pod) field.ErrorList { return validateResize(p, old) },
			},
		},
		BeforeDelete: func(_ context.Context, p *corev1.Pod, opts *metav1.DeleteOptions) bool {
			return beforeDelete(p, opts)
		},
		Fields: selectable,
		Direct: map[string]api.KindDirect[*corev1.Pod]{
			// Kubelets watch their own pods with this selector.
			"spec.nodeName": {
				Of:   func(p *corev1.Pod) string { return p.Spec.NodeName },
				Path: []int{fieldSpec, fieldNodeName}, Indexed: true,
			},
			"status.phase": {
				Of:   func(p *corev1.Pod) string { return string(p.Status.Phase) },
				Path: []int{fieldStatus, fieldPhase}, Indexed: true,
			},
		},
		FieldNames: []string{
			"spec.host", "spec.hostNetwork", "spec.nodeName", "spec.restartPolicy", "spec.schedulerName",
			"spec.serviceAccountName", "status.nominatedNodeName", "status.phase", "status.podIP", "status.podIPs",
		},
		Columns:       columns(),
		Row:           row,
		RowConditions: rowConditions,
	}
}

// Field numbers in the protobuf encoding of a pod: of spec, spec.nodeName, status and status.phase.
const (
	fieldSpec     = 2
	fieldNodeName = 10
	fieldStatus   = 3
	fieldPhase    = 1
)

// prepareCreate resets the status of a new pod to Pending, clears disabled fields, and sets what is derived from the
// spec: the QoS class, pod-level resources and, for a pod with scheduling gates, the condition PodScheduled.
func prepareCreate(p *corev1.Pod) {
	p.Generation = 1
	p.Status = corev1.PodStatus{Phase: corev1.PodPending}
	DropDisabled(&p.Spec, nil)
	// Admission may have set the service account.
	syncServiceAccount(&p.Spec)
	if len(p.Spec.SchedulingGates) > 0 {
		p.Status.Conditions = []corev1.PodCondition{{
			Type:               corev1.PodScheduled,
			Status:             corev1.ConditionFalse,
			LastTransitionTime: metav1.NewTime(time.Now().Truncate(time.Second)),
			Reason:             corev1.PodReasonSchedulingGated,
			Message:            "Scheduling is blocked due to non-empty scheduling gates",
		}}
	}
	mergeLabelKeys(p)
	defaultPodResources(p)
	p.Status.QOSClass = QOS(p)
}

// mergeLabelKeys adds the pod's label values for matchLabelKeys and mismatchLabelKeys to the
// selectors that schedulers evaluate (KEP-3243, KEP-3633).
func mergeLabelKeys(p *corev1.Pod) {
	add := func(s *metav1.LabelSelector, keys []string, op metav1.LabelSelectorOperator) {
		if s == nil {
			return
		}
		for _, key := range keys {
			if value, ok := p.Labels[key]; ok {
				s.MatchExpressions = append(s.MatchExpressions, metav1.LabelSelectorRequirement{Key: key, Operator: op, Values: []string{value}})
			}
		}
	}
	term := func(t *corev1.PodAffinityTerm) {
		add(t.LabelSelector, t.MatchLabelKeys, metav1.LabelSelectorOpIn)
		add(t.LabelSelector, t.MismatchLabelKeys, metav1.LabelSelectorOpNotIn)
	}
	terms := func(must []corev1.PodAffinityTerm, should []corev1.WeightedPodAffinityTerm) {
		for i := range must {
			term(&must[i])
		}
		for i := range should {
			term(&should[i].PodAffinityTerm)
		}
	}
	if a := p.Spec.Affinity; a != nil {
		if a.PodAffinity != nil {
			terms(a.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution, a.PodAffinity.PreferredDuringSchedulingIgnoredDuringExecution)
		}
		if a.PodAntiAffinity != nil {
			terms(a.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution, a.PodAntiAffinity.PreferredDuringSchedulingIgnoredDuringExecution)
		}
	}
	for i := range p.Spec.TopologySpreadConstraints {
		t := &p.Spec.TopologySpreadConstraints[i]
		add(t.LabelSelector, t.MatchLabelKeys, metav1.LabelSelectorOpIn)
	}
}

// bumpGeneration increments the generation of the pod p if its spec differs from that of old, the stored pod.
func bumpGeneration(p, old *corev1.Pod) {
	p.Generation = old.Generation
	if !apiequality.Semantic.DeepEqual(p.Spec, old.Spec) {
		p.Generation++
	}
}

// prepareSpecView prepares updates by subresources that can only change a part of the spec. Changes
// of other parts have been reverted before.
func prepareSpecView(p, old *corev1.Pod) {
	old.Status.DeepCopyInto(&p.Status)
	metav1.ResetObjectMetaForStatus(&p.ObjectMeta, old.ObjectMeta.DeepCopy())
	bumpGeneration(p, old)
}

// prepareStatus reverts changes of the spec, the owners and the deletion in a status update, and keeps values that the
// client omitted.
func prepareStatus(p, old *corev1.Pod) {
	old.Spec.DeepCopyInto(&p.Spec)
	p.DeletionTimestamp = old.DeletionTimestamp.DeepCopy()
	p.OwnerReferences = old.ObjectMeta.DeepCopy().OwnerReferences
	if p.Status.QOSClass == "" {
		p.Status.QOSClass = old.Status.QOSClass
	}
	keepObserved(&p.Status, &old.Status)
	// These are alpha features.
	if len(old.Status.NodeAllocatableResourceClaimStatuses) == 0 {
		p.Status.NodeAllocatableResourceClaimStatuses = nil
	}
	if len(old.Status.VolumeHealth) == 0 {
		p.Status.VolumeHealth = nil
	}
	if !mountStatuses(&old.Status, false) {
		mountStatuses(&p.Status, true)
	}
}

// mountStatuses reports whether a status contains the status of image volume mounts, and clears it
// if drop is set.
func mountStatuses(s *corev1.PodStatus, drop bool) (used bool) {
	for _, list := range [][]corev1.ContainerStatus{s.ContainerStatuses, s.InitContainerStatuses, s.EphemeralContainerStatuses} {
		for i := range list {
			for j := range list[i].VolumeMounts {
				used = clearField(&list[i].VolumeMounts[j].VolumeStatus, drop) || used
			}
		}
	}
	return used
}

// keepObserved keeps observed generations that the client has omitted. If several conditions have
// the same type, they are matched in order.
func keepObserved(s, old *corev1.PodStatus) {
	if s.ObservedGeneration == 0 {
		s.ObservedGeneration = old.ObservedGeneration
	}
	for i := range s.Conditions {
		if s.Conditions[i].ObservedGeneration != 0 {
			continue
		}
		nth := 0
		for j := range i {
			if s.Conditions[j].Type == s.Conditions[i].Type {
				nth++
			}
		}
		for j := range old.Conditions {
			if old.Conditions[j].Type != s.Conditions[i].Type {
				continue
			}
			if nth == 0 {
				s.Conditions[i].ObservedGeneration = old.Conditions[j].ObservedGeneration
				break
			}
			nth--
		}
	}
}

// beforeDelete determines the grace period of a pod. A pod that no kubelet runs, because it is not scheduled or has
// terminated, is deleted immediately. The grace period of a terminating pod can only be shortened. A negative period
// becomes one second. Without options, it returns false, so that the pod is deleted immediately.
func beforeDelete(p *corev1.Pod, opts *metav1.DeleteOptions) bool {
	if opts == nil {
		return false
	}
	period := int64(0)
	switch {
	case p.DeletionTimestamp != nil:
		if p.DeletionGracePeriodSeconds != nil {
			period = *p.DeletionGracePeriodSeconds
		}
		if opts.GracePeriodSeconds != nil {
			period = min(period, *opts.GracePeriodSeconds)
		}
	case p.Spec.NodeName == "" || podutil.Terminal(p):
	case opts.GracePeriodSeconds != nil:
		period = *opts.GracePeriodSeconds
	case p.Spec.TerminationGracePeriodSeconds != nil:
		period = *p.Spec.TerminationGracePeriodSeconds
	}
	if period < 0 {
		period = 1
	}
	opts.GracePeriodSeconds = &period
	return true
}

func selectable(p *corev1.Pod) fields.Set {
	ip := ""
	if len(p.Status.PodIPs) > 0 {
		ip = p.Status.PodIPs[0].IP
	}
	return fields.Set{
		"spec.host":                p.Spec.NodeName, // deprecated alias
		"spec.hostNetwork":         strconv.FormatBool(p.Spec.HostNetwork),
		"spec.nodeName":            p.Spec.NodeName,
		"spec.restartPolicy":       string(p.Spec.RestartPolicy),
		"spec.schedulerName":       p.Spec.SchedulerName,
		"spec.serviceAccountName":  p.Spec.ServiceAccountName,
		"status.nominatedNodeName": p.Status.NominatedNodeName,
		"status.phase":             string(p.Status.Phase),
		"status.podIP":             ip,
	}
}

// warnings returns the warnings that a client gets for a pod.
func warnings(p *corev1.Pod) []string {
	var out []string
	if msgs := validation.IsDNS1123Label(p.Name); p.Name != "" && len(msgs) > 0 {
		out = append(out, fmt.Sprintf("metadata.name: this is used in the Pod's hostname, which can result in surprising behavior; a DNS label is recommended: %v", msgs))
	}
	return append(out, specWarnings(&p.Spec, &p.ObjectMeta, nil)...)
}
