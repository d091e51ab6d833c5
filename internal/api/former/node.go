package former

import (
	nodev1 "k8s.io/api/node/v1"
	nodev1alpha1 "k8s.io/api/node/v1alpha1"
)

// nodeVersions returns the reader of RuntimeClasses in v1alpha1, where the fields were in a spec.
func nodeVersions() []version {
	return []version{
		{"RuntimeClass", nodev1.SchemeGroupVersion, nodev1alpha1.SchemeGroupVersion, convertByName(func(old *nodev1alpha1.RuntimeClass, now *nodev1.RuntimeClass) error {
			now.Handler = old.Spec.RuntimeHandler
			if o := old.Spec.Overhead; o != nil {
				now.Overhead = &nodev1.Overhead{PodFixed: o.PodFixed}
			}
			if s := old.Spec.Scheduling; s != nil {
				now.Scheduling = &nodev1.Scheduling{NodeSelector: s.NodeSelector, Tolerations: s.Tolerations}
			}
			return nil
		})},
	}
}
