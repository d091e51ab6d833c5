//go:build cgo

package runtime

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"hyperkube/components/runtime/container"
	"hyperkube/components/runtime/images"
	"hyperkube/components/runtime/logs"
	"hyperkube/internal/host/process"
)

func cloneSandboxConfig(c *runtimeapi.PodSandboxConfig) *runtimeapi.PodSandboxConfig {
	return proto.Clone(c).(*runtimeapi.PodSandboxConfig)
}

// containerService implements the CRI calls that create, start, stop, update, remove and list containers.
type containerService struct {
	*host
	inventory  *inventory
	events     *eventService
	engines    *engines
	images     *images.Store
	specs      *specBuilder
	stdio      *stdioFiles
	background *background
}

// CreateContainer creates a container in a running sandbox: it mounts the container's root, builds its OCI
// specification and stores its record. The program is not started; see StartContainer. If the same request is already
// in progress, it waits and returns the same container.
func (cs *containerService) CreateContainer(ctx context.Context, req *runtimeapi.CreateContainerRequest) (*runtimeapi.CreateContainerResponse, error) {
	config := req.GetConfig()
	if config.GetMetadata().GetName() == "" {
		return nil, errors.New("container metadata has no name")
	}
	s, err := cs.inventory.findSandbox(req.GetPodSandboxId())
	if err != nil {
		return nil, fmt.Errorf("failed to find sandbox id %q: %w", req.GetPodSandboxId(), err)
	}
	pod := s.get()
	if pod.Phase != phaseRunning {
		return nil, fmt.Errorf("sandbox container %q is not running", pod.ID)
	}
	defer cs.images.Hold()()
	image, err := cs.images.Verify(config.GetImage().GetImage())
	if err != nil {
		return nil, fmt.Errorf("failed to resolve image %q: %w", config.GetImage().GetImage(), err)
	}
	points, err := cs.images.MountPoints(ctx, slices.ContainsFunc(config.GetMounts(), func(m *runtimeapi.Mount) bool {
		return filepath.Clean(m.GetContainerPath()) == serviceAccountDir
	}))
	if err != nil {
		return nil, err
	}
	id, name := newID(), containerName(config.GetMetadata(), pod.config.GetMetadata())
	if made, err := cs.inventory.reserve(ctx, "container", name, id, req); err != nil {
		return nil, err
	} else if made != "" {
		return &runtimeapi.CreateContainerResponse{ContainerId: made}, nil
	}
	labels, err := cs.selinux.Container(pod.Labels, config.GetLinux().GetSecurityContext())
	if err != nil {
		cs.inventory.release("container", name)
		return nil, err
	}
	c := &containerState{id: id, sandbox: pod.ID, dir: cs.containerDir(id), record: containerRecord{
		ID: id, Sandbox: pod.ID, Boot: cs.boot, Phase: phaseCreating, Created: time.Now().UnixNano(),
		ImageID: image.ID, ImageRef: imageRef(image), Layers: slices.Concat([]string{points}, image.Layers),
		Cgroup: filepath.Join(cs.podCgroup(pod.config), id), Handler: pod.Handler,
		LogPath: logs.Path(pod.config.GetLogDirectory(), config.GetLogPath()),
		Labels:  labels, Config: marshal(config), config: config, StopSignal: stopSignal(config, image.Config),
	}}
	if err := cs.setUp(c, pod, image); err != nil {
		if undoErr := cs.tearDown(context.WithoutCancel(ctx), c); undoErr != nil {
			cs.log.Warn("cleanup after failed creation of container failed; its mounts or cgroup may remain until a retry at the next start of the container runtime, the kubelet creates another container", "containerID", id, "podSandboxID", pod.ID, "err", undoErr)
		}
		cs.selinux.Release(labels)
		cs.inventory.release("container", name)
		return nil, err
	}
	if !cs.inventory.addContainer(c, s, name) {
		_ = cs.tearDown(context.WithoutCancel(ctx), c)
		cs.selinux.Release(labels)
		cs.inventory.release("container", name)
		return nil, fmt.Errorf("sandbox %q was removed: %w", pod.ID, errNotFound)
	}
	cs.events.emit(id, runtimeapi.ContainerEventType_CONTAINER_CREATED_EVENT, s)
	return &runtimeapi.CreateContainerResponse{ContainerId: id}, nil
}

// imageRef returns the image reference for the container status: a digest of the image's manifest, or the image ID if
// the image has no digest.
func imageRef(image *images.Image) string {
	if len(image.Digests) > 0 {
		return image.Digests[0]
	}
	return image.ID
}

// setUp creates the directories, mounts, cgroups and OCI specification of a new container, and writes to disk that
// the container is created. pod is the record of its sandbox. If it returns an error, the caller must call
// tearDown.
func (cs *containerService) setUp(c *containerState, pod sandboxRecord, image *images.Image) error {
	dir := cs.containerDir(c.id)
	if err := os.Mkdir(dir, 0o711); err != nil {
		return fmt.Errorf("creating the container's directory: %w", err)
	}
	if err := c.change(func(*containerRecord) {}); err != nil {
		return err
	}
	if err := os.Mkdir(cs.state("containers", c.id), 0o711); err != nil {
		return fmt.Errorf("creating the container's directory: %w", err)
	}
	prepared := make(chan error, 1)
	go func(cgroup string) { prepared <- cs.engines.of(c.record).Prepare(cgroup) }(c.record.Cgroup)
	if err := errors.Join(cs.specs.mountRoot(c, pod), <-prepared); err != nil {
		return err
	}
	mounts, err := cs.specs.resolveMounts(c, pod, image.Config, false)
	if err != nil {
		return err
	}
	if err := cs.specs.label(pod, c.get().Labels, mounts); err != nil {
		return err
	}
	spec, err := cs.specs.build(c, pod, image.Config, mounts)
	if err != nil {
		return fmt.Errorf("failed to generate container %q spec: %w", c.id, err)
	}
	c.spec = spec
	return c.change(func(rec *containerRecord) {
		rec.Phase = phaseCreated
		rec.User = &user{UID: int64(spec.Process.User.UID), GID: int64(spec.Process.User.GID)}
		for _, g := range spec.Process.User.AdditionalGids {
			rec.User.Groups = append(rec.User.Groups, int64(g))
		}
	})
}

// tearDown kills the processes of a container and deletes all its resources and its record, whether it has run or not.
// It is idempotent. After an error the record is still on disk, so that the removal can be repeated.
func (cs *containerService) tearDown(ctx context.Context, c *containerState) error {
	rec := c.get()
	errs := []error{cs.engines.of(rec).KillAll(rec.Cgroup), cs.engines.of(rec).Delete(ctx, c.id, rec.Cgroup), cs.unmount(c)}
	if h, err := process.Open(rec.Holder.PID, rec.Holder.Start); err == nil {
		killHolder(h)
	}
	cs.stdio.releaseOutput(c)
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return errors.Join(os.RemoveAll(cs.state("containers", c.id)), os.RemoveAll(cs.containerDir(c.id)))
}

// unmount unmounts the container's root, its image volumes and temporary layer mounts.
func (cs *containerService) unmount(c *containerState) error {
	rec := c.get()
	errs := []error{container.UnmountIn(cs.layersDir(c.id)), container.Unmount(cs.containerRoot(c.id))}
	for _, volume := range rec.Volumes {
		errs = append(errs, container.Unmount(volume))
	}
	return errors.Join(errs...)
}

// RemoveContainer removes a container, running or not. It is not an error if the container does not
// exist.
func (cs *containerService) RemoveContainer(ctx context.Context, req *runtimeapi.RemoveContainerRequest) (*runtimeapi.RemoveContainerResponse, error) {
	c, err := cs.inventory.findContainer(req.GetContainerId())
	if errors.Is(err, errNotFound) {
		return &runtimeapi.RemoveContainerResponse{}, nil
	}
	if err != nil {
		return nil, err
	}
	if err := cs.remove(ctx, c); err != nil {
		return nil, err
	}
	return &runtimeapi.RemoveContainerResponse{}, nil
}

// remove kills a container if it runs, and deletes it. It does nothing if another call has removed the container in the
// meantime.
func (cs *containerService) remove(ctx context.Context, c *containerState) error {
	for {
		if err := cs.stop(ctx, c, 0); err != nil {
			return fmt.Errorf("failed to forcibly stop container %q: %w", c.id, err)
		}
		c.lifecycleMu.Lock()
		if c.running() == nil {
			break
		}
		c.lifecycleMu.Unlock() // it was started in the meantime
	}
	defer c.lifecycleMu.Unlock()
	if !cs.inventory.hasContainer(c.id) {
		return nil
	}
	if err := cs.tearDown(ctx, c); err != nil {
		return fmt.Errorf("failed to remove container %q: %w", c.id, err)
	}
	s, _ := cs.inventory.findSandbox(c.sandbox)
	cs.inventory.forgetContainer(c, s)
	cs.selinux.Release(c.get().Labels)
	cs.events.emit(c.id, runtimeapi.ContainerEventType_CONTAINER_DELETED_EVENT, s)
	return nil
}

// UpdateContainerResources changes the resource limits of a container. Zero values in the request leave a limit
// unchanged. If the container runs, the limits apply immediately; if it is created, they apply to its start. An exited
// container is an error.
func (cs *containerService) UpdateContainerResources(_ context.Context, req *runtimeapi.UpdateContainerResourcesRequest) (*runtimeapi.UpdateContainerResourcesResponse, error) {
	c, err := cs.inventory.findContainer(req.GetContainerId())
	if err != nil {
		return nil, err
	}
	c.lifecycleMu.Lock()
	defer c.lifecycleMu.Unlock()
	rec := c.get()
	switch rec.Phase {
	case phaseRunning:
		if err := cs.engines.of(rec).Update(c.id, req.GetLinux()); err != nil {
			return nil, err
		}
	case phaseExited:
		return nil, fmt.Errorf("container %q has exited", c.id)
	}
	err = c.change(func(rec *containerRecord) {
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
