package validate

import "k8s.io/apimachinery/pkg/util/diff"

// Diff formats forbidden changes for error messages: the changed lines of both values in JSON with
// some context, with Go field names as in upstream's messages. It works on copies, because
// formatting modifies quantities.
func Diff[T any, P interface {
	*T
	DeepCopy() *T
}](old, now P) string {
	return diff.Diff(Untagged{old.DeepCopy()}, Untagged{now.DeepCopy()})
}
