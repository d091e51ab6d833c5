// Package crifake is an in-memory container runtime for tests. Containers run when they are started
// and exit when the test requests it.
package crifake

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"hyperkube/components/kubelet/cri"
	"hyperkube/internal/base/lifecycle"
)

// Runtime is the fake runtime. Calls of the CRI that it does not implement panic, because the embedded interface is
// nil. Its methods are safe for concurrent use.
//
// Size: it has more methods than other types because it needs one for each call of the CRI.
type Runtime struct {
	runtimeapi.RuntimeServiceClient
	runtimeapi.ImageServiceClient

	// OnExec returns the result of ExecSync. If it is nil, every command succeeds.
	OnExec func(id string, cmd []string) (code int32, out string)
	// OnStop is called for each container that is stopped, with the grace period in seconds.
	OnStop func(name string, seconds int64)
	// OnCreate is called before a container is created; its error makes the call fail. It may be
	// nil.
	OnCreate func(*runtimeapi.CreateContainerRequest) error
	// NoEvents disables the event stream.
	NoEvents bool
	// Systemd makes the runtime report the systemd cgroup driver.
	Systemd bool
	// Stubborn makes containers ignore the stop signal until their grace period has expired.
	Stubborn bool
	// NoAddress makes the runtime create sandboxes without IP addresses.
	NoAddress atomic.Bool

	mu         sync.Mutex
	next       int
	sandboxes  map[string]*runtimeapi.PodSandboxStatus
	containers map[string]*container
	images     map[string]*runtimeapi.Image
	failing    map[string]error // errors by method
	calls      []string
	listeners  map[chan *runtimeapi.ContainerEventResponse]bool
	// resized are the last resource updates by sandbox ID.
	resized map[string]*runtimeapi.UpdatePodSandboxResourcesRequest
}

// container is a container of the fake runtime.
type container struct {
	status  *runtimeapi.ContainerStatus
	sandbox string
	config  *runtimeapi.ContainerConfig
	// starting: the container is starting and no event has been sent.
	starting bool
}

// SetStarting marks the newest container of that name as being started by a call whose caller has
// given up. The container becomes running with the next StartContainer call.
func (r *Runtime) SetStarting(name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.find(name)
	c.starting, c.status.State = true, runtimeapi.ContainerState_CONTAINER_CREATED
}

// New returns a fake runtime that has these images and no containers.
func New(images ...string) *Runtime {
	r := &Runtime{
		sandboxes: map[string]*runtimeapi.PodSandboxStatus{}, containers: map[string]*container{}, images: map[string]*runtimeapi.Image{},
		failing: map[string]error{}, listeners: map[chan *runtimeapi.ContainerEventResponse]bool{}, resized: map[string]*runtimeapi.UpdatePodSandboxResourcesRequest{},
	}
	for _, i := range images {
		r.images[i] = &runtimeapi.Image{Id: "sha256:" + i, RepoTags: []string{i}, Size: 1 << 20}
	}
	return r
}

// Pin sets whether an image is pinned.
func (r *Runtime) Pin(image string, pinned bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.images[image].Pinned = pinned
}

// Client returns a CRI client whose calls the fake runtime handles directly.
func (r *Runtime) Client() *cri.Client { return &cri.Client{Runtime: r, Images: r} }

// Fail makes calls of the CRI method, such as "StartContainer", fail with err until Fail is called with nil.
// Methods that cannot fail on request, such as StopContainer, ListContainers and ContainerStatus, ignore it.
func (r *Runtime) Fail(method string, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failing[method] = err
}

// Calls returns the recorded calls in order, each as the method and the name of its object.
func (r *Runtime) Calls() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.calls)
}

// recordCall records a call and returns the error that Fail has set for the method. The caller must hold mu.
func (r *Runtime) recordCall(method, name string) error {
	r.calls = append(r.calls, method+" "+name)
	return r.failing[method]
}

// Config returns the configuration of the newest container of that name, or nil.
func (r *Runtime) Config(name string) *runtimeapi.ContainerConfig {
	r.mu.Lock()
	defer r.mu.Unlock()
	if c := r.find(name); c != nil {
		return c.config
	}
	return nil
}

// find returns the newest container of that name, or nil. The caller must hold mu.
func (r *Runtime) find(name string) *container {
	var found *container
	for _, c := range r.containers {
		if c.status.Metadata.Name == name && (found == nil || c.status.Metadata.Attempt > found.status.Metadata.Attempt) {
			found = c
		}
	}
	return found
}

// Exit makes the newest container of that name exit with the exit code. It does nothing if there is none or it
// has exited.
func (r *Runtime) Exit(name string, code int32) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if c := r.find(name); c != nil {
		r.exit(c, code)
	}
}

// StopSandboxes stops all sandboxes, as a reboot does.
func (r *Runtime) StopSandboxes() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for id := range r.sandboxes {
		r.stopSandbox(id)
	}
}

// Count returns the number of sandboxes and containers.
func (r *Runtime) Count() (sandboxes, containers int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.sandboxes), len(r.containers)
}

// exit makes a container exit, unless it has exited, and sends the event. The caller must hold mu.
func (r *Runtime) exit(c *container, code int32) {
	if c.status.State == runtimeapi.ContainerState_CONTAINER_EXITED {
		return
	}
	c.status.State, c.status.ExitCode, c.status.FinishedAt = runtimeapi.ContainerState_CONTAINER_EXITED, code, time.Now().UnixNano()
	c.status.Reason = "Error"
	if code == 0 {
		c.status.Reason = "Completed"
	}
	r.emit(c.status.Id, c.sandbox, runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT)
}

// emit sends an event about a container or sandbox to all event streams. The caller must hold mu.
func (r *Runtime) emit(id, sandbox string, kind runtimeapi.ContainerEventType) {
	ev := &runtimeapi.ContainerEventResponse{ContainerId: id, ContainerEventType: kind, CreatedAt: time.Now().UnixNano(), PodSandboxStatus: r.sandboxes[sandbox]}
	for l := range r.listeners {
		l <- ev
	}
}

// Version returns the name "fake" and version 1 of the runtime.
func (r *Runtime) Version(context.Context, *runtimeapi.VersionRequest, ...grpc.CallOption) (*runtimeapi.VersionResponse, error) {
	return &runtimeapi.VersionResponse{RuntimeName: "fake", RuntimeVersion: "1"}, nil
}

// Status reports that the runtime and the network are ready, or the error that Fail has set.
func (r *Runtime) Status(context.Context, *runtimeapi.StatusRequest, ...grpc.CallOption) (*runtimeapi.StatusResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.failing["Status"]; err != nil {
		return nil, err
	}
	return &runtimeapi.StatusResponse{Status: &runtimeapi.RuntimeStatus{Conditions: []*runtimeapi.RuntimeCondition{
		{Type: "RuntimeReady", Status: true}, {Type: "NetworkReady", Status: true},
	}}}, nil
}

// RuntimeConfig records the call and returns the cgroup driver: systemd if Systemd is set, otherwise the
// default of an empty response.
func (r *Runtime) RuntimeConfig(context.Context, *runtimeapi.RuntimeConfigRequest, ...grpc.CallOption) (*runtimeapi.RuntimeConfigResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.recordCall("RuntimeConfig", ""); err != nil {
		return nil, err
	}
	if r.Systemd {
		return &runtimeapi.RuntimeConfigResponse{Linux: &runtimeapi.LinuxRuntimeConfiguration{CgroupDriver: runtimeapi.CgroupDriver_SYSTEMD}}, nil
	}
	return &runtimeapi.RuntimeConfigResponse{}, nil
}

// UpdateRuntimeConfig records the call with the pod CIDR. The fake runtime does not use the CIDR.
func (r *Runtime) UpdateRuntimeConfig(_ context.Context, req *runtimeapi.UpdateRuntimeConfigRequest, _ ...grpc.CallOption) (*runtimeapi.UpdateRuntimeConfigResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return &runtimeapi.UpdateRuntimeConfigResponse{}, r.recordCall("UpdateRuntimeConfig", req.GetRuntimeConfig().GetNetworkConfig().GetPodCidr())
}

// RunPodSandbox records the call and adds a ready sandbox with a new ID and, unless NoAddress is set, an IP
// address.
func (r *Runtime) RunPodSandbox(_ context.Context, req *runtimeapi.RunPodSandboxRequest, _ ...grpc.CallOption) (*runtimeapi.RunPodSandboxResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.recordCall("RunPodSandbox", req.Config.Metadata.Name); err != nil {
		return nil, err
	}
	r.next++
	id, ip := fmt.Sprintf("sandbox%d", r.next), fmt.Sprintf("10.0.0.%d", r.next)
	if r.NoAddress.Load() {
		ip = ""
	}
	r.sandboxes[id] = &runtimeapi.PodSandboxStatus{
		Id: id, Metadata: req.Config.Metadata, State: runtimeapi.PodSandboxState_SANDBOX_READY, CreatedAt: time.Now().UnixNano(),
		Network: &runtimeapi.PodSandboxNetworkStatus{Ip: ip}, Labels: req.Config.Labels,
	}
	return &runtimeapi.RunPodSandboxResponse{PodSandboxId: id}, nil
}

// stopSandbox stops a sandbox and its containers. The caller must hold mu.
func (r *Runtime) stopSandbox(id string) {
	for _, c := range r.containers {
		if c.sandbox == id {
			r.exit(c, 137)
		}
	}
	r.sandboxes[id].State = runtimeapi.PodSandboxState_SANDBOX_NOTREADY
	r.emit(id, id, runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT)
}

// StopPodSandbox stops a sandbox and makes its containers exit with code 137. A sandbox that does not exist
// is ignored.
func (r *Runtime) StopPodSandbox(_ context.Context, req *runtimeapi.StopPodSandboxRequest, _ ...grpc.CallOption) (*runtimeapi.StopPodSandboxResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.sandboxes[req.PodSandboxId] != nil {
		r.stopSandbox(req.PodSandboxId)
	}
	return &runtimeapi.StopPodSandboxResponse{}, nil
}

// RemovePodSandbox removes a sandbox and its containers, if they exist. It sends no events.
func (r *Runtime) RemovePodSandbox(_ context.Context, req *runtimeapi.RemovePodSandboxRequest, _ ...grpc.CallOption) (*runtimeapi.RemovePodSandboxResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for id, c := range r.containers {
		if c.sandbox == req.PodSandboxId {
			delete(r.containers, id)
		}
	}
	delete(r.sandboxes, req.PodSandboxId)
	return &runtimeapi.RemovePodSandboxResponse{}, nil
}

// PodSandboxStatus returns a copy of a sandbox's status, or an error with the code NotFound.
func (r *Runtime) PodSandboxStatus(_ context.Context, req *runtimeapi.PodSandboxStatusRequest, _ ...grpc.CallOption) (*runtimeapi.PodSandboxStatusResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.failing["PodSandboxStatus"]; err != nil {
		return nil, err
	}
	s := r.sandboxes[req.PodSandboxId]
	if s == nil {
		return nil, status.Error(codes.NotFound, "no such sandbox")
	}
	cp := &runtimeapi.PodSandboxStatus{Id: s.Id, Metadata: s.Metadata, State: s.State, CreatedAt: s.CreatedAt, Network: s.Network, Labels: s.Labels}
	return &runtimeapi.PodSandboxStatusResponse{Status: cp}, nil
}

// matchesLabels reports whether labels has all labels of selector.
func matchesLabels(selector, labels map[string]string) bool {
	for k, v := range selector {
		if labels[k] != v {
			return false
		}
	}
	return true
}

// ListPodSandbox returns the sandboxes that have the labels of the filter. Other filters are ignored.
func (r *Runtime) ListPodSandbox(_ context.Context, req *runtimeapi.ListPodSandboxRequest, _ ...grpc.CallOption) (*runtimeapi.ListPodSandboxResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.failing["ListPodSandbox"]; err != nil {
		return nil, err
	}
	out := &runtimeapi.ListPodSandboxResponse{}
	for _, s := range r.sandboxes {
		if matchesLabels(req.GetFilter().GetLabelSelector(), s.Labels) {
			out.Items = append(out.Items, &runtimeapi.PodSandbox{Id: s.Id, Metadata: s.Metadata, State: s.State, CreatedAt: s.CreatedAt, Labels: s.Labels})
		}
	}
	return out, nil
}

// CreateContainer records the call and adds a container that is not started, unless OnCreate returns an
// error.
func (r *Runtime) CreateContainer(_ context.Context, req *runtimeapi.CreateContainerRequest, _ ...grpc.CallOption) (*runtimeapi.CreateContainerResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.recordCall("CreateContainer", req.Config.Metadata.Name); err != nil {
		return nil, err
	}
	if r.OnCreate != nil {
		if err := r.OnCreate(req); err != nil {
			return nil, err
		}
	}
	r.next++
	id := fmt.Sprintf("container%d", r.next)
	c := req.Config
	r.containers[id] = &container{sandbox: req.PodSandboxId, config: c, status: &runtimeapi.ContainerStatus{
		Id: id, Metadata: c.Metadata, State: runtimeapi.ContainerState_CONTAINER_CREATED, CreatedAt: time.Now().UnixNano(),
		Image: c.Image, ImageRef: c.Image.Image, Labels: c.Labels, Annotations: c.Annotations, Mounts: c.Mounts, LogPath: c.LogPath,
	}}
	r.emit(id, req.PodSandboxId, runtimeapi.ContainerEventType_CONTAINER_CREATED_EVENT)
	return &runtimeapi.CreateContainerResponse{ContainerId: id}, nil
}

// StartContainer records the call and starts a created container. If Fail has set an error, the container exits
// with code 128 and the reason StartError, as with a real runtime. A container that does not exist or is in
// another state is an error.
func (r *Runtime) StartContainer(_ context.Context, req *runtimeapi.StartContainerRequest, _ ...grpc.CallOption) (*runtimeapi.StartContainerResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.containers[req.ContainerId]
	if c == nil {
		return nil, status.Error(codes.NotFound, "no such container")
	}
	if c.starting {
		c.starting, c.status.State = false, runtimeapi.ContainerState_CONTAINER_RUNNING
	}
	if s := c.status.State; s != runtimeapi.ContainerState_CONTAINER_CREATED {
		return nil, fmt.Errorf("container is in %s state", s)
	}
	if err := r.recordCall("StartContainer", c.status.Metadata.Name); err != nil {
		c.status.State, c.status.ExitCode, c.status.FinishedAt, c.status.Reason = runtimeapi.ContainerState_CONTAINER_EXITED, 128, time.Now().UnixNano(), "StartError"
		return nil, err
	}
	c.status.State, c.status.StartedAt = runtimeapi.ContainerState_CONTAINER_RUNNING, time.Now().UnixNano()
	r.emit(c.status.Id, c.sandbox, runtimeapi.ContainerEventType_CONTAINER_STARTED_EVENT)
	return &runtimeapi.StartContainerResponse{}, nil
}

// StopContainer records the call and makes a container exit with code 137. If Stubborn is set, the container
// exits only after the timeout of the request. A container that does not exist is an error with the code
// NotFound.
func (r *Runtime) StopContainer(ctx context.Context, req *runtimeapi.StopContainerRequest, _ ...grpc.CallOption) (*runtimeapi.StopContainerResponse, error) {
	r.mu.Lock()
	c := r.containers[req.ContainerId]
	if c == nil {
		r.mu.Unlock()
		return nil, status.Error(codes.NotFound, "no such container")
	}
	_ = r.recordCall("StopContainer", c.status.Metadata.Name)
	if r.OnStop != nil {
		r.OnStop(c.status.Metadata.Name, req.Timeout)
	}
	stubborn := r.Stubborn && req.Timeout > 0
	r.mu.Unlock()
	if stubborn {
		if !lifecycle.Pause(ctx, time.Duration(req.Timeout)*time.Second) {
			return nil, status.FromContextError(ctx.Err()).Err()
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.exit(c, 137)
	return &runtimeapi.StopContainerResponse{}, nil
}

// ReopenContainerLog does nothing, because the fake runtime writes no logs.
func (r *Runtime) ReopenContainerLog(context.Context, *runtimeapi.ReopenContainerLogRequest, ...grpc.CallOption) (*runtimeapi.ReopenContainerLogResponse, error) {
	return &runtimeapi.ReopenContainerLogResponse{}, nil
}

// RemoveContainer makes a container exit and removes it. A container that does not exist is ignored.
func (r *Runtime) RemoveContainer(_ context.Context, req *runtimeapi.RemoveContainerRequest, _ ...grpc.CallOption) (*runtimeapi.RemoveContainerResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.failing["RemoveContainer"]; err != nil {
		return nil, err
	}
	if c := r.containers[req.ContainerId]; c != nil {
		r.exit(c, 137)
		delete(r.containers, req.ContainerId)
	}
	return &runtimeapi.RemoveContainerResponse{}, nil
}

// ListContainers returns the containers that have the labels of the filter. Other filters are ignored.
func (r *Runtime) ListContainers(_ context.Context, req *runtimeapi.ListContainersRequest, _ ...grpc.CallOption) (*runtimeapi.ListContainersResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := &runtimeapi.ListContainersResponse{}
	for _, c := range r.containers {
		if matchesLabels(req.GetFilter().GetLabelSelector(), c.status.Labels) {
			out.Containers = append(out.Containers, &runtimeapi.Container{
				Id: c.status.Id, PodSandboxId: c.sandbox, Metadata: c.status.Metadata, Image: c.status.Image, ImageRef: c.status.ImageRef,
				State: c.status.State, CreatedAt: c.status.CreatedAt, Labels: c.status.Labels,
			})
		}
	}
	return out, nil
}

// ContainerStatus returns a copy of a container's status, or an error with the code NotFound.
func (r *Runtime) ContainerStatus(_ context.Context, req *runtimeapi.ContainerStatusRequest, _ ...grpc.CallOption) (*runtimeapi.ContainerStatusResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.containers[req.ContainerId]
	if c == nil {
		return nil, status.Error(codes.NotFound, "no such container")
	}
	s := c.status
	return &runtimeapi.ContainerStatusResponse{Status: &runtimeapi.ContainerStatus{
		Id: s.Id, Metadata: s.Metadata, State: s.State, CreatedAt: s.CreatedAt, StartedAt: s.StartedAt, FinishedAt: s.FinishedAt,
		ExitCode: s.ExitCode, Image: s.Image, ImageRef: s.ImageRef, Reason: s.Reason, Message: s.Message,
		Labels: maps.Clone(s.Labels), Annotations: s.Annotations, Mounts: s.Mounts, LogPath: s.LogPath,
	}}, nil
}

// UpdateContainerResources records the call with the container's ID. It changes nothing.
func (r *Runtime) UpdateContainerResources(_ context.Context, req *runtimeapi.UpdateContainerResourcesRequest, _ ...grpc.CallOption) (*runtimeapi.UpdateContainerResourcesResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return &runtimeapi.UpdateContainerResourcesResponse{}, r.recordCall("UpdateContainerResources", req.ContainerId)
}

// CheckpointContainer records the call with the container's ID. It writes no checkpoint.
func (r *Runtime) CheckpointContainer(_ context.Context, req *runtimeapi.CheckpointContainerRequest, _ ...grpc.CallOption) (*runtimeapi.CheckpointContainerResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return &runtimeapi.CheckpointContainerResponse{}, r.recordCall("CheckpointContainer", req.GetContainerId())
}

// ExecSync records the command and returns the exit code and the output that OnExec returns, or success
// without OnExec.
func (r *Runtime) ExecSync(_ context.Context, req *runtimeapi.ExecSyncRequest, _ ...grpc.CallOption) (*runtimeapi.ExecSyncResponse, error) {
	r.mu.Lock()
	_ = r.recordCall("ExecSync", fmt.Sprint(req.Cmd))
	exec := r.OnExec
	r.mu.Unlock()
	if exec == nil {
		return &runtimeapi.ExecSyncResponse{}, nil
	}
	code, out := exec(req.ContainerId, req.Cmd)
	return &runtimeapi.ExecSyncResponse{ExitCode: code, Stdout: []byte(out)}, nil
}

// GetContainerEvents returns a stream of the events from now on until ctx is done, or an error with the code
// Unimplemented if NoEvents is set.
func (r *Runtime) GetContainerEvents(ctx context.Context, _ *runtimeapi.GetEventsRequest, _ ...grpc.CallOption) (grpc.ServerStreamingClient[runtimeapi.ContainerEventResponse], error) {
	if r.NoEvents {
		return nil, status.Error(codes.Unimplemented, "no events")
	}
	ch := make(chan *runtimeapi.ContainerEventResponse, 1000)
	r.mu.Lock()
	r.listeners[ch] = true
	r.mu.Unlock()
	return &stream{ctx: ctx, ch: ch, close: func() {
		r.mu.Lock()
		delete(r.listeners, ch)
		r.mu.Unlock()
	}}, nil
}

// stream is an event stream of the fake runtime.
type stream struct {
	ctx   context.Context //nolint:containedctx // a stream of gRPC has one
	ch    chan *runtimeapi.ContainerEventResponse
	close func()
}

func (s *stream) Recv() (*runtimeapi.ContainerEventResponse, error) {
	select {
	case ev := <-s.ch:
		return ev, nil
	case <-s.ctx.Done():
		s.close()
		return nil, s.ctx.Err()
	}
}
func (s *stream) Header() (metadata.MD, error) { return nil, nil }
func (s *stream) Trailer() metadata.MD         { return nil }
func (s *stream) CloseSend() error             { return nil }
func (s *stream) Context() context.Context     { return s.ctx }
func (s *stream) SendMsg(any) error            { return io.EOF }
func (s *stream) RecvMsg(any) error            { return io.EOF }
