//go:build !cgo || !seccomp

// Package seccompfilter compiles seccomp profiles to BPF programs that the kernel can load. This build does not
// support seccomp.
package seccompfilter

import "github.com/opencontainers/runtime-spec/specs-go"

// Compile returns ErrUnsupported, because this build does not contain libseccomp.
func Compile(*specs.LinuxSeccomp) ([]byte, error) { return nil, ErrUnsupported }
