package images

import "testing"

// TestChainID compares the result with the formula of the image specification for two layers,
// computed with sha256sum.
func TestChainID(t *testing.T) {
	for _, c := range []struct {
		layers []string
		want   string
	}{
		{nil, ""},
		{[]string{"sha256:aa"}, "sha256:aa"},
		{[]string{"sha256:aa", "sha256:bb"}, "sha256:b68ad689d6d1ec110ea1c13617437ad6f3766d4b3b309f6a603a222e07a0164f"},
		{[]string{"sha256:aa", "sha256:bb", "sha256:cc"}, "sha256:ced946a3b9b1c697ead0fa9bf9ad36e03198566077f3950076f64a4760acde1b"},
	} {
		if got := (&Image{DiffIDs: c.layers}).ChainID(); got != c.want {
			t.Errorf("%v: %s, not %s", c.layers, got, c.want)
		}
	}
}

func TestAtServer(t *testing.T) {
	for _, c := range []struct {
		ref, server string
		want        bool
	}{
		{"example.org/a", "", true},
		{"example.org/a", "example.org", true},
		{"example.org/a:1", "https://Example.org/v2/", true},
		{"example.org:5000/a", "http://example.org:5000", true},
		{"example.org:5000/a", "example.org", false},
		{"example.org/a", "other.org", false},
		{"busybox", "https://index.docker.io/v1/", true},
		{"docker.io/library/busybox", "registry-1.docker.io", true},
		{"busybox", "example.org", false},
		{"Bad", "example.org", false},
	} {
		if got := MatchesServer(c.ref, c.server); got != c.want {
			t.Errorf("credentials of %q for %q: %t", c.server, c.ref, got)
		}
	}
}
