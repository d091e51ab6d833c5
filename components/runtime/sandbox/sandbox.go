// Package sandbox creates the resources that the containers of a pod share: namespaces, which are
// held by a pause process, and the files in /etc with the pod's name and DNS configuration.
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
	"hyperkube/internal/host/atomicfile"
	"hyperkube/internal/host/process"
)

// sandboxIDEnv is the environment variable of a sandbox's process, or of a container's holder
// process, that contains its ID. It identifies the process if a crash occurred before it was
// recorded.
const sandboxIDEnv = "HYPERKUBE_SANDBOX="

// Options are the settings of a sandbox's pause process.
type Options struct {
	// ID is the sandbox ID.
	ID string
	// Program is the path of the pause program, see Install.
	Program string
	// EmptyDir is an empty directory, for sandboxes with a shared PID namespace.
	EmptyDir string
	// HostNetwork, HostIPC and HostPID use the host's namespaces. SharePID uses one PID namespace
	// for all containers.
	HostNetwork, HostIPC, HostPID, SharePID bool
	// OOMScoreAdj of the process.
	OOMScoreAdj int
	// UserNS configures a user namespace for the pod. Nil means the host's.
	UserNS *UserNS
	// Label is the SELinux label of the process. If empty, the policy decides.
	Label string
}

// UserNS is the ID mapping of a pod: the first Length user IDs are mapped to HostUID and the
// following host IDs, and group IDs likewise.
type UserNS struct{ HostUID, HostGID, Length int }

// Install writes the pause program to file, unless the file contains it already. Start and StartHolder execute it.
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

// Start starts the pause process of a sandbox, which holds the namespaces of the pod and does nothing else. The caller
// must record the process, watch it and move it to its cgroup. After an error no process runs.
func Start(o Options) (*process.Handle, error) {
	flags := uintptr(unix.CLONE_NEWUTS)
	args := []string{"/pause"}
	if o.HostNetwork {
		// With the host network, the pod uses the host's name.
		flags = 0
	} else {
		flags |= unix.CLONE_NEWNET
	}
	if !o.HostIPC {
		flags |= unix.CLONE_NEWIPC
	}
	if o.SharePID && !o.HostPID {
		flags |= unix.CLONE_NEWPID | unix.CLONE_NEWNS
		args = append(args, o.EmptyDir)
	}
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return nil, fmt.Errorf("starting the sandbox: %w", err)
	}
	defer null.Close()
	send, receive, err := keepPair()
	if err != nil {
		return nil, fmt.Errorf("starting the sandbox: %w", err)
	}
	defer send.Close()
	defer receive.Close()
	attr := &os.ProcAttr{
		Dir:   "/",
		Env:   []string{sandboxIDEnv + o.ID},
		Files: []*os.File{null, null, null, keepSendFD: send, keepReceiveFD: receive},
		Sys:   &syscall.SysProcAttr{Cloneflags: flags, Setsid: true},
	}
	file := o.Program
	if u := o.UserNS; u != nil {
		attr.Sys.Cloneflags |= unix.CLONE_NEWUSER
		attr.Sys.UidMappings = []syscall.SysProcIDMap{{HostID: u.HostUID, Size: u.Length}}
		attr.Sys.GidMappings = []syscall.SysProcIDMap{{HostID: u.HostGID, Size: u.Length}}
		attr.Sys.GidMappingsEnableSetgroups = true
		attr.Sys.Credential = &syscall.Credential{}
		// Open the program here, because root in the pod may not have access to its directory.
		program, err := os.Open(o.Program)
		if err != nil {
			return nil, fmt.Errorf("starting the sandbox: %w", err)
		}
		defer program.Close()
		// The process's own files must not take its number.
		fd, err := unix.FcntlInt(program.Fd(), unix.F_DUPFD_CLOEXEC, len(attr.Files))
		if err != nil {
			return nil, fmt.Errorf("starting the sandbox: %w", err)
		}
		defer unix.Close(fd)
		file = fmt.Sprintf("/proc/self/fd/%d", fd)
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

// KillOrphans kills the pause process and the holders that Start and StartHolder have started for an ID, and waits
// until they have exited. It finds them by their environment, so it also finds processes that are not in the records
// because the runtime was killed before it wrote them.
func KillOrphans(id string) error {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return fmt.Errorf("searching for orphaned sandboxes: %w", err)
	}
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		env, err := os.ReadFile(filepath.Join("/proc", entry.Name(), "environ"))
		if err != nil || strings.TrimRight(string(env), "\x00") != sandboxIDEnv+id {
			continue
		}
		h, err := process.Open(pid, 0)
		if err != nil {
			continue
		}
		// Check that the PID was not reused.
		if env, err := os.ReadFile(filepath.Join("/proc", entry.Name(), "environ")); err == nil && strings.TrimRight(string(env), "\x00") == sandboxIDEnv+id {
			err = h.Signal(unix.SIGKILL)
			if errors.Is(err, process.ErrNotFound) {
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

// Configure sets the hostname and the sysctls of a new sandbox with the pause process h. ownUTS and ownIPC report
// whether the sandbox has its own UTS and IPC namespaces; the hostname is only set in the former. user is the pod's ID
// mapping, or nil without a user namespace. Configure changes the thread: it must be called on a locked thread that
// exits afterwards, in the sandbox's network namespace if it has one.
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
	slices.SortFunc(names, func(a, b string) int { // network sysctls first
		return cmp.Or(-cmp.Compare(boolToInt(isNetworkSysctl(a)), boolToInt(isNetworkSysctl(b))), cmp.Compare(a, b))
	})
	for _, name := range names {
		file, err := sysctlFile(name)
		if err != nil {
			return err
		}
		value := sysctls[name]
		if user != nil && !isNetworkSysctl(name) {
			// Sysctls of an IPC namespace can only be set by root of its user namespace, regardless
			// of capabilities. The thread cannot change back.
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

// isNetworkSysctl reports whether a sysctl belongs to a network namespace.
func isNetworkSysctl(sysctl string) bool {
	return strings.HasPrefix(sysctl, "net.") || strings.HasPrefix(sysctl, "net/")
}

func boolToInt(b bool) int {
	if b {
		return 1
	}
	return 0
}

// CheckSysctls returns an error if one of the sysctls is not limited to the pod's own namespaces, so setting it would
// change the host. hostNetwork and hostIPC report whether the pod uses these namespaces of the host.
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

// sysctlFile returns the file of a sysctl in /proc/sys. It accepts names with dots as separators, and names with
// slashes, which may contain dots. It returns an error for names that would lead outside of /proc/sys.
func sysctlFile(name string) (string, error) {
	path := name
	if i := strings.IndexAny(name, "./"); i < 0 || name[i] == '.' {
		path = strings.NewReplacer(".", "/", "/", ".").Replace(name)
	}
	if path == "" || filepath.Clean("/"+path) != "/"+path || strings.Contains(path, "..") {
		return "", fmt.Errorf("invalid sysctl name %q", name)
	}
	return "/proc/sys/" + path, nil
}

// heldFD is the number of the file descriptor that a holder keeps open, see StartHolder.
const heldFD = 3

// StartHolder starts a holder: a process whose only purpose is to keep file open when this process exits. file is the
// terminal or stdin of the container with this ID. program is the path of the pause program. The caller must record the
// returned process.
func StartHolder(program, id string, file *os.File) (*process.Handle, error) {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return nil, fmt.Errorf("starting holder process: %w", err)
	}
	defer null.Close()
	p, err := os.StartProcess(program, []string{"/pause"}, &os.ProcAttr{
		Dir:   "/",
		Env:   []string{sandboxIDEnv + id},
		Files: []*os.File{null, null, null, file},
		Sys:   &syscall.SysProcAttr{Setsid: true},
	})
	if err != nil {
		return nil, fmt.Errorf("starting holder process: %w", err)
	}
	h, err := process.Open(p.Pid, 0)
	if err != nil {
		_ = p.Kill()
		_, _ = p.Wait()
		return nil, fmt.Errorf("starting holder process: %w", err)
	}
	return h, p.Release()
}

// HeldFile returns a duplicate of the file that the holder h keeps open, in non-blocking mode. The next runtime process
// uses it to continue with the container's terminal or stdin.
func HeldFile(h *process.Handle) (*os.File, error) {
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
