package release

import (
	"archive/tar"
	"bufio"
	"compress/gzip"
	"crypto/sha256"
	"debug/elf"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestChecksums checks that SHA256SUMS lists every other file of the release with its checksum, and that there is
// each kind of file for each architecture.
func TestChecksums(t *testing.T) {
	sums := map[string]string{}
	f, err := os.Open(filepath.Join(dir, "SHA256SUMS"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		sum, name, ok := strings.Cut(lines.Text(), "  ")
		if !ok {
			t.Errorf("invalid line %q", lines.Text())
		}
		sums[name] = sum
	}
	files, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, file := range files {
		if file.Name() == "SHA256SUMS" {
			continue
		}
		names = append(names, file.Name())
		if got := checksum(t, filepath.Join(dir, file.Name())); got != sums[file.Name()] {
			t.Errorf("%s has the checksum %s, SHA256SUMS has %q", file.Name(), got, sums[file.Name()])
		}
	}
	if len(names) != len(sums) {
		t.Errorf("SHA256SUMS lists %d files, there are %d", len(sums), len(names))
	}
	if !slices.Contains(names, "install.sh") {
		t.Error("there is no install.sh")
	}
	for _, arch := range archs(t) {
		for _, suffix := range []string{".tar.gz", ".oci.tar", ".spdx.json", ".oci.spdx.json"} {
			find(t, "hyperkube-*-linux-"+arch+suffix)
		}
		find(t, "hyperkube_*_"+arch+".deb")
		find(t, "hyperkube-*."+map[string]string{"amd64": "x86_64", "arm64": "aarch64"}[arch]+".rpm")
	}
}

func checksum(t *testing.T, file string) string {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	sum := sha256.New()
	if _, err := io.Copy(sum, f); err != nil {
		t.Fatal(err)
	}
	return hex.EncodeToString(sum.Sum(nil))
}

// TestArchives checks the files in the archives: a static program of the right architecture, the unit, manual pages,
// completion scripts, and the licenses of all components of the bill of materials. All files belong to root.
func TestArchives(t *testing.T) {
	for _, arch := range archs(t) {
		t.Run(arch, func(t *testing.T) {
			archive := find(t, "hyperkube-*-linux-"+arch+".tar.gz")
			top := strings.TrimSuffix(filepath.Base(archive), ".tar.gz") + "/"
			out := t.TempDir()
			files := unpack(t, archive, out)
			for _, name := range []string{
				"bin/hyperkube", "lib/systemd/system/hyperkube.service", "share/man/man1/hyperkube-up.1.gz",
				"share/bash-completion/completions/hyperkube", "share/zsh/site-functions/_hyperkube",
				"share/fish/vendor_completions.d/hyperkube.fish", "share/doc/hyperkube/LICENSE", "share/doc/hyperkube/NOTICE",
			} {
				if !slices.Contains(files, top+name) {
					t.Errorf("the archive does not contain %s", name)
				}
			}
			program, err := elf.Open(filepath.Join(out, top, "bin/hyperkube"))
			if err != nil {
				t.Fatal(err)
			}
			defer program.Close()
			if want := map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}[arch]; program.Machine != want {
				t.Errorf("the program is for %v, want %v", program.Machine, want)
			}
			if libraries, err := program.ImportedLibraries(); err != nil || len(libraries) > 0 {
				t.Errorf("the program needs the libraries %v: %v", libraries, err)
			}
			for _, name := range componentsOf(t, find(t, "hyperkube-*-linux-"+arch+".spdx.json")) {
				if !slices.ContainsFunc(files, func(f string) bool {
					return strings.HasPrefix(f, top+"share/doc/hyperkube/licenses/"+name)
				}) {
					t.Errorf("the archive does not contain the license of %s", name)
				}
			}
		})
	}
}

// componentsOf returns the names of the components in a bill of materials, except for hyperkube itself.
func componentsOf(t *testing.T, file string) []string {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var document struct {
		SPDXVersion string
		Packages    []struct{ Name, VersionInfo, LicenseConcluded string }
	}
	if err := json.Unmarshal(data, &document); err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(document.SPDXVersion, "SPDX-2.") || len(document.Packages) < 50 {
		t.Fatalf("%s is not a complete SPDX document: version %q, %d packages", file, document.SPDXVersion, len(document.Packages))
	}
	var names []string
	for _, p := range document.Packages {
		if p.Name != "hyperkube" {
			names = append(names, p.Name)
		}
	}
	return names
}

// unpack unpacks an archive to out and returns the names of its files.
func unpack(t *testing.T, archive, out string) []string {
	t.Helper()
	f, err := os.Open(archive)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	zip, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	var files []string
	for in := tar.NewReader(zip); ; {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		if h.Uid != 0 || h.Gid != 0 {
			t.Errorf("%s belongs to %d:%d", h.Name, h.Uid, h.Gid)
		}
		path := filepath.Join(out, h.Name)
		if h.Typeflag == tar.TypeDir {
			if err := os.MkdirAll(path, 0o755); err != nil {
				t.Fatal(err)
			}
			continue
		}
		files = append(files, h.Name)
		data, err := io.ReadAll(in)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, data, h.FileInfo().Mode()); err != nil {
			t.Fatal(err)
		}
	}
}
