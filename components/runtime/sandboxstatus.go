//go:build cgo

package runtime

import (
	"context"
	"slices"
	"strings"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// sandboxStatus converts the persistent state of a sandbox to its CRI status.
func sandboxStatus(rec sandboxRecord) *runtimeapi.PodSandboxStatus {
	st := &runtimeapi.PodSandboxStatus{
		Id: rec.ID, Metadata: rec.config.GetMetadata(), State: sandboxPhase(rec), CreatedAt: rec.Created,
		Network: &runtimeapi.PodSandboxNetworkStatus{},
		Linux: &runtimeapi.LinuxPodSandboxStatus{Namespaces: &runtimeapi.Namespace{Options: &runtimeapi.NamespaceOption{
			Network: namespaceOptions(rec.config).GetNetwork(), Pid: namespaceOptions(rec.config).GetPid(), Ipc: namespaceOptions(rec.config).GetIpc(),
			UsernsOptions: namespaceOptions(rec.config).GetUsernsOptions(),
		}}},
		Labels: rec.config.GetLabels(), Annotations: rec.config.GetAnnotations(), RuntimeHandler: rec.Handler,
	}
	for i, ip := range rec.IPs {
		if i == 0 {
			st.Network.Ip = ip
		} else {
			st.Network.AdditionalIps = append(st.Network.AdditionalIps, &runtimeapi.PodIP{Ip: ip})
		}
	}
	return st
}

// sandboxPhase returns the CRI state of a sandbox: ready only if its pause process runs.
func sandboxPhase(rec sandboxRecord) runtimeapi.PodSandboxState {
	if rec.Phase == phaseRunning {
		return runtimeapi.PodSandboxState_SANDBOX_READY
	}
	return runtimeapi.PodSandboxState_SANDBOX_NOTREADY
}

// PodSandboxStatus returns the status of a sandbox and of its containers. With the verbose option, it adds the process
// ID, the cgroup and the namespaces.
func (ss *sandboxService) PodSandboxStatus(_ context.Context, req *runtimeapi.PodSandboxStatusRequest) (*runtimeapi.PodSandboxStatusResponse, error) {
	s, err := ss.inventory.findSandbox(req.GetPodSandboxId())
	if err != nil {
		return nil, err
	}
	rec := s.get()
	resp := &runtimeapi.PodSandboxStatusResponse{Status: sandboxStatus(rec), Timestamp: time.Now().UnixNano()}
	for _, c := range ss.inventory.containersOf(rec.ID) {
		resp.ContainersStatuses = append(resp.ContainersStatuses, containerStatus(c.get()))
	}
	if req.GetVerbose() {
		resp.Info, err = encodeVerbose(ss.info(rec))
	}
	return resp, err
}

// ListPodSandbox lists the sandboxes that match the filter, newest first.
func (ss *sandboxService) ListPodSandbox(_ context.Context, req *runtimeapi.ListPodSandboxRequest) (*runtimeapi.ListPodSandboxResponse, error) {
	return &runtimeapi.ListPodSandboxResponse{Items: ss.list(req.GetFilter())}, nil
}

func (ss *sandboxService) list(filter *runtimeapi.PodSandboxFilter) []*runtimeapi.PodSandbox {
	var items []*runtimeapi.PodSandbox
	for _, s := range ss.inventory.allSandboxes() {
		rec := s.get()
		if !strings.HasPrefix(rec.ID, filter.GetId()) || !labelsMatch(filter.GetLabelSelector(), rec.config.GetLabels()) ||
			filter.GetState() != nil && filter.GetState().GetState() != sandboxPhase(rec) {
			continue
		}
		items = append(items, &runtimeapi.PodSandbox{
			Id: rec.ID, Metadata: rec.config.GetMetadata(), State: sandboxPhase(rec), CreatedAt: rec.Created,
			Labels: rec.config.GetLabels(), Annotations: rec.config.GetAnnotations(), RuntimeHandler: rec.Handler,
		})
	}
	slices.SortFunc(items, func(a, b *runtimeapi.PodSandbox) int { return int(b.CreatedAt - a.CreatedAt) })
	return items
}

// labelsMatch reports whether labels contains all keys and values of selector.
func labelsMatch(selector, labels map[string]string) bool {
	for k, v := range selector {
		if have, ok := labels[k]; !ok || have != v {
			return false
		}
	}
	return true
}
