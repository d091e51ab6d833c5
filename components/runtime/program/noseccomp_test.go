//go:build cgo && !seccomp

package main

// hasSeccomp tells whether this program can filter system calls.
const hasSeccomp = false
