package hostjournal

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"hyperkube/internal/testing/testdisk"
)

// TestFullDisk checks that a change that does not fit on the disk is not recorded, and that later
// changes are.
func TestFullDisk(t *testing.T) {
	disk := testdisk.New(t)
	path := filepath.Join(disk.Path, "journal")
	j, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer j.Close()
	var want []string
	name := func(i int) string { return fmt.Sprintf("%d-%s", i, strings.Repeat("x", 3000)) }
	for range 4 { // lines end at different offsets of a block
		disk.FailEach(func(attempt int) error {
			n := name(len(want)*100 + attempt)
			err := j.Record(Change{Kind: Link, Name: n})
			if err == nil {
				want = append(want, n)
			}
			return err
		}, func(err error) {
			if !strings.Contains(err.Error(), path) {
				t.Errorf("the error does not name the journal: %v", err)
			}
		})
		for range 2 {
			n := name(len(want)*100 + 99)
			if err := j.Record(Change{Kind: Link, Name: n}); err != nil {
				t.Fatal(err)
			}
			want = append(want, n)
		}
	}
	changes, err := Read(path)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, c := range changes {
		got = append(got, c.Name)
	}
	if !slices.Equal(got, want) {
		t.Errorf("the journal has %d changes, want %d", len(got), len(want))
	}
}
