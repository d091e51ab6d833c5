package admission

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/admission"
)

// hardAntiAffinity is the plugin LimitPodHardAntiAffinityTopology. It allows required pod
// anti-affinity only with the topology key kubernetes.io/hostname.
type hardAntiAffinity struct{ operations }

// newHardAntiAffinity creates the plugin hardAntiAffinity. It never fails.
func newHardAntiAffinity(*Config) (admission.Interface, error) {
	return hardAntiAffinity{onCreateUpdate}, nil
}

// Validate rejects a new or updated pod that requires anti-affinity with a topology key other than
// kubernetes.io/hostname. Preferred anti-affinity may have any key.
func (hardAntiAffinity) Validate(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	pod, ok := a.GetObject().(*corev1.Pod)
	if !ok || !isRequestFor(a, "", "pods") || pod.Spec.Affinity == nil || pod.Spec.Affinity.PodAntiAffinity == nil {
		return nil
	}
	for _, term := range pod.Spec.Affinity.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution {
		if term.TopologyKey != corev1.LabelHostname {
			return apierrors.NewForbidden(a.GetResource().GroupResource(), pod.Name,
				fmt.Errorf("affinity.PodAntiAffinity.RequiredDuringScheduling has TopologyKey %v but only key %v is allowed", term.TopologyKey, corev1.LabelHostname))
		}
	}
	return nil
}
