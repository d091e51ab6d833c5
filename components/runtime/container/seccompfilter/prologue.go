//go:build cgo && seccomp

package seccompfilter

import (
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/opencontainers/runc/libcontainer/configs"
	libseccomp "github.com/seccomp/libseccomp-golang"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

const (
	// instructionSize is the size of struct sock_filter.
	instructionSize = 8
	// offsetNumber and offsetArchitecture are the offsets of the members of struct seccomp_data.
	offsetNumber, offsetArchitecture = 0, 4
	// returnErrno is SECCOMP_RET_ERRNO. The lower 16 bits of the action are the error number.
	returnErrno = 0x00050000
	// x32Bit is set in the numbers of system calls of the x32 ABI, which has the same AUDIT_ARCH value as x86-64.
	x32Bit = 1 << 30
)

// auditArchitecture returns the kernel's AUDIT_ARCH value of an architecture. It returns zero for architectures that
// Compile does not support.
func auditArchitecture(a libseccomp.ScmpArch) uint32 {
	switch a {
	case libseccomp.ArchAMD64, libseccomp.ArchX32:
		return unix.AUDIT_ARCH_X86_64
	case libseccomp.ArchX86:
		return unix.AUDIT_ARCH_I386
	case libseccomp.ArchARM64:
		return unix.AUDIT_ARCH_AARCH64
	case libseccomp.ArchARM:
		return unix.AUDIT_ARCH_ARM
	}
	return 0
}

// prologue returns BPF instructions that precede the compiled profile. They return ENOSYS for system calls with a
// number above all numbers in the profile, for each of the architectures. C libraries detect by this error that the
// kernel lacks a new system call, and use older ones instead.
func prologue(profile *configs.Seccomp, architectures []libseccomp.ScmpArch) ([]byte, error) {
	var program []bpf.Instruction
	for _, a := range slices.Backward(architectures) {
		audit := auditArchitecture(a)
		highest := highestNumber(profile, a)
		if highest == 0 {
			continue
		}
		rest := uint32(len(program)) // the sections of other architectures
		section := []bpf.Instruction{
			bpf.JumpIf{Cond: bpf.JumpGreaterThan, Val: highest, SkipTrue: 1},
			bpf.Jump{Skip: rest + 1},
			bpf.RetConstant{Val: returnErrno | uint32(unix.ENOSYS)},
		}
		if audit == unix.AUDIT_ARCH_X86_64 {
			other := bpf.JumpBitsSet
			if a == libseccomp.ArchX32 {
				other = bpf.JumpBitsNotSet
			}
			section = append([]bpf.Instruction{bpf.JumpIf{Cond: other, Val: x32Bit, SkipTrue: uint8(len(section))}}, section...)
		}
		section = append([]bpf.Instruction{bpf.LoadAbsolute{Off: offsetNumber, Size: 4}}, section...)
		section = append([]bpf.Instruction{
			bpf.LoadAbsolute{Off: offsetArchitecture, Size: 4},
			bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: audit, SkipTrue: uint8(len(section))},
		}, section...)
		program = append(section, program...)
	}
	raw, err := bpf.Assemble(program)
	if err != nil {
		return nil, fmt.Errorf("assembling the program: %w", err)
	}
	var out []byte
	for _, i := range raw {
		out = binary.NativeEndian.AppendUint16(out, i.Op)
		out = append(out, i.Jt, i.Jf)
		out = binary.NativeEndian.AppendUint32(out, i.K)
	}
	return out, nil
}

// highestNumber returns the highest number of a system call in the profile on the architecture a. It returns zero if no
// system call of the profile exists there.
func highestNumber(profile *configs.Seccomp, a libseccomp.ScmpArch) uint32 {
	highest := libseccomp.ScmpSyscall(0)
	for _, call := range profile.Syscalls {
		if number, err := libseccomp.GetSyscallFromNameByArch(call.Name, a); err == nil {
			highest = max(highest, number)
		}
	}
	return uint32(highest)
}
