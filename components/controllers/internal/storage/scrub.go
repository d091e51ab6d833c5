package storage

import (
	"path"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// Scrubber makes the pod that removes what is in a directory of a node, for a
// controller is not on the node where a volume is.
type Scrubber struct {
	// Image has the program.
	Image string
	// Namespace and Name of the pod, Annotations that its controller finds it
	// by.
	Namespace, Name string
	Annotations     map[string]string
	// Source is the volume; Entry the one thing to be removed in it, "" for
	// all that is in it.
	Source corev1.VolumeSource
	Entry  string
	// Node is where it must run, "" anywhere.
	Node string
}

// Pod returns the pod. It may do nothing but see that one directory, and with
// it whatever the volume's users made there.
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
			// The node is what it is: a volume must go from a tainted one too.
			Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
			Containers: []corev1.Container{{
				Name: "scrub", Image: s.Image, ImagePullPolicy: corev1.PullIfNotPresent, Args: args,
				VolumeMounts:             []corev1.VolumeMount{{Name: "volume", MountPath: dir}},
				TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError,
				SecurityContext: &corev1.SecurityContext{
					RunAsUser:                ptr.To[int64](0),
					AllowPrivilegeEscalation: new(false),
					ReadOnlyRootFilesystem:   new(true),
					// What pods wrote has levels of theirs, and the directory the label of the host's.
					SELinuxOptions: &corev1.SELinuxOptions{Type: "spc_t"},
					Capabilities:   &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}, Add: []corev1.Capability{"DAC_OVERRIDE", "FOWNER"}},
				},
			}},
			Volumes: []corev1.Volume{{Name: "volume", VolumeSource: s.Source}},
		},
	}
}

// Ended tells whether a pod has ended and, if it failed, why.
func Ended(p *corev1.Pod) (ended bool, failure string) {
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
