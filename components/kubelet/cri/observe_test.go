package cri

import (
	"slices"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// TestSandboxWithoutAddress checks that a sandbox without an IP address is replaced, unless it uses
// the host network or the runtime does not report the network mode.
func TestSandboxWithoutAddress(t *testing.T) {
	host := &runtimeapi.LinuxPodSandboxStatus{Namespaces: &runtimeapi.Namespace{Options: &runtimeapi.NamespaceOption{Network: runtimeapi.NamespaceMode_NODE}}}
	for _, c := range []struct {
		name   string
		status *runtimeapi.PodSandboxStatus
		lost   bool
		ended  bool
		ips    []string
	}{
		{name: "with an address", status: &runtimeapi.PodSandboxStatus{Network: &runtimeapi.PodSandboxNetworkStatus{Ip: "10.0.0.1", AdditionalIps: []*runtimeapi.PodIP{{Ip: "fd00::1"}, {}}}}, ips: []string{"10.0.0.1", "fd00::1"}},
		{name: "without", status: &runtimeapi.PodSandboxStatus{Network: &runtimeapi.PodSandboxNetworkStatus{}}, lost: true},
		{name: "host network", status: &runtimeapi.PodSandboxStatus{Network: &runtimeapi.PodSandboxNetworkStatus{}, Linux: host}},
		{name: "untold"},
		{name: "stopped", status: &runtimeapi.PodSandboxStatus{State: runtimeapi.PodSandboxState_SANDBOX_NOTREADY, Network: &runtimeapi.PodSandboxNetworkStatus{Ip: "10.0.0.1"}}, ended: true, ips: []string{"10.0.0.1"}},
	} {
		if got := sandboxOf(c.status); got.Ready == c.ended || got.Lost != c.lost || !slices.Equal(got.IPs, c.ips) {
			t.Errorf("%s: %+v", c.name, got)
		}
	}
}

// TestRunning checks that the disk usage of exited containers is not added to that of their
// successors.
func TestRunning(t *testing.T) {
	of := func(id string, cpu *runtimeapi.CpuUsage) *runtimeapi.ContainerStats {
		return &runtimeapi.ContainerStats{Attributes: &runtimeapi.ContainerAttributes{Id: id}, Cpu: cpu, WritableLayer: &runtimeapi.FilesystemUsage{}}
	}
	got := Running([]*runtimeapi.ContainerStats{of("ended", nil), of("running", &runtimeapi.CpuUsage{}), nil})
	if len(got) != 1 || got[0].Attributes.Id != "running" {
		t.Errorf("%v", got)
	}
}
