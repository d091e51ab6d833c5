package layout

import (
	"path/filepath"
	"slices"
	"testing"
)

// TestOnMachine: from any node of a machine all of them are found.
func TestOnMachine(t *testing.T) {
	first := Under("/x")
	var want []string
	for _, n := range []Node{first, first.Numbered(1), first.Numbered(12)} {
		got := OnMachine(n.Data)
		if want == nil {
			want = got
		}
		if !slices.Equal(got, want) || !slices.ContainsFunc(got, func(p string) bool { ok, _ := filepath.Match(p, n.Data); return ok }) {
			t.Errorf("from %s: %q", n.Data, got)
		}
	}
}
