package validate

import (
	"path"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

// PathNoBacksteps checks that a file path has no element "..".
func (e *Errors) PathNoBacksteps(at *field.Path, target string) {
	if hasBackstep(target) {
		e.Invalid(at, target, "must not contain '..'")
	}
}

// hasBackstep reports whether a path has the element "..".
func hasBackstep(target string) bool {
	return strings.Contains(target, "..") && slices.Contains(strings.Split(target, "/"), "..")
}

// DescendingPath checks that a path is relative and does not leave its starting directory.
func (e *Errors) DescendingPath(at *field.Path, target string) {
	if path.IsAbs(target) {
		e.Invalid(at, target, "must be a relative path")
	}
	e.PathNoBacksteps(at, target)
}

// NonReservedPath checks the path of a file in a volume whose files the kubelet writes, such as a ConfigMap volume.
// The path must be relative, must not leave the volume, and must not start with "..", which the kubelet uses for its
// own directories.
func (e *Errors) NonReservedPath(at *field.Path, target string) {
	e.DescendingPath(at, target)
	if strings.HasPrefix(target, "..") && !strings.HasPrefix(target, "../") {
		e.Invalid(at, target, "must not start with '..'")
	}
}

// FileMode adds an error unless mode is a valid set of file permissions, 0 to 0777. A nil mode is valid.
func (e *Errors) FileMode(at *field.Path, mode *int32) {
	if mode != nil && (*mode < 0 || *mode > 0o777) {
		e.Invalid(at, *mode, "must be a number between 0 and 0777 (octal), both inclusive")
	}
}
