package kubelet

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/cpuset"

	"hyperkube/components/kubelet/cpus"
	"hyperkube/components/kubelet/cri"
	"hyperkube/components/kubelet/pods"
)

// newCPUs makes what gives containers CPUs of their own; nil when nobody gets
// any.
func (k *Kubelet) newCPUs() (*cpus.Manager, error) {
	if !k.cfg.StaticCPUs {
		return nil, nil
	}
	machine, err := cpus.Read("/sys/devices/system/cpu")
	if err != nil {
		return nil, err
	}
	reserved := k.cfg.ReservedCPUs
	if reserved.IsEmpty() {
		cpu := k.cfg.Reserved[v1.ResourceCPU]
		n := int((cpu.MilliValue() + 999) / 1000)
		if n > len(machine) {
			return nil, fmt.Errorf("%d reserved CPUs are more than there are", n)
		}
		reserved = machine.Choose(machine.All(), n)
	}
	return cpus.New(cpus.Config{
		Machine: machine, Reserved: reserved, Strict: k.cfg.StrictCPUs, WholeCores: k.cfg.WholeCores,
		File:       filepath.Join(k.cfg.Layout.Kubelet, "cpu_manager_state"),
		Guaranteed: func(p *v1.Pod) bool { return pods.QOS(p) == v1.PodQOSGuaranteed },
		Active:     k.manager.Active, Log: k.log,
	})
}

// allocateCPUs gives a new pod its CPUs.
func (k *Kubelet) allocateCPUs(ctx context.Context, pod *v1.Pod) *pods.Verdict {
	if k.cpus == nil {
		return nil
	}
	changed, err := k.cpus.Allocate(pod)
	var align *cpus.AlignmentError
	switch {
	case errors.As(err, &align):
		return &pods.Verdict{Reason: "SMTAlignmentError", Message: err.Error()}
	case err != nil:
		return &pods.Verdict{Reason: "UnexpectedAdmissionError", Message: fmt.Sprintf("Allocate failed due to %v, which is unexpected", err)}
	}
	if changed {
		k.spread(ctx)
	}
	return nil
}

// released takes back what a pod that has ended had for itself.
func (k *Kubelet) released(uid types.UID) {
	if k.cpus == nil {
		return
	}
	changed, err := k.cpus.Release(uid)
	if err != nil {
		k.log.Warn("taking back a pod's CPUs failed", "error", err)
	}
	if changed {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		k.spread(ctx)
	}
}

// spread puts all containers that run on the CPUs that they may use now.
func (k *Kubelet) spread(ctx context.Context) {
	list, err := k.cri.Runtime.ListContainers(ctx, &runtimeapi.ListContainersRequest{
		Filter: &runtimeapi.ContainerFilter{State: &runtimeapi.ContainerStateValue{State: runtimeapi.ContainerState_CONTAINER_RUNNING}},
	})
	if err != nil {
		k.log.Warn("asking for the containers whose CPUs have changed failed", "error", err)
		return
	}
	for _, c := range list.Containers {
		set, _ := k.cpus.Of(types.UID(c.Labels[cri.LabelPodUID]), c.Labels[cri.LabelContainerName])
		_, err := k.cri.Runtime.UpdateContainerResources(ctx, &runtimeapi.UpdateContainerResourcesRequest{
			ContainerId: c.Id, Linux: &runtimeapi.LinuxContainerResources{CpusetCpus: set.String()},
		})
		if err != nil && !cri.IsNotFound(err) {
			k.log.Warn("changing a container's CPUs failed", "container", c.Id, "error", err)
		}
	}
}

// ownCPUs are the CPUs that are a container's own, as numbers; nil for none.
func (k *Kubelet) ownCPUs(pod types.UID, container string) []int64 {
	if k.cpus == nil {
		return nil
	}
	set, own := k.cpus.Of(pod, container)
	if !own {
		return nil
	}
	return numbers(set)
}

func numbers(set cpuset.CPUSet) []int64 {
	var out []int64
	for _, id := range set.List() {
		out = append(out, int64(id))
	}
	return out
}
