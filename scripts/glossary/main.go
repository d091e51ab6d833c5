// Command glossary reports every use of a phrase that docs/glossary.md bans: in comments, strings and
// identifiers of Go files, and in documents, scripts and manifests.
//
//	go run ./scripts/glossary [-count] [path ...]
package main

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
	"flag"
	"fmt"
	"go/scanner"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"unicode"
)

// glossary is the page that lists the phrases, relative to the root of the module.
const glossary = "docs/glossary.md"

// finding is one use of a banned phrase.
type finding struct {
	file   string
	line   int
	phrase string // as it appears in the file
	write  string // what the glossary proposes
}

func main() {
	count := flag.Bool("count", false, "print the number of findings for each phrase, not each finding")
	flag.Parse()
	findings, err := run(".", flag.Args())
	if err != nil {
		fmt.Fprintln(os.Stderr, "glossary:", err)
		os.Exit(2)
	}
	if *count {
		printCounts(findings)
	} else {
		for _, f := range findings {
			fmt.Printf("%s:%d: %q: write %s\n", f.file, f.line, f.phrase, f.write)
		}
	}
	if len(findings) > 0 {
		fmt.Fprintf(os.Stderr, "%d uses of phrases that %s bans\n", len(findings), glossary)
		os.Exit(1)
	}
}

func printCounts(findings []finding) {
	counts := map[string]int{}
	for _, f := range findings {
		counts[f.write]++
	}
	names := make([]string, 0, len(counts))
	for name := range counts {
		names = append(names, name)
	}
	slices.SortFunc(names, func(a, b string) int { return cmp.Compare(counts[b], counts[a]) })
	for _, name := range names {
		fmt.Printf("%6d  %s\n", counts[name], name)
	}
}

// run checks the files that git tracks below paths, relative to root, or all of them if paths is
// empty. It skips binary files and data of other projects.
func run(root string, paths []string) ([]finding, error) {
	page, err := os.ReadFile(filepath.Join(root, glossary))
	if err != nil {
		return nil, fmt.Errorf("reading the glossary: %w", err)
	}
	terms, err := parse(page)
	if err != nil {
		return nil, fmt.Errorf("parsing %s: %w", glossary, err)
	}
	list := exec.Command("git", append([]string{"ls-files", "-z", "--"}, paths...)...)
	list.Dir = root
	out, err := list.Output()
	if err != nil {
		return nil, fmt.Errorf("listing files: %w", err)
	}
	var findings []finding
	for name := range strings.SplitSeq(strings.TrimRight(string(out), "\x00"), "\x00") {
		if name == "" || name == glossary || skipped(name) {
			continue
		}
		content, err := os.ReadFile(filepath.Join(root, name))
		if errors.Is(err, os.ErrNotExist) { // deleted, but not yet in the index
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("reading a tracked file: %w", err)
		}
		if bytes.IndexByte(content, 0) >= 0 {
			continue
		}
		if strings.HasSuffix(name, ".go") {
			findings = append(findings, terms.checkGo(name, content)...)
		} else {
			findings = append(findings, terms.checkText(name, 1, string(content))...)
		}
	}
	return findings, nil
}

// skipped reports whether a file is not checked: text of other projects, test data, or the files of
// this program, which contain the banned phrases.
func skipped(name string) bool {
	switch filepath.Base(name) {
	case "go.mod", "go.sum", "LICENSE":
		return true
	}
	// The checker itself and its tests name banned phrases.
	return strings.Contains(name, "/testdata/") || strings.HasPrefix(name, "scripts/glossary/")
}

// terms are the phrases from the tables of the glossary.
type terms struct {
	banned  *regexp.Regexp // matches any banned phrase, with one group for each
	writes  []string       // what to write instead, one for each group of banned
	allowed []string
}

// row matches a table row whose first cell is code.
var row = regexp.MustCompile("^\\| `(.+)` \\| (.+) \\|$")

// parse reads the tables "Banned phrases" and "Allowed uses".
func parse(page []byte) (*terms, error) {
	t := &terms{}
	var patterns []string
	section := ""
	lines := bufio.NewScanner(bytes.NewReader(page))
	for lines.Scan() {
		line := lines.Text()
		if title, ok := strings.CutPrefix(line, "## "); ok {
			section = title
			continue
		}
		m := row.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		cell := strings.ReplaceAll(m[1], `\|`, "|")
		switch section {
		case "Banned phrases":
			cell = strings.ReplaceAll(cell, "(", "(?:")
			// A phrase may continue on the next line of a comment.
			patterns = append(patterns, "("+strings.ReplaceAll(cell, " ", `[\s/#*]+`)+")")
			t.writes = append(t.writes, m[2])
		case "Allowed uses":
			t.allowed = append(t.allowed, cell)
		}
	}
	if len(patterns) == 0 {
		return nil, errors.New("no table of banned phrases")
	}
	var err error
	t.banned, err = regexp.Compile(`(?i)\b(?:` + strings.Join(patterns, "|") + `)\b`)
	return t, err
}

// checkText returns the banned phrases in text, which starts at the given line of a file. Allowed
// uses do not count.
func (t *terms) checkText(file string, line int, text string) []finding {
	for _, a := range t.allowed {
		text = strings.ReplaceAll(text, a, strings.Repeat("_", len(a)))
	}
	var findings []finding
	for _, m := range t.banned.FindAllStringSubmatchIndex(text, -1) {
		f := finding{
			file:   file,
			line:   line + strings.Count(text[:m[0]], "\n"),
			phrase: strings.Join(strings.Fields(text[m[0]:m[1]]), " "),
		}
		for i, write := range t.writes {
			if m[2+2*i] >= 0 {
				f.write = write
			}
		}
		findings = append(findings, f)
	}
	return findings
}

// checkGo checks the comments, strings and identifiers of a Go file. Adjacent comment lines are checked as
// one text, because a phrase may span lines.
func (t *terms) checkGo(file string, source []byte) []finding {
	var findings []finding
	set := token.NewFileSet()
	position := set.AddFile(file, set.Base(), len(source))
	var s scanner.Scanner
	s.Init(position, source, nil, scanner.ScanComments)
	var comment strings.Builder
	first, last := 0, 0
	flush := func() {
		if comment.Len() > 0 {
			findings = append(findings, t.checkText(file, first, comment.String())...)
			comment.Reset()
		}
	}
	seen := map[string]bool{}
	for {
		pos, tok, literal := s.Scan()
		line := position.Line(pos)
		switch tok {
		case token.EOF:
			flush()
			slices.SortStableFunc(findings, func(a, b finding) int { return cmp.Compare(a.line, b.line) })
			return findings
		case token.COMMENT:
			if line != last+1 {
				flush()
				first = line
			} else {
				comment.WriteByte('\n')
			}
			comment.WriteString(literal)
			last = line + strings.Count(literal, "\n")
		case token.STRING:
			findings = append(findings, t.checkText(file, line, literal)...)
		case token.IDENT:
			if !seen[literal] {
				seen[literal] = true
				findings = append(findings, t.checkIdentifier(file, line, literal)...)
			}
		}
	}
}

// checkIdentifier checks the words of an identifier, unless the identifier itself is an allowed use.
func (t *terms) checkIdentifier(file string, line int, identifier string) []finding {
	if slices.Contains(t.allowed, identifier) {
		return nil
	}
	return t.checkText(file, line, words(identifier))
}

// words separates the words of an identifier by spaces: "tellsWhether" and "tells_whether" become "tells whether".
func words(identifier string) string {
	var b strings.Builder
	lower := false
	for _, r := range identifier {
		if r == '_' {
			b.WriteByte(' ')
			lower = false
			continue
		}
		if unicode.IsUpper(r) && lower {
			b.WriteByte(' ')
		}
		lower = !unicode.IsUpper(r)
		b.WriteRune(r)
	}
	return b.String()
}
