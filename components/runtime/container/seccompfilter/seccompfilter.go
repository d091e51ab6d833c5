//go:build cgo && seccomp

// Package seccompfilter compiles seccomp profiles to BPF programs that the kernel can load.
//
// libcontainer compiles the profile of a container each time it starts a process, which takes 15 ms of CPU time for
// the default profile. The runtime compiles it once with this package.
package seccompfilter

// #include <malloc.h>
//
// static void trim(void)
// {
// #ifdef __GLIBC__
// 	malloc_trim(0);
// #endif
// }
import "C"

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/opencontainers/runc/libcontainer/configs"
	"github.com/opencontainers/runc/libcontainer/specconv"
	"github.com/opencontainers/runtime-spec/specs-go"
	libseccomp "github.com/seccomp/libseccomp-golang"
	"golang.org/x/sys/unix"
)

// maxProgram is the maximum size in bytes of a BPF program that the kernel accepts.
const maxProgram = 4096 * instructionSize

// Compile returns the BPF program for profile, as an array of struct sock_filter. A process with this program gets the
// same results as one for which libcontainer loads the profile without flags or with SECCOMP_FILTER_FLAG_SPEC_ALLOW.
// The error wraps ErrUnsupported if Compile does not support a setting of the profile; the caller then leaves it to
// libcontainer.
func Compile(profile *specs.LinuxSeccomp) ([]byte, error) {
	config, err := specconv.SetupSeccomp(profile)
	if err != nil {
		return nil, fmt.Errorf("compiling seccomp profile: %w", err)
	}
	if err := check(config); err != nil {
		return nil, err
	}
	program, err := compile(config)
	C.trim() // libseccomp needs 1 MB, and the C library would keep it for the next profile
	if err != nil {
		return nil, fmt.Errorf("compiling seccomp profile: %w", err)
	}
	return program, nil
}

// check returns an error that wraps ErrUnsupported unless each rule of profile allows a system call or makes it
// fail with an error number, which is also the default action. Flags other than SPEC_ALLOW, a listener, and two
// conditions for one argument are not supported either.
func check(profile *configs.Seccomp) error {
	if profile == nil || profile.DefaultAction != configs.Errno {
		return fmt.Errorf("%w: the default action is not an error number", ErrUnsupported)
	}
	for _, flag := range profile.Flags {
		if flag != specs.LinuxSeccompFlagSpecAllow {
			return fmt.Errorf("%w: flag %s", ErrUnsupported, flag)
		}
	}
	if profile.ListenerPath != "" {
		return fmt.Errorf("%w: listener", ErrUnsupported)
	}
	for _, call := range profile.Syscalls {
		if call.Action != configs.Allow && call.Action != configs.Errno {
			return fmt.Errorf("%w: action of system call %s", ErrUnsupported, call.Name)
		}
		seen := 0
		for _, arg := range call.Args {
			if seen&(1<<arg.Index) != 0 {
				return fmt.Errorf("%w: several conditions for one argument of system call %s", ErrUnsupported, call.Name)
			}
			seen |= 1 << arg.Index
		}
	}
	return nil
}

// compile returns the BPF program for a profile that check accepts.
func compile(profile *configs.Seccomp) ([]byte, error) {
	defaultAction := action(profile.DefaultAction, profile.DefaultErrnoRet)
	filter, err := libseccomp.NewFilter(defaultAction)
	if err != nil {
		return nil, err
	}
	defer filter.Release()
	architectures, err := architecturesOf(profile)
	if err != nil {
		return nil, err
	}
	for _, a := range architectures {
		if err := filter.AddArch(a); err != nil {
			return nil, fmt.Errorf("adding architecture %s: %w", a, err)
		}
	}
	// A binary tree of system calls instead of a list, as in libcontainer. libseccomp before 2.5 does not support it,
	// and it fails for profiles without rules.
	if len(profile.Syscalls) > 32 {
		if err := filter.SetOptimize(2); err != nil && !isVersionError(err) {
			return nil, fmt.Errorf("optimizing the filter: %w", err)
		}
	}
	for _, call := range profile.Syscalls {
		if err := addRule(filter, call, defaultAction); err != nil {
			return nil, fmt.Errorf("adding system call %s: %w", call.Name, err)
		}
	}
	body, err := export(filter)
	if err != nil {
		return nil, err
	}
	head, err := prologue(profile, architectures)
	if err != nil {
		return nil, err
	}
	program := append(head, body...)
	if len(body) == 0 || len(program)%instructionSize != 0 || len(program) > maxProgram {
		return nil, fmt.Errorf("invalid program of %d bytes", len(program))
	}
	return program, nil
}

func isVersionError(err error) bool {
	var version *libseccomp.VersionError
	return errors.As(err, &version)
}

// architecturesOf returns the architectures of profile. The first one is the native architecture. It returns
// ErrUnsupported if one of them is not supported.
func architecturesOf(profile *configs.Seccomp) ([]libseccomp.ScmpArch, error) {
	native, err := libseccomp.GetNativeArch()
	if err != nil {
		return nil, fmt.Errorf("determining the native architecture: %w", err)
	}
	list := []libseccomp.ScmpArch{native}
	for _, name := range profile.Architectures {
		a, err := libseccomp.GetArchFromString(name)
		if err != nil {
			return nil, fmt.Errorf("parsing architecture: %w", err)
		}
		if a != native {
			list = append(list, a)
		}
	}
	for _, a := range list {
		if auditArchitecture(a) == 0 {
			return nil, fmt.Errorf("%w: architecture %s", ErrUnsupported, a)
		}
	}
	return list, nil
}

// action converts an action of a profile to that of libseccomp. kind is Allow or Errno. errno is the error number, or
// nil for EPERM.
func action(kind configs.Action, errno *uint) libseccomp.ScmpAction {
	if kind == configs.Allow {
		return libseccomp.ActAllow
	}
	if errno == nil {
		return libseccomp.ActErrno.SetReturnCode(int16(unix.EPERM))
	}
	return libseccomp.ActErrno.SetReturnCode(int16(*errno))
}

// operators maps libcontainer's operators for comparing arguments to those of libseccomp.
func operators() map[configs.Operator]libseccomp.ScmpCompareOp {
	return map[configs.Operator]libseccomp.ScmpCompareOp{
		configs.EqualTo: libseccomp.CompareEqual, configs.NotEqualTo: libseccomp.CompareNotEqual,
		configs.GreaterThan: libseccomp.CompareGreater, configs.GreaterThanOrEqualTo: libseccomp.CompareGreaterEqual,
		configs.LessThan: libseccomp.CompareLess, configs.LessThanOrEqualTo: libseccomp.CompareLessOrEqual,
		configs.MaskEqualTo: libseccomp.CompareMaskedEqual,
	}
}

// addRule adds the profile's rule for a system call to filter, unless it has no effect because its action is
// defaultAction. Like libcontainer, it ignores system calls that libseccomp does not know.
func addRule(filter *libseccomp.ScmpFilter, call *configs.Syscall, defaultAction libseccomp.ScmpAction) error {
	act := action(call.Action, call.ErrnoRet)
	if act == defaultAction {
		return nil // libseccomp rejects redundant rules
	}
	number, err := libseccomp.GetSyscallFromName(call.Name)
	if err != nil {
		return nil //nolint:nilerr // unknown system call
	}
	if len(call.Args) == 0 {
		return filter.AddRule(number, act)
	}
	var conditions []libseccomp.ScmpCondition
	for _, arg := range call.Args {
		operator, ok := operators()[arg.Op]
		if !ok {
			return fmt.Errorf("invalid operator %d", arg.Op)
		}
		condition, err := libseccomp.MakeCondition(arg.Index, operator, arg.Value, arg.ValueTwo)
		if err != nil {
			return err
		}
		conditions = append(conditions, condition)
	}
	return filter.AddRuleConditional(number, act, conditions)
}

// export returns the BPF program that libseccomp generates for the filter.
func export(filter *libseccomp.ScmpFilter) ([]byte, error) {
	fd, err := unix.MemfdCreate("seccomp", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("exporting the program: %w", err)
	}
	file := os.NewFile(uintptr(fd), "seccomp")
	defer file.Close()
	if err := filter.ExportBPF(file); err != nil {
		return nil, fmt.Errorf("exporting the program: %w", err)
	}
	program, err := io.ReadAll(io.NewSectionReader(file, 0, maxProgram+1))
	if err != nil {
		return nil, fmt.Errorf("exporting the program: %w", err)
	}
	return program, nil
}
