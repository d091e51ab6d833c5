//go:build !cgo || !seccomp

package seccompfilter

import (
	"errors"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
)

func loadProfile() bool { return false }

func TestUnsupported(t *testing.T) {
	if _, err := Compile(&specs.LinuxSeccomp{DefaultAction: specs.ActErrno}); !errors.Is(err, ErrUnsupported) {
		t.Errorf("got %v", err)
	}
}
