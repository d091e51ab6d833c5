package featuregates

import (
	"strings"
	"testing"
)

func TestCheck(t *testing.T) {
	for _, c := range []struct{ text, err string }{
		{"", ""},
		{"PodSchedulingReadiness=true, ImageVolume=true,MemoryQoS=false,WatchListClient=false", ""},
		{"NoSuch=true", "unrecognized feature gate: NoSuch"},
		{"ImageVolume=false", "cannot set feature gate ImageVolume to false, feature is locked to true"},
		{"GitRepoVolumeDriver=true", "cannot set feature gate GitRepoVolumeDriver to true, feature is locked to false"},
		{"ClusterTrustBundle=false", "feature gate ClusterTrustBundle cannot be disabled in this build"},
		{"UnknownVersionInteroperabilityProxy=true", "feature gate UnknownVersionInteroperabilityProxy cannot be enabled in this build"},
		{"MemoryQoS=true", ""},
		{"QOSReserved=true", "cannot be enabled in this build"},
		{"NFTablesProxyMode=false", ""},
		{"NFTablesProxyMode=true", "feature gate NFTablesProxyMode cannot be enabled in this build"},
		{"Switch=false", ""},
		{"AllBeta=true,AllAlpha=false", ""},
		{"AllAlpha=true", "feature gate AllAlpha cannot be set to true in this build"},
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
