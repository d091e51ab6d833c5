package statefulset

import (
	"fmt"
	"strconv"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"hyperkube/components/controllers/internal/control"
)

// ordinalOf returns the ordinal in the name of a pod. It returns false if the name is not that of a pod of this
// StatefulSet.
func ordinalOf(set *appsv1.StatefulSet, p *corev1.Pod) (int, bool) {
	i := strings.LastIndexByte(p.Name, '-')
	if i < 0 || p.Name[:i] != set.Name {
		return 0, false
	}
	n, err := strconv.ParseUint(p.Name[i+1:], 10, 31)
	if err != nil || strconv.FormatUint(n, 10) != p.Name[i+1:] {
		return 0, false
	}
	return int(n), true
}

// podName returns the name of the pod of set with an ordinal.
func podName(set *appsv1.StatefulSet, ordinal int) string {
	return fmt.Sprintf("%s-%d", set.Name, ordinal)
}

// claimName returns the name of the claim that the pod with an ordinal gets from the claim template with the name
// template.
func claimName(set *appsv1.StatefulSet, template string, ordinal int) string {
	return fmt.Sprintf("%s-%s-%d", template, set.Name, ordinal)
}

// start returns the lowest ordinal of the pods of set.
func start(set *appsv1.StatefulSet) int {
	if set.Spec.Ordinals == nil {
		return 0
	}
	return int(set.Spec.Ordinals.Start)
}

// size returns the desired number of pods of set. If it is not specified, it is one.
func size(set *appsv1.StatefulSet) int {
	if set.Spec.Replicas == nil {
		return 1
	}
	return int(*set.Spec.Replicas)
}

// newPod returns the pod for an ordinal, without creating it. set has the pod template of the revision with this name,
// which may be a former one.
func newPod(set *appsv1.StatefulSet, revision string, ordinal int) *corev1.Pod {
	p := control.PodFrom(&set.Spec.Template, metav1.NewControllerRef(set, Kind))
	p.Name, p.Namespace = podName(set, ordinal), set.Namespace
	p.GenerateName = control.PodPrefix(set.Name)
	p.Spec.Hostname, p.Spec.Subdomain = p.Name, set.Spec.ServiceName
	identify(p, ordinal)
	p.Labels[appsv1.ControllerRevisionHashLabelKey] = revision
	attach(set, p, ordinal)
	return p
}

// identify sets the labels of a StatefulSet's pod that contain the name and the ordinal of the pod.
func identify(p *corev1.Pod, ordinal int) {
	if p.Labels == nil {
		p.Labels = map[string]string{}
	}
	p.Labels[appsv1.StatefulSetPodNameLabel] = p.Name
	p.Labels[appsv1.PodIndexLabel] = strconv.Itoa(ordinal)
}

// attach sets the volumes of the pod for the claims of its ordinal. They replace volumes of the same name in the
// template.
func attach(set *appsv1.StatefulSet, p *corev1.Pod, ordinal int) {
	own := map[string]bool{}
	var volumes []corev1.Volume
	for i := range set.Spec.VolumeClaimTemplates {
		name := set.Spec.VolumeClaimTemplates[i].Name
		own[name] = true
		volumes = append(volumes, corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claimName(set, name, ordinal)},
		}})
	}
	for _, v := range p.Spec.Volumes {
		if !own[v.Name] {
			volumes = append(volumes, v)
		}
	}
	p.Spec.Volumes = volumes
}

// hasIdentity reports whether the pod of an ordinal has the label with its name, and volumes for its claims.
func hasIdentity(set *appsv1.StatefulSet, p *corev1.Pod, ordinal int) bool {
	return p.Labels[appsv1.StatefulSetPodNameLabel] == p.Name && hasClaims(set, p, ordinal)
}
