// Package sandbox makes what the containers of a pod share: namespaces, held
// by a process that only waits, and the files in /etc that tell of the pod's
// name and its DNS.
package sandbox

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"hyperkube/components/runtime/pause"
	"hyperkube/components/runtime/selinux"
	"hyperkube/internal/atomicfile"
	"hyperkube/internal/process"
)

// marker in the environment of a sandbox's process tells whose it is, for when
// a crash came between its start and the record of it.
const marker = "HYPERKUBE_SANDBOX="

// Options say what namespaces a sandbox has.
type Options struct {
	// ID is the sandbox's.
	ID string
	// Program is the pause program's file, see Install.
	Program string
	// Empty is an empty folder, for sandboxes that share their PID namespace.
	Empty string
	// HostNetwork, HostIPC and HostPID keep the host's namespaces; SharePID
	// gives all containers one.
	HostNetwork, HostIPC, HostPID, SharePID bool
	// OOMScoreAdj of the process.
	OOMScoreAdj int
	// UserNS gives the pod a user namespace of its own, nil the host's.
	UserNS *UserNS
	// Label is the process's SELinux label; empty for the policy's choice.
	Label string
}

// UserNS says which users of the host those of a pod are: its first Length
// users are HostUID and those that follow, and groups likewise.
type UserNS struct{ HostUID, HostGID, Length int }

// Install writes the pause program to file, unless it is there as it should be.
func Install(file string) error {
	program, err := pause.Program(runtime.GOARCH)
	if err != nil {
		return err
	}
	if have, err := os.ReadFile(file); err == nil && string(have) == string(program) {
		return nil
	}
	if err := atomicfile.Write(atomicfile.File{Path: file, Data: program, Mode: 0o755}); err != nil {
		return fmt.Errorf("writing the pause program: %w", err)
	}
	return nil
}

// Start starts the sandbox's process. The caller records it, follows it and
// moves it to its cgroup.
func Start(o Options) (*process.Handle, error) {
	flags := uintptr(unix.CLONE_NEWUTS)
	args := []string{"/pause"}
	if o.HostNetwork {
		// The host's name is the pod's too.
		flags = 0
	} else {
		flags |= unix.CLONE_NEWNET
	}
	if !o.HostIPC {
		flags |= unix.CLONE_NEWIPC
	}
	if o.SharePID && !o.HostPID {
		flags |= unix.CLONE_NEWPID | unix.CLONE_NEWNS
		args = append(args, o.Empty)
	}
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return nil, fmt.Errorf("starting the sandbox: %w", err)
	}
	defer null.Close()
	attr := &os.ProcAttr{
		Dir:   "/",
		Env:   []string{marker + o.ID},
		Files: []*os.File{null, null, null},
		Sys:   &syscall.SysProcAttr{Cloneflags: flags, Setsid: true},
	}
	file := o.Program
	if u := o.UserNS; u != nil {
		attr.Sys.Cloneflags |= unix.CLONE_NEWUSER
		attr.Sys.UidMappings = []syscall.SysProcIDMap{{HostID: u.HostUID, Size: u.Length}}
		attr.Sys.GidMappings = []syscall.SysProcIDMap{{HostID: u.HostGID, Size: u.Length}}
		attr.Sys.GidMappingsEnableSetgroups = true
		attr.Sys.Credential = &syscall.Credential{}
		// The pod's root may have no way through the folders to the program,
		// so that it is opened here.
		program, err := os.Open(o.Program)
		if err != nil {
			return nil, fmt.Errorf("starting the sandbox: %w", err)
		}
		defer program.Close()
		file = fmt.Sprintf("/proc/self/fd/%d", program.Fd())
	}
	p, err := selinux.Start(o.Label, func() (*os.Process, error) { return os.StartProcess(file, args, attr) })
	if err != nil {
		return nil, fmt.Errorf("starting the sandbox: %w", err)
	}
	h, err := process.Open(p.Pid, 0)
	if adj := process.OOMScoreAdj(o.OOMScoreAdj); err == nil && adj != 0 {
		err = os.WriteFile(fmt.Sprintf("/proc/%d/oom_score_adj", p.Pid), []byte(strconv.Itoa(adj)), 0)
	}
	if err != nil {
		_ = p.Kill()
		_, _ = p.Wait()
		return nil, fmt.Errorf("starting the sandbox: %w", err)
	}
	return h, p.Release()
}

// Orphans kills the processes that Start has started for the sandbox, in case
// nobody knows of them.
func Orphans(id string) error {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return fmt.Errorf("looking for orphaned sandboxes: %w", err)
	}
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		env, err := os.ReadFile(filepath.Join("/proc", entry.Name(), "environ"))
		if err != nil || strings.TrimRight(string(env), "\x00") != marker+id {
			continue
		}
		h, err := process.Open(pid, 0)
		if err != nil {
			continue
		}
		// Still the same?
		if env, err := os.ReadFile(filepath.Join("/proc", entry.Name(), "environ")); err == nil && strings.TrimRight(string(env), "\x00") == marker+id {
			err = h.Signal(unix.SIGKILL)
			if errors.Is(err, process.ErrGone) {
				err = nil
			}
			if err == nil {
				<-h.Done()
			}
		}
		h.Close()
		if err != nil {
			return err
		}
	}
	return nil
}

// Configure sets the hostname and the sysctls of a sandbox. It is called on a
// locked thread that is in the sandbox's network namespace, if that is its
// own, and that ends afterwards. user is nil for a pod of the host's users.
func Configure(h *process.Handle, hostname string, ownUTS, ownIPC bool, user *UserNS, sysctls map[string]string) error {
	kinds := 0
	if ownUTS {
		kinds |= unix.CLONE_NEWUTS
	}
	if ownIPC && len(sysctls) > 0 {
		kinds |= unix.CLONE_NEWIPC
	}
	if kinds != 0 {
		if err := h.Setns(kinds); err != nil {
			return err
		}
	}
	if ownUTS && hostname != "" {
		if err := unix.Sethostname([]byte(hostname)); err != nil {
			return fmt.Errorf("setting the pod's hostname: %w", err)
		}
	}
	names := slices.Collect(maps.Keys(sysctls))
	slices.SortFunc(names, func(a, b string) int { // those of the network first
		return cmp.Or(-cmp.Compare(btoi(ofNetwork(a)), btoi(ofNetwork(b))), cmp.Compare(a, b))
	})
	for _, name := range names {
		file, err := sysctlFile(name)
		if err != nil {
			return err
		}
		value := sysctls[name]
		if user != nil && !ofNetwork(name) {
			// Those of an IPC namespace can only be set by who is its root,
			// whatever capabilities one has. This thread has no way back.
			if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, ^uintptr(0), uintptr(user.HostUID), ^uintptr(0)); errno != 0 {
				return fmt.Errorf("setting sysctl %q: %w", name, errno)
			}
		}
		if err := os.WriteFile(file, []byte(value), 0o644); err != nil {
			return fmt.Errorf("setting sysctl %q: %w", name, err)
		}
	}
	return nil
}

// ofNetwork tells whether a sysctl belongs to a network namespace.
func ofNetwork(sysctl string) bool {
	return strings.HasPrefix(sysctl, "net.") || strings.HasPrefix(sysctl, "net/")
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

// CheckSysctls refuses those that would change the host: only namespaced ones
// of namespaces that the pod has of its own pass.
func CheckSysctls(sysctls map[string]string, hostNetwork, hostIPC bool) error {
	for name := range sysctls {
		dotted := strings.ReplaceAll(name, "/", ".")
		switch {
		case strings.HasPrefix(dotted, "net."):
			if hostNetwork {
				return fmt.Errorf("sysctl %q is not allowed in the host's network namespace", name)
			}
		case strings.HasPrefix(dotted, "fs.mqueue."), strings.HasPrefix(dotted, "kernel.shm"),
			strings.HasPrefix(dotted, "kernel.msg"), dotted == "kernel.sem":
			if hostIPC {
				return fmt.Errorf("sysctl %q is not allowed in the host's IPC namespace", name)
			}
		default:
			return fmt.Errorf("sysctl %q is not in a separate kernel namespace", name)
		}
		if _, err := sysctlFile(name); err != nil {
			return err
		}
	}
	return nil
}

// sysctlFile takes both forms of a name: dots between parts, or slashes, in
// which case dots are part of the names.
func sysctlFile(name string) (string, error) {
	path := name
	if i := strings.IndexAny(name, "./"); i < 0 || name[i] == '.' {
		path = strings.NewReplacer(".", "/", "/", ".").Replace(name)
	}
	if path == "" || filepath.Clean("/"+path) != "/"+path || strings.Contains(path, "..") {
		return "", fmt.Errorf("bad name of a sysctl: %q", name)
	}
	return "/proc/sys/" + path, nil
}

// heldFD is where a holder has its file.
const heldFD = 3

// Hold starts a process that does nothing but keep file open, so that it
// outlives this one. The caller records and follows it.
func Hold(program, id string, file *os.File) (*process.Handle, error) {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return nil, fmt.Errorf("starting a holder: %w", err)
	}
	defer null.Close()
	p, err := os.StartProcess(program, []string{"/pause"}, &os.ProcAttr{
		Dir:   "/",
		Env:   []string{marker + id},
		Files: []*os.File{null, null, null, file},
		Sys:   &syscall.SysProcAttr{Setsid: true},
	})
	if err != nil {
		return nil, fmt.Errorf("starting a holder: %w", err)
	}
	h, err := process.Open(p.Pid, 0)
	if err != nil {
		_ = p.Kill()
		_, _ = p.Wait()
		return nil, fmt.Errorf("starting a holder: %w", err)
	}
	return h, p.Release()
}

// Held returns the file that a holder keeps, ready for this process.
func Held(h *process.Handle) (*os.File, error) {
	fd, err := h.File(heldFD)
	if err != nil {
		return nil, err
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		unix.Close(fd)
		return nil, err
	}
	return os.NewFile(uintptr(fd), "held"), nil
}
