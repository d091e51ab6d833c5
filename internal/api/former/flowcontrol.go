package former

import (
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	flowcontrolv1beta1 "k8s.io/api/flowcontrol/v1beta1"
	flowcontrolv1beta2 "k8s.io/api/flowcontrol/v1beta2"
	flowcontrolv1beta3 "k8s.io/api/flowcontrol/v1beta3"
)

// defaultShares is the number of concurrency shares of a priority level that specifies none. Before
// v1, zero also meant the default.
const defaultShares = 30

// flowcontrolVersions returns the readers of PriorityLevelConfigurations in beta versions. In the
// first two, the field of the concurrency shares had another name; in all of them zero shares meant
// the default, in v1beta3 unless an annotation was set.
func flowcontrolVersions() []version {
	v1 := flowcontrolv1.SchemeGroupVersion
	shares := func(now *flowcontrolv1.PriorityLevelConfiguration, n int32) {
		if n == 0 {
			n = defaultShares
		}
		now.Spec.Limited.NominalConcurrencyShares = &n
	}
	return []version{
		{"PriorityLevelConfiguration", v1, flowcontrolv1beta1.SchemeGroupVersion, convertByName(func(old *flowcontrolv1beta1.PriorityLevelConfiguration, now *flowcontrolv1.PriorityLevelConfiguration) error {
			if l := old.Spec.Limited; l != nil {
				shares(now, l.AssuredConcurrencyShares)
			}
			return nil
		})},
		{"PriorityLevelConfiguration", v1, flowcontrolv1beta2.SchemeGroupVersion, convertByName(func(old *flowcontrolv1beta2.PriorityLevelConfiguration, now *flowcontrolv1.PriorityLevelConfiguration) error {
			if l := old.Spec.Limited; l != nil {
				shares(now, l.AssuredConcurrencyShares)
			}
			return nil
		})},
		{"PriorityLevelConfiguration", v1, flowcontrolv1beta3.SchemeGroupVersion, convertByName(func(old *flowcontrolv1beta3.PriorityLevelConfiguration, now *flowcontrolv1.PriorityLevelConfiguration) error {
			_, kept := old.Annotations[flowcontrolv1beta3.PriorityLevelPreserveZeroConcurrencySharesKey]
			delete(now.Annotations, flowcontrolv1beta3.PriorityLevelPreserveZeroConcurrencySharesKey)
			switch l := old.Spec.Limited; {
			case l == nil:
			case kept:
				now.Spec.Limited.NominalConcurrencyShares = &l.NominalConcurrencyShares
			default:
				shares(now, l.NominalConcurrencyShares)
			}
			return nil
		})},
	}
}
