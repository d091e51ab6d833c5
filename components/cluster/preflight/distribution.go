package preflight

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"

	"hyperkube/internal/host/packetfilter"
)

// osReleaseFiles are the files that identify the distribution, in the order in which os-release(5)
// reads them.
var osReleaseFiles = []string{"/etc/os-release", "/usr/lib/os-release"}

// packageManagers are the commands that install a package, for the IDs of distributions in
// os-release(5). Derived distributions name these IDs in ID_LIKE.
var packageManagers = []struct {
	ids     []string
	install string
}{
	{[]string{"debian", "ubuntu"}, "apt-get install"},
	{[]string{"fedora", "rhel", "centos", "amzn", "azurelinux", "mariner"}, "dnf install"},
	{[]string{"alpine"}, "apk add"},
	{[]string{"suse", "opensuse", "sles"}, "zypper install"},
	{[]string{"arch"}, "pacman -S"},
}

// hint returns the remedy for a missing package: the command that installs it on the distribution
// that osRelease, the content of os-release(5), describes. The packages that the checks require have
// the same name in all of these distributions.
func hint(osRelease, pkg string) string {
	for _, id := range distributionIDs(osRelease) {
		for _, manager := range packageManagers {
			for _, known := range manager.ids {
				// openSUSE has IDs such as opensuse-leap.
				if id == known || strings.HasPrefix(id, known+"-") {
					return fmt.Sprintf("install it with `%s %s`", manager.install, pkg)
				}
			}
		}
	}
	return "install the package " + pkg
}

// distributionIDs returns the ID of the distribution and then those of ID_LIKE.
func distributionIDs(osRelease string) []string {
	var id, like string
	for line := range strings.Lines(osRelease) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		value = strings.Trim(value, `"'`)
		switch name {
		case "ID":
			id = value
		case "ID_LIKE":
			like = value
		}
	}
	return strings.Fields(id + " " + like)
}

// readOSRelease returns the content of the first file that exists, or "".
func readOSRelease(files []string) string {
	for _, file := range files {
		if data, err := os.ReadFile(file); err == nil {
			return string(data)
		}
	}
	return ""
}

// checkPacketFilter checks that packet filter rules can be written in a mode. With iptables, find must find its programs.
// nftables reports an error if the kernel does not support nftables. osRelease is the content of os-release(5).
func checkPacketFilter(mode packetfilter.Mode, find func(program string) (string, error), nftables func() error, osRelease string) []Problem {
	if mode != packetfilter.IPTables {
		err := nftables()
		if err == nil {
			return nil
		}
		if mode == packetfilter.NFTables {
			return []Problem{NewProblem("SystemVerification", err)}
		}
	}
	return checkPrograms(find, osRelease)
}

// checkPrograms checks that find finds the programs which a node executes. osRelease is the content
// of os-release(5).
func checkPrograms(find func(program string) (string, error), osRelease string) []Problem {
	var problems []Problem
	for _, program := range []struct{ name, pkg string }{
		{"iptables", "iptables"}, {"iptables-restore", "iptables"},
	} {
		if _, err := find(program.name); err != nil {
			problems = append(problems, NewProblem("FileExisting-"+program.name,
				withRemedy(fmt.Errorf("%s not found in system path", program.name), hint(osRelease, program.pkg))))
		}
	}
	return problems
}

// checkOverlayModule checks that the kernel supports overlayfs. filesystems is the content of
// /proc/filesystems. A kernel module may exist without being loaded, so load tries to load it.
func checkOverlayModule(filesystems string, load func() error, osRelease string) error {
	if strings.Contains(filesystems, "\toverlay\n") {
		return nil
	}
	err := load()
	switch {
	case errors.Is(err, exec.ErrNotFound):
		return withRemedy(errors.New("the kernel does not support overlayfs, and modprobe, which could load the kernel module overlay, was not found in system path"), hint(osRelease, "kmod"))
	case err != nil:
		return withRemedy(errors.New("the kernel does not support overlayfs"), "load the kernel module overlay with `modprobe overlay`")
	}
	return nil
}
