package preflight

import (
	"errors"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"hyperkube/internal/host/packetfilter"
)

// TestHint uses the identifying lines of /etc/os-release of each distribution.
func TestHint(t *testing.T) {
	for _, test := range []struct{ name, osRelease, want string }{
		{"Debian", "PRETTY_NAME=\"Debian GNU/Linux 12 (bookworm)\"\nID=debian\n", "install it with `apt-get install iptables`"},
		{"Ubuntu", "ID=ubuntu\nID_LIKE=debian\n", "install it with `apt-get install iptables`"},
		{"Linux Mint", "ID=linuxmint\nID_LIKE=\"ubuntu debian\"\n", "install it with `apt-get install iptables`"},
		{"Fedora", "ID=fedora\nVERSION_ID=43\n", "install it with `dnf install iptables`"},
		{"RHEL", "ID=\"rhel\"\nID_LIKE=\"fedora\"\n", "install it with `dnf install iptables`"},
		{"Rocky Linux", "ID=\"rocky\"\nID_LIKE=\"rhel centos fedora\"\n", "install it with `dnf install iptables`"},
		{"Amazon Linux", "ID=\"amzn\"\nID_LIKE=\"fedora\"\n", "install it with `dnf install iptables`"},
		{"Alpine", "ID=alpine\n", "install it with `apk add iptables`"},
		{"openSUSE Leap", "ID=\"opensuse-leap\"\nID_LIKE=\"suse opensuse\"\n", "install it with `zypper install iptables`"},
		{"openSUSE without ID_LIKE", "ID='opensuse-tumbleweed'\n", "install it with `zypper install iptables`"},
		{"SLES", "ID=\"sles\"\nID_LIKE=\"suse\"\n", "install it with `zypper install iptables`"},
		{"Arch Linux", "ID=arch", "install it with `pacman -S iptables`"},
		{"Manjaro", "ID=manjaro\nID_LIKE=arch\n", "install it with `pacman -S iptables`"},
		{"another distribution", "ID=nixos\n", "install the package iptables"},
		{"a prefix of a known ID", "ID=archaic\n", "install the package iptables"},
		{"no file", "", "install the package iptables"},
	} {
		if got := hint(test.osRelease, "iptables"); got != test.want {
			t.Errorf("%s: %q, want %q", test.name, got, test.want)
		}
	}
}

func TestPacketFilter(t *testing.T) {
	programs := []string{"FileExisting-iptables", "FileExisting-iptables-restore"}
	for _, test := range []struct {
		name      string
		mode      packetfilter.Mode
		installed []string
		nftables  error
		missing   []string
	}{
		{"all", packetfilter.IPTables, []string{"iptables", "iptables-restore"}, nil, nil},
		{"one", packetfilter.IPTables, []string{"iptables"}, nil, programs[1:]},
		{"none", packetfilter.IPTables, nil, nil, programs},
		{"none, nftables", packetfilter.NFTables, nil, nil, nil},
		{"none, auto", packetfilter.Auto, nil, nil, nil},
		{"none, default", "", nil, nil, nil},
		{"auto without nf_tables", packetfilter.Auto, programs, errors.New("no nf_tables"), programs},
		{"nftables without nf_tables", packetfilter.NFTables, []string{"iptables", "iptables-restore"}, errors.New("apk add iptables"), []string{"SystemVerification"}},
	} {
		find := func(program string) (string, error) {
			if slices.Contains(test.installed, program) {
				return filepath.Join("/usr/sbin", program), nil
			}
			return "", exec.ErrNotFound
		}
		var missing []string
		for _, p := range checkPacketFilter(test.mode, find, func() error { return test.nftables }, "ID=alpine\n") {
			missing = append(missing, p.Check)
			if !strings.Contains(p.Error(), "apk add iptables") {
				t.Errorf("%s: %v does not name the package", test.name, p)
			}
		}
		if !slices.Equal(missing, test.missing) {
			t.Errorf("%s: missing %q, want %q", test.name, missing, test.missing)
		}
	}
}

func TestOverlayModule(t *testing.T) {
	for _, test := range []struct {
		name, filesystems string
		load              error
		want              string // part of the error
	}{
		{"supported", "nodev\tsysfs\nnodev\toverlay\n", errors.New("not called"), ""},
		{"module", "nodev\tsysfs\n", nil, ""},
		{"no module", "nodev\tsysfs\n", errors.New("exit status 1"), "load the kernel module overlay"},
		{"no modprobe", "nodev\tsysfs\n", &exec.Error{Name: "modprobe", Err: exec.ErrNotFound}, "dnf install kmod"},
	} {
		err := checkOverlayModule(test.filesystems, func() error { return test.load }, "ID=fedora\n")
		if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v, want %q", test.name, err, test.want)
		}
	}
}

func TestReadOSRelease(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "missing")
	if got := readOSRelease([]string{missing, "/proc/version"}); !strings.HasPrefix(got, "Linux") {
		t.Errorf("second file: %q", got)
	}
	if got := readOSRelease([]string{missing}); got != "" {
		t.Errorf("no file: %q", got)
	}
}
