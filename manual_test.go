package main

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"

	"hyperkube/internal/base/version"
)

// manualDir is a directory to which TestManual writes the manual pages. The test generates them because
// the generator and its libraries should not be part of the program.
var manualDir = flag.String("manual", "", "write the manual pages to this directory")

// TestManual generates a manual page for each command and component. To read one, run
//
//	go test -run TestManual . -manual /tmp/manual && man /tmp/manual/hyperkube-up.1
func TestManual(t *testing.T) {
	dir := *manualDir
	if dir == "" {
		dir = t.TempDir()
	} else if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	// The help of kubectl contains the home directory.
	t.Setenv("HOME", "/root")
	root := tree(components())
	root.InitDefaultCompletionCmd()
	for _, c := range root.Commands() {
		// These are upstream's and have hundreds of subcommands with documentation of their projects.
		if c.Name() == "kubectl" || c.Name() == "etcdctl" {
			c.RemoveCommand(c.Commands()...)
			c.Run = func(*cobra.Command, []string) {} // otherwise it has no page
		}
	}
	disableAutoGenTag(root)
	// The date of the pages is $SOURCE_DATE_EPOCH.
	header := &doc.GenManHeader{Section: "1", Source: "hyperkube " + version.Get().GitVersion, Manual: "hyperkube Manual"}
	if err := doc.GenManTree(root, header, dir); err != nil {
		t.Fatal(err)
	}
	for _, c := range root.Commands() {
		if c.Name() == "help" {
			continue
		}
		name := "hyperkube-" + c.Name() + ".1"
		page, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Error(err)
		} else if !strings.Contains(string(page), "\n.SH SYNOPSIS\n") || strings.Contains(string(page), "Auto generated") {
			t.Errorf("%s:\n%s", name, page)
		}
	}
}

func disableAutoGenTag(c *cobra.Command) {
	c.DisableAutoGenTag = true
	for _, sub := range c.Commands() {
		disableAutoGenTag(sub)
	}
}
