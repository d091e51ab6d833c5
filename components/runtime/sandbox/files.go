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

// maxResolvConf is the size in bytes of the host's resolv.conf above which it is not copied to pods.
const maxResolvConf = 1 << 20

// DNS is the content of a pod's resolv.conf. A nil *DNS means that the pod gets a copy of the host's resolv.conf.
type DNS struct{ Servers, Searches, Options []string }

// Files are the paths on the host of the files that are mounted in /etc of all containers of a sandbox.
type Files struct{ Hosts, Hostname, ResolvConf string }

// PathsIn returns the paths of the files in dir, the directory of a sandbox. The files need not exist.
func PathsIn(dir string) Files {
	return Files{Hosts: filepath.Join(dir, "hosts"), Hostname: filepath.Join(dir, "hostname"), ResolvConf: filepath.Join(dir, "resolv.conf")}
}

// WriteFiles writes the hosts, hostname and resolv.conf files of a sandbox to dir. With the host network, hosts and
// hostname are those of the host. An empty hostname also means that of the host. dns is the content of resolv.conf, or
// nil for a copy of the host's.
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

// resolvConf returns dns in the format of resolv.conf.
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

// MountSHM mounts the tmpfs for a pod's /dev/shm at dir, with the default size of 64 MiB. user is the pod's ID mapping,
// whose root becomes the owner, or nil without a user namespace. label is the SELinux label of all files in it, or
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
