package launch

import (
	"bytes"
	"debug/elf"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestOutdated checks that runtimes with other options are outdated, and that processes started in
// another way are not.
func TestOutdated(t *testing.T) {
	o := Options{PIDFile: "/run/p", Args: []string{"--root=/r"}}
	for _, c := range []struct {
		name string
		argv []string
		want bool
	}{
		{"the same", o.argv(), false},
		{"other options", Options{PIDFile: o.PIDFile, Args: []string{"--root=/other"}}.argv(), true},
		{"another build", []string{name, "--pid-file", o.PIDFile, "--build", "x", "--root=/r"}, true},
		{"without --build, from an earlier version", []string{name, "--pid-file", o.PIDFile, "--root=/r"}, true},
		{"another's", []string{name, "--pid-file", "/other", "--root=/r"}, false},
		{"another program", []string{"containerd", "--root=/other"}, false},
	} {
		if got := o.outdated(c.argv); got != c.want {
			t.Errorf("%s: outdated is %t", c.name, got)
		}
	}
	if got := o.Successor("/usr/bin/hyperkube"); got[0] != "/usr/bin/hyperkube" || got[1] != "runtime" || got[2] != "--pid-file" {
		t.Errorf("the successor is %q", got)
	}
}

// TestAnotherMain checks that another build of the main program with the same version and path
// makes the runtime outdated, and that a copy of the same build does not.
func TestAnotherMain(t *testing.T) {
	dir := t.TempDir()
	write := func(name, id string) string {
		t.Helper()
		path := filepath.Join(dir, name)
		text := strings.Repeat("x", 100) + "\x04\x00\x00\x00" + string(rune(len(id))) + "\x00\x00\x00\x04\x00\x00\x00Go\x00\x00" + id + strings.Repeat("y", 100)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	o := Options{PIDFile: "/run/p", Args: []string{"--builtin=/usr/bin/hyperkube"}, Main: write("main", "one/sum")}
	before := o.argv()
	if o.outdated(before) {
		t.Error("outdated by itself")
	}
	same := o
	same.Main = write("copy", "one/sum")
	if same.outdated(before) {
		t.Error("outdated by a copy of the same program")
	}
	write("main", "one/mus")
	if !o.outdated(before) {
		t.Error("not outdated by another program in the same place")
	}
}

// TestGoBuildID checks that the build ID written by Go's linker is found.
func TestGoBuildID(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	program, err := elf.Open(self)
	if err != nil {
		t.Fatal(err)
	}
	defer program.Close()
	section := program.Section(".note.go.buildid")
	if section == nil {
		t.Skip("this program was linked without one")
	}
	note, err := section.Data()
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(self)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if got := goBuildID(f); len(got) == 0 || !bytes.HasPrefix(note[16:], got) {
		t.Errorf("%q is found, the note is %q", got, note)
	}
}
