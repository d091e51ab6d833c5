package kubelet

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// self is the import path of this package.
const self = "hyperkube/components/kubelet"

// importRules are the import rules within the kubelet. Paths are relative to this directory; a path covers the
// packages below it. Imports go one way: this package imports all others, then server, node, pod and resources
// import only what is below them, down to podstate.
var importRules = []struct {
	name string
	// from are the packages that the rule covers, and except those of them that it does not.
	from, except []string
	// to must not be imported, except for allowed.
	to, allowed []string
	reason      string
}{
	{
		name: "root", from: []string{"."}, to: []string{"@root"},
		reason: "the root composes the parts; a part that imports it would call back into its composer",
	},
	{
		name: "config", from: []string{"cri", "grpcsocket", "node", "pluginwatch", "pod", "resources", "server", "telemetry"}, to: []string{"config"},
		reason: "each part has its own configuration with only what it uses, so that it can be tested and changed alone",
	},
	{
		name: "server", from: []string{"."}, except: []string{"@root", "server"}, to: []string{"server"},
		reason: "the servers show what the other parts do; the node must work without them",
	},
	{
		name: "node", from: []string{"."}, except: []string{"@root", "config", "server", "node"}, to: []string{"node"},
		reason: "pods and resources must not depend on how the node reports its status, evicts or shuts down",
	},
	{
		name: "workers", from: []string{"pod"}, except: []string{"pod/pods", "pod/podsource", "pod/staticpod"}, to: []string{"pod/pods", "pod/podsource", "pod/staticpod"},
		reason: "the workers use the parts that each provide one thing of a pod, such as volumes; these do not know the workers",
	},
	{
		name: "workers and their sources", from: []string{"pod/pods"}, to: []string{"pod/podsource", "pod/staticpod"},
		reason: "workers run pods of any source",
	},
	{
		name: "pods and resources", from: []string{"pod"}, to: []string{"resources"},
		reason: "the workers define the interface by which they allocate resources, which package resources implements",
	},
	{
		name: "resources", from: []string{"resources"}, to: []string{"pod"},
		reason: "resources are allocated to containers of the API, whatever runs them",
	},
	{
		name: "single resources", from: []string{"resources/cpumanager", "resources/devicemanager", "resources/dra", "resources/memorymanager", "resources/numa", "resources/topology"},
		to: []string{"resources"}, allowed: []string{"resources/numa", "resources/topology", "resources/devicemanager/checkpoint"},
		reason: "package resources combines the managers, which know each other only through the topology",
	},
	{
		name: "base", from: []string{"cri", "grpcsocket", "pluginwatch", "telemetry"}, to: []string{"."}, allowed: []string{"cri", "pod/podstate"},
		reason: "all parts use these packages",
	},
	{
		name: "podstate", from: []string{"pod/podstate"}, to: []string{"."},
		reason: "it is a pure core without I/O, which is tested without the rest",
	},
	{
		name: "podmachine", from: []string{"pod/podmachine"}, to: []string{"."}, allowed: []string{"pod/podstate"},
		reason: "it is a pure core without I/O, which is tested without the rest",
	},
}

// covers reports whether a list of importRules covers the package name, which is relative to this directory.
func covers(list []string, name string) bool {
	for _, one := range list {
		switch {
		case one == "@root":
			if name == "." {
				return true
			}
		case one == "." && name != ".", one == name, strings.HasPrefix(name, one+"/"):
			return true
		}
	}
	return false
}

// violation returns why a package of the kubelet must not import another, or "" if it may.
func violation(importer, imported string) string {
	for _, r := range importRules {
		if covers(r.from, importer) && !covers(r.except, importer) && covers(r.to, imported) && !covers(r.allowed, imported) {
			return r.name + ": " + r.reason
		}
	}
	return ""
}

// sources calls f for each file of the kubelet that is not a test, with its package relative to this directory.
func sources(t *testing.T, f func(pkg, file string, parsed *ast.File)) {
	t.Helper()
	found := 0
	err := filepath.WalkDir(".", func(file string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(file, ".go") || strings.HasSuffix(file, "_test.go") {
			return err
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		found++
		f(path.Dir(filepath.ToSlash(file)), file, parsed)
		return nil
	})
	if err != nil || found < 100 {
		t.Fatalf("read %d files: %v", found, err)
	}
}

// TestImportDirection checks the imports of the kubelet's packages against importRules.
func TestImportDirection(t *testing.T) {
	sources(t, func(pkg, file string, parsed *ast.File) {
		for _, one := range parsed.Imports {
			imported, err := strconv.Unquote(one.Path.Value)
			if err != nil {
				t.Fatal(err)
			}
			switch {
			case imported == self:
				imported = "."
			case strings.HasPrefix(imported, self+"/"):
				imported = strings.TrimPrefix(imported, self+"/")
			default:
				continue
			}
			if reason := violation(pkg, imported); reason != "" {
				t.Errorf("%s imports %s: %s", file, imported, reason)
			}
		}
	})
}

// TestImportRules tests importRules with imports that do not occur in the code.
func TestImportRules(t *testing.T) {
	for _, c := range []struct {
		importer, imported string
		ok                 bool
	}{
		{".", "server", true},
		{".", "config", true},
		{"server", ".", false},
		{"node/pressure", "config", false},
		{"config", "node/eviction", true},
		{"server/backend", "pod/pods", true},
		{"node/admission", "resources", true},
		{"node/stats", "server/backend", false},
		{"pod/pods", "server", false},
		{"pod/pods", "node/eviction", false},
		{"pod/pods", "resources", false},
		{"pod/pods", "pod/volume", true},
		{"pod/volume", "pod/pods", false},
		{"pod/pods", "pod/podsource", false},
		{"pod/podsource", "pod/pods", true},
		{"resources", "pod/pods", false},
		{"resources", "resources/dra", true},
		{"resources/dra", "resources", false},
		{"resources/dra", "resources/cpumanager", false},
		{"resources/cpumanager", "resources/topology", true},
		{"resources/devicemanager", "server/podresources", false},
		{"telemetry", "pod/images", false},
		{"cri", "pod/podstate", true},
		{"pod/podstate", "cri", false},
		{"cri/crifake", "cri", true},
	} {
		if reason := violation(c.importer, c.imported); (reason == "") != c.ok {
			t.Errorf("%s imports %s: %q", c.importer, c.imported, reason)
		}
	}
}

// Limits of this package, which only composes the others.
const (
	maxFiles   = 12
	maxFields  = 20
	maxMethods = 30
)

// TestSize checks that this package and the type Kubelet stay small: what a part does belongs to its package.
func TestSize(t *testing.T) {
	files, fields, methods := 0, 0, 0
	sources(t, func(pkg, _ string, parsed *ast.File) {
		if pkg != "." {
			return
		}
		files++
		for _, d := range parsed.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				if d.Recv != nil && isKubelet(d.Recv.List[0].Type) {
					methods++
				}
			case *ast.GenDecl:
				for _, s := range d.Specs {
					if s, ok := s.(*ast.TypeSpec); ok && s.Name.Name == "Kubelet" {
						fields = s.Type.(*ast.StructType).Fields.NumFields()
					}
				}
			}
		}
	})
	for _, c := range []struct {
		what       string
		have, most int
	}{{"files", files, maxFiles}, {"fields of Kubelet", fields, maxFields}, {"methods of Kubelet", methods, maxMethods}} {
		if c.have == 0 || c.have > c.most {
			t.Errorf("%d %s, want at most %d", c.have, c.what, c.most)
		}
	}
}

// isKubelet reports whether the type of a receiver is Kubelet.
func isKubelet(e ast.Expr) bool {
	if star, ok := e.(*ast.StarExpr); ok {
		e = star.X
	}
	name, ok := e.(*ast.Ident)
	return ok && name.Name == "Kubelet"
}
