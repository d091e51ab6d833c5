package validate

import (
	corev1 "k8s.io/api/core/v1"
)

// RoundUp rounds the quantities of a list up to thousandths, the smallest
// amount that the API knows. It belongs to the defaulting of every resource
// list that users write.
func RoundUp(list corev1.ResourceList) {
	for name, q := range list {
		if !q.RoundUp(-3) {
			list[name] = q
		}
	}
}
