package netlinkutil

import (
	"errors"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"
)

func TestList(t *testing.T) {
	other := errors.New("another")
	for _, c := range []struct {
		name    string
		answers []error
		err     error
		asked   int
	}{
		{"complete list", []error{nil}, nil, 1},
		{"changed twice", []error{netlink.ErrDumpInterrupted, netlink.ErrDumpInterrupted, nil}, nil, 3},
		{"fails", []error{netlink.ErrDumpInterrupted, other}, other, 2},
		{"always interrupted", slices.Repeat([]error{netlink.ErrDumpInterrupted}, maxAttempts), netlink.ErrDumpInterrupted, maxAttempts},
	} {
		t.Run(c.name, func(t *testing.T) {
			asked := 0
			all, err := List(func() ([]int, error) {
				asked++
				return []int{asked}, c.answers[asked-1]
			})
			if !errors.Is(err, c.err) || asked != c.asked || len(all) != 1 || all[0] != asked {
				t.Errorf("got %v, %v after %d", all, err, asked)
			}
		})
	}
}
