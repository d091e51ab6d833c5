package sandbox

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"hyperkube/components/runtime/selinux"
	"hyperkube/internal/host/atomicfile"
)

// maxResolvConf is the maximum size of a host file to copy.
const maxResolvConf = 1 << 20

// DNS is the content of a pod's resolv.conf. A nil *DNS means a copy of the host's.
type DNS struct{ Servers, Searches, Options []string }

// Files are the paths of a sandbox's files for /etc.
type Files struct{ Hosts, Hostname, ResolvConf string }

// PathsIn returns the paths of the files of a sandbox with the directory dir.
func PathsIn(dir string) Files {
	return Files{Hosts: filepath.Join(dir, "hosts"), Hostname: filepath.Join(dir, "hostname"), ResolvConf: filepath.Join(dir, "resolv.conf")}
}

// WriteFiles writes a sandbox's files. With the host network they are copies of the host's files,
// except for resolv.conf if dns is not nil.
func WriteFiles(dir, hostname string, hostNetwork bool, dns *DNS) error {
	files := PathsIn(dir)
	hosts := "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n"
	if hostNetwork {
		if data, err := os.ReadFile("/etc/hosts"); err == nil {
			hosts = string(data)
		}
	}
	if hostNetwork || hostname == "" {
		name, err := os.Hostname()
		if err != nil {
			return fmt.Errorf("reading the hostname: %w", err)
		}
		hostname = name
	}
	resolv := ""
	if dns != nil {
		if strings.ContainsAny(strings.Join(append(append(append([]string{}, dns.Servers...), dns.Searches...), dns.Options...), ""), "\n\r") {
			return errors.New("line break in the pod's DNS configuration")
		}
		resolv = resolvConf(*dns)
	} else if data, err := os.ReadFile("/etc/resolv.conf"); err == nil && len(data) <= maxResolvConf {
		resolv = string(data)
	}
	err := atomicfile.Write(
		atomicfile.File{Path: files.Hosts, Data: []byte(hosts), Mode: 0o644, SkipSync: true},
		atomicfile.File{Path: files.Hostname, Data: []byte(hostname + "\n"), Mode: 0o644, SkipSync: true},
		atomicfile.File{Path: files.ResolvConf, Data: []byte(resolv), Mode: 0o644, SkipSync: true},
	)
	if err != nil {
		return fmt.Errorf("writing the sandbox's files: %w", err)
	}
	return nil
}

func resolvConf(dns DNS) string {
	var b strings.Builder
	if len(dns.Searches) > 0 {
		fmt.Fprintf(&b, "search %s\n", strings.Join(dns.Searches, " "))
	}
	for _, server := range dns.Servers {
		fmt.Fprintf(&b, "nameserver %s\n", server)
	}
	if len(dns.Options) > 0 {
		fmt.Fprintf(&b, "options %s\n", strings.Join(dns.Options, " "))
	}
	return b.String()
}

// MountSHM mounts the pod's /dev/shm at dir, with the default size of 64 MiB. It belongs to root in
// the pod; user is nil without a user namespace. label is the SELinux label of all files in it, or
// empty.
func MountSHM(dir string, user *UserNS, label string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("creating the pod's /dev/shm: %w", err)
	}
	options := "mode=1777,size=" + strconv.Itoa(64<<20)
	if user != nil {
		options += fmt.Sprintf(",uid=%d,gid=%d", user.HostUID, user.HostGID)
	}
	options += selinux.MountOption(label)
	if err := unix.Mount("shm", dir, "tmpfs", unix.MS_NOEXEC|unix.MS_NOSUID|unix.MS_NODEV, options); err != nil {
		return fmt.Errorf("mounting the pod's /dev/shm: %w", err)
	}
	return nil
}
