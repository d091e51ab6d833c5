//go:build cgo

package runtime

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"hyperkube/components/runtime/container"
	"hyperkube/components/runtime/images"
	"hyperkube/components/runtime/sandbox"
	"hyperkube/internal/host/layout"
)

// serviceAccountDir is the path in containers at which the kubelet mounts the service account token.
const serviceAccountDir = "/var/run/secrets/kubernetes.io/serviceaccount"

// specBuilder mounts the root and the image volumes of containers and builds their OCI runtime specifications.
type specBuilder struct {
	*host
	inventory *inventory
	images    *images.Store
	apparmor  container.AppArmor
	// cdiDirs are the directories of CDI files. Empty means the default directories.
	cdiDirs []string
	kubelet layout.Alias
}

// mountRoot mounts the container's root as an overlay. From bottom to top, it consists of the layer with common mount
// points (see images.Store.MountPoints), the image's layers and the container's writable layer.
func (b *specBuilder) mountRoot(c *containerState, pod sandboxRecord) error {
	dir, layers := b.containerDir(c.id), c.get().Layers
	overlay := container.Overlay{Upper: filepath.Join(dir, "upper"), Work: filepath.Join(dir, "work"), Target: b.containerRoot(c.id),
		UserNS: b.mappedUsers(c, pod), Label: c.get().Labels.ForMount()}
	for _, layer := range layers {
		overlay.Lower = append(overlay.Lower, b.images.LayerDir(layer))
	}
	return overlay.Mount()
}

// resolveMounts returns the mounts of the container's CRI configuration with a host directory as the source of
// each. Image volumes, which must be read-only, are mounted on the host first, unless again is true, which
// means that an earlier call for the same container has done it. If the root is read-only, writable directories
// are added for the volumes that the image declares. config is the configuration of the container's image.
func (b *specBuilder) resolveMounts(c *containerState, pod sandboxRecord, config images.Config, again bool) ([]*runtimeapi.Mount, error) {
	var out []*runtimeapi.Mount
	covered := map[string]bool{}
	for i, m := range c.get().config.GetMounts() {
		covered[filepath.Clean(m.GetContainerPath())] = true
		if m.GetImage().GetImage() == "" {
			out = append(out, m)
			continue
		}
		if !m.GetReadonly() {
			return nil, fmt.Errorf("failed to mount image volume at %q: image volumes must be read-only", m.GetContainerPath())
		}
		image, err := b.images.Verify(m.GetImage().GetImage())
		if err != nil {
			return nil, fmt.Errorf("failed to resolve image %q of a mount: %w", m.GetImage().GetImage(), err)
		}
		target := b.state("containers", c.id, fmt.Sprintf("image-%d", i))
		if !again {
			if err := b.mountImage(c, pod, image, target, i); err != nil {
				return nil, err
			}
		}
		source, err := container.ResolveInRoot(target, m.GetImageSubPath())
		if err != nil {
			return nil, fmt.Errorf("failed to mount image volume: subpath %q: %w", m.GetImageSubPath(), err)
		}
		m = proto.Clone(m).(*runtimeapi.Mount)
		m.HostPath, m.UidMappings, m.GidMappings = source, nil, nil // IDs were mapped when the image was mounted
		out = append(out, m)
	}
	// With a read-only root, the volumes declared by the image must be writable.
	if c.get().config.GetLinux().GetSecurityContext().GetReadonlyRootfs() {
		n := 0
		for path := range config.Volumes {
			if covered[filepath.Clean(path)] || !filepath.IsAbs(path) {
				continue
			}
			dir := filepath.Join(b.containerDir(c.id), "volumes", fmt.Sprint(n))
			n++
			if err := os.MkdirAll(dir, 0o755); err != nil {
				return nil, fmt.Errorf("creating volume: %w", err)
			}
			if err := b.selinux.Label(dir, c.get().Labels); err != nil {
				return nil, fmt.Errorf("creating volume: %w", err)
			}
			if u := b.mappedUsers(c, pod); u != nil {
				if err := os.Chown(dir, u.UID, u.GID); err != nil {
					return nil, fmt.Errorf("creating volume: %w", err)
				}
			}
			out = append(out, &runtimeapi.Mount{ContainerPath: path, HostPath: dir})
		}
	}
	return out, nil
}

// mappedUsers returns the ID mapping of the container's user namespace, or nil for the host's user
// namespace.
func (b *specBuilder) mappedUsers(c *containerState, pod sandboxRecord) *container.MappedUsers {
	u, err := userNS(pod.config)
	if err != nil || u == nil {
		return nil // it was validated when the sandbox was created
	}
	return &container.MappedUsers{
		File: fmt.Sprintf("/proc/%d/ns/user", pod.Process.PID), UID: u.HostUID, GID: u.HostGID,
		Dir: b.layersDir(c.id),
	}
}

// mountImage mounts the files of an image at target, as the image volume with index mount in the container's
// configuration. It first adds the image to the container's record, so that image garbage collection keeps it and the
// container status reports it.
func (b *specBuilder) mountImage(c *containerState, pod sandboxRecord, image *images.Image, target string, mount int) error {
	overlay := container.Overlay{Target: target, UserNS: b.mappedUsers(c, pod), Label: c.get().Labels.ForMount()}
	for _, layer := range image.Layers {
		overlay.Lower = append(overlay.Lower, b.images.LayerDir(layer))
	}
	err := c.change(func(rec *containerRecord) {
		rec.Layers = append(slices.Clone(rec.Layers), image.Layers...)
		rec.Volumes = append(slices.Clone(rec.Volumes), target)
		rec.config = proto.Clone(rec.config).(*runtimeapi.ContainerConfig)
		rec.config.Mounts[mount].Image.ImageRef = image.ID
		rec.Config = marshal(rec.config)
	})
	if err != nil {
		return err
	}
	return overlay.Mount()
}

// build returns the OCI runtime specification of a container. mounts are the result of resolveMounts. It returns an
// error if a debug container targets a container that does not run in the same sandbox.
func (b *specBuilder) build(c *containerState, pod sandboxRecord, image images.Config, mounts []*runtimeapi.Mount) (*specs.Spec, error) {
	hostname := pod.config.GetHostname()
	if hostNetwork(pod.config) || hostname == "" {
		var err error
		if hostname, err = os.Hostname(); err != nil {
			return nil, fmt.Errorf("reading the hostname: %w", err)
		}
	}
	rec := c.get()
	shm := b.shm(pod.ID)
	if hostIPC(pod.config) {
		shm = "/dev/shm"
	}
	in := container.Input{
		ID: c.id, Config: rec.config, Image: image, Rootfs: b.containerRoot(c.id), Mounts: mounts,
		Cgroup: rec.Cgroup, UnifiedCgroups: b.cgroups.Unified(),
		SandboxPID: pod.Process.PID, SandboxFiles: sandbox.PathsIn(b.sandboxDir(pod.ID)), SHM: shm, Hostname: hostname,
		UserNS:            b.mappedUsers(c, pod) != nil,
		SandboxPrivileged: pod.config.GetLinux().GetSecurityContext().GetPrivileged(), AppArmor: b.apparmor,
		CDIDirs: b.cdiDirs, Kubelet: b.kubelet,
	}
	if b.selinux != nil {
		in.Labels = rec.Labels
	}
	options := rec.config.GetLinux().GetSecurityContext().GetNamespaceOptions()
	if options.GetPid() == runtimeapi.NamespaceMode_TARGET {
		target, err := b.inventory.findContainer(options.GetTargetId())
		if err != nil {
			return nil, fmt.Errorf("invalid target container: %w", err)
		}
		other := target.get()
		if other.Sandbox != pod.ID || other.Phase != phaseRunning {
			return nil, fmt.Errorf("invalid target container %q: not running in this sandbox", options.GetTargetId())
		}
		in.TargetPID = other.Process.PID
	}
	return container.Build(in)
}
