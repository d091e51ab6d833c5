//go:build cgo

package runtime

import "testing"

func TestMapsOwners(t *testing.T) {
	for release, want := range map[string]bool{
		"5.10.0-28-amd64": false, "5.19.0": false, "6.1.0-56-cloud-amd64": false, "6.2.16": false,
		"6.3.0": true, "6.3-rc1": true, "6.12.5+deb13-amd64": true, "6.18": true, "7.0.0": true, "": false, "next": false,
	} {
		if got := supportsIDMapping(release); got != want {
			t.Errorf("%q: %v", release, got)
		}
	}
}
