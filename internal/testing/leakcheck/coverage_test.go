package leakcheck_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// exempt lists the packages without a leak check, with the reason.
var exempt = map[string]string{
	"e2e":                          "its clusters run in other processes, and its own checks compare the machine before and after",
	"e2e/vm":                       "its tests run in a virtual machine, and compare the whole machine before and after",
	"e2e/bench":                    "only contains benchmarks that start other processes",
	"internal/testing/testisolate": "its TestMain calls its own Main, which checks for leaks",
}

// openers lists functions, by import path and prefix of their name, that return resources that must
// be released.
var openers = map[string][]string{
	"os":                                  {"Open", "Create", "NewFile", "Pipe", "StartProcess"},
	"os/exec":                             {"Command"},
	"net":                                 {"Dial", "Listen", "File"},
	"net/http/httptest":                   {"NewServer", "NewTLSServer", "NewUnstartedServer"},
	"crypto/tls":                          {"Dial", "Listen"},
	"syscall":                             {"Open", "Socket", "Mount", "Dup", "Pipe"},
	"golang.org/x/sys/unix":               {"Open", "Socket", "Mount", "Move", "Dup", "Pipe", "Epoll", "Eventfd", "Inotify", "Memfd", "Pidfd"},
	"github.com/fsnotify/fsnotify":        {"New"},
	"github.com/vishvananda/netlink":      {"LinkAdd", "NewHandle"},
	"google.golang.org/grpc":              {"NewClient", "NewServer"},
	"go.etcd.io/bbolt":                    {"Open"},
	"hyperkube/internal/testing/testetcd": {"Start"},
}

// TestEveryPackageIsChecked checks that each package with tests has a TestMain that checks for leaks
// if one of its files, including tests, contains a go statement, a call of a method Go (of a
// WaitGroup or errgroup), or a call of one of the openers.
func TestEveryPackageIsChecked(t *testing.T) {
	const root = "../../.."
	reasons, tested, checked := map[string]string{}, map[string]bool{}, map[string]bool{}
	err := filepath.WalkDir(root, func(file string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if e.IsDir() && file != root && (strings.HasPrefix(e.Name(), ".") || e.Name() == "testdata") {
			return filepath.SkipDir
		}
		if _, err := os.Stat(filepath.Join(file, "go.mod")); e.IsDir() && file != root && err == nil {
			return filepath.SkipDir // another module, which cannot import this package
		}
		if !strings.HasSuffix(file, ".go") {
			return nil
		}
		dir, err := filepath.Rel(root, filepath.Dir(file))
		if err != nil {
			return err
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		if reason := leakReason(parsed); reason != "" && reasons[dir] == "" {
			reasons[dir] = filepath.Base(file) + " has " + reason
		}
		if strings.HasSuffix(file, "_test.go") {
			tested[dir] = true
			checked[dir] = checked[dir] || checksLeaks(parsed)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	total := 0
	for dir, reason := range reasons {
		switch {
		case !tested[dir] || exempt[dir] != "":
		case checked[dir]:
			total++
		default:
			t.Errorf("%s: %s, but its tests have no TestMain that calls leakcheck.Main or testisolate.Main", dir, reason)
		}
	}
	if total < 100 {
		t.Errorf("found only %d packages with leak checks", total)
	}
	for dir := range exempt {
		if reasons[dir] == "" || checked[dir] {
			t.Errorf("%s needs no exemption", dir)
		}
	}
}

// leakReason describes why a file's package needs the check, or returns "".
func leakReason(f *ast.File) string {
	imports := map[string]string{} // import paths by the name that the file uses
	for _, spec := range f.Imports {
		importPath, _ := strconv.Unquote(spec.Path.Value)
		name := path.Base(importPath)
		if spec.Name != nil {
			name = spec.Name.Name
		}
		imports[name] = importPath
	}
	reason := ""
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.GoStmt:
			reason = "a go statement"
		case *ast.CallExpr:
			selector, ok := n.Fun.(*ast.SelectorExpr)
			if !ok {
				break
			}
			name := selector.Sel.Name
			if name == "Go" {
				reason = "a call of Go"
			}
			if x, ok := selector.X.(*ast.Ident); ok && slices.ContainsFunc(openers[imports[x.Name]], func(prefix string) bool { return strings.HasPrefix(name, prefix) }) {
				reason = "a call of " + x.Name + "." + name
			}
		}
		return reason == ""
	})
	return reason
}

// checksLeaks reports whether a file declares a TestMain that calls leakcheck.Main or testisolate.Main.
func checksLeaks(f *ast.File) bool {
	found := false
	for _, d := range f.Decls {
		fn, ok := d.(*ast.FuncDecl)
		if !ok || fn.Name.Name != "TestMain" {
			continue
		}
		ast.Inspect(fn, func(n ast.Node) bool {
			if s, ok := n.(*ast.SelectorExpr); ok && s.Sel.Name == "Main" {
				if x, ok := s.X.(*ast.Ident); ok && (x.Name == "leakcheck" || x.Name == "testisolate") {
					found = true
				}
			}
			return !found
		})
	}
	return found
}

// TestLeakReason checks which sources need the check.
func TestLeakReason(t *testing.T) {
	for source, want := range map[string]string{
		"func f() { go f() }":                     "a go statement",
		"func f(g group) { g.Go(func() {}) }":     "a call of Go",
		"func f() { os.OpenFile() }":              "a call of os.OpenFile",
		"func f() { command.CommandContext() }":   "a call of command.CommandContext",
		"func f(l links) { l.Open(); os.Stat() }": "",
	} {
		f, err := parser.ParseFile(token.NewFileSet(), "", "package p; import (\"os\"; command \"os/exec\"); "+source, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		if got := leakReason(f); got != want {
			t.Errorf("%s: %q instead of %q", source, got, want)
		}
	}
}

// TestChecksLeaks checks which sources of a test are recognized as checking for leaks.
func TestChecksLeaks(t *testing.T) {
	for source, want := range map[string]bool{
		"func TestMain(m *testing.M) { leakcheck.Main(m) }":                          true,
		"func TestMain(m *testing.M) { if child { run() }; testisolate.Main(m, 1) }": true,
		"func TestMain(m *testing.M) { m.Run() }":                                    false,
		"func TestOther(m *testing.M) { leakcheck.Main(m) }":                         false,
	} {
		f, err := parser.ParseFile(token.NewFileSet(), "", "package p; "+source, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		if got := checksLeaks(f); got != want {
			t.Errorf("%s: %t", source, got)
		}
	}
}
