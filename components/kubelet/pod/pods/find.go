package pods

import (
	"errors"
	"fmt"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"hyperkube/components/kubelet/pod/images"
	"hyperkube/components/kubelet/pod/podstate"
)

// Pods returns the desired pods, including terminated ones, with the status that the kubelet has computed
// last, which the API may not have yet. Pods that were removed from their source are excluded. The pods are
// shallow copies, whose specs must not be modified.
func (r *Registry) Pods() []*v1.Pod {
	workers := r.all()
	out := make([]*v1.Pod, 0, len(workers))
	for _, w := range workers {
		w.mu.Lock()
		if !w.machine.Removed {
			pod := *w.machine.Pod
			if w.report.want.StartTime != nil {
				pod.Status = w.report.want
			}
			out = append(out, &pod)
		}
		w.mu.Unlock()
	}
	return out
}

// Active returns the pods that have not terminated and were not removed from their source. A pod with a
// pending resize has its actual resources.
func (r *Registry) Active() []*v1.Pod {
	workers := r.all()
	var out []*v1.Pod
	for _, w := range workers {
		out = append(out, w.active()...)
	}
	return out
}

// ErrNoPod is the error for a pod or container that is not on this node.
var ErrNoPod = errors.New("not found on this node")

// notFoundError is an ErrNoPod with upstream's message.
type notFoundError string

// Error returns upstream's message.
func (m notFoundError) Error() string { return string(m) }

// Is makes errors.Is report true for ErrNoPod.
func (notFoundError) Is(target error) bool { return target == ErrNoPod }

// Container returns a pod and the state of one of its containers: the latest attempt or, with previous, the
// one before. An empty uid matches any pod of that name. The error is an ErrNoPod if the pod or the container
// is not in the registry. There is another error, for display to clients, if the container was not created
// yet or has no previous attempt.
func (r *Registry) Container(namespace, name string, uid types.UID, container string, previous bool) (*v1.Pod, podstate.Container, error) {
	w := r.find(namespace, name, uid)
	if w == nil {
		return nil, podstate.Container{}, notFoundError(fmt.Sprintf("pod %q does not exist", name))
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if c, _ := podstate.Find(w.machine.Pod, container); c == nil {
		return w.machine.Pod, podstate.Container{}, notFoundError(fmt.Sprintf("container %q not found in pod %q", container, name))
	}
	st := w.machine.Containers.Observed.Latest(container)
	if previous {
		if st = w.machine.Containers.Observed.Previous(container); st == nil {
			return w.machine.Pod, podstate.Container{}, fmt.Errorf("previous terminated container %q in pod %q not found", container, name)
		}
	}
	if st == nil {
		reason := "ContainerCreating"
		if len(w.machine.Pod.Spec.InitContainers) > 0 {
			reason = "PodInitializing"
		}
		if s := w.machine.Containers.Slots[container].Waiting; s != nil {
			reason = s.Reason
		}
		switch reason {
		case images.ErrImagePull:
			reason = "image can't be pulled"
		case images.ImagePullBackOff:
			reason = "trying and failing to pull image"
		}
		return w.machine.Pod, podstate.Container{}, fmt.Errorf("container %q in pod %q is waiting to start: %s", container, name, reason)
	}
	return w.machine.Pod, *st, nil
}

// Sandbox returns the ID of the pod's ready sandbox. It returns an ErrNoPod if there is no such pod, and
// another error if the pod has no ready sandbox. An empty uid matches any pod of that name.
func (r *Registry) Sandbox(namespace, name string, uid types.UID) (string, error) {
	w := r.find(namespace, name, uid)
	if w == nil {
		return "", notFoundError(fmt.Sprintf("pod %q does not exist", name))
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	box := w.machine.Containers.Observed.Sandbox()
	if box == nil {
		return "", fmt.Errorf("pod %q is not running", name)
	}
	return box.ID, nil
}

// find returns the worker of the pod with that name, or nil. An empty uid matches any pod; otherwise it must
// be the pod's UID or, for a static pod, the value of its annotation AnnotationHash. A pod that is not
// removed takes precedence over a removed one.
func (r *Registry) find(namespace, name string, uid types.UID) *worker {
	r.mu.Lock()
	defer r.mu.Unlock()
	var found *worker
	for _, w := range r.workers {
		w.mu.Lock()
		fits := w.machine.Pod.Namespace == namespace && w.machine.Pod.Name == name && (uid == "" || w.uid == uid || string(uid) == w.machine.Pod.Annotations[AnnotationHash])
		gone := w.machine.Removed
		w.mu.Unlock()
		if fits && (found == nil || !gone) {
			found = w
		}
	}
	return found
}
