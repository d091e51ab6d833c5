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
	"hyperkube/internal/atomicfile"
)

// maxResolvConf bounds what is taken over from the host.
const maxResolvConf = 1 << 20

// DNS is what a pod's resolv.conf says. Nil, as a pointer, means the host's.
type DNS struct{ Servers, Searches, Options []string }

// Files are the paths of a sandbox's files in /etc.
type Files struct{ Hosts, Hostname, ResolvConf string }

// PathsIn returns where the files of a sandbox with this folder are.
func PathsIn(dir string) Files {
	return Files{Hosts: filepath.Join(dir, "hosts"), Hostname: filepath.Join(dir, "hostname"), ResolvConf: filepath.Join(dir, "resolv.conf")}
}

// WriteFiles writes a sandbox's files. With the host's network they are copies
// of the host's, but for a resolv.conf that dns asks for.
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
			return errors.New("a line break in the pod's DNS configuration")
		}
		resolv = resolvConf(*dns)
	} else if data, err := os.ReadFile("/etc/resolv.conf"); err == nil && len(data) <= maxResolvConf {
		resolv = string(data)
	}
	err := atomicfile.Write(
		atomicfile.File{Path: files.Hosts, Data: []byte(hosts), Mode: 0o644, Remakeable: true},
		atomicfile.File{Path: files.Hostname, Data: []byte(hostname + "\n"), Mode: 0o644, Remakeable: true},
		atomicfile.File{Path: files.ResolvConf, Data: []byte(resolv), Mode: 0o644, Remakeable: true},
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

// MountSHM mounts the pod's /dev/shm at dir, of the usual 64 MiB, as the pod's
// root sees it: user is nil for a pod of the host's users. label is the SELinux
// label of all files in it; empty for none.
func MountSHM(dir string, user *UserNS, label string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("making the pod's /dev/shm: %w", err)
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
