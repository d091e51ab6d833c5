package architecture

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

const (
	module     = "hyperkube"
	components = module + "/components/"
	internal   = module + "/internal/"
	e2e        = module + "/e2e"
)

// root is the path of the module root relative to this package.
const root = "../.."

// importable lists the packages of the container runtime that other programs may import. The other
// packages depend on libcontainer, which requires a separate program.
var importable = map[string]bool{
	components + "runtime/launch":        true,
	components + "runtime/runtimeclient": true,
	components + "runtime/importpb":      true,
}

// testDatabase may be imported by the tests of every component.
const testDatabase = components + "etcd"

// forbiddenDependencies lists the packages that the main program must not depend on, with the reason. A name with
// a trailing slash also covers all packages below it.
var forbiddenDependencies = []struct{ name, reason string }{
	{"github.com/opencontainers/runc/libcontainer/", "containers are created by the separate runtime program"},
	{"github.com/godbus/dbus/", "it finds methods by name at run time, so that the linker keeps all of them: 35 MB; internal/host/dbus is enough"},
	{"k8s.io/kubernetes/", "only the published libraries are used"},
	{"k8s.io/apiserver/pkg/server", "the generic server is what this project replaces"},
	{"k8s.io/apiserver/pkg/registry/", "storage is internal/store"},
	{"k8s.io/apiserver/pkg/storage/etcd3/", "storage is internal/store"},
	// The cacher's delegator package is allowed: it only contains the rules by which API priority
	// and fairness estimates the cost of a list.
	{"k8s.io/apiserver/pkg/storage/cacher", "the watch cache is internal/store"},
	{"k8s.io/apiserver/pkg/storage/cacher/store/", "the watch cache is internal/store"},
	{"k8s.io/apiserver/pkg/endpoints/filters/", "the filter chain is components/apiserver/filters"},
	{"k8s.io/apiextensions-apiserver/pkg/apiserver", "it depends on the generic API server"},
	{"k8s.io/apiextensions-apiserver/pkg/registry/", "storage is internal/store"},
}

// forbiddenRuntimeDependencies lists the packages that the container runtime's program must not depend on.
var forbiddenRuntimeDependencies = []struct{ name, reason string }{
	{"text/template/", "it finds methods by name at run time, so that the linker keeps all of them: a quarter of the program"},
	{"html/template/", "it is text/template"},
	{"k8s.io/apimachinery/pkg/runtime", "a runtime needs no types of the API: 1 MB"},
}

// pkg is the part of the output of go list that the tests use.
type pkg struct {
	ImportPath   string
	Imports      []string
	TestImports  []string
	XTestImports []string
}

// TestImports checks that components do not import each other, that only the cluster component
// imports all of them, and that shared packages do not import components.
func TestImports(t *testing.T) {
	walkSources(t)
	packages := list(t, "1", "./...") // the container runtime needs cgo
	if len(packages) < 2 {
		t.Fatalf("go list names %d packages", len(packages))
	}
	for _, p := range packages {
		for _, imported := range p.Imports {
			if reason := importViolation(p.ImportPath, imported); reason != "" {
				t.Errorf("%s imports %s: %s", p.ImportPath, imported, reason)
			}
		}
		for _, imported := range append(p.TestImports, p.XTestImports...) {
			if imported == testDatabase && strings.HasPrefix(p.ImportPath, components) {
				continue
			}
			if reason := importViolation(p.ImportPath, imported); reason != "" {
				t.Errorf("the tests of %s import %s: %s", p.ImportPath, imported, reason)
			}
		}
	}
}

// TestDependencies checks that neither program depends on a package that it must not contain.
func TestDependencies(t *testing.T) {
	walkSources(t)
	for _, program := range []struct {
		name, cgo string
		list      []string
		keptOut   []struct{ name, reason string }
	}{
		{"main program", "0", []string{"."}, forbiddenDependencies},
		// The tags are the ones that scripts/build-runtime uses.
		{"container runtime", "1", []string{"-tags=seccomp,netgo,osusergo,grpcnotrace", "./components/runtime/program"}, forbiddenRuntimeDependencies},
	} {
		found := 0
		for _, p := range list(t, program.cgo, append([]string{"-deps"}, program.list...)...) {
			found++
			for _, out := range program.keptOut {
				if matches(p.ImportPath, out.name) {
					t.Errorf("the %s depends on %s: %s", program.name, p.ImportPath, out.reason)
				}
			}
		}
		if found < 2 {
			t.Fatalf("go list names %d dependencies of the %s", found, program.name)
		}
	}
}

// TestForbidden tests the import rules with imports that do not occur in the code.
func TestForbidden(t *testing.T) {
	for _, test := range []struct {
		importer, imported string
		ok                 bool
	}{
		{"hyperkube", "hyperkube/components/dns", true},
		{"hyperkube", "hyperkube/components/runtime", false},
		{"hyperkube/components/cluster", "hyperkube/components/dns", true},
		{"hyperkube/components/cluster", "hyperkube/components/runtime/launch", true},
		{"hyperkube/components/cluster", "hyperkube/components/runtime/container", false},
		{"hyperkube/components/kubelet/pod/pods", "hyperkube/components/kubelet/cri", true},
		{"hyperkube/components/kubelet/pod/pods", "hyperkube/internal/pod/podnet", true},
		{"hyperkube/components/kubelet/pod/pods", "hyperkube/components/runtime/launch", false},
		{"hyperkube/components/dns", "hyperkube/components/cluster", false},
		{"hyperkube/components/dns", "hyperkube/components/dnsx", false},
		{"hyperkube/internal/store", "hyperkube/internal/api", true},
		{"hyperkube/internal/store", "hyperkube/components/etcd", false},
		{"hyperkube/e2e/bench", "hyperkube/components/runtime/runtimeclient", true},
		{"hyperkube/e2e/bench", "hyperkube/components/apiserver", false},
		{"hyperkube/components/dns", "hyperkube/e2e/bench", false},
		{"hyperkube/components/dns", "net/http", true},
	} {
		reason := importViolation(test.importer, test.imported)
		if (reason == "") != test.ok {
			t.Errorf("%s imports %s: %q", test.importer, test.imported, reason)
		}
	}
}

// importViolation returns why importer must not import imported, or an empty string if it may.
func importViolation(importer, imported string) string {
	if below(imported, e2e) && !below(importer, e2e) {
		return "only tests import e2e packages"
	}
	if !strings.HasPrefix(imported, components) {
		return ""
	}
	to := component(imported)
	switch {
	case strings.HasPrefix(importer, internal):
		return "shared packages must not import components"
	case strings.HasPrefix(importer, components) && component(importer) == to:
		return ""
	case to == "runtime" && !importable[imported]:
		return "the container runtime is a separate program"
	case importer == module, strings.HasPrefix(importer, components) && component(importer) == "cluster":
		return ""
	case below(importer, e2e) && importable[imported]:
		return ""
	case below(importer, e2e):
		return "e2e tests must not import components"
	}
	return "components must not import each other, only cluster imports them all"
}

// component returns the name of the component that contains the package path.
func component(path string) string {
	name, _, _ := strings.Cut(strings.TrimPrefix(path, components), "/")
	return name
}

// below reports whether path is parent or a package below it.
func below(path, parent string) bool {
	return path == parent || strings.HasPrefix(path, parent+"/")
}

// matches reports whether name, an entry of forbiddenDependencies, covers path.
func matches(path, name string) bool {
	if parent, all := strings.CutSuffix(name, "/"); all {
		return below(path, parent)
	}
	return path == name
}

// list runs go list with cgo set to "1" (enabled) or "0" (disabled, as for the main program).
func list(t *testing.T, cgo string, arguments ...string) []pkg {
	t.Helper()
	command := exec.CommandContext(t.Context(), "go",
		append([]string{"list", "-json=ImportPath,Imports,TestImports,XTestImports"}, arguments...)...)
	command.Dir = root
	command.Env = append(os.Environ(), "CGO_ENABLED="+cgo)
	var complaint bytes.Buffer
	command.Stderr = &complaint
	out, err := command.Output()
	if err != nil {
		t.Fatalf("%v: %v: %s", command.Args, err, &complaint)
	}
	var packages []pkg
	decoder := json.NewDecoder(bytes.NewReader(out))
	for {
		var p pkg
		err := decoder.Decode(&p)
		if errors.Is(err, io.EOF) {
			return packages
		}
		if err != nil {
			t.Fatalf("%v: %v", command.Args, err)
		}
		packages = append(packages, p)
	}
}

// walkSources walks all source files that go list reads. The go test cache tracks only files that
// the test process itself accesses, so without this walk a cached result would hide changes.
func walkSources(t *testing.T) {
	t.Helper()
	for _, name := range []string{"go.mod", "main.go", "components", "internal", "e2e"} {
		err := filepath.WalkDir(filepath.Join(root, name), func(string, fs.DirEntry, error) error { return nil })
		if err != nil {
			t.Fatal(err)
		}
	}
	if _, err := os.ReadDir(root); err != nil {
		t.Fatal(err)
	}
}
