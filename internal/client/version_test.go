package client

import "testing"

func TestNewer(t *testing.T) {
	for _, tc := range []struct {
		a, b string
		want bool
	}{
		{"10", "9", true}, {"9", "10", false}, {"7", "7", false},
		{"7", "", true}, {"", "", false}, {"", "7", true},
	} {
		if got := Newer(tc.a, tc.b); got != tc.want {
			t.Errorf("%q is newer than %q: %v, want %v", tc.a, tc.b, got, tc.want)
		}
	}
}
