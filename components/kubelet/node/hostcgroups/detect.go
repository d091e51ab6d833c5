package hostcgroups

import (
	"context"
	"fmt"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"hyperkube/components/kubelet/cri"
	"hyperkube/components/kubelet/pod/pods"
)

// Detector detects the name and the cgroup driver of the container runtime, which determine the container IDs in
// the API and the names of the cgroups of pods.
type Detector struct {
	Runtime runtimeapi.RuntimeServiceClient
	// Platform receives the detected properties.
	Platform *pods.Platform
	// Systemd is the configured cgroup driver, for a runtime that does not report its own. LosingSupport is
	// called for such a runtime, to count it in a metric.
	Systemd       bool
	LosingSupport func()
}

// runtimeConfigAttempts is how often RuntimeConfig is called if the call fails, for example because the
// runtime exits during the call.
const runtimeConfigAttempts = 3

// detectCgroupDriver stores the cgroup driver that the runtime reports in Platform. For an older runtime
// without RuntimeConfig, the configured driver is used. It returns an error if the runtime fails.
func (d Detector) detectCgroupDriver(ctx context.Context) error {
	d.Platform.SetSystemd(d.Systemd)
	var err error
	for range runtimeConfigAttempts {
		var resp *runtimeapi.RuntimeConfigResponse
		resp, err = d.Runtime.RuntimeConfig(ctx, &runtimeapi.RuntimeConfigRequest{}, cri.WaitForReady())
		if cri.IsUnimplemented(err) {
			d.LosingSupport()
			return nil
		}
		if err == nil {
			if resp.Linux != nil {
				d.Platform.SetSystemd(resp.Linux.CgroupDriver == runtimeapi.CgroupDriver_SYSTEMD)
			}
			return nil
		}
	}
	return fmt.Errorf("getting the cgroup driver from the runtime: %w", err)
}

// Detect waits until the container runtime is available, and stores its name and cgroup driver in Platform.
// It returns an error if the runtime fails or ctx is done; the kubelet then stops.
func (d Detector) Detect(ctx context.Context) error {
	v, err := d.Runtime.Version(ctx, &runtimeapi.VersionRequest{}, cri.WaitForReady())
	if err != nil {
		return fmt.Errorf("getting the version of the runtime: %w", err)
	}
	d.Platform.SetRuntimeName(v.RuntimeName)
	return d.detectCgroupDriver(ctx)
}
