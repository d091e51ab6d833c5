package podnet

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
)

// TestTemporaryPod checks that the namespace has the highest free address, and is removed when the function returns.
func TestTemporaryPod(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	machine, dir := pod(t), t.TempDir()
	failed := errors.New("failed")
	err := within(machine, func(h *netlink.Handle) error {
		cfg := Config{Bridge: "hk-br0", LinkPrefix: "hk", AddressDir: dir}
		if err := WithTemporaryPod(cfg, func(*os.File) error { return nil }); err == nil || !strings.Contains(err.Error(), "hk-br0") {
			t.Errorf("without a bridge: %v", err)
		}
		bridge := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "hk-br0", MTU: 1400}}
		addr, err := netlink.ParseAddr("10.244.1.1/24")
		if err := errors.Join(err, h.LinkAdd(bridge), h.AddrAdd(bridge, addr), h.LinkSetUp(bridge), os.WriteFile(filepath.Join(dir, "10.244.1.254"), []byte("pod"), 0o600)); err != nil {
			return err
		}
		err = WithTemporaryPod(cfg, func(netns *os.File) error {
			return errors.Join(failed, within(netns, func(inside *netlink.Handle) error {
				link, err := inside.LinkByName(PodLink)
				if err != nil {
					return err
				}
				addrs, err := inside.AddrList(link, netlink.FAMILY_V4)
				if err != nil || len(addrs) != 1 || addrs[0].IP.String() != "10.244.1.253" || link.Attrs().MTU != 1400 {
					t.Errorf("addresses %v, MTU %d, %v", addrs, link.Attrs().MTU, err)
				}
				return nil
			}))
		})
		if !errors.Is(err, failed) {
			t.Errorf("error %v", err)
		}
		links, err := h.LinkList()
		if len(links) != 2 {
			t.Errorf("links %v", links)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestHighestFree(t *testing.T) {
	dir := t.TempDir()
	for _, c := range []struct{ cidr, want string }{{"10.0.0.0/24", "10.0.0.254"}, {"fd00::/64", "fd00::ffff:ffff:ffff:fffe"}} {
		if got := highestFree(dir, netip.MustParsePrefix(c.cidr)); got.String() != c.want {
			t.Errorf("%s: %s, want %s", c.cidr, got, c.want)
		}
	}
}
