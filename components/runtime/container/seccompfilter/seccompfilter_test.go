//go:build cgo && seccomp

package seccompfilter

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"unsafe"

	"github.com/moby/profiles/seccomp"
	runcseccomp "github.com/opencontainers/runc/libcontainer/seccomp"
	"github.com/opencontainers/runc/libcontainer/specconv"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// profileEnv is the environment variable with a profile that the test binary loads with libcontainer.
const profileEnv = "HYPERKUBE_TEST_SECCOMP_PROFILE"

// loadProfile loads the profile in profileEnv for this thread with libcontainer, prints the thread's ID and waits until
// stdin is closed. It returns false if there is no profile.
func loadProfile() bool {
	text := os.Getenv(profileEnv)
	if text == "" {
		return false
	}
	runtime.LockOSThread()
	var profile specs.LinuxSeccomp
	err := json.Unmarshal([]byte(text), &profile)
	if err == nil {
		config, setupErr := specconv.SetupSeccomp(&profile)
		_, loadErr := runcseccomp.InitSeccomp(config)
		err = errors.Join(setupErr, loadErr)
	}
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println(unix.Gettid())
	_, _ = io.Copy(io.Discard, os.Stdin)
	return true
}

// libcontainerProgram returns the program that libcontainer loads for the profile.
func libcontainerProgram(t *testing.T, profile *specs.LinuxSeccomp) []unix.SockFilter {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root can read the seccomp filter of a process")
	}
	text, err := json.Marshal(profile)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), profileEnv+"="+string(text))
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		stdin.Close()
		_ = cmd.Wait()
	}()
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	tid, err := strconv.Atoi(strings.TrimSpace(line))
	if err != nil {
		t.Fatalf("libcontainer: %s", line)
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := unix.PtraceSeize(tid); err != nil {
		t.Fatal(err)
	}
	if err := unix.PtraceInterrupt(tid); err != nil {
		t.Fatal(err)
	}
	if _, err := unix.Wait4(tid, nil, unix.WALL, nil); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := unix.PtraceDetach(tid); err != nil {
			t.Error(err)
		}
	}()
	program := make([]unix.SockFilter, maxProgram/instructionSize)
	count, _, errno := unix.Syscall6(unix.SYS_PTRACE, unix.PTRACE_SECCOMP_GET_FILTER, uintptr(tid), 0, uintptr(unsafe.Pointer(&program[0])), 0, 0)
	if errno == unix.EACCES || errno == unix.EIO || errno == unix.EINVAL {
		t.Skip("this kernel does not show the seccomp filter of a process:", errno)
	}
	if errno != 0 {
		t.Fatal(errno)
	}
	return program[:count]
}

// machine interprets a program as the kernel does.
type machine struct{ vm *bpf.VM }

func newMachine(t *testing.T, program []unix.SockFilter) machine {
	t.Helper()
	var raw []bpf.RawInstruction
	for _, i := range program {
		raw = append(raw, bpf.RawInstruction{Op: i.Code, Jt: i.Jt, Jf: i.Jf, K: i.K})
	}
	instructions, ok := bpf.Disassemble(raw)
	if !ok {
		t.Fatal("the program cannot be disassembled")
	}
	vm, err := bpf.NewVM(instructions)
	if err != nil {
		t.Fatal(err)
	}
	return machine{vm}
}

// call is a struct seccomp_data.
type call struct {
	number, architecture uint32
	arguments            [6]uint64
}

// result returns the action for a system call.
func (m machine) result(t *testing.T, c call) uint32 {
	t.Helper()
	// The virtual machine loads big-endian words.
	data := binary.BigEndian.AppendUint32(nil, c.number)
	data = binary.BigEndian.AppendUint32(data, c.architecture)
	data = binary.BigEndian.AppendUint64(data, 0) // instruction pointer
	for _, a := range c.arguments {
		native := binary.NativeEndian.AppendUint64(nil, a)
		data = binary.BigEndian.AppendUint32(data, binary.NativeEndian.Uint32(native))
		data = binary.BigEndian.AppendUint32(data, binary.NativeEndian.Uint32(native[4:]))
	}
	action, err := m.vm.Run(data)
	if err != nil {
		t.Fatal(err)
	}
	return uint32(action)
}

func decode(program []byte) (list []unix.SockFilter) {
	for ; len(program) > 0; program = program[instructionSize:] {
		list = append(list, unix.SockFilter{Code: binary.NativeEndian.Uint16(program), Jt: program[2], Jf: program[3], K: binary.NativeEndian.Uint32(program[4:])})
	}
	return list
}

// defaultProfile returns the default profile of a container with these capabilities.
func defaultProfile(t testing.TB, capabilities ...string) *specs.LinuxSeccomp {
	t.Helper()
	p, err := seccomp.GetDefaultProfile(&specs.Spec{Process: &specs.Process{Capabilities: &specs.LinuxCapabilities{Bounding: capabilities}}})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func compiled(t *testing.T, profile *specs.LinuxSeccomp) machine {
	t.Helper()
	program, err := Compile(profile)
	if err != nil {
		t.Fatal(err)
	}
	return newMachine(t, decode(program))
}

// conditions returns the default profile with rules for other system calls, with every kind of condition.
func conditions(t *testing.T) *specs.LinuxSeccomp {
	t.Helper()
	p, errno := defaultProfile(t), uint(unix.EXDEV)
	p.DefaultErrnoRet = &errno
	names := []string{"mount", "umount2", "reboot", "swapon", "swapoff", "acct", "init_module"}
	for i, op := range []specs.LinuxSeccompOperator{specs.OpEqualTo, specs.OpNotEqual, specs.OpGreaterThan, specs.OpGreaterEqual,
		specs.OpLessThan, specs.OpLessEqual, specs.OpMaskedEqual} {
		p.Syscalls = append(p.Syscalls, specs.LinuxSyscall{Names: names[i : i+1], Action: specs.ActAllow, Args: []specs.LinuxSeccompArg{
			{Index: uint(i % 6), Value: 40, ValueTwo: 8, Op: op}, {Index: uint((i + 1) % 6), Value: 1 << 33, Op: specs.OpLessEqual}}})
	}
	p.Syscalls = append(p.Syscalls, specs.LinuxSyscall{Names: []string{"unshare", "no-such-call"}, Action: specs.ActErrno, ErrnoRet: new(uint)},
		specs.LinuxSyscall{Names: []string{"delete_module"}, Action: specs.ActErrno, ErrnoRet: &errno})
	return p
}

// TestLikeLibcontainer compares Compile with libcontainer: both programs must have the same result for every system call.
func TestLikeLibcontainer(t *testing.T) {
	for name, profile := range map[string]*specs.LinuxSeccomp{
		"no capabilities":      defaultProfile(t),
		"default capabilities": defaultProfile(t, "CAP_CHOWN", "CAP_SYS_CHROOT"),
		"all capabilities": defaultProfile(t, "CAP_SYS_ADMIN", "CAP_SYS_CHROOT", "CAP_BPF", "CAP_SYS_PTRACE", "CAP_SYS_MODULE", "CAP_SYS_BOOT", "CAP_SYS_TIME",
			"CAP_SYS_NICE", "CAP_SYS_RAWIO", "CAP_SYS_TTY_CONFIG", "CAP_SYSLOG", "CAP_PERFMON", "CAP_DAC_READ_SEARCH", "CAP_SYS_PACCT", "CAP_AUDIT_CONTROL"),
		"conditions": conditions(t),
	} {
		t.Run(name, func(t *testing.T) {
			want, got := newMachine(t, libcontainerProgram(t, profile)), compiled(t, profile)
			arguments := []uint64{0, 1, 8, 1 << 8, 38, 39, 40, 41, 1 << 17, 1<<17 + 8, unix.CLONE_NEWUSER, unix.CLONE_NEWNS, unix.CLONE_THREAD | unix.CLONE_VM,
				1<<32 - 1, 1 << 32, 1<<32 + 40, 1 << 33, 1<<33 + 1, 1<<64 - 1}
			numbers := []uint32{4096, 10000, 1<<31 - 1, 1 << 31, 1<<32 - 1}
			for n := range uint32(600) {
				numbers = append(numbers, n, n|x32Bit)
			}
			random := rand.New(rand.NewPCG(1, 2))
			for _, architecture := range []uint32{unix.AUDIT_ARCH_X86_64, unix.AUDIT_ARCH_I386, unix.AUDIT_ARCH_AARCH64, unix.AUDIT_ARCH_ARM, unix.AUDIT_ARCH_S390X} {
				for _, number := range numbers {
					for range 2 * len(arguments) {
						c := call{number: number, architecture: architecture}
						for i := range c.arguments {
							c.arguments[i] = arguments[random.IntN(len(arguments))]
						}
						if w, g := want.result(t, c), got.result(t, c); w != g {
							t.Fatalf("%+v: got %#x, libcontainer has %#x", c, g, w)
						}
					}
				}
			}
		})
	}
}

// TestResults checks results that do not depend on libcontainer.
func TestResults(t *testing.T) {
	native := map[string]uint32{"amd64": unix.AUDIT_ARCH_X86_64, "arm64": unix.AUDIT_ARCH_AARCH64}[runtime.GOARCH]
	const allow = 0x7fff0000
	m, admin := compiled(t, defaultProfile(t)), compiled(t, defaultProfile(t, "CAP_SYS_ADMIN"))
	for _, c := range []struct {
		name           string
		machine        machine
		number         uint32
		argument, want uint64
	}{
		{"allowed", m, unix.SYS_READ, 0, allow},
		{"forbidden", m, unix.SYS_UNSHARE, 0, returnErrno | uint64(unix.EPERM)},
		{"forbidden without a capability", admin, unix.SYS_UNSHARE, 0, allow},
		{"an allowed argument", m, unix.SYS_PERSONALITY, 8, allow},
		{"a forbidden argument", m, unix.SYS_PERSONALITY, 9, returnErrno | uint64(unix.EPERM)},
		{"an argument with 64 bits", m, unix.SYS_PERSONALITY, 1<<32 + 8, returnErrno | uint64(unix.EPERM)},
		{"another error number", m, unix.SYS_CLONE3, 0, returnErrno | uint64(unix.ENOSYS)},
		{"unknown", m, 10000, 0, returnErrno | uint64(unix.ENOSYS)},
		{"negative", m, 1<<32 - 1, 0, returnErrno | uint64(unix.ENOSYS)},
	} {
		if got := c.machine.result(t, call{number: c.number, architecture: native, arguments: [6]uint64{c.argument}}); uint64(got) != c.want {
			t.Errorf("%s: got %#x, want %#x", c.name, got, c.want)
		}
	}
	if got := m.result(t, call{number: unix.SYS_READ, architecture: unix.AUDIT_ARCH_S390X}); got == allow {
		t.Error("a system call of another architecture is allowed")
	}
}

// TestUnsupported checks that unusual profiles are left to libcontainer.
func TestUnsupported(t *testing.T) {
	for name, change := range map[string]func(*specs.LinuxSeccomp){
		"default action": func(p *specs.LinuxSeccomp) { p.DefaultAction = specs.ActAllow },
		"killed":         func(p *specs.LinuxSeccomp) { p.Syscalls[0].Action = specs.ActKillProcess },
		"notified":       func(p *specs.LinuxSeccomp) { p.Syscalls[0].Action = specs.ActNotify },
		"traced":         func(p *specs.LinuxSeccomp) { p.Syscalls[0].Action = specs.ActTrace },
		"flag":           func(p *specs.LinuxSeccomp) { p.Flags = []specs.LinuxSeccompFlag{specs.LinuxSeccompFlagLog} },
		"listener":       func(p *specs.LinuxSeccomp) { p.ListenerPath = "/socket" },
		"architecture":   func(p *specs.LinuxSeccomp) { p.Architectures = []specs.Arch{specs.ArchMIPS} },
		"argument twice": func(p *specs.LinuxSeccomp) { p.Syscalls[len(p.Syscalls)-3].Args[1].Index = 0 },
		"empty":          func(p *specs.LinuxSeccomp) { *p = specs.LinuxSeccomp{} },
	} {
		p := conditions(t)
		change(p)
		if _, err := Compile(p); !errors.Is(err, ErrUnsupported) {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

func BenchmarkCompile(b *testing.B) {
	profile := defaultProfile(b)
	for b.Loop() {
		program, err := Compile(profile)
		if err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(float64(len(program)), "bytes")
	}
}
