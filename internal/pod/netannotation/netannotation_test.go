package netannotation

import (
	"net/netip"
	"slices"
	"testing"
)

func TestAddresses(t *testing.T) {
	in := []netip.Prefix{netip.MustParsePrefix("192.0.2.1/24"), netip.MustParsePrefix("fd00::1/64")}
	if out := ParseAddresses(FormatAddresses(in)); !slices.Equal(out, in) {
		t.Errorf("%v", out)
	}
	if out := ParseAddresses("x, ,192.0.2.1/24"); len(out) != 1 {
		t.Errorf("%v", out)
	}
	if out := ParseAddresses(""); out != nil {
		t.Errorf("%v", out)
	}
}
