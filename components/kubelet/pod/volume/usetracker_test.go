package volume

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	v1 "k8s.io/api/core/v1"
)

// TestUsers checks that a volume is in use from its first to its last directory, that Changed is
// called only for these two, and that it may call InUse.
func TestUsers(t *testing.T) {
	var u UseTracker
	calls := [][]v1.UniqueVolumeName{}
	u.Changed = func() { calls = append(calls, u.InUse()) }
	u.Release("/nothing")
	u.Use("b", "/1")
	u.Use("b", "/1")
	u.Use("b", "/2")
	u.Use("a", "/3")
	u.Release("/1")
	u.Release("/1")
	u.Release("/2")
	u.Release("/3")
	want := [][]v1.UniqueVolumeName{{"b"}, {"a", "b"}, {"a"}, nil}
	if !slices.EqualFunc(calls, want, slices.Equal) {
		t.Errorf("got %v, want %v", calls, want)
	}
}

// TestUsersConcurrently checks that concurrent calls of Use and Leave lose no use.
func TestUsersConcurrently(t *testing.T) {
	var u UseTracker
	var changes atomic.Int32
	u.Changed = func() { changes.Add(1); u.InUse() }
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			own := v1.UniqueVolumeName(fmt.Sprint("own-", i))
			for j := range 50 {
				dir := fmt.Sprintf("/%d/%d", i, j)
				u.Use("shared", dir)
				u.Use(own, dir)
				if in := u.InUse(); !slices.Contains(in, "shared") || !slices.Contains(in, own) {
					t.Errorf("in use: %v", in)
				}
				u.Release(dir)
			}
		})
	}
	all.Wait()
	if in := u.InUse(); len(in) > 0 || changes.Load() < 2*8*50 {
		t.Errorf("in use: %v after %d changes", in, changes.Load())
	}
}

func TestGiven(t *testing.T) {
	for _, c := range []struct {
		name            string
		used, attached  string
		want, forgotten bool
	}{
		{name: "neither"},
		{name: "attached, but not in use", attached: "v"},
		{name: "in use, but not attached", used: "v"},
		{name: "others", used: "o", attached: "o"},
		{name: "both", used: "v", attached: "v", want: true},
		{name: "no node", forgotten: true},
	} {
		n := &v1.Node{}
		n.Status.VolumesInUse = []v1.UniqueVolumeName{"x", v1.UniqueVolumeName(c.used)}
		n.Status.VolumesAttached = []v1.AttachedVolume{{Name: "x"}, {Name: v1.UniqueVolumeName(c.attached)}}
		if c.forgotten {
			n = nil
		}
		if got := Attached(n, "v"); got != c.want {
			t.Errorf("%s: %v", c.name, got)
		}
	}
}
