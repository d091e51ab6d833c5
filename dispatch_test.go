package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"hyperkube/components/cluster"
)

// TestHelp requests help in all forms, for subcommands and for unknown commands.
func TestHelp(t *testing.T) {
	for line, want := range map[string]struct {
		code int
		text string
	}{
		"hyperkube":                       {0, "Commands for a cluster:"},
		"hyperkube help":                  {0, "Commands for a cluster:"},
		"hyperkube --help":                {0, "Commands for a cluster:"},
		"hyperkube help token":            {0, "hyperkube token [command]"},
		"hyperkube help token create":     {0, "hyperkube token create [TOKEN]"},
		"hyperkube token create --help":   {0, "hyperkube token create [TOKEN]"},
		"hyperkube help kube-apiserver":   {0, "--etcd-servers"},
		"hyperkube help completion":       {0, "hyperkube completion [command]"},
		"/usr/bin/kube-scheduler --help":  {0, "kube-scheduler [flags]"},
		"hyperkube nothing":               {cluster.ExitGeneral, ""},
		"hyperkube help nothing":          {cluster.ExitGeneral, ""},
		"hyperkube --help nothing at all": {cluster.ExitGeneral, ""},
	} {
		file, err := os.Create(filepath.Join(t.TempDir(), "out"))
		if err != nil {
			t.Fatal(err)
		}
		usual := os.Stdout
		os.Stdout = file
		code := run(strings.Fields(line))
		os.Stdout = usual
		file.Close()
		text, err := os.ReadFile(file.Name())
		if err != nil {
			t.Fatal(err)
		}
		if code != want.code || !strings.Contains(string(text), want.text) || want.code != 0 && len(text) > 0 {
			t.Errorf("%s: exit code %d, want %d, and %q lacks %q", line, code, want.code, text, want.text)
		}
	}
}
