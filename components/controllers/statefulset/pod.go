package statefulset

import (
	"fmt"
	"maps"
	"strconv"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"hyperkube/components/controllers/internal/control"
)

// ordinalOf returns the number at the end of a pod's name, if the rest is the
// set's.
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

func podName(set *appsv1.StatefulSet, ordinal int) string {
	return fmt.Sprintf("%s-%d", set.Name, ordinal)
}

func claimName(set *appsv1.StatefulSet, template string, ordinal int) string {
	return fmt.Sprintf("%s-%s-%d", template, set.Name, ordinal)
}

func start(set *appsv1.StatefulSet) int {
	if set.Spec.Ordinals == nil {
		return 0
	}
	return int(set.Spec.Ordinals.Start)
}

func size(set *appsv1.StatefulSet) int {
	if set.Spec.Replicas == nil {
		return 1
	}
	return int(*set.Spec.Replicas)
}

// newPod makes the pod of an ordinal from the template of set, which may be an
// older one, marked with its revision's name.
func newPod(set *appsv1.StatefulSet, revision string, ordinal int) *corev1.Pod {
	p := control.PodFrom(&set.Spec.Template, metav1.NewControllerRef(set, Kind))
	p.Name, p.Namespace = podName(set, ordinal), set.Namespace
	p.Spec.Hostname, p.Spec.Subdomain = p.Name, set.Spec.ServiceName
	identify(p, ordinal)
	p.Labels[appsv1.ControllerRevisionHashLabelKey] = revision
	attach(set, p, ordinal)
	return p
}

// identify puts on a pod what tells it from the others. It writes to p.
func identify(p *corev1.Pod, ordinal int) {
	if p.Labels == nil {
		p.Labels = map[string]string{}
	}
	p.Labels[appsv1.StatefulSetPodNameLabel] = p.Name
	p.Labels[appsv1.PodIndexLabel] = strconv.Itoa(ordinal)
}

// attach makes the pod's volumes refer to its own claims. It writes to p.
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

// isItself tells whether a pod has the name's labels and its claims.
func isItself(set *appsv1.StatefulSet, p *corev1.Pod, ordinal int) bool {
	if p.Labels[appsv1.StatefulSetPodNameLabel] != p.Name || p.Labels[appsv1.PodIndexLabel] != strconv.Itoa(ordinal) {
		return false
	}
	for i := range set.Spec.VolumeClaimTemplates {
		name := set.Spec.VolumeClaimTemplates[i].Name
		found := false
		for _, v := range p.Spec.Volumes {
			if v.Name == name && v.PersistentVolumeClaim != nil && v.PersistentVolumeClaim.ClaimName == claimName(set, name, ordinal) {
				found = true
			}
		}
		if !found {
			return false
		}
	}
	return true
}

// claims are the claims that the pod of an ordinal needs.
func claims(set *appsv1.StatefulSet, ordinal int) []*corev1.PersistentVolumeClaim {
	var out []*corev1.PersistentVolumeClaim
	for i := range set.Spec.VolumeClaimTemplates {
		c := set.Spec.VolumeClaimTemplates[i].DeepCopy()
		c.Name, c.Namespace = claimName(set, c.Name, ordinal), set.Namespace
		c.Status = corev1.PersistentVolumeClaimStatus{}
		c.Labels = maps.Clone(c.Labels)
		if set.Spec.Selector != nil && len(set.Spec.Selector.MatchLabels) > 0 {
			if c.Labels == nil {
				c.Labels = map[string]string{}
			}
			maps.Copy(c.Labels, set.Spec.Selector.MatchLabels)
		}
		if whenDeleted(set) {
			c.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(set, Kind)}
		}
		out = append(out, c)
	}
	return out
}

func whenDeleted(set *appsv1.StatefulSet) bool {
	r := set.Spec.PersistentVolumeClaimRetentionPolicy
	return r != nil && r.WhenDeleted == appsv1.DeletePersistentVolumeClaimRetentionPolicyType
}

func whenScaled(set *appsv1.StatefulSet) bool {
	r := set.Spec.PersistentVolumeClaimRetentionPolicy
	return r != nil && r.WhenScaled == appsv1.DeletePersistentVolumeClaimRetentionPolicyType
}

// wantedOwner is who a claim goes with: the set, the pod that is scaled away,
// or nobody.
func wantedOwner(set *appsv1.StatefulSet, p *corev1.Pod, condemned bool) *metav1.OwnerReference {
	switch {
	case condemned && whenScaled(set):
		ref := metav1.NewControllerRef(p, corev1.SchemeGroupVersion.WithKind("Pod"))
		return ref
	case whenDeleted(set):
		return metav1.NewControllerRef(set, Kind)
	}
	return nil
}

// ownedBy returns refs with owner as the only one of the set's or its pods';
// false if they are so already.
func ownedBy(refs []metav1.OwnerReference, owner *metav1.OwnerReference, set *appsv1.StatefulSet, p *corev1.Pod) ([]metav1.OwnerReference, bool) {
	var out []metav1.OwnerReference
	has, changed := false, false
	for _, r := range refs {
		ours := r.UID == set.UID || r.UID == p.UID || r.Kind == "Pod" && r.Name == p.Name
		switch {
		case !ours:
			out = append(out, r)
		case owner != nil && r.UID == owner.UID:
			has = true
			out = append(out, r)
		default:
			changed = true
		}
	}
	if owner != nil && !has {
		out = append(out, *owner)
		changed = true
	}
	return out, changed
}

func isHealthy(p *corev1.Pod) bool {
	return p.Status.Phase == corev1.PodRunning && control.IsReady(p) && p.DeletionTimestamp == nil
}
