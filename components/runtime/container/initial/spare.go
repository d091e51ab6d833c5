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

// A spare is this program, started as `init` in a new PID namespace before
// anybody needs it: Go runs, packages are initialised, and it waits at a socket.
// When a container is started the first message there is the root to mount /proc
// in, if it is to, and the cgroups to enter, a line each, the second, from what libcontainer has started in vain (see handover.c), the
// descriptors that it would have had itself. From there on it is what libcontainer
// expects: the container's first process, which has not done anything yet.
//
// It ends when nobody holds the other end of the socket any more.

// SpareEnv is set for a spare.
const SpareEnv = "HYPERKUBE_RUNTIME_SPARE"

// SpareFD is the descriptor of a spare's socket, of packets in order.
const SpareFD = 3

// packet bounds what is sent to a spare.
const packet = 32 << 10

// The descriptors by the names that libcontainer looks for them by.
var roles = map[byte]string{
	'i': "_LIBCONTAINER_INITPIPE", 's': "_LIBCONTAINER_SYNCPIPE", 'l': "_LIBCONTAINER_LOGPIPE",
	'f': "_LIBCONTAINER_FIFOFD", 'c': "_LIBCONTAINER_CONSOLE",
}

// waitForUse returns when this process is to become a container's. It must be
// called by the first thread.
func waitForUse() {
	runtime.LockOSThread()
	unix.CloseOnExec(SpareFD)
	proc, err := mountProc()
	// The name is that of libcontainer's own.
	name := []byte("runc:[2:INIT]\x00")
	err = errors.Join(err, unix.Prctl(unix.PR_SET_NAME, uintptr(unsafe.Pointer(&name[0])), 0, 0, 0),
		unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0), unix.Setgroups(nil), warm())
	if err != nil {
		os.Exit(1)
	}
	plan, _, err := receive()
	if err != nil {
		os.Exit(0)
	}
	handed, fds, err := receive()
	if err != nil || len(handed) != len(fds) {
		os.Exit(0)
	}
	unix.Close(SpareFD)
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
		env[roles[role]] = strconv.Itoa(fds[i])
	}
	if err == nil {
		root, cgroups, _ := strings.Cut(string(plan), "\n")
		err = takeOver(init, root, proc, strings.Fields(cgroups))
	}
	for name, value := range env {
		err = errors.Join(err, os.Setenv(name, value))
	}
	if err != nil {
		fail(log, err)
	}
}

// mountProc makes the /proc of the process's own namespace, attached to nothing.
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

// warm does what is made at the first use of what libcontainer will use: reading
// its configuration, and going through folders safely.
func warm() error {
	if err := json.Unmarshal([]byte("{}"), &configs.Config{}); err != nil {
		return err
	}
	root, err := os.OpenFile("/", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer root.Close()
	folder, err := pathrs.MkdirAllHandle(root, "proc", 0o555)
	if err != nil {
		return err
	}
	defer folder.Close()
	again, err := pathrs.Reopen(folder, unix.O_DIRECTORY|unix.O_CLOEXEC)
	if err != nil {
		return err
	}
	return again.Close()
}

// fail tells libcontainer why there will be no container.
func fail(log int, err error) {
	line, _ := json.Marshal(map[string]string{"level": "fatal", "msg": "taking a spare process: " + err.Error()}) // cannot fail
	_, _ = unix.Write(log, append(line, '\n'))
	os.Exit(1)
}

// receive waits for a packet and the descriptors that come with it; io.EOF tells
// that there will be none.
func receive() ([]byte, []int, error) {
	data, control := make([]byte, packet), make([]byte, unix.CmsgSpace(8*4))
	for {
		n, controls, flags, _, err := unix.Recvmsg(SpareFD, data, control, unix.MSG_CMSG_CLOEXEC)
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

// takeOver does what libcontainer's C part does for a process that it has
// started itself, in the same order: it reads what is wanted from the pipe init,
// enters the cgroups and namespaces, and tells the process's number. Then /proc is
// at the root that is mounted at root, unless that is empty.
func takeOver(init int, root string, proc int, cgroups []string) error {
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
	// As libcontainer does for its own: the CPUs of the cgroup, not those of who
	// started us.
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
	if err := enter(want); err != nil {
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
	// Of the two processes before the last one there is none. No process has this
	// number: it is above all that there can be.
	_, err = unix.Write(init, fmt.Appendf(nil, `{"stage1_pid":2147483647,"stage2_pid":%s}`+"\n", number))
	return err
}

// placeProc mounts /proc in a container's root, never through a link.
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

// bootstrap is what libcontainer wants of a process before Go starts.
type bootstrap struct {
	// cloneFlags are the namespaces to be made.
	cloneFlags int
	// namespaces are those to be joined, each "kind:path".
	namespaces []string
	// oomScoreAdj is empty for the one that the process has.
	oomScoreAdj string
}

// readBootstrap reads the netlink message that libcontainer's C part would read.
func readBootstrap(fd int) (bootstrap, error) {
	header := make([]byte, unix.NLMSG_HDRLEN)
	if err := readFull(fd, header); err != nil {
		return bootstrap{}, err
	}
	size := int(binary.NativeEndian.Uint32(header)) - len(header)
	if size < 0 || size > 1<<20 || binary.NativeEndian.Uint16(header[4:]) != libcontainer.InitMsg {
		return bootstrap{}, errors.New("bad message of libcontainer")
	}
	body := make([]byte, size)
	if err := readFull(fd, body); err != nil {
		return bootstrap{}, err
	}
	return parseBootstrap(body)
}

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

// parseBootstrap reads the attributes. What a spare cannot do is an error, for
// it is not to be asked of one.
func parseBootstrap(body []byte) (b bootstrap, err error) {
	for len(body) > 0 {
		if len(body) < unix.NLA_HDRLEN {
			return b, errors.New("a message of libcontainer is cut short")
		}
		size, kind := int(binary.NativeEndian.Uint16(body)), binary.NativeEndian.Uint16(body[2:])
		if size < unix.NLA_HDRLEN || size > len(body) {
			return b, errors.New("a message of libcontainer is cut short")
		}
		value := body[unix.NLA_HDRLEN:size]
		text := strings.TrimRight(string(value), "\x00")
		switch kind {
		case libcontainer.CloneFlagsAttr:
			if len(value) < 4 {
				return b, errors.New("a message of libcontainer is cut short")
			}
			b.cloneFlags = int(binary.NativeEndian.Uint32(value))
		case libcontainer.NsPathsAttr:
			b.namespaces = strings.Split(text, ",")
		case libcontainer.OomScoreAdjAttr:
			b.oomScoreAdj = text
		case libcontainer.RootlessEUIDAttr:
			if strings.Trim(text, "\x00") != "" {
				return b, errors.New("a spare process cannot be without root's rights")
			}
		default:
			return b, fmt.Errorf("libcontainer wants what a spare process cannot do (%d)", kind)
		}
		body = body[min((size+unix.NLA_ALIGNTO-1)&^(unix.NLA_ALIGNTO-1), len(body)):]
	}
	return b, nil
}

// kinds are the namespaces that a process with several threads can join or make.
var kinds = map[string]int{
	"net": unix.CLONE_NEWNET, "ipc": unix.CLONE_NEWIPC, "uts": unix.CLONE_NEWUTS, "mnt": unix.CLONE_NEWNS, "cgroup": unix.CLONE_NEWCGROUP,
}

// checkKinds refuses namespaces, each "kind:path", that cannot be joined.
func checkKinds(namespaces []string) error {
	for _, namespace := range namespaces {
		if kind, _, _ := strings.Cut(namespace, ":"); kinds[kind] == 0 {
			return fmt.Errorf("a spare process cannot join %q", namespace)
		}
	}
	return nil
}

// enter joins and makes the namespaces for this thread, which alone goes on when
// the container's program is executed. That of processes it has already.
func enter(want bootstrap) error {
	if err := checkKinds(want.namespaces); err != nil {
		return err
	}
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return fmt.Errorf("separating the thread: %w", err)
	}
	// All are opened first: the paths are the host's.
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
		err := unix.Setns(fd, kinds[kind])
		unix.Close(fd)
		if err != nil {
			return fmt.Errorf("joining %s: %w", want.namespaces[i], err)
		}
	}
	made := want.cloneFlags &^ unix.CLONE_NEWPID
	for _, kind := range kinds {
		made &^= kind
	}
	if made != 0 || want.cloneFlags&unix.CLONE_NEWPID == 0 {
		return fmt.Errorf("a spare process cannot have namespaces %#x", want.cloneFlags)
	}
	if flags := want.cloneFlags &^ unix.CLONE_NEWPID; flags != 0 {
		if err := unix.Unshare(flags); err != nil {
			return fmt.Errorf("making namespaces: %w", err)
		}
	}
	return nil
}
