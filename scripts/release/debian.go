package main

import (
	"archive/tar"
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// lockFile is the path of the lock file. It lists the Debian packages of the image with their
// versions and checksums.
const lockFile = "scripts/release/image-packages.txt"

// debianPackages are the packages of the image by architecture: iptables with its libraries, and CA certificates.
var debianPackages = []struct {
	arches, names []string
}{
	{[]string{archAll}, []string{"ca-certificates", "netbase"}},
	{[]string{"amd64", "arm64"}, []string{
		"iptables", "libc6", "libip4tc2", "libip6tc2", "libmnl0", "libnetfilter-conntrack3", "libnfnetlink0", "libnftnl11", "libxtables12",
	}},
}

// archAll is the architecture of packages that do not depend on the architecture.
const archAll = "all"

// lockedPackage is a line of the lock file.
type lockedPackage struct{ arch, name, version, sum string }

// debianBase is the part of the image that comes from Debian packages: the files and, for the bill
// of materials, the packages.
type debianBase struct {
	tree       tree
	components []component
}

// debianTree downloads the packages in the lock file for an architecture to dir, and returns their
// files and the packages. It returns an error if a package has another checksum.
func debianTree(ctx context.Context, arch, dir string) (debianBase, error) {
	locked, err := readLock(lockFile)
	if err != nil {
		return debianBase{}, err
	}
	base := debianBase{tree: tree{}}
	for _, p := range locked {
		if p.arch != arch && p.arch != archAll {
			continue
		}
		file, err := download(ctx, filepath.Join(dir, p.arch, p.name), qualified(p.name, p.arch)+"="+p.version)
		if err != nil {
			return base, fmt.Errorf("%w; if the archive has a newer version, run `go run ./scripts/release -lock`", err)
		}
		sum, err := sha256File(file)
		if err != nil {
			return base, err
		}
		if sum != p.sum {
			return base, fmt.Errorf("the checksum of %s is %s instead of %s", file, sum, p.sum)
		}
		cmd := exec.CommandContext(ctx, "dpkg-deb", "--fsys-tarfile", file)
		cmd.Stderr = os.Stderr
		data, err := cmd.Output()
		if err != nil {
			return base, fmt.Errorf("reading %s: %w", file, err)
		}
		if err := unpack(base.tree, bytes.NewReader(data)); err != nil {
			return base, fmt.Errorf("reading %s: %w", file, err)
		}
		base.components = append(base.components, debianComponent(p.name, p.version, p.arch))
	}
	if len(base.components) == 0 {
		return base, fmt.Errorf("%s has no packages for %s", lockFile, arch)
	}
	configure(base.tree)
	return base, nil
}

// merged are the directories at the root that are symbolic links to directories in /usr.
var merged = []string{"bin", "lib", "lib64", "sbin"}

// unpack adds the files of a tar archive to files, except for documentation and conversion tables that the
// image does not need.
func unpack(files tree, archive io.Reader) error {
	for in := tar.NewReader(archive); ; {
		header, err := in.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		name := path.Clean(header.Name)
		if top, _, _ := strings.Cut(name, "/"); slices.Contains(merged, top) {
			name = path.Join("usr", name)
		}
		if !needed(name) {
			continue
		}
		switch header.Typeflag {
		case tar.TypeReg:
			data, err := io.ReadAll(in)
			if err != nil {
				return err
			}
			files[name] = entry{data: data, executable: header.Mode&0o111 != 0}
		case tar.TypeSymlink:
			files[name] = entry{link: header.Linkname}
		case tar.TypeDir: // written as the parent of a file
		default:
			return fmt.Errorf("%s has the unexpected type %q", name, header.Typeflag)
		}
	}
}

// needed reports whether the image contains the file name of a Debian package. Manual pages,
// translations and documentation are left out, except for copyright files.
func needed(name string) bool {
	for _, unneeded := range []string{"usr/share/man/", "usr/share/locale/", "usr/share/lintian/", "usr/share/bug/", "usr/share/doc-base/", "etc/ca-certificates/"} {
		if strings.HasPrefix(name, unneeded) {
			return false
		}
	}
	return !strings.Contains(name, "/gconv/") && (!strings.HasPrefix(name, "usr/share/doc/") || path.Base(name) == "copyright")
}

const certificates = "usr/share/ca-certificates/"

// configure changes the files as the installation scripts of the packages would: it adds links, the
// bundle of CA certificates, users and empty directories.
func configure(files tree) {
	for _, name := range merged {
		files[name] = entry{link: "usr/" + name}
	}
	for _, family := range []string{"iptables", "ip6tables"} {
		for _, suffix := range []string{"", "-save", "-restore"} {
			files["usr/sbin/"+family+suffix] = entry{link: "xtables-nft-multi"}
		}
	}
	var bundle []byte
	for _, name := range files.paths() {
		if strings.HasPrefix(name, certificates) {
			bundle = append(bundle, files[name].data...)
			delete(files, name)
		}
	}
	files["etc/ssl/certs/ca-certificates.crt"] = entry{data: bundle}
	for name, text := range map[string]string{
		"etc/passwd":        "root:x:0:0:root:/root:/sbin/nologin\nnobody:x:65534:65534:nobody:/nonexistent:/sbin/nologin\n",
		"etc/group":         "root:x:0:\nnogroup:x:65534:\n",
		"etc/nsswitch.conf": "hosts: files dns\n",
	} {
		files[name] = entry{data: []byte(text)}
	}
	files["tmp"] = entry{directory: 0o1777}
	files["root"] = entry{directory: 0o700}
	for _, name := range []string{"run", "proc", "sys", "dev", "var/lib", "var/log"} {
		files[name] = entry{directory: 0o755}
	}
}

// download downloads a package to dir, unless it is there, and returns the path of the file. name
// is that of a package for apt-get, optionally with its architecture and version. dir must contain
// no other package.
func download(ctx context.Context, dir, name string) (string, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", fmt.Errorf("creating a directory: %w", err)
	}
	cmd := exec.CommandContext(ctx, "apt-get", "download", "-qq", "-o", "APT::Sandbox::User=root", name)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("downloading the package %s: %w: %s", name, err, bytes.TrimSpace(out))
	}
	files, err := filepath.Glob(filepath.Join(dir, "*.deb"))
	if err != nil || len(files) != 1 {
		return "", fmt.Errorf("downloading the package %s: %d files in %s", name, len(files), dir)
	}
	return files[0], nil
}

// readLock reads the lock file.
func readLock(file string) ([]lockedPackage, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, fmt.Errorf("reading the versions of packages: %w", err)
	}
	defer f.Close()
	var locked []lockedPackage
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		if strings.HasPrefix(lines.Text(), "#") {
			continue
		}
		fields := strings.Fields(lines.Text())
		if len(fields) != 4 {
			return nil, fmt.Errorf("reading %s: the line %q does not have four fields", file, lines.Text())
		}
		locked = append(locked, lockedPackage{fields[0], fields[1], fields[2], fields[3]})
	}
	return locked, lines.Err()
}

// writeLock writes the current versions of the packages to the lock file.
func writeLock(ctx context.Context, file string) error {
	dir, err := os.MkdirTemp("", "release-lock-")
	if err != nil {
		return fmt.Errorf("creating a directory: %w", err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	lines := "# Debian packages of the image: architecture, name, version and SHA-256 checksum. To update them, run\n# `apt-get update && go run ./scripts/release -lock`.\n"
	for _, set := range debianPackages {
		for _, arch := range set.arches {
			for _, name := range set.names {
				p, err := newest(ctx, filepath.Join(dir, arch, name), arch, name)
				if err != nil {
					return err
				}
				lines += strings.Join([]string{p.arch, p.name, p.version, p.sum}, " ") + "\n"
			}
		}
	}
	return create(file, func(w io.Writer) error {
		_, err := io.WriteString(w, lines)
		return err
	})
}

// newest downloads the newest version of a package that apt-get knows to dir, which must contain no other package, and
// returns the line for the lock file.
func newest(ctx context.Context, dir, arch, name string) (lockedPackage, error) {
	p := lockedPackage{arch: arch, name: name}
	deb, err := download(ctx, dir, qualified(name, arch))
	if err != nil {
		return p, err
	}
	version, err := exec.CommandContext(ctx, "dpkg-deb", "--field", deb, "Version").Output()
	if err != nil {
		return p, fmt.Errorf("reading the version of %s: %w", deb, err)
	}
	p.version = strings.TrimSpace(string(version))
	p.sum, err = sha256File(deb)
	return p, err
}

// qualified returns the name of a package with its architecture, in the format of apt-get.
func qualified(name, arch string) string {
	if arch == archAll {
		return name
	}
	return name + ":" + arch
}
