package hostcgroups

import (
	"context"
	"fmt"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"hyperkube/components/kubelet/cri"
	"hyperkube/components/kubelet/pod/pods"
)

// Detector detects the properties of the runtime on which the cgroups of pods depend.
type Detector struct {
	Runtime runtimeapi.RuntimeServiceClient
	// Platform receives the detected properties.
	Platform *pods.Platform
	// Systemd is the configured cgroup driver, for a runtime that does not report its own. LosingSupport
	// counts such runtimes.
	Systemd       bool
	LosingSupport func()
}

// runtimeConfigAttempts is how often RuntimeConfig is called if the runtime exits during the call.
const runtimeConfigAttempts = 3

// detectCgroupDriver gets the cgroup driver from the runtime. For an older runtime without RuntimeConfig,
// the configured driver is used.
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

// Detect gets the name and the cgroup driver of the runtime when it is available.
func (d Detector) Detect(ctx context.Context) error {
	v, err := d.Runtime.Version(ctx, &runtimeapi.VersionRequest{}, cri.WaitForReady())
	if err != nil {
		return fmt.Errorf("getting the version of the runtime: %w", err)
	}
	d.Platform.SetRuntimeName(v.RuntimeName)
	return d.detectCgroupDriver(ctx)
}
