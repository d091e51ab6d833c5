package usernamespaces

import (
	"context"
	"errors"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"
)

func TestConfigured(t *testing.T) {
	for name, c := range map[string]struct {
		users, groups string
		want          Ranges
		err           string
	}{
		"a range":          {"0: kubelet 131072 655360\n", "0: kubelet 131072 655360\n", Ranges{2, 10}, ""},
		"different groups": {"0: kubelet 65536 655360\n", "0: kubelet 131072 655360\n", Ranges{}, "mismatched"},
		"two ranges":       {"0: kubelet 65536 655360\n1: kubelet 1 2\n", "0: kubelet 65536 655360\n1: kubelet 1 2\n", Ranges{}, "want one range"},
		"host range":       {"0: kubelet 0 655360\n", "0: kubelet 0 655360\n", Ranges{}, "must be a multiple"},
		"not a multiple":   {"0: kubelet 65536 655361\n", "0: kubelet 65536 655361\n", Ranges{}, "is not a multiple"},
		"not enough":       {"0: kubelet 65536 65536\n", "0: kubelet 65536 65536\n", Ranges{}, "not enough to support 5 pods"},
		"not a number":     {"0: kubelet x 65536\n", "0: kubelet x 65536\n", Ranges{}, "invalid syntax"},
		"empty output":     {"", "", Ranges{}, "want one range"},
		"error":            {"fail", "", Ranges{}, "error retrieving additional uids"},
	} {
		got, err := readRanges(t.Context(), 5, func(_ context.Context, args ...string) ([]byte, error) {
			switch {
			case args[len(args)-1] != "kubelet":
				return nil, errors.New("of whom?")
			case c.users == "fail":
				return nil, errors.New("fails")
			case args[0] == "-g":
				return []byte(c.groups), nil
			}
			return []byte(c.users), nil
		})
		if got != c.want || (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
}

// TestRangesOfTheMachine checks that pods get IDs only from the configured ranges.
func TestRangesOfTheMachine(t *testing.T) {
	a := Allocator{Ranges: Ranges{First: 7, Count: 2}}
	dir := t.TempDir()
	for i, uid := range []types.UID{"a", "b"} {
		if u, err := a.For(dir, uid); err != nil || u.Uids[0].HostId != uint32(7+i)*Length {
			t.Fatalf("%v, %v", u, err)
		}
	}
	if _, err := a.For(dir, "c"); err == nil {
		t.Error("a third pod got a range")
	}
}
