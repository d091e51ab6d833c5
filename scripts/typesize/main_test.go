package main

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
)

// declare returns the declaration of type T with the given comment, fields and methods.
func declare(comment string, fields, methods int) string {
	var b strings.Builder
	b.WriteString(comment + "type T struct {\n")
	for i := range fields {
		fmt.Fprintf(&b, "\tF%d int\n", i)
	}
	b.WriteString("}\n")
	for i := range methods {
		fmt.Fprintf(&b, "func (t *T) M%d() {}\n", i)
	}
	return b.String()
}

func TestRun(t *testing.T) {
	const reason = "// T is large.\n//\n// Size: it mirrors a file\n// format.\n"
	for _, test := range []struct {
		name, source string
		want         string // part of the finding; empty if there is none
	}{
		{"at the limits", declare("", 20, 30), ""},
		{"too many fields", declare("// T is a type.\n", 21, 0), "21 fields"},
		{"too many methods", declare("", 0, 31), "31 methods"},
		{"both", declare("", 21, 31), "31 methods (limit 30) and 21 fields (limit 20)"},
		{"with a reason", declare(reason, 40, 60), ""},
		{"reason without text", declare("// Size:\n", 21, 0), "21 fields"},
		{"reason within a sentence", declare("// T has a Size: 3.\n", 21, 0), "21 fields"},
		{"reason away from the type", reason + "\n" + declare("", 21, 0), "21 fields"},
		{"outdated reason", declare(reason, 3, 4), "remove the reason"},
		{"fields with several names", "type T struct {" + strings.Repeat("a, b, c int;", 7) + "}", "21 fields"},
		{"embedded fields", "type T struct {" + strings.Repeat("X;", 21) + "}", "21 fields"},
		{"in a group", "// Size: no.\ntype (\n" + strings.TrimPrefix(declare("", 21, 0), "type ") + ")", "21 fields"},
		{"in a group, with a reason", "type (\n// Size: yes.\n" + strings.TrimPrefix(declare("", 21, 0), "type ") + ")", ""},
		{"generic", "type T[K comparable, V any] struct{}\n" + strings.Repeat("func (t *T[K, V]) M() {}\n", 31), "31 methods"},
		{"not a struct", "type T int\n" + strings.Repeat("func (T) M() {}\n", 31), "31 methods"},
	} {
		t.Run(test.name, func(t *testing.T) {
			got, err := run(fstest.MapFS{"a/a.go": {Data: []byte("package a\n\n" + test.source)}}, ".", nil)
			if err != nil {
				t.Fatal(err)
			}
			if want := test.want != ""; len(got) > 1 || want != (len(got) == 1) || want && !strings.Contains(got[0].text, test.want) {
				t.Errorf("got %v, want %q", got, test.want)
			}
		})
	}
}

func TestRunFiles(t *testing.T) {
	large := []byte("package a\n\n" + declare("", 21, 0))
	half := []byte("package a\n" + strings.Repeat("func (T) M() {}\n", 16))
	module := fstest.MapFS{
		"a/t.go":            {Data: []byte("package a\n\ntype T int\n")},
		"a/1.go":            {Data: half},
		"a/2.go":            {Data: half},
		"a/3_test.go":       {Data: large},
		"b/b.go":            {Data: large},
		"b/c/c.go":          {Data: large},
		"d/d.go":            {Data: large},
		"d/e/e.go":          {Data: large},
		"f/testdata/bad.go": {Data: []byte("no Go")},
		".git/x.go":         {Data: []byte("no Go")},
	}
	got, err := run(module, ".", []string{"b/...", "d"})
	if err != nil {
		t.Fatal(err)
	}
	var files []string
	for _, f := range got {
		files = append(files, f.file)
	}
	if want := []string{"a/t.go", "d/e/e.go"}; !slices.Equal(files, want) {
		t.Errorf("found in %v, want %v", files, want)
	}
	module["g/g.go"] = &fstest.MapFile{Data: []byte("no Go")}
	if _, err := run(module, ".", nil); err == nil {
		t.Error("a file that cannot be parsed is no error")
	}
}
