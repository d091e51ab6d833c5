//go:build cgo

package runtime

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// nodeService implements the CRI calls about the runtime itself: version, status and configuration.
type nodeService struct {
	*host
	version string // to report
	engines *engines
	network *podNetwork
}

// runtimeName is the runtime name in the Version response.
const runtimeName = "hyperkube"

// reportedVersion returns the runtime version for CRI: the tag of the built-in image, or else Config.Version, or else
// v0.0.0.
func reportedVersion(cfg *Config) string {
	_, version, _ := strings.Cut(cfg.BuiltInImage, ":")
	return cmp.Or(version, cfg.Version, "v0.0.0")
}

// Version returns the name and version of the runtime.
func (ns *nodeService) Version(context.Context, *runtimeapi.VersionRequest) (*runtimeapi.VersionResponse, error) {
	return &runtimeapi.VersionResponse{Version: "0.1.0", RuntimeName: runtimeName, RuntimeVersion: ns.version, RuntimeApiVersion: "v1"}, nil
}

// Status returns the conditions RuntimeReady, which is always true, and NetworkReady, which reports whether pods can be
// connected. It also returns the features of the runtime and its handlers.
func (ns *nodeService) Status(ctx context.Context, req *runtimeapi.StatusRequest) (*runtimeapi.StatusResponse, error) {
	resp := &runtimeapi.StatusResponse{
		Status:          &runtimeapi.RuntimeStatus{Conditions: []*runtimeapi.RuntimeCondition{{Type: "RuntimeReady", Status: true}, ns.network.condition(ctx)}},
		RuntimeHandlers: ns.engines.features(),
		Features:        &runtimeapi.RuntimeFeatures{SupplementalGroupsPolicy: true, MountOptions: true},
	}
	if req.GetVerbose() {
		resp.Info = map[string]string{"config": fmt.Sprintf(`{"root":%q,"state":%q,"cgroupVersion":%d,"selinux":%t}`, ns.root, ns.stateDir, ns.cgroupVersion(), ns.selinux != nil)}
	}
	return resp, nil
}

func (ns *nodeService) cgroupVersion() int {
	if ns.cgroups.Unified() {
		return 2
	}
	return 1
}

// RuntimeConfig returns the cgroup driver that the kubelet must use: cgroupfs.
func (ns *nodeService) RuntimeConfig(context.Context, *runtimeapi.RuntimeConfigRequest) (*runtimeapi.RuntimeConfigResponse, error) {
	return &runtimeapi.RuntimeConfigResponse{Linux: &runtimeapi.LinuxRuntimeConfiguration{CgroupDriver: runtimeapi.CgroupDriver_CGROUPFS}}, nil
}

// UpdateRuntimeConfig sets the pod CIDRs of the node, which the kubelet sends when they are assigned, and stores them
// for the next runtime process. It ignores a request without CIDRs.
func (ns *nodeService) UpdateRuntimeConfig(ctx context.Context, req *runtimeapi.UpdateRuntimeConfigRequest) (*runtimeapi.UpdateRuntimeConfigResponse, error) {
	text := req.GetRuntimeConfig().GetNetworkConfig().GetPodCidr()
	if text == "" {
		return &runtimeapi.UpdateRuntimeConfigResponse{}, nil
	}
	cidrs, err := parseCIDRs(text)
	if err != nil {
		return nil, err
	}
	if err := ns.network.setCIDRs(ctx, cidrs, text); err != nil {
		return nil, err
	}
	return &runtimeapi.UpdateRuntimeConfigResponse{}, nil
}
