package hostjournal

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// FuzzJournal opens a journal with arbitrary content, as after a crash, and checks that recorded
// changes are kept and that new changes can be read.
func FuzzJournal(f *testing.F) {
	f.Add([]byte(`{"kind":"link","name":"hk0"}` + "\n"))
	f.Add([]byte(`{"kind":"link","name":"hk0"}` + "\n" + `{"kind":"sysctl","na`))
	f.Add([]byte("\x00\x00\x00\x00"))
	f.Add([]byte("{}\n[]\nnull\n\n"))
	f.Fuzz(func(t *testing.T, content []byte) {
		path := filepath.Join(t.TempDir(), "journal")
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
		before, err := Read(path)
		if err != nil {
			return
		}
		j, err := Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer j.Close()
		change := Change{Kind: "link", Name: "fuzz-0"}
		if err := j.Record(change); err != nil {
			t.Fatal(err)
		}
		after, err := Read(path)
		if err != nil {
			t.Fatal(err)
		}
		keys := func(changes []Change) (out []string) {
			for _, c := range changes {
				out = append(out, c.key())
			}
			return out
		}
		if !slices.Equal(keys(after)[:len(before)], keys(before)) || !slices.Contains(keys(after), change.key()) {
			t.Errorf("%q: had %v, has %v", content, keys(before), keys(after))
		}
	})
}
