package leakcheck

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// adder is called for each resource that exists. kind and id identify the resource, and
// description, which may be empty, is additional information for the developer.
type adder func(kind, id, description string)

// descriptors adds the open file descriptors of this process. A descriptor that is closed and
// reused for a different file is a new resource.
func descriptors(add adder) {
	const dir = "/proc/self/fd"
	entries, err := os.ReadDir(dir)
	if err != nil {
		return
	}
	for _, e := range entries {
		target, err := os.Readlink(filepath.Join(dir, e.Name()))
		if err != nil {
			continue // the descriptor with which the directory was read
		}
		add("descriptor", e.Name()+" -> "+target, socketName(e.Name(), target))
	}
}

// socketName returns the addresses of the socket with the descriptor fd, because target, the name
// of its file, contains only a number. It returns "" if it is not a socket.
func socketName(fd, target string) string {
	n, err := strconv.Atoi(fd)
	if err != nil || !strings.HasPrefix(target, "socket:") {
		return ""
	}
	local, _ := unix.Getsockname(n)
	remote, _ := unix.Getpeername(n)
	return fmt.Sprintf("(local address %s, remote address %s)", address(local), address(remote))
}

// address formats the address of a socket for the description of a leak.
func address(a unix.Sockaddr) string {
	switch a := a.(type) {
	case nil:
		return "none"
	case *unix.SockaddrInet4:
		return net.JoinHostPort(net.IP(a.Addr[:]).String(), strconv.Itoa(a.Port))
	case *unix.SockaddrInet6:
		return net.JoinHostPort(net.IP(a.Addr[:]).String(), strconv.Itoa(a.Port))
	case *unix.SockaddrUnix:
		return strconv.Quote(a.Name)
	}
	return fmt.Sprintf("%T", a)
}

// children adds the child processes of this process, including those that have exited without being
// waited for.
func children(add adder) {
	files, _ := filepath.Glob("/proc/self/task/*/children")
	for _, file := range files {
		pids, _ := os.ReadFile(file)
		for pid := range strings.FieldsSeq(string(pids)) {
			command, _ := os.ReadFile("/proc/" + pid + "/cmdline")
			if len(command) == 0 {
				command = []byte("exited, was not waited for")
			}
			add("process", pid, strings.ReplaceAll(string(command), "\x00", " "))
		}
	}
}

// mounts adds the mounts in the namespace of the calling thread.
func mounts(add adder) {
	table, err := os.ReadFile("/proc/thread-self/mountinfo")
	if err != nil {
		return
	}
	for line := range strings.Lines(string(table)) {
		fields := strings.Fields(line)
		if len(fields) >= 5 {
			add("mount", fields[0]+" "+fields[4], "")
		}
	}
}

// links adds the network links in the namespace of the calling thread.
func links(add adder) {
	interfaces, _ := net.Interfaces()
	for _, i := range interfaces {
		add("link", i.Name, "")
	}
}

// cgroups adds the cgroups of this process's tests: their names contain "test" and the process ID,
// as in hyperkube-test-123, and they are at the top of the hierarchy, or of one of the version 1
// hierarchies.
func cgroups(add adder) {
	own := regexp.MustCompile(fmt.Sprintf(`test\b.*\b%d\b`, os.Getpid()))
	for _, pattern := range []string{"/sys/fs/cgroup/*", "/sys/fs/cgroup/*/*"} {
		dirs, _ := filepath.Glob(pattern)
		for _, dir := range dirs {
			if own.MatchString(filepath.Base(dir)) {
				add("cgroup", dir, "")
			}
		}
	}
}
