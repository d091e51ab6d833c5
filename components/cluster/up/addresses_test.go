package up

import (
	"fmt"
	"net/netip"
	"testing"
)

// TestWithGateways checks the addresses of nodes on machines without addresses of an IP family that
// their pods have.
func TestWithGateways(t *testing.T) {
	v4, v6 := netip.MustParseAddr("192.0.2.7"), netip.MustParseAddr("2001:db8::7")
	both := []string{"10.244.0.0/16", "fd00:10:244::/56"}
	for _, c := range []struct {
		name    string
		machine []netip.Addr
		pods    []string
		want    string
	}{
		{"both families", []netip.Addr{v4, v6}, both, "[192.0.2.7 2001:db8::7]"},
		{"without the second family", []netip.Addr{v4}, both, "[192.0.2.7 fd00:10:244::1]"},
		{"without the first family", []netip.Addr{v6}, both, "[10.244.0.1 2001:db8::7]"},
		{"without addresses", nil, both, "[10.244.0.1 fd00:10:244::1]"},
		{"pods of one family", []netip.Addr{v4}, both[:1], "[192.0.2.7]"},
		{"pods of the other family", nil, both[1:], "[fd00:10:244::1]"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := withGateways(c.machine, c.pods)
			if err != nil || fmt.Sprint(got) != c.want {
				t.Errorf("got %v, %v", got, err)
			}
		})
	}
}
