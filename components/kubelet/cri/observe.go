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

	"hyperkube/components/kubelet/pod/podstate"
)

// IsNotFound reports whether the runtime returned that the container, sandbox or image does not exist.
func IsNotFound(err error) bool { return status.Code(err) == codes.NotFound }

// IsUnavailable reports whether the runtime was unavailable, or exited during the call. The result of the
// call is unknown until the runtime is available again.
func IsUnavailable(err error) bool { return status.Code(err) == codes.Unavailable }

// IsDeadlineExceeded reports whether the runtime did not respond within the timeout of the call.
func IsDeadlineExceeded(err error) bool { return status.Code(err) == codes.DeadlineExceeded }

// IsUnimplemented reports whether the runtime does not implement the method.
func IsUnimplemented(err error) bool { return status.Code(err) == codes.Unimplemented }

// Message returns the text of an error of the runtime without gRPC's prefix, or the text of any other error.
func Message(err error) string {
	if s, ok := status.FromError(err); ok {
		return s.Message()
	}
	return err.Error()
}

// Observe returns the state of a pod in the runtime: all its sandboxes and containers, newest first. Those
// that are removed during the call are omitted. uid is the pod's UID.
func (c *Client) Observe(ctx context.Context, uid types.UID) (podstate.Observed, error) {
	var out podstate.Observed
	selector := map[string]string{LabelPodUID: string(uid)}
	boxes, err := c.Runtime.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{
		Filter: &runtimeapi.PodSandboxFilter{LabelSelector: selector},
	})
	if err != nil {
		return out, fmt.Errorf("listing pod sandboxes: %w", err)
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
		return out, fmt.Errorf("listing pod containers: %w", err)
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

// sortNewestFirst sorts the sandboxes and containers newest first, as podstate requires: containers of one
// name by attempt, otherwise by creation time.
func sortNewestFirst(o *podstate.Observed) {
	slices.SortStableFunc(o.Sandboxes, func(a, b podstate.Sandbox) int { return b.CreatedAt.Compare(a.CreatedAt) })
	slices.SortStableFunc(o.Containers, func(a, b podstate.Container) int {
		if a.Name == b.Name && a.Attempt != b.Attempt {
			return int(b.Attempt) - int(a.Attempt)
		}
		return b.CreatedAt.Compare(a.CreatedAt)
	})
}

// Sandbox returns the state of one sandbox in the runtime. IsNotFound reports true for the error if it does
// not exist.
func (c *Client) Sandbox(ctx context.Context, id string) (podstate.Sandbox, error) {
	resp, err := c.Runtime.PodSandboxStatus(ctx, &runtimeapi.PodSandboxStatusRequest{PodSandboxId: id})
	if err != nil {
		return podstate.Sandbox{}, fmt.Errorf("getting sandbox status: %w", err)
	}
	return sandboxOf(resp.Status), nil
}

// sandboxOf converts the CRI status of a sandbox. It sets Lost for a ready sandbox without an IP address that does
// not use the host network: its containers are unreachable, so the kubelet replaces the sandbox.
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

// Running returns the statistics of running containers. Runtimes report only the disk usage of others.
func Running(list []*runtimeapi.ContainerStats) []*runtimeapi.ContainerStats {
	return slices.DeleteFunc(slices.Clone(list), func(c *runtimeapi.ContainerStats) bool { return c.GetCpu() == nil })
}

// Container returns the state of one container in the runtime. SandboxID is empty because CRI's container
// status does not include it.
func (c *Client) Container(ctx context.Context, id string) (podstate.Container, error) {
	resp, err := c.Runtime.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: id})
	if err != nil {
		return podstate.Container{}, fmt.Errorf("getting container status: %w", err)
	}
	return containerOf(resp.Status), nil
}

// containerOf converts the CRI status of a container to the kubelet's own type.
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
	// CRI reports the file of the termination message only as a mount.
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

// stamp converts a timestamp of CRI in nanoseconds; the zero time means none.
func stamp(ns int64) time.Time {
	if ns <= 0 {
		return time.Time{}
	}
	return time.Unix(0, ns)
}

// IsTimeout reports whether the runtime did not respond in time or reports that a command that it ran timed
// out.
func IsTimeout(err error) bool {
	return status.Code(err) == codes.DeadlineExceeded || strings.Contains(Message(err), "context deadline exceeded") ||
		strings.Contains(Message(err), "timed out")
}
