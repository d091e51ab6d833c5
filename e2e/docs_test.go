package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// docsRoot is the root of the repository, where the code blocks of the user pages are run.
const docsRoot = ".."

// pageTimeout limits all code blocks of one page.
const pageTimeout = 6 * time.Minute

// codeBlock is a fenced code block of a page.
type codeBlock struct {
	line     int
	language string
	notRun   string // the reason in a comment "<!-- not run: REASON -->" before the block, if there is one
	file     string // the path in a comment "<!-- file: PATH -->" before the block, if there is one
	lines    []string
}

// command is a line of a console block that starts with "$ ", and the output that follows it. In the
// output, "…" stands for any text, and as a line for any number of lines.
type command struct {
	text   string
	output []string
}

var (
	fence   = regexp.MustCompile("^( *)```([a-z]*)$")
	comment = regexp.MustCompile(`^ *<!-- (not run|file): (.+) -->$`)
)

// parsePage returns the code blocks of a page.
func parsePage(text string) ([]codeBlock, error) {
	var blocks []codeBlock
	var open *codeBlock
	indent, reason, file := "", "", ""
	for i, line := range strings.Split(text, "\n") {
		m := fence.FindStringSubmatch(line)
		switch {
		case m != nil && open == nil:
			open, indent = &codeBlock{line: i + 1, language: m[2], notRun: reason, file: file}, m[1]
		case m != nil:
			blocks = append(blocks, *open)
			open, reason, file = nil, "", ""
		case open != nil:
			open.lines = append(open.lines, strings.TrimPrefix(line, indent))
		default:
			switch m := comment.FindStringSubmatch(line); {
			case m != nil && m[1] == "file":
				file = m[2]
			case m != nil:
				reason = m[2]
			case line != "":
				reason, file = "", ""
			}
		}
	}
	if open != nil {
		return nil, fmt.Errorf("line %d: code block is not closed", open.line)
	}
	return blocks, nil
}

// commands returns the commands of a console block.
func (b codeBlock) commands() ([]command, error) {
	var list []command
	for i, line := range b.lines {
		if text, ok := strings.CutPrefix(line, "$ "); ok {
			list = append(list, command{text: text})
		} else if len(list) == 0 {
			return nil, fmt.Errorf("line %d: output before the first command", b.line+i+1)
		} else {
			c := &list[len(list)-1]
			c.output = append(c.output, line)
		}
	}
	return list, nil
}

var spaces = regexp.MustCompile(`[ \t]+`)

// matches reports whether the output of a command is the one on the page. Runs of spaces are equal,
// because the width of table columns depends on names.
func (c command) matches(output string) bool {
	var pattern strings.Builder
	pattern.WriteString(`\A`)
	for _, line := range c.output {
		line = strings.TrimSpace(spaces.ReplaceAllString(line, " "))
		if line == "…" {
			pattern.WriteString(`(?:.*\n)*?`)
			continue
		}
		pattern.WriteString(strings.ReplaceAll(regexp.QuoteMeta(line), "…", ".*") + `\n`)
	}
	pattern.WriteString(`\z`)
	var got strings.Builder
	for line := range strings.SplitSeq(strings.TrimRight(output, "\n"), "\n") {
		if line = strings.TrimSpace(spaces.ReplaceAllString(line, " ")); line != "" {
			got.WriteString(line + "\n")
		}
	}
	return regexp.MustCompile(pattern.String()).MatchString(got.String())
}

func TestParsePage(t *testing.T) {
	blocks, err := parsePage("a\n<!-- not run: why -->\n```console\n$ x\n```\n\n  ```yaml\n  a: b\n  ```\n<!-- file: /x/y -->\n\n```yaml\nc: d\n```\n```console\n$ echo a\na  …\n…\n$ true\n```\n")
	if err != nil || len(blocks) != 4 || blocks[0].notRun != "why" || blocks[1].lines[0] != "a: b" || blocks[1].file != "" ||
		blocks[2].file != "/x/y" || blocks[3].notRun != "" || blocks[3].file != "" {
		t.Fatalf("%+v, %v", blocks, err)
	}
	commands, err := blocks[3].commands()
	if err != nil || len(commands) != 2 {
		t.Fatalf("%+v, %v", commands, err)
	}
	for output, want := range map[string]bool{"a    b\n": true, "a b\nc\nd\n": true, "b\n": false, "c\na b\n": false} {
		if got := commands[0].matches(output); got != want {
			t.Errorf("%q matches: %v", output, got)
		}
	}
	if commands[1].matches("x\n") || !commands[1].matches("") {
		t.Error("a command without output")
	}
}

// TestDocs runs the console blocks of the user pages in the order of docs/README.md, and compares
// their output. A block that is not run has a comment with the reason before it. A block of data with a comment that names a file is
// written to that file, which is deleted after the page.
func TestDocs(t *testing.T) {
	if shared == nil {
		t.Skip("no shared cluster")
	}
	index, err := os.ReadFile(filepath.Join(docsRoot, "docs/README.md"))
	if err != nil {
		t.Fatal(err)
	}
	users, _, _ := strings.Cut(string(index), "## Contributing")
	var pages []string
	for _, m := range regexp.MustCompile(`\]\(([a-z-]+\.md)\)`).FindAllStringSubmatch(users, -1) {
		pages = append(pages, m[1])
	}
	bin := t.TempDir()
	for name, content := range map[string]string{"sudo": "#!/bin/sh\nexec \"$@\"\n"} {
		if err := os.WriteFile(filepath.Join(bin, name), []byte(content), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"hyperkube", "kubectl"} {
		if err := os.Symlink(shared.binary, filepath.Join(bin, name)); err != nil {
			t.Fatal(err)
		}
	}
	environment := append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"))
	// The pages change the cluster: the other tests get a new one.
	defer func() {
		if out, err := exec.Command(shared.binary, "reset").CombinedOutput(); err != nil {
			t.Errorf("reset: %v\n%s", err, out)
		}
		if err := shared.up(); err != nil {
			t.Fatalf("up: %v", err)
		}
	}()
	for _, page := range pages {
		t.Run(strings.TrimSuffix(page, ".md"), func(t *testing.T) {
			if err := shared.up(); err != nil {
				t.Fatalf("up: %v", err)
			}
			text, err := os.ReadFile(filepath.Join(docsRoot, "docs", page))
			if err != nil {
				t.Fatal(err)
			}
			blocks, err := parsePage(string(text))
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), pageTimeout)
			defer cancel()
			for _, b := range blocks {
				if b.language != "console" {
					if !slices.Contains([]string{"", "ini", "json", "yaml"}, b.language) {
						t.Errorf("line %d: a block of %s is neither run nor data", b.line, b.language)
					}
					if b.file != "" {
						writeBlock(t, b)
					}
					continue
				}
				if b.notRun == "" {
					runBlock(t, ctx, environment, b)
				}
			}
		})
	}
}

// writeBlock writes a block to the file that its comment names, until the page is complete.
func writeBlock(t *testing.T, b codeBlock) {
	t.Helper()
	t.Cleanup(func() {
		if err := os.RemoveAll(b.file); err != nil {
			t.Error(err)
		}
	})
	if err := os.MkdirAll(filepath.Dir(b.file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(b.file, []byte(strings.Join(b.lines, "\n")+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
}

// runBlock runs the commands of a block in one shell and compares the output of each.
func runBlock(t *testing.T, ctx context.Context, environment []string, b codeBlock) {
	t.Helper()
	commands, err := b.commands()
	if err != nil {
		t.Error(err)
		return
	}
	const mark = "--- exit code "
	var script strings.Builder
	for _, c := range commands {
		fmt.Fprintf(&script, "%s\nprintf '\\n%s%%d\\n' $?\n", c.text, mark)
	}
	shell := exec.CommandContext(ctx, "bash", "-c", script.String())
	shell.Dir, shell.Env = docsRoot, environment
	out, err := shell.CombinedOutput()
	rest := string(out)
	for i, c := range commands {
		output, after, ok := strings.Cut(rest, "\n"+mark)
		if !ok {
			t.Errorf("line %d: %q did not complete: %v\n%s", b.line, c.text, err, rest)
			return
		}
		var code string
		code, rest, _ = strings.Cut(after, "\n")
		if code != "0" {
			t.Errorf("line %d: command %d, %q, exits with code %s:\n%s", b.line, i+1, c.text, code, output)
		} else if !c.matches(output) {
			t.Errorf("line %d: %q prints\n%s\nwant\n%s", b.line, c.text, output, strings.Join(c.output, "\n"))
		}
	}
}
