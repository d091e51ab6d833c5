// Command typesize reports every type with more than 30 methods or 20 fields. Such a type usually has more than one
// reason to change and should be several types. If it is right as it is, its doc comment gives the reason in a
// paragraph that starts with "Size:":
//
//	// Config configures the server.
//	//
//	// Size: one field for each flag.
//	type Config struct {
//
// The reason may continue on the following lines. Tests are not checked.
//
//	go run ./scripts/typesize [path ...]
package main

import (
	"cmp"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// maxMethods and maxFields are the maximum numbers of methods and fields of a type whose doc comment does not give a
// reason ("Size: …") for having more.
const (
	maxMethods = 30
	maxFields  = 20
)

// skipped are directories that are not checked yet: the list must become empty. An entry that ends with "/..." includes
// the directories below.
var skipped = []string{}

// finding is a type that is too large and does not give a reason, or that gives a reason although it is small.
type finding struct {
	file string
	line int
	text string
}

func main() {
	roots := os.Args[1:]
	if len(roots) == 0 {
		roots = []string{"."}
	}
	var findings []finding
	for _, root := range roots {
		more, err := run(os.DirFS("."), path.Clean(root), skipped)
		if err != nil {
			fmt.Fprintln(os.Stderr, "typesize:", err)
			os.Exit(2)
		}
		findings = append(findings, more...)
	}
	for _, f := range findings {
		fmt.Printf("%s:%d: %s\n", f.file, f.line, f.text)
	}
	if len(findings) > 0 {
		os.Exit(1)
	}
}

// run checks the packages in the directory root of module and below, except those in skip, and
// returns the findings by file and line.
func run(module fs.FS, root string, skip []string) ([]finding, error) {
	packages := map[string]map[string]*size{} // by directory and type name
	err := fs.WalkDir(module, root, func(file string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir():
			name := d.Name()
			if file != "." && (strings.HasPrefix(name, ".") || name == "testdata" || name == "bin") {
				return fs.SkipDir
			}
			return nil
		case !strings.HasSuffix(file, ".go") || strings.HasSuffix(file, "_test.go") || matches(path.Dir(file), skip):
			return nil
		}
		data, err := fs.ReadFile(module, file)
		if err != nil {
			return err
		}
		dir := path.Dir(file)
		if packages[dir] == nil {
			packages[dir] = map[string]*size{}
		}
		return measure(packages[dir], file, data)
	})
	if err != nil {
		return nil, fmt.Errorf("reading the source: %w", err)
	}
	var findings []finding
	for _, types := range packages {
		for name, s := range types {
			if text := s.problem(name); text != "" {
				findings = append(findings, finding{s.file, s.line, text})
			}
		}
	}
	slices.SortFunc(findings, func(a, b finding) int {
		return cmp.Or(cmp.Compare(a.file, b.file), cmp.Compare(a.line, b.line))
	})
	return findings, nil
}

// matches reports whether the directory dir is in list. An entry that ends with "/..." includes the
// directories below.
func matches(dir string, list []string) bool {
	return slices.ContainsFunc(list, func(entry string) bool {
		parent, below := strings.CutSuffix(entry, "/...")
		return dir == parent || below && strings.HasPrefix(dir, parent+"/")
	})
}

// size is what a type declaration and its methods contribute to the check.
type size struct {
	methods, fields int
	file            string // where it is declared; empty until the declaration was found
	line            int
	// reason is the paragraph of the doc comment that explains the size, or an empty string.
	reason string
}

// problem returns the text of a finding, or an empty string: the type is too large without a
// reason, or gives a reason although it is small.
func (s *size) problem(name string) string {
	var over []string
	if s.methods > maxMethods {
		over = append(over, fmt.Sprintf("%d methods (limit %d)", s.methods, maxMethods))
	}
	if s.fields > maxFields {
		over = append(over, fmt.Sprintf("%d fields (limit %d)", s.fields, maxFields))
	}
	switch {
	case len(over) > 0 && s.reason == "":
		return fmt.Sprintf("type %s has %s; split it, or give the reason in its doc comment (\"Size: …\")", name, strings.Join(over, " and "))
	case len(over) == 0 && s.reason != "" && s.file != "":
		return fmt.Sprintf("type %s is within the limits; remove the reason for its size", name)
	}
	return ""
}

// measure adds the types and methods of one Go file to types, keyed by type name. Methods may be in
// another file than their type.
func measure(types map[string]*size, file string, source []byte) error {
	set := token.NewFileSet()
	parsed, err := parser.ParseFile(set, filepath.FromSlash(file), source, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return err
	}
	of := func(name string) *size {
		if types[name] == nil {
			types[name] = &size{}
		}
		return types[name]
	}
	for _, d := range parsed.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			if d.Recv == nil {
				continue
			}
			name, err := receiver(d.Recv.List[0].Type)
			if err != nil {
				return fmt.Errorf("%s: %w", set.Position(d.Pos()), err)
			}
			of(name).methods++
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				declared, ok := spec.(*ast.TypeSpec)
				if !ok {
					continue
				}
				doc := declared.Doc
				if doc == nil && !d.Lparen.IsValid() {
					doc = d.Doc
				}
				s := of(declared.Name.Name)
				// A type for several operating systems is declared several times. The largest counts.
				s.file, s.line = file, set.Position(declared.Pos()).Line
				s.fields, s.reason = max(s.fields, fields(declared.Type)), cmp.Or(s.reason, reason(doc))
			}
		}
	}
	return nil
}

// receiver returns the name of the type of a method.
func receiver(t ast.Expr) (string, error) {
	switch t := t.(type) {
	case *ast.Ident:
		return t.Name, nil
	case *ast.StarExpr:
		return receiver(t.X)
	case *ast.ParenExpr:
		return receiver(t.X)
	case *ast.IndexExpr:
		return receiver(t.X)
	case *ast.IndexListExpr:
		return receiver(t.X)
	}
	return "", errors.New("unknown receiver")
}

// fields returns the number of fields of a struct type, and 0 for other types.
func fields(t ast.Expr) int {
	s, ok := t.(*ast.StructType)
	if !ok {
		return 0
	}
	n := 0
	for _, f := range s.Fields.List {
		n += max(1, len(f.Names))
	}
	return n
}

// sizeParagraph matches the beginning of the paragraph with the reason.
var sizeParagraph = regexp.MustCompile(`(?m)^Size: *(\S.*)$`)

// reason returns the first line of the reason in a doc comment, or an empty string.
func reason(doc *ast.CommentGroup) string {
	if doc == nil {
		return ""
	}
	m := sizeParagraph.FindStringSubmatch(doc.Text())
	if m == nil {
		return ""
	}
	return m[1]
}
