//go:build cgo && !seccomp

package main

// hasSeccomp reports whether this build supports seccomp.
const hasSeccomp = false

// probeName is the name under which the test binary acts as a program in a container.
const probeName = "seccomp-probe"

func probe() {}
