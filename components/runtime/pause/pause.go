// Package pause generates the program that holds a pod's namespaces: a static ELF file of a few
// hundred bytes. It is assembled here, so neither a compiler nor an image is needed.
//
// The program waits for SIGTERM or SIGINT and exits with 0. It ignores SIGCHLD, so the kernel reaps
// its children, which are the orphaned processes of a pod with a shared PID namespace. With an
// argument, a directory, it first changes its root to an empty file system mounted there. So
// processes that share its PID namespace cannot access the host through its root. This requires a
// private mount namespace.
package pause

import (
	"encoding/binary"
	"fmt"
)

// base is the load address of the program.
const base = 0x10000

// sigINT and the other constants are values of the Linux kernel that are identical on both architectures: signals,
// mount flags and flags of umount2.
const (
	sigINT, sigCHLD, sigTERM = 2, 17, 15
	msRecPrivate             = 0x4000 | 1<<18
	tmpfsFlags               = 1 | 2 | 4 | 8 // MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC
	mntDetach                = 2
)

// syscalls has the system call numbers that the pause program needs, by name: first that of amd64, then that of
// arm64.
var syscalls = map[string][2]int64{
	"rt_sigaction": {13, 134}, "rt_sigprocmask": {14, 135}, "rt_sigtimedwait": {128, 137},
	"mount": {165, 40}, "umount2": {166, 39}, "pivot_root": {155, 41}, "chdir": {80, 49},
	"exit_group": {231, 94},
}

// arg is an argument of a system call in the generated program.
type arg struct {
	value int64
	data  bool // value is an offset into the data
	path  bool // the program's first argument
}

// imm returns an argument with a constant value.
func imm(n int64) arg { return arg{value: n} }

// data returns an argument with the address of the data at offset n.
func data(n int64) arg { return arg{value: n, data: true} }

// path is an argument with the address of the program's first command line argument.
var path = arg{path: true}

// assembler generates machine code for one architecture. Positions are offsets in the code.
type assembler interface {
	// call emits a system call.
	call(name string, dataAt int64, args ...arg)
	// skipIfNoArgument emits a jump that is taken if there is no first argument, failOnError if the
	// last call failed, and loopUnlessPositive if it returned zero or less. The returned offset is
	// passed to patch.
	skipIfNoArgument() int
	failOnError() int
	loopUnlessPositive(to int)
	patch(jump, to int)
	here() int
	code() []byte
}

// Program returns the ELF file of the pause program for an architecture in Go's notation, "amd64" or "arm64". It
// returns an error for other architectures.
func Program(arch string) ([]byte, error) {
	var build func() assembler
	var machine uint16
	switch arch {
	case "amd64":
		build, machine = func() assembler { return &amd64{} }, 62
	case "arm64":
		build, machine = func() assembler { return &arm64{} }, 183
	default:
		return nil, fmt.Errorf("no pause program for architecture %s", arch)
	}
	const headers = 64 + 56
	// Assemble twice, because the address of the data depends on the length of the code.
	a := build()
	emit(a, base)
	length := int64(len(a.code()))
	a = build()
	emit(a, base+headers+length)
	body := append(a.code(), dataBytes()...)

	elf := make([]byte, 0, headers+len(body))
	elf = append(elf, 0x7f, 'E', 'L', 'F', 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0)
	le := binary.LittleEndian
	elf = le.AppendUint16(elf, 2) // executable
	elf = le.AppendUint16(elf, machine)
	elf = le.AppendUint32(elf, 1)
	elf = le.AppendUint64(elf, base+headers) // entry
	elf = le.AppendUint64(elf, 64)           // program headers
	elf = le.AppendUint64(elf, 0)            // no sections
	elf = le.AppendUint32(elf, 0)
	elf = le.AppendUint16(elf, 64)
	elf = le.AppendUint16(elf, 56)
	elf = le.AppendUint16(elf, 1)
	elf = le.AppendUint16(elf, 64)
	elf = le.AppendUint16(elf, 0)
	elf = le.AppendUint16(elf, 0)
	elf = le.AppendUint32(elf, 1) // load
	elf = le.AppendUint32(elf, 5) // readable, executable
	elf = le.AppendUint64(elf, 0)
	elf = le.AppendUint64(elf, base)
	elf = le.AppendUint64(elf, base)
	elf = le.AppendUint64(elf, uint64(headers+len(body)))
	elf = le.AppendUint64(elf, uint64(headers+len(body)))
	elf = le.AppendUint64(elf, 0x10000)
	return append(elf, body...), nil
}

// dataIgnore and the other constants are the offsets of values in the data section of the pause program.
const (
	dataIgnore = 0  // struct sigaction with handler SIG_IGN (1), the rest zero
	dataSet    = 32 // signal set of SIGTERM and SIGINT
	dataDot    = 40 // "."
	dataRoot   = 42 // "/"
	dataTmpfs  = 44 // "tmpfs"
)

// dataBytes returns the data section, which follows the code.
func dataBytes() []byte {
	d := make([]byte, 50)
	d[dataIgnore] = 1
	binary.LittleEndian.PutUint64(d[dataSet:], 1<<(sigTERM-1)|1<<(sigINT-1))
	copy(d[dataDot:], ".")
	copy(d[dataRoot:], "/")
	copy(d[dataTmpfs:], "tmpfs")
	return d
}

// emit generates the code of the pause program with a. dataAt is the address of the data.
func emit(a assembler, dataAt int64) {
	call := func(name string, args ...arg) { a.call(name, dataAt, args...) }
	call("rt_sigaction", imm(sigCHLD), data(dataIgnore), imm(0), imm(8))
	// Blocked signals are delivered to PID 1 too.
	call("rt_sigprocmask", imm(0), data(dataSet), imm(0), imm(8))
	var fails []int
	must := func(name string, args ...arg) {
		call(name, args...)
		fails = append(fails, a.failOnError())
	}
	skip := a.skipIfNoArgument()
	must("mount", imm(0), data(dataRoot), imm(0), imm(msRecPrivate), imm(0))
	must("mount", data(dataTmpfs), path, data(dataTmpfs), imm(tmpfsFlags), imm(0))
	must("chdir", path)
	must("pivot_root", data(dataDot), data(dataDot))
	must("umount2", data(dataDot), imm(mntDetach))
	must("chdir", data(dataRoot))
	loop := a.here()
	a.patch(skip, loop)
	call("rt_sigtimedwait", data(dataSet), imm(0), imm(0), imm(8))
	a.loopUnlessPositive(loop)
	call("exit_group", imm(0))
	fail := a.here()
	for _, jump := range fails {
		a.patch(jump, fail)
	}
	call("exit_group", imm(1))
}

// immediate returns the value of an argument that is not path. dataAt is the address of the data.
func (g arg) immediate(dataAt int64) int64 {
	if g.data {
		return dataAt + g.value
	}
	return g.value
}

type amd64 struct{ b []byte }

func (a *amd64) here() int    { return len(a.b) }
func (a *amd64) code() []byte { return a.b }

func (a *amd64) call(name string, dataAt int64, args ...arg) {
	// mov reg, imm32 for rdi rsi rdx r10 r8, and mov reg, [rsp+16].
	imms := [][]byte{{0x48, 0xc7, 0xc7}, {0x48, 0xc7, 0xc6}, {0x48, 0xc7, 0xc2}, {0x49, 0xc7, 0xc2}, {0x49, 0xc7, 0xc0}}
	loads := [][]byte{{0x48, 0x8b, 0x7c, 0x24, 0x10}, {0x48, 0x8b, 0x74, 0x24, 0x10}}
	for i, g := range args {
		if g.path {
			a.b = append(a.b, loads[i]...)
			continue
		}
		a.b = append(a.b, imms[i]...)
		a.b = binary.LittleEndian.AppendUint32(a.b, uint32(g.immediate(dataAt)))
	}
	a.b = append(a.b, 0x48, 0xc7, 0xc0) // mov rax, number
	a.b = binary.LittleEndian.AppendUint32(a.b, uint32(syscalls[name][0]))
	a.b = append(a.b, 0x0f, 0x05)
}

// jump emits a conditional jump with a 32-bit offset and returns the position of the offset.
func (a *amd64) jump(condition byte) int {
	a.b = append(a.b, 0x0f, condition, 0, 0, 0, 0)
	return len(a.b) - 4
}

func (a *amd64) skipIfNoArgument() int {
	a.b = append(a.b, 0x48, 0x83, 0x3c, 0x24, 0x01) // cmp qword [rsp], 1
	return a.jump(0x86)                             // jbe
}

func (a *amd64) failOnError() int {
	a.b = append(a.b, 0x48, 0x85, 0xc0) // test rax, rax
	return a.jump(0x88)                 // js
}

func (a *amd64) loopUnlessPositive(to int) {
	a.b = append(a.b, 0x48, 0x85, 0xc0)
	a.patch(a.jump(0x8e), to) // jle
}

func (a *amd64) patch(jump, to int) {
	binary.LittleEndian.PutUint32(a.b[jump:], uint32(int32(to-jump-4)))
}

type arm64 struct{ b []byte }

func (a *arm64) here() int    { return len(a.b) }
func (a *arm64) code() []byte { return a.b }

func (a *arm64) word(w uint32) { a.b = binary.LittleEndian.AppendUint32(a.b, w) }

// load sets register d to a value of at most 32 bits.
func (a *arm64) load(d uint32, value int64) {
	a.word(0xd2800000 | uint32(value&0xffff)<<5 | d) // movz
	if high := value >> 16 & 0xffff; high != 0 {
		a.word(0xf2a00000 | uint32(high)<<5 | d) // movk, lsl 16
	}
}

func (a *arm64) call(name string, dataAt int64, args ...arg) {
	for i, g := range args {
		if g.path {
			a.word(0xf9400000 | 2<<10 | 31<<5 | uint32(i)) // ldr xi, [sp, 16]
			continue
		}
		a.load(uint32(i), g.immediate(dataAt))
	}
	a.load(8, syscalls[name][1])
	a.word(0xd4000001) // svc 0
}

// branch emits a conditional branch, whose target is not known yet, and returns its position, at which the caller
// inserts the target. condition is the condition code of the architecture.
func (a *arm64) branch(condition uint32) int {
	a.word(0x54000000 | condition)
	return len(a.b) - 4
}

func (a *arm64) skipIfNoArgument() int {
	a.word(0xf94003e9)                // ldr x9, [sp]
	a.word(0xf100001f | 1<<10 | 9<<5) // cmp x9, 1
	return a.branch(9)                // ls
}

func (a *arm64) failOnError() int {
	a.word(0xf100001f)  // cmp x0, 0
	return a.branch(11) // lt
}

func (a *arm64) loopUnlessPositive(to int) {
	a.word(0xf100001f)
	a.patch(a.branch(13), to) // le
}

func (a *arm64) patch(branch, to int) {
	old := binary.LittleEndian.Uint32(a.b[branch:])
	offset := uint32(to-branch) >> 2 & 0x7ffff
	binary.LittleEndian.PutUint32(a.b[branch:], old&^(0x7ffff<<5)|offset<<5)
}
