//go:build cgo

package runtime

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"hyperkube/components/runtime/container"
	"hyperkube/components/runtime/images"
	"hyperkube/components/runtime/logs"
	"hyperkube/internal/host/process"
)

// containerState is a container that this process manages.
type containerState struct {
	id, sandbox string

	// lifecycleMu is locked while the container is started, stopped or removed.
	lifecycleMu sync.Mutex
	diskUsage   diskSample

	mu     sync.Mutex // guards the fields below
	record containerRecord
	// spec is kept from creation to start. It is nil after a restart of the runtime, which builds
	// it again.
	spec *specs.Spec
	live *liveContainer // nil unless it runs
	cpu  cpuSample
}

func (c *containerState) get() containerRecord {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.record
}

func (c *containerState) running() *liveContainer {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.live
}

func (r *Runtime) containerDir(id string) string { return r.path("containers", id) }

// layersDir is the directory of temporary layer mounts, see container.MappedUsers.
func (r *Runtime) layersDir(id string) string     { return r.state("containers", id, "layers") }
func (r *Runtime) containerRoot(id string) string { return r.state("containers", id, "rootfs") }

func (r *Runtime) changeContainer(c *containerState, f func(*containerRecord)) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	next := c.record
	f(&next)
	if err := save(r.containerDir(c.id), &next); err != nil {
		return err
	}
	c.record = next
	return nil
}

// recordContainerExit updates the record after the container has exited. If the record cannot be written,
// for example because the disk is full, it is updated in memory only, so that callers see the exit.
// After a restart, the runtime detects the exit again.
func (r *Runtime) recordContainerExit(c *containerState, f func(*containerRecord)) {
	if err := r.changeContainer(c, f); err != nil {
		r.log.Error("recording container exit failed", "container", c.id, "err", err)
		c.mu.Lock()
		defer c.mu.Unlock()
		f(&c.record)
	}
}

func cloneSandboxConfig(c *runtimeapi.PodSandboxConfig) *runtimeapi.PodSandboxConfig {
	return proto.Clone(c).(*runtimeapi.PodSandboxConfig)
}

func containerName(m *runtimeapi.ContainerMetadata, pod *runtimeapi.PodSandboxMetadata) string {
	return strings.Join([]string{m.GetName(), pod.GetName(), pod.GetNamespace(), pod.GetUid(), fmt.Sprint(m.GetAttempt())}, "_")
}

func (r *Runtime) findContainer(id string) (*containerState, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return find("container", r.containers, id)
}

// CreateContainer validates the request and creates the root of a container.
func (r *Runtime) CreateContainer(ctx context.Context, req *runtimeapi.CreateContainerRequest) (*runtimeapi.CreateContainerResponse, error) {
	config := req.GetConfig()
	if config.GetMetadata().GetName() == "" {
		return nil, errors.New("container metadata has no name")
	}
	s, err := r.findSandbox(req.GetPodSandboxId())
	if err != nil {
		return nil, fmt.Errorf("failed to find sandbox id %q: %w", req.GetPodSandboxId(), err)
	}
	pod := s.get()
	if pod.Phase != phaseRunning {
		return nil, fmt.Errorf("sandbox container %q is not running", pod.ID)
	}
	defer r.images.Hold()()
	image, err := r.images.Verify(config.GetImage().GetImage())
	if err != nil {
		return nil, fmt.Errorf("failed to resolve image %q: %w", config.GetImage().GetImage(), err)
	}
	points, err := r.images.MountPoints(ctx, slices.ContainsFunc(config.GetMounts(), func(m *runtimeapi.Mount) bool {
		return filepath.Clean(m.GetContainerPath()) == serviceAccountDir
	}))
	if err != nil {
		return nil, err
	}
	id, name := newID(), containerName(config.GetMetadata(), pod.config.GetMetadata())
	if made, err := r.reserve(ctx, "container", name, id, req); err != nil {
		return nil, err
	} else if made != "" {
		return &runtimeapi.CreateContainerResponse{ContainerId: made}, nil
	}
	labels, err := r.selinux.Container(pod.Labels, config.GetLinux().GetSecurityContext())
	if err != nil {
		r.release("container", name)
		return nil, err
	}
	c := &containerState{id: id, sandbox: pod.ID, record: containerRecord{
		ID: id, Sandbox: pod.ID, Boot: r.boot, Phase: phaseCreating, Created: time.Now().UnixNano(),
		ImageID: image.ID, ImageRef: imageRef(image), Layers: slices.Concat([]string{points}, image.Layers),
		Cgroup: filepath.Join(r.podCgroup(pod.config), id), Handler: pod.Handler,
		LogPath: logs.Path(pod.config.GetLogDirectory(), config.GetLogPath()),
		Labels:  labels, Config: marshal(config), config: config, StopSignal: stopSignal(config, image.Config),
	}}
	if err := r.setUpContainer(c, pod, image); err != nil {
		if undoErr := r.tearDownContainer(context.WithoutCancel(ctx), c); undoErr != nil {
			r.log.Warn("cleanup after unsuccessful container creation failed", "container", id, "err", undoErr)
		}
		r.selinux.Release(labels)
		r.release("container", name)
		return nil, err
	}
	r.mu.Lock()
	if r.sandboxes[pod.ID] != s {
		r.mu.Unlock()
		_ = r.tearDownContainer(context.WithoutCancel(ctx), c)
		r.selinux.Release(labels)
		r.release("container", name)
		return nil, fmt.Errorf("sandbox %q was removed: %w", pod.ID, errNotFound)
	}
	r.containers[id] = c
	r.markCreated("container", name)
	r.mu.Unlock()
	r.emit(id, runtimeapi.ContainerEventType_CONTAINER_CREATED_EVENT, s)
	return &runtimeapi.CreateContainerResponse{ContainerId: id}, nil
}

func imageRef(image *images.Image) string {
	if len(image.Digests) > 0 {
		return image.Digests[0]
	}
	return image.ID
}

func (r *Runtime) setUpContainer(c *containerState, pod sandboxRecord, image *images.Image) error {
	dir := r.containerDir(c.id)
	if err := os.Mkdir(dir, 0o711); err != nil {
		return fmt.Errorf("creating the container's directory: %w", err)
	}
	if err := r.changeContainer(c, func(*containerRecord) {}); err != nil {
		return err
	}
	if err := os.Mkdir(r.state("containers", c.id), 0o711); err != nil {
		return fmt.Errorf("creating the container's directory: %w", err)
	}
	prepared := make(chan error, 1)
	go func(cgroup string) { prepared <- r.engineOf(c.record).Prepare(cgroup) }(c.record.Cgroup)
	if err := errors.Join(r.mountRoot(c, pod), <-prepared); err != nil {
		return err
	}
	mounts, err := r.resolveMounts(c, pod, image.Config, false)
	if err != nil {
		return err
	}
	if err := r.label(pod, c.get().Labels, mounts); err != nil {
		return err
	}
	spec, err := r.buildSpec(c, pod, image.Config, mounts)
	if err != nil {
		return fmt.Errorf("failed to generate container %q spec: %w", c.id, err)
	}
	c.spec = spec
	return r.changeContainer(c, func(rec *containerRecord) {
		rec.Phase = phaseCreated
		rec.User = &user{UID: int64(spec.Process.User.UID), GID: int64(spec.Process.User.GID)}
		for _, g := range spec.Process.User.AdditionalGids {
			rec.User.Groups = append(rec.User.Groups, int64(g))
		}
	})
}

// tearDownContainer kills and deletes all resources of a container, whether it has run or not. It is
// idempotent.
func (r *Runtime) tearDownContainer(ctx context.Context, c *containerState) error {
	rec := c.get()
	errs := []error{r.engineOf(rec).KillAll(rec.Cgroup), r.engineOf(rec).Delete(ctx, c.id, rec.Cgroup), r.unmount(c)}
	if h, err := process.Open(rec.Holder.PID, rec.Holder.Start); err == nil {
		killHolder(h)
	}
	r.releaseOutput(c)
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return errors.Join(os.RemoveAll(r.state("containers", c.id)), os.RemoveAll(r.containerDir(c.id)))
}

// unmount unmounts all mounts of a container.
func (r *Runtime) unmount(c *containerState) error {
	rec := c.get()
	errs := []error{container.UnmountIn(r.layersDir(c.id)), container.Unmount(r.containerRoot(c.id))}
	for _, volume := range rec.Volumes {
		errs = append(errs, container.Unmount(volume))
	}
	return errors.Join(errs...)
}

// RemoveContainer removes a container, running or not. It is not an error if the container does not
// exist.
func (r *Runtime) RemoveContainer(ctx context.Context, req *runtimeapi.RemoveContainerRequest) (*runtimeapi.RemoveContainerResponse, error) {
	c, err := r.findContainer(req.GetContainerId())
	if errors.Is(err, errNotFound) {
		return &runtimeapi.RemoveContainerResponse{}, nil
	}
	if err != nil {
		return nil, err
	}
	if err := r.removeContainer(ctx, c); err != nil {
		return nil, err
	}
	return &runtimeapi.RemoveContainerResponse{}, nil
}

func (r *Runtime) removeContainer(ctx context.Context, c *containerState) error {
	for {
		if err := r.stopContainer(ctx, c, 0); err != nil {
			return fmt.Errorf("failed to forcibly stop container %q: %w", c.id, err)
		}
		c.lifecycleMu.Lock()
		if c.running() == nil {
			break
		}
		c.lifecycleMu.Unlock() // it was started in the meantime
	}
	defer c.lifecycleMu.Unlock()
	r.mu.Lock()
	_, known := r.containers[c.id]
	r.mu.Unlock()
	if !known {
		return nil
	}
	if err := r.tearDownContainer(ctx, c); err != nil {
		return fmt.Errorf("failed to remove container %q: %w", c.id, err)
	}
	s, _ := r.findSandbox(c.sandbox)
	r.mu.Lock()
	delete(r.containers, c.id)
	r.selinux.Release(c.get().Labels)
	if s != nil {
		delete(r.names, "container"+containerName(c.get().config.GetMetadata(), s.get().config.GetMetadata()))
	}
	r.mu.Unlock()
	r.emit(c.id, runtimeapi.ContainerEventType_CONTAINER_DELETED_EVENT, s)
	return nil
}

func containerPhase(p phase) runtimeapi.ContainerState {
	switch p {
	case phaseRunning:
		return runtimeapi.ContainerState_CONTAINER_RUNNING
	case phaseExited:
		return runtimeapi.ContainerState_CONTAINER_EXITED
	}
	return runtimeapi.ContainerState_CONTAINER_CREATED
}

// containerStatus returns the CRI status of a container.
func containerStatus(rec containerRecord) *runtimeapi.ContainerStatus {
	st := &runtimeapi.ContainerStatus{
		Id: rec.ID, Metadata: rec.config.GetMetadata(), State: containerPhase(rec.Phase),
		CreatedAt: rec.Created, StartedAt: rec.Started, FinishedAt: rec.Finished, ExitCode: rec.ExitCode,
		Image: rec.config.GetImage(), ImageRef: rec.ImageRef, ImageId: rec.ImageID, Reason: rec.Reason, Message: rec.Message,
		Labels: rec.config.GetLabels(), Annotations: rec.config.GetAnnotations(), Mounts: rec.config.GetMounts(), LogPath: rec.LogPath,
		StopSignal: signalNumber(rec.StopSignal),
	}
	if l := rec.config.GetLinux().GetResources(); l != nil {
		st.Resources = &runtimeapi.ContainerResources{Linux: l}
	}
	if rec.User != nil {
		st.User = &runtimeapi.ContainerUser{Linux: &runtimeapi.LinuxContainerUser{Uid: rec.User.UID, Gid: rec.User.GID, SupplementalGroups: rec.User.Groups}}
	}
	return st
}

// ContainerStatus implements CRI.
func (r *Runtime) ContainerStatus(_ context.Context, req *runtimeapi.ContainerStatusRequest) (*runtimeapi.ContainerStatusResponse, error) {
	c, err := r.findContainer(req.GetContainerId())
	if err != nil {
		return nil, err
	}
	resp := &runtimeapi.ContainerStatusResponse{Status: containerStatus(c.get())}
	if req.GetVerbose() {
		resp.Info, err = encodeVerbose(r.containerInfo(c))
	}
	return resp, err
}

// ListContainers lists the containers that match the filter, newest first.
func (r *Runtime) ListContainers(_ context.Context, req *runtimeapi.ListContainersRequest) (*runtimeapi.ListContainersResponse, error) {
	return &runtimeapi.ListContainersResponse{Containers: r.listContainers(req.GetFilter())}, nil
}

func (r *Runtime) listContainers(filter *runtimeapi.ContainerFilter) []*runtimeapi.Container {
	var items []*runtimeapi.Container
	for _, c := range r.allContainers() {
		rec := c.get()
		if !strings.HasPrefix(rec.ID, filter.GetId()) || !strings.HasPrefix(rec.Sandbox, filter.GetPodSandboxId()) ||
			!labelsMatch(filter.GetLabelSelector(), rec.config.GetLabels()) ||
			filter.GetState() != nil && filter.GetState().GetState() != containerPhase(rec.Phase) {
			continue
		}
		items = append(items, &runtimeapi.Container{
			Id: rec.ID, PodSandboxId: rec.Sandbox, Metadata: rec.config.GetMetadata(), Image: rec.config.GetImage(),
			ImageRef: rec.ImageRef, ImageId: rec.ImageID, State: containerPhase(rec.Phase), CreatedAt: rec.Created,
			Labels: rec.config.GetLabels(), Annotations: rec.config.GetAnnotations(),
		})
	}
	slices.SortFunc(items, func(a, b *runtimeapi.Container) int { return int(b.CreatedAt - a.CreatedAt) })
	return items
}

func (r *Runtime) allContainers() []*containerState {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := make([]*containerState, 0, len(r.containers))
	for _, c := range r.containers {
		all = append(all, c)
	}
	return all
}

// UpdateContainerResources changes the limits of a container: immediately if it runs, else for its
// start.
func (r *Runtime) UpdateContainerResources(_ context.Context, req *runtimeapi.UpdateContainerResourcesRequest) (*runtimeapi.UpdateContainerResourcesResponse, error) {
	c, err := r.findContainer(req.GetContainerId())
	if err != nil {
		return nil, err
	}
	c.lifecycleMu.Lock()
	defer c.lifecycleMu.Unlock()
	rec := c.get()
	switch rec.Phase {
	case phaseRunning:
		if err := r.engineOf(rec).Update(c.id, req.GetLinux()); err != nil {
			return nil, err
		}
	case phaseExited:
		return nil, fmt.Errorf("container %q has exited", c.id)
	}
	err = r.changeContainer(c, func(rec *containerRecord) {
		config := proto.Clone(rec.config).(*runtimeapi.ContainerConfig)
		if config.Linux == nil {
			config.Linux = &runtimeapi.LinuxContainerConfig{}
		}
		merged := &runtimeapi.LinuxContainerResources{}
		if config.Linux.Resources != nil {
			merged = config.Linux.Resources
		}
		// Zero values mean "unchanged", which matches the semantics of Merge, except for lists.
		if len(req.GetLinux().GetHugepageLimits()) > 0 {
			merged.HugepageLimits = nil
		}
		proto.Merge(merged, req.GetLinux())
		config.Linux.Resources = merged
		rec.config, rec.Config = config, marshal(config)
	})
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	if c.record.Phase != phaseRunning {
		c.spec = nil // built again with the new limits
	}
	c.mu.Unlock()
	return &runtimeapi.UpdateContainerResourcesResponse{}, nil
}
