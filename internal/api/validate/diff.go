package validate

import (
	"regexp"

	"github.com/google/go-cmp/cmp"
)

// Diff shows users what they changed in an object of core/v1 that may not be
// changed so. Kubernetes' own servers compare types of a package called core
// there, and that is the name which the text has. It works on copies, for
// quantities change their form when they are shown.
func Diff[T any, P interface {
	*T
	DeepCopy() *T
}](old, now P) string {
	return coreNames(cmp.Diff(*old.DeepCopy(), *now.DeepCopy()))
}

// typeName finds the names of types; strings are found too, so that what they
// hold is not taken for one.
var typeName = regexp.MustCompile("\"(?:[^\"\\\\]|\\\\.)*\"|`[^`]*`|\\bv1\\.[A-Z]\\w*")

// coreNames writes core for v1 in the names of the types of core/v1. Those of
// meta/v1, which has a like name, stay.
func coreNames(text string) string {
	return typeName.ReplaceAllStringFunc(text, func(found string) string {
		if found[0] == '"' || found[0] == '`' {
			return found
		}
		name := found[len("v1."):]
		switch name {
		case "LabelSelector", "LabelSelectorRequirement", "LabelSelectorOperator", "ObjectMeta", "OwnerReference",
			"ManagedFieldsEntry", "ManagedFieldsOperationType", "FieldsV1", "Time", "MicroTime", "Duration":
			return found
		}
		return "core." + name
	})
}
