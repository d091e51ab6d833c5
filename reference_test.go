package main

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// updateReference makes TestReference write docs/reference instead of comparing it.
var updateReference = flag.Bool("update-reference", false, "write docs/reference")

// TestReference compares docs/reference with the help of the commands. After a change of a command or flag, run
//
//	go test -run TestReference . -update-reference
func TestReference(t *testing.T) {
	const dir = "docs/reference"
	index := new(bytes.Buffer)
	fmt.Fprint(index, "# Command reference\n\nThis reference is generated from the help of the commands. Components "+
		"(`kube-apiserver`, `kubelet` and so on)\nhave the flags of upstream; see `hyperkube COMPONENT --help`.\n\n| Command | Description |\n|---|---|\n")
	pages := map[string][]byte{}
	for _, c := range components() {
		if !c.ofCluster {
			continue
		}
		command := c.command()
		command.DisableAutoGenTag = true
		root := &cobra.Command{Use: "hyperkube"}
		root.AddCommand(command)
		page := new(bytes.Buffer)
		writeReference(page, command, 1)
		pages[c.names[0]+".md"] = page.Bytes()
		fmt.Fprintf(index, "| [%s](%s.md) | %s |\n", c.names[0], c.names[0], c.short)
	}
	pages["README.md"] = index.Bytes()
	if *updateReference {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		for name, page := range pages {
			if err := os.WriteFile(filepath.Join(dir, name), page, 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	files, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, f := range files {
		names = append(names, f.Name())
	}
	for name, page := range pages {
		have, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil || !bytes.Equal(have, page) {
			t.Errorf("%s differs from the help (%v): run go test -run TestReference . -update-reference", name, err)
		}
		names = slices.DeleteFunc(names, func(n string) bool { return n == name })
	}
	if len(names) > 0 {
		t.Errorf("%v belong to no command", names)
	}
}

// writeReference writes the section of a command and those of its subcommands. level is the level of its heading.
func writeReference(w *bytes.Buffer, c *cobra.Command, level int) {
	if level > 1 {
		w.WriteString("\n")
	}
	fmt.Fprintf(w, "%s %s\n\n", strings.Repeat("#", level), c.CommandPath())
	text := c.Long
	if text == "" {
		text = strings.TrimSuffix(c.Short, ".") + "."
	}
	fmt.Fprintf(w, "%s\n\n```\n%s\n```\n", strings.TrimSpace(text), c.UseLine())
	if c.Example != "" {
		fmt.Fprintf(w, "\nExamples:\n\n```\n%s\n```\n", c.Example)
	}
	if flags := c.NonInheritedFlags(); flags.HasAvailableFlags() {
		fmt.Fprintf(w, "\nFlags:\n\n```\n%s```\n", flags.FlagUsagesWrapped(120))
	}
	for _, sub := range c.Commands() {
		if sub.IsAvailableCommand() {
			writeReference(w, sub, level+1)
		}
	}
}
