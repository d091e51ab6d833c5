package featuregates

import (
	"strings"
	"testing"
)

func TestCheck(t *testing.T) {
	for _, c := range []struct{ text, err string }{
		{"", ""},
		{"SidecarContainers=true, ImageVolume=true,MemoryQoS=false,KubeletPSI=false", ""},
		{"NoSuch=true", "unrecognized feature gate: NoSuch"},
		{"SidecarContainers=false", "cannot set feature gate SidecarContainers to false, feature is locked to true"},
		{"ImageVolume=false", "feature gate ImageVolume cannot be turned off here"},
		{"NodeLogQuery=true", "feature gate NodeLogQuery cannot be turned on here"},
		{"MemoryQoS=true", "cannot be turned on here"},
		{"Switch=false", ""},
		{"AllBeta=true,AllAlpha=false", ""},
		{"AllAlpha=true", "feature gate AllAlpha cannot be set to true here"},
		{"SidecarContainers", "missing bool value for SidecarContainers"},
		{"SidecarContainers=maybe", "invalid value of SidecarContainers=maybe"},
	} {
		s, err := Parse(c.text)
		if err == nil {
			err = s.Check("Switch")
		}
		if (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%q: %v", c.text, err)
		}
	}
	if (Set{"A": false}).Enabled("A", true) || !(Set{}).Enabled("A", true) {
		t.Error("enabled")
	}
}
