package validate

import "k8s.io/apimachinery/pkg/util/diff"

// Diff shows users what they changed that may not be changed so: the changed
// lines of the two values' JSON and those around them, without the names that
// fields have in JSON, as Kubernetes' own servers show it. It works on copies,
// for quantities change their form when they are shown.
func Diff[T any, P interface {
	*T
	DeepCopy() *T
}](old, now P) string {
	return diff.Diff(Untagged{old.DeepCopy()}, Untagged{now.DeepCopy()})
}
