package layout

import (
	"path/filepath"
	"slices"
	"testing"
)

// TestDataDirPatterns checks that DataDirPatterns finds all nodes of the machine for each of its
// nodes.
func TestDataDirPatterns(t *testing.T) {
	first := Under("/x")
	var want []string
	for _, n := range []Node{first, first.Numbered(1), first.Numbered(12)} {
		got := DataDirPatterns(n.Data)
		if want == nil {
			want = got
		}
		if !slices.Equal(got, want) || !slices.ContainsFunc(got, func(p string) bool { ok, _ := filepath.Match(p, n.Data); return ok }) {
			t.Errorf("from %s: %q", n.Data, got)
		}
	}
}
