package cri

// LabelPodName and the other constants are the labels and annotations of sandboxes and containers. They are those
// of upstream's kubelet, so that a kubelet finds containers that another one has created, and tools such as crictl
// and log collectors work.
const (
	LabelPodName       = "io.kubernetes.pod.name"
	LabelPodNamespace  = "io.kubernetes.pod.namespace"
	LabelPodUID        = "io.kubernetes.pod.uid"
	LabelContainerName = "io.kubernetes.container.name"

	AnnotationHash                     = "io.kubernetes.container.hash"
	AnnotationRestartCount             = "io.kubernetes.container.restartCount"
	AnnotationTerminationMessagePath   = "io.kubernetes.container.terminationMessagePath"
	AnnotationTerminationMessagePolicy = "io.kubernetes.container.terminationMessagePolicy"
	AnnotationPorts                    = "io.kubernetes.container.ports"
	AnnotationGracePeriod              = "io.kubernetes.pod.terminationGracePeriod"
	AnnotationPreStop                  = "io.kubernetes.container.preStopHandler"
)
