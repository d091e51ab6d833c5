// Package admission decides which pods may run on the node. The checks repeat the scheduler's, because a pod can
// be bound without the scheduler, and two pods can be bound concurrently to the same free resources.
package admission

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	goruntime "runtime"
	"slices"
	"time"

	"k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/record"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/klog/v2"

	"hyperkube/components/kubelet/node/shutdown"
	"hyperkube/components/kubelet/pod/pods"
	"hyperkube/components/kubelet/resources"
)

// Pods lists and terminates the pods of the node. Its methods must be safe for concurrent use.
type Pods interface {
	// OtherPods returns the pods that have not terminated, except for that with the UID.
	OtherPods(uid types.UID) []*v1.Pod
	// Terminate terminates a pod.
	Terminate(uid types.UID, v *pods.Verdict)
	// Cleaned returns a channel that is closed when no process of a pod runs and its volumes are removed.
	Cleaned(uid types.UID) <-chan struct{}
}

// Node caches the Node object of this node. Its methods must be safe for concurrent use.
type Node interface {
	// Node returns the latest known Node, or nil before it is known.
	Node() *v1.Node
	// Observe stores the Node unless a newer one is known.
	Observe(node *v1.Node)
}

// Resources allocates devices, CPUs and memory to pods. Its methods must be safe for concurrent use.
type Resources interface {
	// Admit allocates the resources of a pod. An error is a *resources.AdmissionError.
	Admit(ctx context.Context, pod *v1.Pod) error
	// Capacity returns the resources of device plugins: all devices, and the healthy ones.
	Capacity() (all, healthy v1.ResourceList)
}

// Config is the configuration of an Admitter. All fields are required unless their comment says otherwise.
type Config struct {
	NodeName string
	// Kube may be nil.
	Kube kubernetes.Interface
	Pods Pods
	Node Node
	// Allocatable are the allocatable resources of the node. They must not be modified.
	Allocatable v1.ResourceList
	Resources   Resources
	// Shutdown reports whether the machine is shutting down.
	Shutdown interface{ Down() bool }
	// Eviction returns why a pod must not start under pressure, or "".
	Eviction interface {
		Reject(pod *v1.Pod, class v1.PodQOSClass) string
	}
	// AllowedUnsafeSysctls are sysctls that pods may set in addition to the safe ones. A trailing * is a
	// wildcard.
	AllowedUnsafeSysctls []string
	Events               record.EventRecorder
	// Preempted counts a preemption victim by the resource that was insufficient.
	Preempted func(resource string)
	Log       *slog.Logger
}

// Admitter decides whether pods that are new to this node may run. It implements pods.Admitter. Its methods
// are safe for concurrent use.
type Admitter struct{ cfg Config }

// New returns an Admitter.
func New(cfg Config) *Admitter { return &Admitter{cfg: cfg} }

// Admit decides whether a pod that is new to this node may run, and allocates its devices, CPUs and memory.
// others are the other pods that have not terminated. A nil result admits the pod; otherwise the result is
// why it is rejected. When ctx is cancelled the kubelet is shutting down, so admission does not wait for
// preemption victims.
func (a *Admitter) Admit(ctx context.Context, pod *v1.Pod, others []*v1.Pod) *pods.Verdict {
	if v := a.checkFit(ctx, pod, others); v != nil {
		return v
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), allocateTimeout)
	defer cancel()
	var rejected *resources.AdmissionError
	err := a.cfg.Resources.Admit(ctx, pod)
	switch {
	case errors.As(err, &rejected):
		return &pods.Verdict{Reason: rejected.Reason, Message: rejected.Message}
	case err != nil:
		return &pods.Verdict{Reason: "UnexpectedAdmissionError", Message: err.Error()}
	}
	return nil
}

// allocateTimeout is how long device plugins may take to allocate the devices of a pod. After that the pod is
// rejected.
const allocateTimeout = 30 * time.Second

// checkFit checks whether a pod that is new to this node may run and fits on the node. For a critical pod
// that does not fit it preempts other pods. It returns nil if the pod may run, otherwise why it is rejected.
func (a *Admitter) checkFit(ctx context.Context, pod *v1.Pod, others []*v1.Pod) *pods.Verdict {
	refuse := func(reason, message string) *pods.Verdict {
		return &pods.Verdict{Reason: reason, Message: message}
	}
	if a.cfg.Shutdown.Down() {
		return refuse(shutdown.RefusedReason, shutdown.RefusedMessage)
	}
	if message := a.cfg.Eviction.Reject(pod, pods.QOS(pod)); message != "" {
		return refuse("Evicted", message)
	}
	if sc := pod.Spec.SecurityContext; sc != nil {
		for _, s := range sc.Sysctls {
			if why := a.forbiddenSysctl(pod, s.Name); why != "" {
				return refuse("SysctlForbidden", "forbidden sysctl: "+why)
			}
		}
	}
	if want, said := pod.Labels[v1.LabelOSStable]; said && want != goruntime.GOOS {
		return refuse("PodOSSelectorNodeLabelDoesNotMatch", "Failed to admit pod as the `kubernetes.io/os` label doesn't match node label")
	}
	if pod.Spec.OS != nil && string(pod.Spec.OS.Name) != goruntime.GOOS {
		return refuse("PodOSNotSupported", "Failed to admit pod as the OS field doesn't match node OS")
	}
	if v := admitAppArmor(pod); v != nil {
		return v
	}
	if node := a.cfg.Node.Node(); node != nil {
		if sc := pod.Spec.SecurityContext; sc != nil && sc.SupplementalGroupsPolicy != nil && *sc.SupplementalGroupsPolicy == v1.SupplementalGroupsPolicyStrict {
			if f := node.Status.Features; f == nil || f.SupplementalGroupsPolicy == nil || !*f.SupplementalGroupsPolicy {
				return refuse("SupplementalGroupsPolicyNotSupported", "SupplementalGroupsPolicy=Strict is not supported in this node")
			}
		}
		if !attracted(pod, node) && !attracted(pod, a.newestNode()) {
			return refuse("NodeAffinity", "Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector")
		}
	}
	for _, o := range others {
		if portsClash(pod, o) {
			return refuse("NodePorts", "Predicate NodePorts failed: node(s) didn't have free ports for the requested pod ports")
		}
	}
	if node := a.cfg.Node.Node(); node != nil && !pods.IsStatic(pod) && hasUntoleratedNoExecuteTaint(pod, node.Spec.Taints) {
		return refuse("TaintToleration", "Predicate TaintToleration failed: node(s) had taints that the pod didn't tolerate")
	}
	missing := a.insufficientResources(pod, others)
	if len(missing) == 0 {
		return nil
	}
	if pods.IsCritical(pod) {
		if err := a.preempt(ctx, pod, others, missing); err != nil {
			return refuse("UnexpectedAdmissionError", preemptionFailedPrefix+err.Error())
		}
		return nil
	}
	m := missing[0]
	return refuse("OutOf"+string(m.Name), fmt.Sprintf("Node didn't have enough resource: %s, requested: %d, used: %d, capacity: %d", m.Name, m.requested, m.used, m.capacity))
}

// attracted reports whether the pod's node selector and required node affinity match the node. It returns
// false if node is nil, and true if the affinity is not valid.
func attracted(pod *v1.Pod, node *v1.Node) bool {
	if node == nil {
		return false
	}
	ok, err := nodeaffinity.GetRequiredNodeAffinity(pod).Match(node)
	return ok || err != nil
}

// newestNode gets the Node from the API server. Pods and the Node are watched separately, so a pod that
// matches newly added labels can arrive before the Node update. It returns nil without an API server and
// after an error.
func (a *Admitter) newestNode() *v1.Node {
	if a.cfg.Kube == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), getNodeTimeout)
	defer cancel()
	node, err := a.cfg.Kube.CoreV1().Nodes().Get(ctx, a.cfg.NodeName, metav1.GetOptions{})
	if err != nil {
		a.cfg.Log.Warn("getting the latest Node from the API server failed; a new pod whose node selector or affinity needs labels that the kubelet has not received yet is rejected, no retry", "node", a.cfg.NodeName, "err", err)
		return nil
	}
	a.cfg.Node.Observe(node)
	return node
}

// getNodeTimeout is the timeout for the API server to return the Node.
const getNodeTimeout = 10 * time.Second

// hasUntoleratedNoExecuteTaint reports whether the pod does not tolerate one of the NoExecute taints, so that
// it would be evicted immediately.
func hasUntoleratedNoExecuteTaint(pod *v1.Pod, taints []v1.Taint) bool {
	for i := range taints {
		tolerated := taints[i].Effect != v1.TaintEffectNoExecute || slices.ContainsFunc(pod.Spec.Tolerations, func(t v1.Toleration) bool {
			return t.ToleratesTaint(klog.Background(), &taints[i], false)
		})
		if !tolerated {
			return true
		}
	}
	return false
}
