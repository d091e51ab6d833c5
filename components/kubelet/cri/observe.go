package cri

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"hyperkube/components/kubelet/podstate"
)

// IsNotFound tells whether the runtime says that it has no such thing.
func IsNotFound(err error) bool { return status.Code(err) == codes.NotFound }

// IsGone tells whether the runtime is not there, or has gone during the call: an
// end of its own that says nothing of what was asked for. What came of the call
// is seen when the runtime is there again.
func IsGone(err error) bool { return status.Code(err) == codes.Unavailable }

// IsSilent tells whether the runtime did not answer in time.
func IsSilent(err error) bool { return status.Code(err) == codes.DeadlineExceeded }

// IsUnimplemented tells whether the runtime does not know the call.
func IsUnimplemented(err error) bool { return status.Code(err) == codes.Unimplemented }

// Message returns the text of an error without gRPC's frame around it.
func Message(err error) string {
	if s, ok := status.FromError(err); ok {
		return s.Message()
	}
	return err.Error()
}

// Observe returns what the runtime has of the pod: all its sandboxes and
// containers, newest first.
func (c *Client) Observe(ctx context.Context, uid types.UID) (podstate.Observed, error) {
	var out podstate.Observed
	selector := map[string]string{LabelPodUID: string(uid)}
	boxes, err := c.Runtime.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{
		Filter: &runtimeapi.PodSandboxFilter{LabelSelector: selector},
	})
	if err != nil {
		return out, fmt.Errorf("listing the pod's sandboxes: %w", err)
	}
	for _, b := range boxes.Items {
		s, err := c.Sandbox(ctx, b.Id)
		if IsNotFound(err) {
			continue
		}
		if err != nil {
			return out, err
		}
		out.Sandboxes = append(out.Sandboxes, s)
	}
	list, err := c.Runtime.ListContainers(ctx, &runtimeapi.ListContainersRequest{
		Filter: &runtimeapi.ContainerFilter{LabelSelector: selector},
	})
	if err != nil {
		return out, fmt.Errorf("listing the pod's containers: %w", err)
	}
	for _, item := range list.Containers {
		one, err := c.Container(ctx, item.Id)
		if IsNotFound(err) {
			continue
		}
		if err != nil {
			return out, err
		}
		one.SandboxID = item.PodSandboxId
		out.Containers = append(out.Containers, one)
	}
	sortNewestFirst(&out)
	return out, nil
}

// sortNewestFirst brings o into the order that podstate wants.
func sortNewestFirst(o *podstate.Observed) {
	slices.SortStableFunc(o.Sandboxes, func(a, b podstate.Sandbox) int { return b.CreatedAt.Compare(a.CreatedAt) })
	slices.SortStableFunc(o.Containers, func(a, b podstate.Container) int {
		if a.Name == b.Name && a.Attempt != b.Attempt {
			return int(b.Attempt) - int(a.Attempt)
		}
		return b.CreatedAt.Compare(a.CreatedAt)
	})
}

// Sandbox returns what the runtime says of one sandbox.
func (c *Client) Sandbox(ctx context.Context, id string) (podstate.Sandbox, error) {
	resp, err := c.Runtime.PodSandboxStatus(ctx, &runtimeapi.PodSandboxStatusRequest{PodSandboxId: id})
	if err != nil {
		return podstate.Sandbox{}, fmt.Errorf("asking for a sandbox's status: %w", err)
	}
	return sandboxOf(resp.Status), nil
}

func sandboxOf(s *runtimeapi.PodSandboxStatus) podstate.Sandbox {
	out := podstate.Sandbox{
		ID:        s.GetId(),
		Attempt:   s.GetMetadata().GetAttempt(),
		Ready:     s.GetState() == runtimeapi.PodSandboxState_SANDBOX_READY,
		CreatedAt: stamp(s.GetCreatedAt()),
	}
	out.HostNetwork = s.GetLinux().GetNamespaces().GetOptions().GetNetwork() == runtimeapi.NamespaceMode_NODE
	if ip := s.GetNetwork().GetIp(); ip != "" {
		out.IPs = append(out.IPs, ip)
	}
	for _, ip := range s.GetNetwork().GetAdditionalIps() {
		if ip.GetIp() != "" {
			out.IPs = append(out.IPs, ip.GetIp())
		}
	}
	out.Lost = out.Ready && s.GetNetwork() != nil && len(out.IPs) == 0 && !out.HostNetwork
	return out
}

// Running returns what of list is of containers that run: runtimes tell of others what
// they have on the disk, and no more.
func Running(list []*runtimeapi.ContainerStats) []*runtimeapi.ContainerStats {
	return slices.DeleteFunc(slices.Clone(list), func(c *runtimeapi.ContainerStats) bool { return c.GetCpu() == nil })
}

// Container returns what the runtime says of one container. SandboxID is not
// among it: CRI's status does not tell.
func (c *Client) Container(ctx context.Context, id string) (podstate.Container, error) {
	resp, err := c.Runtime.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: id})
	if err != nil {
		return podstate.Container{}, fmt.Errorf("asking for a container's status: %w", err)
	}
	return containerOf(resp.Status), nil
}

func containerOf(s *runtimeapi.ContainerStatus) podstate.Container {
	out := podstate.Container{
		ID:         s.GetId(),
		Name:       s.GetMetadata().GetName(),
		Attempt:    s.GetMetadata().GetAttempt(),
		CreatedAt:  stamp(s.GetCreatedAt()),
		StartedAt:  stamp(s.GetStartedAt()),
		FinishedAt: stamp(s.GetFinishedAt()),
		ExitCode:   s.GetExitCode(),
		Reason:     s.GetReason(),
		Message:    s.GetMessage(),
		Image:      s.GetImage().GetImage(),
		ImageID:    s.GetImageRef(),
		Hash:       s.GetAnnotations()[AnnotationHash],
		LogPath:    s.GetLogPath(),

		TerminationMessagePath:   s.GetAnnotations()[AnnotationTerminationMessagePath],
		TerminationMessagePolicy: s.GetAnnotations()[AnnotationTerminationMessagePolicy],
	}
	if user := s.GetImage().GetUserSpecifiedImage(); user != "" {
		out.Image = user
	}
	if name := s.GetLabels()[LabelContainerName]; name != "" {
		out.Name = name
	}
	switch s.GetState() {
	case runtimeapi.ContainerState_CONTAINER_CREATED:
		out.State = podstate.Created
	case runtimeapi.ContainerState_CONTAINER_RUNNING:
		out.State = podstate.Running
	case runtimeapi.ContainerState_CONTAINER_EXITED:
		out.State = podstate.Exited
	default:
		out.State = podstate.Unknown
	}
	// Runtimes tell the termination message's file by its mount.
	for _, m := range s.GetMounts() {
		if out.TerminationMessagePath != "" && m.GetContainerPath() == out.TerminationMessagePath {
			out.TerminationMessageFile = filepath.Clean(m.GetHostPath())
		}
	}
	if r := s.GetResources().GetLinux(); r != nil {
		out.Resources = &podstate.Resources{
			CPUShares: r.GetCpuShares(), CPUQuota: r.GetCpuQuota(), CPUPeriod: r.GetCpuPeriod(), MemoryLimit: r.GetMemoryLimitInBytes(),
		}
	}
	if u := s.GetUser().GetLinux(); u != nil {
		out.User = &podstate.User{UID: u.GetUid(), GID: u.GetGid(), Groups: u.GetSupplementalGroups()}
	}
	return out
}

func stamp(ns int64) time.Time {
	if ns <= 0 {
		return time.Time{}
	}
	return time.Unix(0, ns)
}

// IsTimeout tells whether the runtime, or the waiting for it, took too long.
func IsTimeout(err error) bool {
	return status.Code(err) == codes.DeadlineExceeded || strings.Contains(Message(err), "context deadline exceeded") ||
		strings.Contains(Message(err), "timed out")
}
