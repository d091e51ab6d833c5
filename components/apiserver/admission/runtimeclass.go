package admission

import (
	"context"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/client-go/kubernetes"
	nodelisters "k8s.io/client-go/listers/node/v1"
)

// runtimeClass is the plugin RuntimeClass. It sets the overhead and the scheduling constraints of a
// new pod from its RuntimeClass.
type runtimeClass struct {
	operations
	lister nodelisters.RuntimeClassLister
	kube   kubernetes.Interface
}

// newRuntimeClass creates the plugin RuntimeClass. It returns nil, which disables the plugin, if RuntimeClasses are
// not served.
func newRuntimeClass(cfg *Config) (admission.Interface, error) {
	if !cfg.Serves(nodev1.SchemeGroupVersion.WithResource("runtimeclasses")) {
		return nil, nil
	}
	return &runtimeClass{operations: onCreate, lister: cfg.Informers.Node().V1().RuntimeClasses().Lister(), kube: cfg.Kube}, nil
}

// podAndClass returns the new pod of the request and its RuntimeClass. Both are nil if the request creates no pod;
// the class is nil if the pod names none. It returns a Forbidden error if the class does not exist.
func (p *runtimeClass) podAndClass(ctx context.Context, a admission.Attributes) (*corev1.Pod, *nodev1.RuntimeClass, error) {
	if !isRequestFor(a, "", "pods") {
		return nil, nil, nil
	}
	pod, ok := a.GetObject().(*corev1.Pod)
	if !ok || pod.Spec.RuntimeClassName == nil {
		return pod, nil, nil
	}
	name := *pod.Spec.RuntimeClassName
	class, err := p.lister.Get(name)
	if err != nil {
		class, err = p.kube.NodeV1().RuntimeClasses().Get(ctx, name, metav1.GetOptions{})
	}
	if apierrors.IsNotFound(err) {
		return nil, nil, forbid(a, "pod rejected: RuntimeClass %q not found", name)
	}
	if err != nil {
		return nil, nil, err
	}
	return pod, class, nil
}

// Admit sets the overhead of the RuntimeClass in a new pod and adds its node selector and tolerations. It rejects a
// pod with another overhead or with a conflicting node selector. It does nothing for pods without a class.
func (p *runtimeClass) Admit(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	pod, class, err := p.podAndClass(ctx, a)
	if err != nil || class == nil {
		return err
	}
	if class.Overhead != nil {
		if pod.Spec.Overhead != nil && !equality.Semantic.DeepEqual(class.Overhead.PodFixed, pod.Spec.Overhead) {
			return forbid(a, "pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead")
		}
		pod.Spec.Overhead = class.Overhead.PodFixed.DeepCopy()
	}
	if class.Scheduling == nil {
		return nil
	}
	if want := class.Scheduling.NodeSelector; len(want) > 0 {
		merged := maps.Clone(want)
		for k, v := range pod.Spec.NodeSelector {
			if w, ok := want[k]; ok && w != v {
				return forbid(a, "conflict: runtimeClass.scheduling.nodeSelector[%s] = %s; pod.spec.nodeSelector[%s] = %s", k, w, k, v)
			}
			merged[k] = v
		}
		pod.Spec.NodeSelector = merged
	}
	pod.Spec.Tolerations = mergeTolerations(slices.Concat(pod.Spec.Tolerations, class.DeepCopy().Scheduling.Tolerations))
	return nil
}

// Validate rejects a new pod whose overhead is not that of its RuntimeClass, or that has an overhead without such a
// class. It repeats the check of Admit because other plugins may have changed the pod.
func (p *runtimeClass) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	pod, class, err := p.podAndClass(ctx, a)
	if err != nil || pod == nil {
		return err
	}
	if class != nil && class.Overhead != nil {
		if !equality.Semantic.DeepEqual(class.Overhead.PodFixed, pod.Spec.Overhead) {
			return forbid(a, "pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead")
		}
	} else if pod.Spec.Overhead != nil {
		return forbid(a, "pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead")
	}
	return nil
}
