package node

import (
	"net/netip"
	"slices"
	"testing"

	"hyperkube/internal/host/hostaddress"
)

// TestUnspecifiedAddress checks that an unspecified address in --node-ip is replaced by the address
// of the machine, which certificates and other nodes use.
func TestUnspecifiedAddress(t *testing.T) {
	machine, err := hostaddress.Of(hostaddress.Family(netip.IPv4Unspecified()))
	if err != nil {
		t.Fatal(err)
	}
	o := &Options{IP: "0.0.0.0,2001:db8::1"}
	got, err := o.Addresses()
	if !machine.IsValid() {
		if err == nil {
			t.Errorf("%v although the machine has no such address", got)
		}
		return
	}
	if want := []netip.Addr{machine, netip.MustParseAddr("2001:db8::1")}; err != nil || !slices.Equal(got, want) {
		t.Errorf("%v, %v; want %v", got, err, want)
	}
}
