package main

import (
	"bufio"
	"bytes"
	"context"
	"debug/buildinfo"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// component is a part of the program that another project has made.
type component struct {
	name, version string
	// purl is the package URL, see https://github.com/package-url/purl-spec.
	purl     string
	licenses []licenseText
	// static is true for a C library that is linked statically.
	static bool
}

// licenseText is a file with a license or a notice.
type licenseText struct {
	name string // path below the root of the component
	file string // path on this machine
}

// directory returns the directory of the component's licenses.
func (c component) directory() string { return c.name + "@" + c.version }

// runtimeTags are the build tags of the container runtime in scripts/build-runtime.
const runtimeTags = "seccomp,netgo,osusergo,grpcnotrace"

// goPackage is a package in the output of `go list -json`. Only the fields that are used exist.
type goPackage struct {
	Dir      string
	Standard bool
	Module   *struct {
		Path, Version, Dir string
		Main               bool
	}
}

// listModules returns the Go modules that the programs of a target contain, and the standard
// library, with their licenses. It returns an error if the build information of a program names
// other modules than the source does, so the program is out of date.
func listModules(ctx context.Context, t target) ([]component, error) {
	found := map[string]component{}
	for _, program := range []struct {
		file, cgo string
		args      []string
	}{
		{t.program, "0", []string{"."}},
		{t.runtime, "1", []string{"-tags=" + runtimeTags, "./components/runtime/program"}},
	} {
		packages, err := goList(ctx, t.arch, program.cgo, program.args)
		if err != nil {
			return nil, err
		}
		listed, err := modulesOf(packages)
		if err != nil {
			return nil, err
		}
		info, err := buildinfo.ReadFile(program.file)
		if err != nil {
			return nil, fmt.Errorf("reading the build information: %w", err)
		}
		var linked []string
		for _, m := range info.Deps {
			linked = append(linked, m.Path+"@"+m.Version)
		}
		slices.Sort(linked)
		if names := slices.Sorted(maps.Keys(listed)); !slices.Equal(linked, names) {
			return nil, fmt.Errorf("%s was built from modules %q, but the source has %q: build it again", program.file, linked, names)
		}
		for name, m := range listed {
			m.licenses = append(m.licenses, found[name].licenses...)
			found[name] = m
		}
		std, err := standardLibrary(ctx, info.GoVersion)
		if err != nil {
			return nil, err
		}
		found["std"] = std
	}
	var all []component
	for _, name := range slices.Sorted(maps.Keys(found)) {
		m := found[name]
		slices.SortFunc(m.licenses, func(a, b licenseText) int { return strings.Compare(a.name, b.name) })
		m.licenses = slices.Compact(m.licenses)
		if len(m.licenses) == 0 {
			return nil, fmt.Errorf("module %s has no license", name)
		}
		all = append(all, m)
	}
	return all, nil
}

// goList returns all packages that a program contains. args are the package and build flags of the
// program, and cgo is the value of CGO_ENABLED.
func goList(ctx context.Context, arch, cgo string, args []string) ([]goPackage, error) {
	cmd := exec.CommandContext(ctx, "go", append([]string{"list", "-deps", "-json=Dir,Standard,Module"}, args...)...)
	cmd.Env = append(os.Environ(), "GOOS=linux", "GOARCH="+arch, "CGO_ENABLED="+cgo)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("listing packages: %w", err)
	}
	var packages []goPackage
	for decoder := json.NewDecoder(bytes.NewReader(out)); ; {
		var p goPackage
		if err := decoder.Decode(&p); errors.Is(err, io.EOF) {
			return packages, nil
		} else if err != nil {
			return nil, fmt.Errorf("parsing the list of packages: %w", err)
		}
		packages = append(packages, p)
	}
}

// modulesOf returns the modules of packages, without the main module, keyed by "path@version".
// Their licenses are those of the packages.
func modulesOf(packages []goPackage) (map[string]component, error) {
	found := map[string]component{}
	for _, p := range packages {
		if p.Standard || p.Module == nil || p.Module.Main {
			continue
		}
		name := p.Module.Path + "@" + p.Module.Version
		m, ok := found[name]
		if !ok {
			m = component{name: p.Module.Path, version: p.Module.Version, purl: "pkg:golang/" + strings.ReplaceAll(name, "+", "%2B")}
		}
		texts, err := licensesOf(p.Module.Dir, p.Dir)
		if err != nil {
			return nil, err
		}
		m.licenses = append(m.licenses, texts...)
		found[name] = m
	}
	return found, nil
}

// licenseName matches the names of files with licenses and notices.
var licenseName = regexp.MustCompile(`(?i)^(licen[cs]e|copying|copyright|notice|patents|unlicense)([-_.].*)?$`)

// licensesOf returns the license and notice files in dir, the directory of a package, and in its
// parent directories up to root, the directory of the module.
func licensesOf(root, dir string) ([]licenseText, error) {
	var texts []licenseText
	for {
		files, err := os.ReadDir(dir)
		if err != nil {
			return nil, fmt.Errorf("searching licenses: %w", err)
		}
		for _, f := range files {
			if !f.Type().IsRegular() || !licenseName.MatchString(f.Name()) || strings.HasSuffix(f.Name(), ".go") {
				continue
			}
			file := filepath.Join(dir, f.Name())
			name, err := filepath.Rel(root, file)
			if err != nil {
				return nil, fmt.Errorf("searching licenses: %w", err)
			}
			texts = append(texts, licenseText{name: filepath.ToSlash(name), file: file})
		}
		if dir == root || len(dir) <= len(root) {
			return texts, nil
		}
		dir = filepath.Dir(dir)
	}
}

// bundleLicenses is the directory with the licenses of the npm packages whose code the dashboard's page contains. It has a
// directory NAME@VERSION for each package.
const bundleLicenses = "components/dashboard/bundle/licenses"

// bundledPackages returns the npm packages in dir, a directory such as bundleLicenses.
func bundledPackages(dir string) ([]component, error) {
	found := map[string]component{}
	err := filepath.WalkDir(dir, func(file string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		relative, err := filepath.Rel(dir, file)
		if err != nil {
			return err
		}
		full, text := path.Split(filepath.ToSlash(relative))
		full = strings.TrimSuffix(full, "/")
		at := strings.LastIndex(full, "@")
		if at <= 0 {
			return fmt.Errorf("%s is not in a directory NAME@VERSION", file)
		}
		c, ok := found[full]
		if !ok {
			c = component{name: full[:at], version: full[at+1:], purl: "pkg:npm/" + strings.Replace(full, "@", "%40", strings.Count(full, "@")-1)}
		}
		c.licenses = append(c.licenses, licenseText{name: text, file: file})
		found[full] = c
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("listing the npm packages of the dashboard: %w", err)
	}
	var all []component
	for _, name := range slices.Sorted(maps.Keys(found)) {
		all = append(all, found[name])
	}
	return all, nil
}

// standardLibrary returns the Go standard library of this machine as a component. version is the Go
// version with which the programs were built.
func standardLibrary(ctx context.Context, version string) (component, error) {
	out, err := exec.CommandContext(ctx, "go", "env", "GOROOT").Output()
	if err != nil {
		return component{}, fmt.Errorf("finding the Go standard library: %w", err)
	}
	root := strings.TrimSpace(string(out))
	texts, err := licensesOf(root, root)
	if err != nil {
		return component{}, err
	}
	version = strings.TrimPrefix(version, "go")
	return component{name: "std", version: version, purl: "pkg:golang/std@" + version, licenses: texts}, nil
}

// staticLibraries returns the C libraries that are linked statically into the container runtime, as
// found by its C compiler. They belong to Debian packages, of which it returns name, version and
// license.
func staticLibraries(ctx context.Context, compiler string) ([]component, error) {
	var all []component
	for _, library := range []string{"libseccomp.a", "libc.a", "libgcc.a"} {
		out, err := exec.CommandContext(ctx, compiler, "-print-file-name="+library).Output()
		if err != nil {
			return nil, fmt.Errorf("finding %s: %w", library, err)
		}
		file, err := filepath.EvalSymlinks(strings.TrimSpace(string(out)))
		if err != nil {
			return nil, fmt.Errorf("finding %s: %w", library, err)
		}
		out, err = exec.CommandContext(ctx, "dpkg-query", "--search", file).Output()
		if err != nil {
			return nil, fmt.Errorf("finding the package of %s: %w", file, err)
		}
		owner, _, _ := strings.Cut(string(out), ": ")
		out, err = exec.CommandContext(ctx, "dpkg-query", "--show", "--showformat=${Package}\n${Version}\n${Architecture}\n", owner).Output()
		if err != nil {
			return nil, fmt.Errorf("finding the version of %s: %w", owner, err)
		}
		var fields []string
		for lines := bufio.NewScanner(bytes.NewReader(out)); lines.Scan(); {
			fields = append(fields, lines.Text())
		}
		if len(fields) != 3 {
			return nil, fmt.Errorf("finding the version of %s: unexpected output %q", owner, out)
		}
		c := debianComponent(fields[0], fields[1], fields[2])
		c.static = true
		// The documentation of some packages is a symbolic link to that of another one.
		c.licenses = []licenseText{{name: "copyright", file: filepath.Join("/usr/share/doc", fields[0], "copyright")}}
		all = append(all, c)
	}
	return all, nil
}

// debianComponent returns the component of a Debian package, without licenses.
func debianComponent(name, version, arch string) component {
	purl := fmt.Sprintf("pkg:deb/debian/%s@%s?arch=%s", name, strings.ReplaceAll(version, "+", "%2B"), arch)
	return component{name: name, version: version, purl: purl}
}
