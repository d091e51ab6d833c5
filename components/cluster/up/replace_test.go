package up

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestSameProgram(t *testing.T) {
	dir := t.TempDir()
	write := func(name, content string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	long := strings.Repeat("x", 1<<18)
	a := write("a", long+"one")
	link := filepath.Join(dir, "link")
	if err := os.Link(a, link); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		path string
		same bool
	}{
		"itself":       {a, true},
		"a link":       {link, true},
		"a copy":       {write("copy", long+"one"), true},
		"another":      {write("other", long+"two"), false},
		"a longer one": {write("longer", long+"one more"), false},
	} {
		if same, err := sameProgram(c.path, a); err != nil || same != c.same {
			t.Errorf("%s: %v, %v", name, same, err)
		}
	}
	if self, found, err := findPredecessor(os.Getpid()); err != nil || found {
		t.Errorf("this process is reported as its own predecessor: %+v, %v", self, err)
	}
}

func TestFlagsOfPredecessor(t *testing.T) {
	cmd := New()
	if err := cmd.ParseFlags([]string{"--nodes=2"}); err != nil {
		t.Fatal(err)
	}
	p := predecessor{args: []string{"--root", "/r", "--nodes", "3", "--with=metrics", "--kubelet-config=/k", "--not-known-any-more=1"}}
	got := p.flags(cmd)
	if want := []string{"--kubelet-config=/k", "--root=/r", "--with=metrics"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
