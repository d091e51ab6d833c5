package storage

import (
	"path"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// Scrubber describes a pod that deletes the content of a volume on a node. A controller cannot delete it itself,
// because it does not run on the volume's node.
type Scrubber struct {
	// Image is the container image that contains the scrub program.
	Image string
	// Namespace and Name are the pod's. The controller finds the pod by its Annotations.
	Namespace, Name string
	Annotations     map[string]string
	// Source is the volume. Entry is the only directory entry to remove, or "" for all.
	Source corev1.VolumeSource
	Entry  string
	// Node is the node to run on, or "" for any.
	Node string
}

// Pod returns the pod, which the caller creates. Its permissions are limited to the volume, but include all files that
// users of the volume created there. It runs on tainted nodes too, and at most for an hour.
func (s Scrubber) Pod() *corev1.Pod {
	const dir = "/scrub"
	args := []string{"scrub", dir}
	if s.Entry != "" {
		args = append(args, path.Base(s.Entry))
	}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: s.Namespace, Name: s.Name, Annotations: s.Annotations},
		Spec: corev1.PodSpec{
			NodeName:                      s.Node,
			RestartPolicy:                 corev1.RestartPolicyNever,
			ActiveDeadlineSeconds:         ptr.To[int64](3600),
			TerminationGracePeriodSeconds: ptr.To[int64](0),
			AutomountServiceAccountToken:  new(false),
			EnableServiceLinks:            new(false),
			// The pod must also run on a tainted node, because the volume is there.
			Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
			Containers: []corev1.Container{{
				Name: "scrub", Image: s.Image, ImagePullPolicy: corev1.PullIfNotPresent, Args: args,
				VolumeMounts:             []corev1.VolumeMount{{Name: "volume", MountPath: dir}},
				TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError,
				SecurityContext: &corev1.SecurityContext{
					RunAsUser:                ptr.To[int64](0),
					AllowPrivilegeEscalation: new(false),
					ReadOnlyRootFilesystem:   new(true),
					// Files that pods wrote have these pods' SELinux levels, and the directory has
					// the host's label.
					SELinuxOptions: &corev1.SELinuxOptions{Type: "spc_t"},
					Capabilities:   &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}, Add: []corev1.Capability{"DAC_OVERRIDE", "FOWNER"}},
				},
			}},
			Volumes: []corev1.Volume{{Name: "volume", VolumeSource: s.Source}},
		},
	}
}

// Terminated reports whether a pod has terminated. failure is a message if it has failed, and empty if it has
// succeeded.
func Terminated(p *corev1.Pod) (ended bool, failure string) {
	switch p.Status.Phase {
	case corev1.PodSucceeded:
		return true, ""
	case corev1.PodFailed:
		failure = p.Status.Message
		for _, c := range p.Status.ContainerStatuses {
			if t := c.State.Terminated; t != nil && t.Message != "" {
				failure = t.Message
			}
		}
		if failure == "" {
			failure = "pod failed, pod.Status.Message unknown"
		}
		return true, failure
	}
	return false, ""
}
