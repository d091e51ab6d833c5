package nodestatus

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"hyperkube/internal/base/version"
)

// Pressure reports which of the node's resources are under pressure.
type Pressure struct{ Memory, Disk, PID bool }

// declaredFeatures are the features that the kubelet declares in the status of the Node, sorted. The
// scheduler places pods that require a feature only on nodes that declare it (KEP-5328).
var declaredFeatures = []string{"InPlacePodLevelResourcesVerticalScaling", "InPlacePodVerticalScalingInitContainers", "RestartAllContainersOnContainerExits"}

// setStatus sets the status of the Node n to the current state. now is the time of the heartbeat. Extended
// resources that other components have set remain. If images cannot be listed, the previous list remains.
func (k *Manager) setStatus(ctx context.Context, n *v1.Node, now time.Time) {
	k.mu.Lock()
	says := k.runtime
	k.mu.Unlock()
	s := &n.Status
	announced := s.Capacity
	s.Capacity, s.Allocatable = k.cfg.Status.Capacity.DeepCopy(), k.cfg.Status.Allocatable.DeepCopy()
	// Extended resources that other components have set are kept. All of them are allocatable.
	for name, quantity := range announced {
		if _, own := s.Capacity[name]; !own && extended(name) {
			s.Capacity[name], s.Allocatable[name] = quantity.DeepCopy(), quantity.DeepCopy()
		}
	}
	if k.cfg.Status.Devices != nil {
		all, healthy := k.cfg.Status.Devices()
		maps.Copy(s.Capacity, all)
		maps.Copy(s.Allocatable, healthy)
	}
	if !k.cfg.Registration.CloudProvider.IsExternal() || len(s.Addresses) == 0 {
		s.Addresses = k.addresses()
	}
	s.DaemonEndpoints.KubeletEndpoint.Port = k.cfg.Status.Port
	m := k.cfg.Status.Machine
	s.NodeInfo = v1.NodeSystemInfo{
		MachineID: m.MachineID, SystemUUID: m.SystemUUID, BootID: m.Boot, KernelVersion: m.Kernel, OSImage: m.OSImage,
		ContainerRuntimeVersion: says.name + "://" + says.version,
		KubeletVersion:          version.Get().GitVersion,
		OperatingSystem:         osName, Architecture: archName,
	}
	inside := m.UserNamespace
	s.NodeInfo.RunningInUserNamespace = &inside
	if m.SwapBytes > 0 {
		swap := m.SwapBytes
		s.NodeInfo.Swap = &v1.NodeSwapStatus{Capacity: &swap}
	}
	s.RuntimeHandlers, s.Features = says.handlers, says.features
	s.DeclaredFeatures = slices.Clone(declaredFeatures)
	if k.cfg.Status.VolumesInUse != nil {
		s.VolumesInUse = k.cfg.Status.VolumesInUse()
	}
	// Do not wait for a runtime that does not respond, so that the status is updated.
	if says.down == "" {
		if images, err := k.images(ctx); err == nil {
			s.Images = images
		}
	}
	k.conditions(s, says, metav1.NewTime(now.Truncate(time.Second)))
}

// addresses returns the addresses that the kubelet reports: the IP addresses and the hostname of the node. With an external
// cloud provider and no configured IP address it returns none, because the cloud controller manager sets all of them.
func (k *Manager) addresses() []v1.NodeAddress {
	var out []v1.NodeAddress
	for _, ip := range k.cfg.Status.IPs() {
		out = append(out, v1.NodeAddress{Type: v1.NodeInternalIP, Address: ip})
	}
	if len(out) == 0 && k.cfg.Registration.CloudProvider.IsExternal() {
		return nil
	}
	return append(out, v1.NodeAddress{Type: v1.NodeHostName, Address: k.cfg.Name})
}

// conditions sets the pressure conditions and the Ready condition in s. A condition keeps its transition time
// if its status does not change. says is the status of the container runtime.
func (k *Manager) conditions(s *v1.NodeStatus, says runtimeStatus, now metav1.Time) {
	var p Pressure
	if k.cfg.Status.Pressure != nil {
		p = k.cfg.Status.Pressure()
	}
	set := func(t v1.NodeConditionType, ok bool, reason, message string) {
		c := v1.NodeCondition{Type: t, Status: v1.ConditionFalse, Reason: reason, Message: message, LastHeartbeatTime: now, LastTransitionTime: now}
		if ok {
			c.Status = v1.ConditionTrue
		}
		for i := range s.Conditions {
			if s.Conditions[i].Type == t {
				if s.Conditions[i].Status == c.Status {
					c.LastTransitionTime = s.Conditions[i].LastTransitionTime
				}
				s.Conditions[i] = c
				return
			}
		}
		s.Conditions = append(s.Conditions, c)
	}
	if p.Memory {
		set(v1.NodeMemoryPressure, true, "KubeletHasInsufficientMemory", "kubelet has insufficient memory available")
	} else {
		set(v1.NodeMemoryPressure, false, "KubeletHasSufficientMemory", "kubelet has sufficient memory available")
	}
	if p.Disk {
		set(v1.NodeDiskPressure, true, "KubeletHasDiskPressure", "kubelet has disk pressure")
	} else {
		set(v1.NodeDiskPressure, false, "KubeletHasNoDiskPressure", "kubelet has no disk pressure")
	}
	if p.PID {
		set(v1.NodePIDPressure, true, "KubeletHasInsufficientPID", "kubelet has insufficient PID available")
	} else {
		set(v1.NodePIDPressure, false, "KubeletHasSufficientPID", "kubelet has sufficient PID available")
	}
	var wrong []string
	switch {
	case says.down != "":
		wrong = append(wrong, "container runtime is down: "+says.down)
	case !says.known:
		wrong = append(wrong, "container runtime status check may not have completed yet")
	default:
		if !says.runtimeOK {
			wrong = append(wrong, "container runtime not ready: "+says.runText)
		}
		if !says.netOK {
			wrong = append(wrong, "container runtime network not ready: "+says.netText)
		}
	}
	if k.cfg.Status.NotReadyReasons != nil {
		wrong = append(wrong, k.cfg.Status.NotReadyReasons()...)
	}
	switch len(wrong) {
	case 0:
		set(v1.NodeReady, true, "KubeletReady", "kubelet is posting ready status")
	case 1:
		set(v1.NodeReady, false, "KubeletNotReady", wrong[0])
	default:
		set(v1.NodeReady, false, "KubeletNotReady", "["+strings.Join(wrong, ", ")+"]")
	}
}

// images returns the MaxImages largest images of the node, or all if MaxImages is negative, each with at most
// five names, for its status.
func (k *Manager) images(ctx context.Context) ([]v1.ContainerImage, error) {
	resp, err := k.cfg.CRI.Images.ListImages(ctx, &runtimeapi.ListImagesRequest{})
	if err != nil {
		return nil, err
	}
	list := slices.Clone(resp.Images)
	slices.SortStableFunc(list, func(a, b *runtimeapi.Image) int {
		if a.Size != b.Size {
			return cmp.Compare(b.Size, a.Size)
		}
		return cmp.Compare(a.Id, b.Id)
	})
	if k.cfg.Status.MaxImages >= 0 && len(list) > k.cfg.Status.MaxImages {
		list = list[:k.cfg.Status.MaxImages]
	}
	out := make([]v1.ContainerImage, 0, len(list))
	for _, i := range list {
		names := append(slices.Clone(i.RepoDigests), i.RepoTags...)
		if len(names) > 5 {
			names = names[:5]
		}
		out = append(out, v1.ContainerImage{Names: names, SizeBytes: int64(i.Size)})
	}
	return out, nil
}
