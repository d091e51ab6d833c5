package nodestatus

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"hyperkube/internal/host/hostaddress"
)

// TestNodeIPs checks that configured addresses are used, and that an unspecified address is
// replaced by one of the machine's.
func TestNodeIPs(t *testing.T) {
	given := []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")}
	if got, err := Addresses(given); err != nil || fmt.Sprint(got) != fmt.Sprint(given) {
		t.Errorf("%v: %v, %v", given, got, err)
	}
	for _, any := range []netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()} {
		own, err := hostaddress.Of(hostaddress.Family(any))
		if err != nil {
			t.Fatal(err)
		}
		got, err := Addresses([]netip.Addr{any})
		if own.IsValid() && (err != nil || len(got) != 1 || got[0] != own) {
			t.Errorf("%v: %v, %v; want %v", any, got, err, own)
		}
		if !own.IsValid() && (err == nil || !strings.Contains(err.Error(), "no address")) {
			t.Errorf("no address of %v: %v, %v", any, got, err)
		}
	}
}
