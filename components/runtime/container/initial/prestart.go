//go:build cgo

package initial

import "C" // handover.c

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"strconv"
	"strings"
	"unsafe"

	pathrs "github.com/cyphar/filepath-securejoin/pathrs-lite"
	"github.com/opencontainers/runc/libcontainer"
	"github.com/opencontainers/runc/libcontainer/configs"
	"golang.org/x/sys/unix"
)

// A pre-started process is this program, started as `init` in a new PID namespace before
// it is needed. The Go runtime is up, packages are initialized, and it waits on a socket.
//
// When a container is started, it receives two messages. The first contains the root in which to
// mount /proc (or an empty line) and the cgroups to join, one per line, and the file descriptor of the
// seccomp filter if the container has one. The second contains the
// file descriptors that the process started by libcontainer would have inherited; that process
// forwards them (see handover.c). From then on it is what libcontainer expects: the container's
// init process in its initial state.
//
// It exits when the other end of the socket is closed.

// PrestartEnv is the environment variable that marks a pre-started process.
const PrestartEnv = "HYPERKUBE_RUNTIME_SPARE"

// PrestartFD is the file descriptor of the SOCK_SEQPACKET socket of a pre-started process.
const PrestartFD = 3

// maxMessage is the maximum size in bytes of a message to a pre-started process.
const maxMessage = 32 << 10

// descriptorEnv lists the file descriptors in the handover message. The key is the byte that identifies a descriptor in
// the message, the value is the environment variable in which libcontainer expects its number.
var descriptorEnv = map[byte]string{
	'i': "_LIBCONTAINER_INITPIPE", 's': syncPipeEnv, 'l': logPipeEnv,
	'f': "_LIBCONTAINER_FIFOFD", 'c': "_LIBCONTAINER_CONSOLE",
}

// waitForContainer is called in a pre-started process. It waits until the runtime assigns the process to a container,
// and then turns it into libcontainer's init process of that container. It returns the file descriptor of the
// container's seccomp filter, or -1 if there is none. If the runtime exits first, the process exits. It must be called
// on the main thread.
func waitForContainer() (filter int) {
	runtime.LockOSThread()
	unix.CloseOnExec(PrestartFD)
	proc, err := mountProc()
	// The same name as that of libcontainer's init process.
	name := []byte("runc:[2:INIT]\x00")
	err = errors.Join(err, unix.Prctl(unix.PR_SET_NAME, uintptr(unsafe.Pointer(&name[0])), 0, 0, 0),
		unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0), unix.Setgroups(nil), warmUp())
	if err != nil {
		os.Exit(1)
	}
	plan, files, err := receive()
	if err != nil || len(files) > 1 {
		os.Exit(0)
	}
	filter = -1
	if len(files) == 1 {
		filter = files[0]
	}
	handed, fds, err := receive()
	if err != nil || len(handed) != len(fds) {
		os.Exit(0)
	}
	unix.Close(PrestartFD)
	env := map[string]string{"_LIBCONTAINER_INITTYPE": "standard", "_LIBCONTAINER_LOGLEVEL": "3"}
	init, log := -1, -1
	for i, role := range handed {
		switch {
		case role >= '0' && role <= '2':
			err = errors.Join(err, unix.Dup3(fds[i], int(role-'0'), 0), unix.Close(fds[i]))
			continue
		case role == 'i':
			init = fds[i]
		case role == 'l':
			log = fds[i]
		}
		env[descriptorEnv[role]] = strconv.Itoa(fds[i])
	}
	if err == nil {
		root, cgroups, _ := strings.Cut(string(plan), "\n")
		err = becomeInit(init, root, proc, strings.Fields(cgroups))
	}
	for name, value := range env {
		err = errors.Join(err, os.Setenv(name, value))
	}
	if err != nil {
		exitWithError(log, fmt.Errorf("using pre-started process: %w", err))
	}
	return filter
}

// mountProc creates a proc file system for the PID namespace of this process and returns its detached mount.
func mountProc() (int, error) {
	fs, err := unix.Fsopen("proc", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return -1, err
	}
	defer unix.Close(fs)
	if err := errors.Join(unix.FsconfigSetString(fs, "source", "proc"), unix.FsconfigCreate(fs)); err != nil {
		return -1, err
	}
	return unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV|unix.MOUNT_ATTR_NOEXEC)
}

// warmUp initializes state that libcontainer's packages create on first use, while the process still waits for a
// container: JSON decoding of the configuration and safe path resolution.
func warmUp() error {
	if err := json.Unmarshal([]byte("{}"), &configs.Config{}); err != nil {
		return err
	}
	root, err := os.OpenFile("/", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer root.Close()
	dir, err := pathrs.MkdirAllHandle(root, "proc", 0o555)
	if err != nil {
		return err
	}
	defer dir.Close()
	again, err := pathrs.Reopen(dir, unix.O_DIRECTORY|unix.O_CLOEXEC)
	if err != nil {
		return err
	}
	return again.Close()
}

// exitWithError writes err to log, the file descriptor of libcontainer's log, so that the start of the container fails
// with this message. Then it exits.
func exitWithError(log int, err error) {
	// cannot fail
	line, _ := json.Marshal(map[string]string{"level": "fatal", "msg": err.Error()})
	_, _ = unix.Write(log, append(line, '\n'))
	os.Exit(1)
}

// receive waits for a message from the runtime and returns its data and file descriptors. It returns io.EOF if the
// runtime has closed the socket or the message is invalid.
func receive() ([]byte, []int, error) {
	data, control := make([]byte, maxMessage), make([]byte, unix.CmsgSpace(8*4))
	for {
		n, controls, flags, _, err := unix.Recvmsg(PrestartFD, data, control, unix.MSG_CMSG_CLOEXEC)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return nil, nil, err
		}
		if n == 0 || flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0 {
			return nil, nil, io.EOF
		}
		if controls == 0 {
			return data[:n], nil, nil
		}
		messages, err := unix.ParseSocketControlMessage(control[:controls])
		if err != nil || len(messages) != 1 {
			return nil, nil, io.EOF
		}
		fds, err := unix.ParseUnixRights(&messages[0])
		return data[:n], fds, err
	}
}

// becomeInit does the work of libcontainer's C code (nsexec) in a pre-started process, in the same order: it reads the
// bootstrap message from the pipe init, joins the cgroups and the container's namespaces, and writes the process ID to
// the pipe. It also attaches proc, the result of mountProc, in the container's root root, unless root is empty.
func becomeInit(init int, root string, proc int, cgroups []string) error {
	number, err := os.Readlink("/proc/self")
	if err != nil {
		return err
	}
	want, err := readBootstrap(init)
	if err != nil {
		return err
	}
	for _, dir := range cgroups {
		if err := write(dir+"/cgroup.procs", "0"); err != nil {
			return err
		}
	}
	// As libcontainer does: use all CPUs of the cgroup, not the affinity of the parent process.
	all := [8192]byte{}
	for i := range all {
		all[i] = 0xff
	}
	_, _, _ = unix.RawSyscall(unix.SYS_SCHED_SETAFFINITY, 0, uintptr(len(all)), uintptr(unsafe.Pointer(&all[0])))
	if want.oomScoreAdj != "" {
		if err := write("/proc/self/oom_score_adj", want.oomScoreAdj); err != nil {
			return err
		}
	}
	if err := joinNamespaces(want); err != nil {
		return err
	}
	if root != "" {
		if err := placeProc(proc, root); err != nil {
			return fmt.Errorf("mounting /proc: %w", err)
		}
	}
	if err := unix.Close(proc); err != nil {
		return err
	}
	// There are no stage 1 and stage 2 processes, as libcontainer would have. The number is above
	// the maximum process ID, so no process has it.
	_, err = unix.Write(init, fmt.Appendf(nil, `{"stage1_pid":2147483647,"stage2_pid":%s}`+"\n", number))
	return err
}

// placeProc attaches the detached mount proc at the directory proc in the container's root. It returns an error if that
// directory is a symlink.
func placeProc(proc int, root string) error {
	top, err := unix.Open(root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(top)
	at, err := unix.Openat2(top, "proc", &unix.OpenHow{
		Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_SYMLINKS,
	})
	if err != nil {
		return err
	}
	defer unix.Close(at)
	return unix.MoveMount(proc, "", at, "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH)
}

// write writes text to an existing file with a single system call, as files in cgroups and /proc require.
func write(file, text string) error {
	fd, err := unix.Open(file, unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err == nil {
		_, err = unix.Write(fd, []byte(text))
		err = errors.Join(err, unix.Close(fd))
	}
	if err != nil {
		return fmt.Errorf("writing %s: %w", file, err)
	}
	return nil
}

// bootstrap contains the settings in the bootstrap message, which libcontainer sends to the init process of a
// container.
type bootstrap struct {
	// cloneFlags are the namespaces to create.
	cloneFlags int
	// namespaces are the namespaces to join, each "kind:path".
	namespaces []string
	// oomScoreAdj is the new value, or empty to keep the current one.
	oomScoreAdj string
}

// readBootstrap reads the bootstrap message from the pipe fd. It is a netlink message, which libcontainer's C code
// would read otherwise.
func readBootstrap(fd int) (bootstrap, error) {
	header := make([]byte, unix.NLMSG_HDRLEN)
	if err := readFull(fd, header); err != nil {
		return bootstrap{}, err
	}
	size := int(binary.NativeEndian.Uint32(header)) - len(header)
	if size < 0 || size > 1<<20 || binary.NativeEndian.Uint16(header[4:]) != libcontainer.InitMsg {
		return bootstrap{}, errors.New("invalid libcontainer message")
	}
	body := make([]byte, size)
	if err := readFull(fd, body); err != nil {
		return bootstrap{}, err
	}
	return parseBootstrap(body)
}

// readFull reads from fd until into is full. It returns io.ErrUnexpectedEOF if the data ends before that.
func readFull(fd int, into []byte) error {
	for len(into) > 0 {
		n, err := unix.Read(fd, into)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return err
		}
		if n == 0 {
			return io.ErrUnexpectedEOF
		}
		into = into[n:]
	}
	return nil
}

// parseBootstrap parses the attributes in the body of the bootstrap message. It returns an error for settings that a
// pre-started process does not support. The runtime does not use a pre-started process for such containers, see
// canUsePrestarted in package container.
func parseBootstrap(body []byte) (b bootstrap, err error) {
	for len(body) > 0 {
		if len(body) < unix.NLA_HDRLEN {
			return b, errors.New("truncated libcontainer message")
		}
		size, kind := int(binary.NativeEndian.Uint16(body)), binary.NativeEndian.Uint16(body[2:])
		if size < unix.NLA_HDRLEN || size > len(body) {
			return b, errors.New("truncated libcontainer message")
		}
		value := body[unix.NLA_HDRLEN:size]
		text := strings.TrimRight(string(value), "\x00")
		switch kind {
		case libcontainer.CloneFlagsAttr:
			if len(value) < 4 {
				return b, errors.New("truncated libcontainer message")
			}
			b.cloneFlags = int(binary.NativeEndian.Uint32(value))
		case libcontainer.NsPathsAttr:
			b.namespaces = strings.Split(text, ",")
		case libcontainer.OomScoreAdjAttr:
			b.oomScoreAdj = text
		case libcontainer.RootlessEUIDAttr:
			if strings.Trim(text, "\x00") != "" {
				return b, errors.New("pre-started process does not support rootless mode")
			}
		default:
			return b, fmt.Errorf("pre-started process does not support libcontainer attribute %d", kind)
		}
		body = body[min((size+unix.NLA_ALIGNTO-1)&^(unix.NLA_ALIGNTO-1), len(body)):]
	}
	return b, nil
}

// namespaceFlags maps the types of namespaces that a multithreaded process can join or create to the flag of setns(2).
var namespaceFlags = map[string]int{
	"net": unix.CLONE_NEWNET, "ipc": unix.CLONE_NEWIPC, "uts": unix.CLONE_NEWUTS, "mnt": unix.CLONE_NEWNS, "cgroup": unix.CLONE_NEWCGROUP,
}

// checkNamespaces returns an error if the kind of a namespace ("kind:path") is not one that a pre-started process can
// join. It does not check the path.
func checkNamespaces(namespaces []string) error {
	for _, namespace := range namespaces {
		if kind, _, _ := strings.Cut(namespace, ":"); namespaceFlags[kind] == 0 {
			return fmt.Errorf("pre-started process cannot join %q", namespace)
		}
	}
	return nil
}

// joinNamespaces joins and creates the container's namespaces for this thread, which is the only one that remains when
// the container's program is executed. The process was started in its new PID namespace.
func joinNamespaces(want bootstrap) error {
	if err := checkNamespaces(want.namespaces); err != nil {
		return err
	}
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return fmt.Errorf("unsharing the file system state of the thread: %w", err)
	}
	// Open all paths first, because they are paths of the host.
	fds := make([]int, len(want.namespaces))
	for i, namespace := range want.namespaces {
		_, path, _ := strings.Cut(namespace, ":")
		var err error
		if fds[i], err = unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0); err != nil {
			return fmt.Errorf("opening %s: %w", path, err)
		}
	}
	for i, fd := range fds {
		kind, _, _ := strings.Cut(want.namespaces[i], ":")
		err := unix.Setns(fd, namespaceFlags[kind])
		unix.Close(fd)
		if err != nil {
			return fmt.Errorf("joining %s: %w", want.namespaces[i], err)
		}
	}
	made := want.cloneFlags &^ unix.CLONE_NEWPID
	for _, kind := range namespaceFlags {
		made &^= kind
	}
	if made != 0 || want.cloneFlags&unix.CLONE_NEWPID == 0 {
		return fmt.Errorf("pre-started process does not support namespaces %#x", want.cloneFlags)
	}
	if flags := want.cloneFlags &^ unix.CLONE_NEWPID; flags != 0 {
		if err := unix.Unshare(flags); err != nil {
			return fmt.Errorf("creating namespaces: %w", err)
		}
	}
	return nil
}
