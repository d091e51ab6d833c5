package node

import (
	"net/netip"
	"slices"
	"testing"

	"hyperkube/internal/hostaddress"
)

// TestUnspecifiedAddress: an unspecified address of --node-ip is the machine's, which is
// what certificates and other nodes are told.
func TestUnspecifiedAddress(t *testing.T) {
	own, err := hostaddress.Of(hostaddress.Family(netip.IPv4Unspecified()))
	if err != nil {
		t.Fatal(err)
	}
	o := &Options{IP: "0.0.0.0,2001:db8::1"}
	got, err := o.Addresses()
	if !own.IsValid() {
		if err == nil {
			t.Errorf("%v, of which the machine has none", got)
		}
		return
	}
	if want := []netip.Addr{own, netip.MustParseAddr("2001:db8::1")}; err != nil || !slices.Equal(got, want) {
		t.Errorf("%v, %v; want %v", got, err, want)
	}
}
