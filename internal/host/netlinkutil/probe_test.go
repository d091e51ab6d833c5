package netlinkutil

import (
	"os"
	"testing"

	"github.com/vishvananda/netlink"
)

func TestUnsupported(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	got, err := Unsupported(
		&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "valid"}},
		&netlink.GenericLink{LinkAttrs: netlink.LinkAttrs{Name: "invalid"}, LinkType: "no-such-type"},
	)
	if err != nil {
		t.Fatal(err)
	}
	if len(got) != 1 || got["invalid"] == nil {
		t.Errorf("unsupported links %v, want only the invalid one", got)
	}
}
