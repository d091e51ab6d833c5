package podexplain

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
)

// deletion explains a pod that is being deleted.
func (f *findings) deletion() {
	pod := f.in.Pod
	since := f.in.Now.Sub(pod.DeletionTimestamp.Time).Round(time.Second) // DeletionTimestamp includes the grace period
	if len(pod.Finalizers) > 0 && (pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed || since > 0) {
		f.problem("Finalizers", "The controllers of the finalizers must remove them. If a controller does not exist any more, remove its finalizer with `kubectl edit pod "+pod.Name+"`.",
			"The pod is being deleted, but it stays until its finalizers are removed: %s.", strings.Join(pod.Finalizers, ", "))
		return
	}
	if since <= 0 {
		f.info("Terminating", "", "The pod is being deleted. Its containers have until %s to exit (%s).", pod.DeletionTimestamp.UTC().Format("15:04:05 UTC"), -since)
		return
	}
	if n := f.in.Node; n != nil && slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status != corev1.ConditionTrue
	}) {
		f.problem("DeletionNodeNotReady", "Start the node again. If it is switched off for good, delete the Node, or add the taint node.kubernetes.io/out-of-service=:NoExecute.",
			"The pod is being deleted, but node %q is not ready, so its kubelet cannot confirm that the containers have stopped.", n.Name)
		return
	}
	f.problem("DeletionHangs", "Read the log of the kubelet. Volumes that cannot be unmounted are a frequent cause.", "The grace period of the deletion is over since %s, but the kubelet has not removed the pod.", since)
}

// failure explains a pod in the phase Failed.
func (f *findings) failure() {
	pod := f.in.Pod
	message := sentence(pod.Status.Message)
	disruption := ""
	if c := condition(pod, corev1.DisruptionTarget); c != nil && c.Status == corev1.ConditionTrue {
		disruption = c.Reason
		if message == "" {
			message = sentence(c.Message)
		}
	}
	replaced := "A controller creates another pod. Delete this one with `kubectl delete pod " + pod.Name + "`."
	switch {
	case disruption == "PreemptionByScheduler" || pod.Status.Reason == "Preempting":
		f.problem("Preempted", "Raise the priorityClassName of the pod, or add a node. "+replaced, "The pod was stopped, because a pod of higher priority needed its resources: %s", message)
	case pod.Status.Reason == "Evicted":
		f.problem("Evicted", "Set requests that cover the usage of the pod, or free the resource on the node. "+replaced, "The kubelet of node %q evicted the pod: %s", pod.Spec.NodeName, message)
	case disruption == "EvictionByEvictionAPI":
		f.problem("EvictedByRequest", replaced, "A client evicted the pod, for example by `kubectl drain`: %s", message)
	case disruption == "DeletionByTaintManager":
		f.problem("TaintEviction", "Add a toleration, or wait until the taint is removed. "+replaced, "The pod was deleted, because node %q has a taint that it does not tolerate: %s", pod.Spec.NodeName, message)
	case pod.Status.Reason == "DeadlineExceeded":
		f.problem("DeadlineExceeded", "Raise activeDeadlineSeconds.", "The pod has run longer than activeDeadlineSeconds: %s", message)
	case pod.Status.Reason == "NodeShutdown" || pod.Status.Reason == "Terminated":
		f.problem("NodeShutdown", replaced, "The pod was stopped, because node %q was shut down: %s", pod.Spec.NodeName, message)
	case strings.HasPrefix(pod.Status.Reason, "OutOf") || slices.Contains([]string{"NodeAffinity", "UnexpectedAdmissionError", "NodePorts", "NodeName", "TopologyAffinityError", "AppArmor", "SysctlForbidden"}, pod.Status.Reason):
		f.problem("NotAdmitted", replaced, "The kubelet of node %q has rejected the pod (%s): %s", pod.Spec.NodeName, pod.Status.Reason, message)
	}
	for _, c := range f.containerList() {
		if c.State.Terminated != nil && c.State.Terminated.ExitCode != 0 {
			containerFindings{f}.exit(c, c.State.Terminated, "has stopped")
		}
	}
	if len(f.list) == 0 {
		f.problem("Failed", replaced, "The pod has failed (%s): %s", pod.Status.Reason, message)
	}
}

// readiness explains readiness gates without the status True.
func (f *findings) readiness() {
	for _, g := range f.in.Pod.Spec.ReadinessGates {
		c := condition(f.in.Pod, g.ConditionType)
		switch {
		case c == nil:
			f.problem("ReadinessGate", "The controller that is responsible for the condition must set it. Check that it runs.", "The pod is not ready, because the condition %q of its readiness gate is not set.", g.ConditionType)
		case c.Status != corev1.ConditionTrue:
			f.problem("ReadinessGate", "", "The pod is not ready, because the condition %q of its readiness gate is %s: %s", g.ConditionType, c.Status, sentence(c.Message))
		}
	}
}

// missingClaim explains that a claim does not exist.
func (f *findings) missingClaim(name string) {
	f.problem("MissingClaim", fmt.Sprintf("Create the PersistentVolumeClaim %q in namespace %s, or correct the name in the pod.", name, f.in.Pod.Namespace), "The pod uses the PersistentVolumeClaim %q, which does not exist.", name)
}

// volumes explains the claims of the pod that are not bound.
func (f *findings) volumes() {
	if !f.in.ClaimsKnown {
		return
	}
	pod := f.in.Pod
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		name := ""
		switch {
		case v.PersistentVolumeClaim != nil:
			name = v.PersistentVolumeClaim.ClaimName
		case v.Ephemeral != nil:
			name = pod.Name + "-" + v.Name
		default:
			continue
		}
		at := slices.IndexFunc(f.in.Claims, func(c corev1.PersistentVolumeClaim) bool { return c.Name == name })
		if at < 0 {
			f.missingClaim(name)
			continue
		}
		f.claim(&f.in.Claims[at])
	}
}

// claim explains why a claim is not bound.
func (f *findings) claim(c *corev1.PersistentVolumeClaim) {
	if c.Status.Phase == corev1.ClaimLost {
		f.problem("LostClaim", "Restore the PersistentVolume, or delete the claim and create it again.", "The PersistentVolume of the claim %q has been deleted, so its data is lost.", c.Name)
	}
	if c.Status.Phase != corev1.ClaimPending {
		return
	}
	if c.Spec.StorageClassName == nil {
		f.problem("NoStorageClass", "Set storageClassName, or make a class the default: `kubectl annotate storageclass NAME storageclass.kubernetes.io/is-default-class=true`.", "The claim %q has no storageClassName and the cluster has no default class, so no volume is created.", c.Name)
		return
	}
	name := *c.Spec.StorageClassName
	at := slices.IndexFunc(f.in.Classes, func(s storagev1.StorageClass) bool { return s.Name == name })
	failed := f.lastEvent("PersistentVolumeClaim", c.Name, "ProvisioningFailed")
	switch {
	case name == "":
		f.problem("UnboundClaim", "Create a PersistentVolume that matches the claim in size, access mode and selector.", "The claim %q waits for a matching PersistentVolume.", c.Name)
	case at < 0 && f.in.ClassesKnown:
		f.problem("MissingStorageClass", "Create the StorageClass, or delete the claim and create it again with another one: `kubectl get storageclass`.", "The claim %q uses the StorageClass %q, which does not exist.", c.Name, name)
	case failed != nil:
		f.problem("ProvisioningFailed", "Read the log of the provisioner.", "The volume of the claim %q cannot be created: %s", c.Name, sentence(failed.Message))
	case at >= 0 && f.in.Classes[at].VolumeBindingMode != nil && *f.in.Classes[at].VolumeBindingMode == storagev1.VolumeBindingWaitForFirstConsumer && f.in.Pod.Spec.NodeName == "":
		f.info("ClaimWaits", "", "The volume of the claim %q is created after the scheduler has selected a node.", c.Name)
	default:
		provisioner := ""
		if at >= 0 {
			provisioner = f.in.Classes[at].Provisioner
		}
		f.problem("UnboundClaim", "Check that the provisioner runs.", "The claim %q waits until the provisioner %q creates a volume.", c.Name, provisioner)
	}
}

// mount explains the message of an event about a volume that cannot be set up.
func (f *findings) mount(message string) {
	for _, kind := range []string{"configmap", "secret"} {
		name := between(message, kind+` "`, `" not found`)
		if name == "" {
			continue
		}
		title := map[string]string{"configmap": "ConfigMap", "secret": "Secret"}[kind]
		f.problem("Missing"+title, fmt.Sprintf("Create the %s %q in namespace %s, or mark the volume as optional. The pod then starts within a minute or two.", title, name, f.in.Pod.Namespace),
			"The pod cannot start, because it mounts the %s %q, which does not exist.", title, name)
		return
	}
	switch {
	case contains(message, "references non-existent config key", "references non-existent secret key"):
		f.problem("MissingKey", "Add the key, or correct the items of the volume.", "The pod cannot start, because a volume needs a key that does not exist: %s", sentence(message))
	case contains(message, "Multi-Attach"):
		f.problem("VolumeInUse", "Wait until the other pod has stopped. If its node is switched off for good, add the taint node.kubernetes.io/out-of-service=:NoExecute to the node.", "A volume of the pod is still attached to another node: %s", sentence(message))
	case contains(message, "hostPath type check failed"):
		f.problem("HostPath", "Create the path on the node, or change the type of the hostPath volume.", "A hostPath volume does not have the required type: %s", sentence(message))
	default:
		f.problem("FailedMount", "Check the driver and the server of the volume; the kubelet retries.", "A volume of the pod cannot be set up: %s", sentence(message))
	}
}
