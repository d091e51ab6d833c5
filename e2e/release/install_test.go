package release

import (
	"bytes"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// script runs the install script below another root directory and returns its output.
func script(t *testing.T, root string, args ...string) (string, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "sh", append([]string{find(t, "install.sh")}, args...)...)
	cmd.Env = append(os.Environ(), "DESTDIR="+root)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// listing returns all files below root except for directories, with their modes and link targets.
func listing(t *testing.T, root string) map[string]string {
	t.Helper()
	files := map[string]string{}
	err := filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		link, _ := os.Readlink(path)
		files[strings.TrimPrefix(path, root)] = info.Mode().String() + " " + link
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// TestInstallScript checks that the script installs the files of the archive, also again and from a URL, that the
// program runs, and that --uninstall removes everything that was installed.
func TestInstallScript(t *testing.T) {
	server := httptest.NewServer(http.FileServer(http.Dir(dir)))
	t.Cleanup(server.Close)
	root := t.TempDir()
	// A file of another program in a directory that the script uses stays.
	other := filepath.Join(root, "usr/local/share/man/man1/other.1")
	if err := os.MkdirAll(filepath.Dir(other), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(other, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	before := listing(t, root)
	var installed map[string]string
	for _, args := range [][]string{{"--from", dir}, {"--from", dir}, {"--url", server.URL}} {
		if out, err := script(t, root, args...); err != nil {
			t.Fatalf("install.sh %s: %v\n%s", args, err, out)
		}
		files := listing(t, root)
		if installed != nil && !maps.Equal(files, installed) {
			t.Errorf("install.sh %s: another installation has other files:\n%v\n%v", args, installed, files)
		}
		installed = files
	}
	for _, name := range []string{"/usr/local/bin/hyperkube", "/usr/local/bin/kubectl", "/etc/systemd/system/hyperkube.service"} {
		if _, ok := installed[name]; !ok {
			t.Errorf("%s was not installed", name)
		}
	}
	out, err := exec.CommandContext(t.Context(), filepath.Join(root, "usr/local/bin/hyperkube"), "version").CombinedOutput()
	if err != nil || !strings.Contains(string(out), versionOf(t)) {
		t.Errorf("version: %v\n%s", err, out)
	}
	unit, err := os.ReadFile(filepath.Join(root, "etc/systemd/system/hyperkube.service"))
	if err != nil || !bytes.Contains(unit, []byte("ExecStart=/usr/local/bin/hyperkube up ")) {
		t.Errorf("the unit does not start the installed program: %v\n%s", err, unit)
	}
	if out, err := script(t, root, "--uninstall"); err != nil {
		t.Fatalf("install.sh --uninstall: %v\n%s", err, out)
	}
	if after := listing(t, root); !maps.Equal(before, after) {
		t.Errorf("install.sh --uninstall left %v", slices.Sorted(maps.Keys(after)))
	}
}

// versionOf returns the version of the release.
func versionOf(t *testing.T) string {
	name := filepath.Base(hostArchive(t))
	return name[len("hyperkube-"):strings.Index(name, "-linux-")]
}

// TestInstallScriptRefuses checks that the script installs nothing if the archive does not match its checksum, is
// missing, or if the checksums name files elsewhere.
func TestInstallScriptRefuses(t *testing.T) {
	sums, err := os.ReadFile(filepath.Join(dir, "SHA256SUMS"))
	if err != nil {
		t.Fatal(err)
	}
	archive := filepath.Base(hostArchive(t))
	for name, test := range map[string]struct {
		sums    string
		archive []byte // nil for none
		text    string
	}{
		"changed archive":  {string(sums), []byte("not the archive"), "does not match SHA256SUMS"},
		"missing archive":  {string(sums), nil, "does not contain " + archive},
		"no checksum":      {"", []byte("x"), "does not list an archive for linux-" + runtime.GOARCH},
		"path in checksum": {strings.ReplaceAll(string(sums), "  hyperkube-", "  ../hyperkube-"), []byte("x"), "does not list an archive"},
		"two archives":     {string(sums) + strings.ReplaceAll(string(sums), "hyperkube-v", "hyperkube-w"), []byte("x"), "more than one archive"},
	} {
		t.Run(name, func(t *testing.T) {
			from, root := t.TempDir(), t.TempDir()
			if err := os.WriteFile(filepath.Join(from, "SHA256SUMS"), []byte(test.sums), 0o644); err != nil {
				t.Fatal(err)
			}
			if test.archive != nil {
				if err := os.WriteFile(filepath.Join(from, archive), test.archive, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			out, err := script(t, root, "--from", from)
			if err == nil || !strings.Contains(out, test.text) {
				t.Errorf("%v: %s, want an error with %q", err, out, test.text)
			}
			if files := listing(t, root); len(files) > 0 {
				t.Errorf("files were installed: %v", files)
			}
		})
	}
}

// packageManager installs and removes a package below another root directory.
type packageManager struct {
	program         string
	install, remove []string
	file            func(t *testing.T) string
	own             string // directory of the manager's database
}

// TestPackages checks that a package installs the program, the unit and the documentation below /usr, and that its
// removal leaves nothing. The scripts of the package run in a root directory that contains only a shell and a few programs.
func TestPackages(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	for name, m := range map[string]packageManager{
		"deb": {
			program: "dpkg", install: []string{"--force-depends", "--install"}, remove: []string{"--purge"}, own: "/var/lib/dpkg",
			file: func(t *testing.T) string { return find(t, "hyperkube_*_"+runtime.GOARCH+".deb") },
		},
		"rpm": {
			// The rpm of Debian has its database in the home directory otherwise.
			program: "rpm", install: []string{"--dbpath=/var/lib/rpm", "--nodeps", "--install"}, remove: []string{"--dbpath=/var/lib/rpm", "--erase"}, own: "/var/lib/rpm",
			file: func(t *testing.T) string {
				return find(t, "hyperkube-*."+map[string]string{"amd64": "x86_64", "arm64": "aarch64"}[runtime.GOARCH]+".rpm")
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := exec.LookPath(m.program); err != nil {
				t.Fatalf("%s is not installed: %v", m.program, err)
			}
			root := minimalRoot(t)
			for _, file := range []string{"info", "updates", "status", "available"} {
				path := filepath.Join(root, "var/lib/dpkg", file)
				if file == "info" || file == "updates" {
					if err := os.MkdirAll(path, 0o755); err != nil {
						t.Fatal(err)
					}
				} else if err := os.WriteFile(path, nil, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			run := func(args ...string) {
				t.Helper()
				cmd := exec.CommandContext(t.Context(), m.program, append([]string{"--root=" + root}, args...)...)
				if out, err := cmd.CombinedOutput(); err != nil {
					t.Fatalf("%s: %v\n%s", cmd, err, out)
				}
			}
			files := func() map[string]string {
				list := listing(t, root)
				maps.DeleteFunc(list, func(path, _ string) bool {
					return strings.HasPrefix(path, m.own+"/") || strings.HasPrefix(path, "/var/log/") || strings.HasPrefix(path, "/var/lib/dpkg/")
				})
				return list
			}
			before := files()
			run(append(m.install, m.file(t))...)
			installed := files()
			for _, name := range []string{"/usr/bin/hyperkube", "/usr/bin/kubectl", "/etc/hyperkube/service.env", "/usr/share/man/man1/hyperkube-up.1.gz", "/usr/share/doc/hyperkube/NOTICE", "/usr/lib/systemd/system/hyperkube.service"} {
				if _, ok := installed[name]; !ok {
					t.Errorf("%s was not installed", name)
				}
			}
			if installed["/usr/bin/hyperkube"] != "-rwxr-xr-x " || installed["/usr/bin/kubectl"] != "Lrwxrwxrwx hyperkube" {
				t.Errorf("hyperkube has the mode %s, kubectl %s", installed["/usr/bin/hyperkube"], installed["/usr/bin/kubectl"])
			}
			run(append(m.remove, "hyperkube")...)
			if after := files(); !maps.Equal(before, after) {
				maps.DeleteFunc(after, func(path, _ string) bool { _, ok := before[path]; return ok })
				t.Errorf("the removal left %v", slices.Sorted(maps.Keys(after)))
			}
		})
	}
}

// minimalRoot creates a root directory with the shell and the programs of this machine that the scripts of packages use,
// their libraries, and /dev/null.
func minimalRoot(t *testing.T) string {
	t.Helper()
	root := t.TempDir()
	put := func(path string) {
		t.Helper()
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		target := filepath.Join(root, path)
		if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(target, data, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"sh", "ln", "rm", "rmdir", "readlink"} {
		program, err := exec.LookPath(name)
		if err != nil {
			t.Fatal(err)
		}
		put(program)
		libraries, err := exec.CommandContext(t.Context(), "ldd", program).Output()
		if err != nil {
			t.Fatalf("ldd %s: %v", program, err)
		}
		for word := range strings.FieldsSeq(string(libraries)) {
			if filepath.IsAbs(word) {
				put(word)
			}
		}
	}
	// The interpreter of scripts.
	if err := os.MkdirAll(filepath.Join(root, "bin"), 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(root, "bin/sh")); os.IsNotExist(err) {
		if err := os.Symlink("/usr/bin/sh", filepath.Join(root, "bin/sh")); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(root, "dev"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mknod(filepath.Join(root, "dev/null"), unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))); err != nil {
		t.Fatal(err)
	}
	return root
}
