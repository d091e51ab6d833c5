package usernamespaces

import (
	"os"
	"path/filepath"
	"testing"

	"k8s.io/apimachinery/pkg/types"
)

func TestRanges(t *testing.T) {
	dir := t.TempDir()
	var a Allocator
	first := func(uid types.UID) uint32 {
		t.Helper()
		u, err := a.For(dir, uid)
		if err != nil {
			t.Fatal(err)
		}
		if len(u.Uids) != 1 || len(u.Gids) != 1 || u.Uids[0].HostId != u.Gids[0].HostId || u.Uids[0].Length != 65536 {
			t.Fatalf("%s has %v", uid, u)
		}
		return u.Uids[0].HostId
	}
	if a, b := first("a"), first("b"); a != 65536 || b != 2*65536 {
		t.Errorf("the pods begin at %d, %d", a, b)
	}
	if got := first("a"); got != 65536 {
		t.Errorf("the second call returns %d", got)
	}
	a = Allocator{} // simulates a restart
	if got := first("c"); got != 3*65536 {
		t.Errorf("the third begins at %d", got)
	}
	// The range of a deleted pod is used again.
	if err := os.RemoveAll(filepath.Join(dir, "b")); err != nil {
		t.Fatal(err)
	}
	if got := first("d"); got != 2*65536 {
		t.Errorf("after a pod was deleted, the next begins at %d", got)
	}
	// A damaged record could stand for any range, so that no range can be assigned.
	for _, text := range []string{"{", `{"uidMappings":[],"gidMappings":[]}`,
		`{"uidMappings":[{"hostId":0,"containerId":0,"length":65536}],"gidMappings":[{"hostId":0,"containerId":0,"length":65536}]}`} {
		if err := os.WriteFile(filepath.Join(dir, "a", "userns"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := a.For(dir, "a"); err == nil {
			t.Errorf("%s was accepted", text)
		}
		if _, err := a.For(dir, "e"); err == nil {
			t.Errorf("a range was assigned despite %s", text)
		}
	}
}

// TestStart checks that the search begins at Start and wraps around, so that nodes on the same
// machine with different values of Start assign different ranges.
func TestStart(t *testing.T) {
	a := Allocator{Ranges: Ranges{First: 3, Count: 3}, Start: 7}
	dir := t.TempDir()
	for i, want := range []uint32{4, 5, 3} {
		u, err := a.For(dir, types.UID('a'+rune(i)))
		if err != nil {
			t.Fatal(err)
		}
		if got := u.Uids[0].HostId; got != want*Length {
			t.Errorf("pod %d begins at %d, want %d", i, got, want*Length)
		}
	}
	if u, err := a.For(dir, "one-more"); err == nil {
		t.Errorf("a fourth pod got %v", u)
	}
	// The last range contains the invalid ID 4294967295 (-1) and is not assigned.
	all := Allocator{Start: ranges - 2}
	last, err := all.For(t.TempDir(), "last")
	if err != nil || last.Uids[0].HostId != (ranges-1)*Length {
		t.Errorf("%v, %v", last, err)
	}
}
