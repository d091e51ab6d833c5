package cluster

import (
	"encoding/json"
	"strings"
	"testing"

	"hyperkube/components/cluster/command"
)

// TestOutput checks that unknown output formats are rejected.
func TestOutput(t *testing.T) {
	run := func(args ...string) (string, error) {
		var out strings.Builder
		cmd := newVersion()
		cmd.SetArgs(append([]string{}, args...)) // not nil, otherwise cobra uses the arguments of the test binary
		cmd.SetOut(&out)
		cmd.SilenceUsage, cmd.SilenceErrors = true, true
		err := cmd.Execute()
		return out.String(), err
	}
	if out, err := run(); err != nil || !strings.HasPrefix(out, "hyperkube v") {
		t.Errorf("as text: %q, %v", out, err)
	}
	var answer struct{ GitVersion string }
	if out, err := run("-o", "json"); err != nil || json.Unmarshal([]byte(out), &answer) != nil || answer.GitVersion == "" {
		t.Errorf("as JSON: %q, %v", out, err)
	}
	if out, err := run("-o", "yaml"); command.ExitCode(err) != command.ExitConfig || out != "" {
		t.Errorf("in an unknown format: %q, %v", out, err)
	}
}
