package validate

import "k8s.io/apimachinery/pkg/util/diff"

// Diff formats the difference between a stored and an updated value for the message of an error about
// a forbidden change. It returns the changed lines of their JSON with some context and with Go field
// names, as in upstream's messages. It copies the values, because formatting modifies quantities.
func Diff[T any, P interface {
	*T
	DeepCopy() *T
}](old, now P) string {
	return diff.Diff(Untagged{old.DeepCopy()}, Untagged{now.DeepCopy()})
}
