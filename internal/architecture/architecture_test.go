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

// root is where the module lies, seen from this package.
const root = "../.."

// importable are the packages of the container runtime that other programs
// may have: the rest brings libcontainer, which wants a program of its own.
var importable = map[string]bool{
	components + "runtime/launch":        true,
	components + "runtime/runtimeclient": true,
	components + "runtime/importpb":      true,
}

// testDatabase is what the tests of any component may start for themselves.
const testDatabase = components + "etcd"

// keptOut are the packages that the main program must not depend on, and why.
// A name that ends in a slash stands for all packages below it as well.
var keptOut = []struct{ name, reason string }{
	{"github.com/opencontainers/runc/libcontainer/", "containers are made by the runtime's own program, which is started again for each"},
	{"github.com/godbus/dbus/", "it finds methods by name at run time, so that the linker keeps all of them: 35 MB; internal/dbus is enough"},
	{"k8s.io/kubernetes/", "only the published libraries are used"},
	{"k8s.io/apiserver/pkg/server", "the generic server is what this project replaces"},
	{"k8s.io/apiserver/pkg/registry/", "storage is internal/store"},
	{"k8s.io/apiserver/pkg/storage/etcd3/", "storage is internal/store"},
	// Its package delegator is but the few rules by which fairness tells what a list costs.
	{"k8s.io/apiserver/pkg/storage/cacher", "the watch cache is internal/store"},
	{"k8s.io/apiserver/pkg/storage/cacher/store/", "the watch cache is internal/store"},
	{"k8s.io/apiserver/pkg/endpoints/filters/", "the filter chain is components/apiserver/filters"},
	{"k8s.io/apiextensions-apiserver/pkg/apiserver", "it drags the generic server along"},
	{"k8s.io/apiextensions-apiserver/pkg/registry/", "storage is internal/store"},
}

// keptOutOfRuntime is the like for the container runtime's program.
var keptOutOfRuntime = []struct{ name, reason string }{
	{"text/template/", "it finds methods by name at run time, so that the linker keeps all of them: a quarter of the program"},
	{"html/template/", "it is text/template"},
	{"k8s.io/apimachinery/pkg/runtime", "a runtime needs no types of the API: 1 MB"},
}

// pkg is what go list tells of a package.
type pkg struct {
	ImportPath   string
	Imports      []string
	TestImports  []string
	XTestImports []string
}

// TestImports holds that a component imports no other, that only the cluster
// composes them, and that what they share knows none of them.
func TestImports(t *testing.T) {
	noteSources(t)
	packages := list(t, "1", "./...") // the container runtime needs cgo
	if len(packages) < 2 {
		t.Fatalf("go list names %d packages", len(packages))
	}
	for _, p := range packages {
		for _, imported := range p.Imports {
			if reason := forbidden(p.ImportPath, imported); reason != "" {
				t.Errorf("%s imports %s: %s", p.ImportPath, imported, reason)
			}
		}
		for _, imported := range append(p.TestImports, p.XTestImports...) {
			if imported == testDatabase && strings.HasPrefix(p.ImportPath, components) {
				continue
			}
			if reason := forbidden(p.ImportPath, imported); reason != "" {
				t.Errorf("the tests of %s import %s: %s", p.ImportPath, imported, reason)
			}
		}
	}
}

// TestDependencies holds that neither program has anything of what is to be kept
// out of it.
func TestDependencies(t *testing.T) {
	noteSources(t)
	for _, program := range []struct {
		name, cgo string
		list      []string
		keptOut   []struct{ name, reason string }
	}{
		{"main program", "0", []string{"."}, keptOut},
		// The tags are those of scripts/build-runtime.
		{"container runtime", "1", []string{"-tags=seccomp,netgo,osusergo,grpcnotrace", "./components/runtime/program"}, keptOutOfRuntime},
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

// TestForbidden shows what the rules say of imports that nobody has written.
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
		{"hyperkube/components/kubelet/pods", "hyperkube/components/kubelet/cri", true},
		{"hyperkube/components/kubelet/pods", "hyperkube/internal/podnet", true},
		{"hyperkube/components/kubelet/pods", "hyperkube/components/runtime/launch", false},
		{"hyperkube/components/dns", "hyperkube/components/cluster", false},
		{"hyperkube/components/dns", "hyperkube/components/dnsx", false},
		{"hyperkube/internal/store", "hyperkube/internal/api", true},
		{"hyperkube/internal/store", "hyperkube/components/etcd", false},
		{"hyperkube/e2e/bench", "hyperkube/components/runtime/runtimeclient", true},
		{"hyperkube/e2e/bench", "hyperkube/components/apiserver", false},
		{"hyperkube/components/dns", "hyperkube/e2e/bench", false},
		{"hyperkube/components/dns", "net/http", true},
	} {
		reason := forbidden(test.importer, test.imported)
		if (reason == "") != test.ok {
			t.Errorf("%s imports %s: %q", test.importer, test.imported, reason)
		}
	}
}

// forbidden says why one package must not import the other, or nothing.
func forbidden(importer, imported string) string {
	if below(imported, e2e) && !below(importer, e2e) {
		return "nothing is made of tests"
	}
	if !strings.HasPrefix(imported, components) {
		return ""
	}
	to := component(imported)
	switch {
	case strings.HasPrefix(importer, internal):
		return "what components share imports no component"
	case strings.HasPrefix(importer, components) && component(importer) == to:
		return ""
	case to == "runtime" && !importable[imported]:
		return "the container runtime is a program of its own"
	case importer == module, strings.HasPrefix(importer, components) && component(importer) == "cluster":
		return ""
	case below(importer, e2e) && importable[imported]:
		return ""
	case below(importer, e2e):
		return "a running cluster is tested from outside"
	}
	return "no component imports another, but cluster composes them all"
}

// component is the name of the component that a package below components/
// belongs to.
func component(path string) string {
	name, _, _ := strings.Cut(strings.TrimPrefix(path, components), "/")
	return name
}

// below says whether path is the package or lies below it.
func below(path, parent string) bool {
	return path == parent || strings.HasPrefix(path, parent+"/")
}

// matches says whether a name of keptOut stands for path.
func matches(path, name string) bool {
	if parent, all := strings.CutSuffix(name, "/"); all {
		return below(path, parent)
	}
	return path == name
}

// list asks go for packages, with cgo ("1") or without, as the main program is
// built ("0").
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

// noteSources looks at every source file, as go list will: go test remembers
// what a test itself has looked at, and runs it again when that has changed.
func noteSources(t *testing.T) {
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
