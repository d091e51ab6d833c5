//go:build cgo && seccomp

package main

// hasSeccomp reports whether this build supports seccomp.
const hasSeccomp = true
