package pods

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/ptr"

	"hyperkube/components/kubelet/pod/dnsconf"
	"hyperkube/components/kubelet/pod/env"
	"hyperkube/components/kubelet/pod/volume"
)

// mounts returns the mounts of a container: its volumes, /etc/hosts unless a volume is mounted there or the pod
// has no IP address, and the file of its termination message unless the path is empty. vars are the container's
// environment variables, which subPathExpr refers to. It creates the files and the subPath directories on the
// node. It returns an error if a volume is missing or a mount cannot be prepared; the container is then not
// created.
func (t *translator) mounts(pod *v1.Pod, c *v1.Container, in containerInput, vars map[string]string) ([]*runtimeapi.Mount, error) {
	var out []*runtimeapi.Mount
	podDir := t.volumes.PodDir(pod.UID)
	hosts := false
	var err error
	for i := range c.VolumeMounts {
		m := &c.VolumeMounts[i]
		v, ok := in.volumes[m.Name]
		if !ok {
			return nil, fmt.Errorf("cannot find volume %q to mount into container %q", m.Name, c.Name)
		}
		target := m.MountPath
		if !filepath.IsAbs(target) {
			target = filepath.Join("/", target)
		}
		hosts = hosts || target == "/etc/hosts"
		mount := &runtimeapi.Mount{
			ContainerPath: target, HostPath: v.Path, Readonly: m.ReadOnly || v.ReadOnly && (v.Image != nil || v.Persistent),
			Propagation: propagation(m.MountPropagation), SelinuxRelabel: v.Relabel,
		}
		if v.Device != "" {
			return nil, fmt.Errorf("volume %s has volumeMode Block, but is specified in volumeMounts", m.Name)
		}
		if mount.RecursiveReadOnly, err = t.recursive(pod, m); err != nil {
			return nil, err
		}
		sub := m.SubPath
		if m.SubPathExpr != "" {
			var missing []string
			sub = env.Expand(m.SubPathExpr, func(name string) (string, bool) {
				value, ok := vars[name]
				if value == "" {
					// An empty variable would mount the root of the volume.
					missing = append(missing, name)
				}
				return value, ok
			})
			if len(missing) > 0 {
				return nil, fmt.Errorf("missing value for %q", missing[0])
			}
		}
		if v.Image != nil {
			ref := v.Image.Reference
			mount.HostPath, mount.Image, mount.ImageSubPath = "", &runtimeapi.ImageSpec{Image: ref, UserSpecifiedImage: ref}, sub
			out = append(out, mount)
			continue
		}
		if sub != "" {
			path, err := t.volumes.SubPath(podDir, m.Name, v.Path, sub, c.Name, i)
			if err != nil {
				return nil, fmt.Errorf("failed to prepare subPath for volumeMount %q of container %q: %w", m.Name, c.Name, err)
			}
			mount.HostPath = path
		}
		out = append(out, mount)
	}
	if !hosts && (pod.Spec.HostNetwork || len(in.ips) > 0) {
		path := filepath.Join(podDir, "etc-hosts")
		if err := t.writeHosts(path, pod, in.ips); err != nil {
			return nil, err
		}
		out = append(out, &runtimeapi.Mount{ContainerPath: "/etc/hosts", HostPath: path, SelinuxRelabel: t.volumes.SELinux})
	}
	if c.TerminationMessagePath != "" {
		path, err := makeMessageFile(filepath.Join(podDir, "containers", c.Name))
		if err != nil {
			return nil, fmt.Errorf("creating the termination message file: %w", err)
		}
		out = append(out, &runtimeapi.Mount{ContainerPath: c.TerminationMessagePath, HostPath: path, SelinuxRelabel: t.volumes.SELinux})
	}
	users, err := t.userNamespace(pod)
	if err != nil {
		return nil, err
	}
	for _, m := range out {
		// Map the host's root user to the pod's root user in its mounts. The runtime maps images.
		if users != nil && m.Image == nil {
			m.UidMappings, m.GidMappings = users.Uids, users.Gids
		}
	}
	return out, nil
}

// writeHosts writes the pod's hosts file if its content has changed. Other containers of the pod
// may have it mounted and be reading it, so it is not replaced unnecessarily.
func (t *translator) writeHosts(path string, pod *v1.Pod, ips []string) error {
	host, domain, err := dnsconf.Hostname(pod, t.node.DNS.ClusterDomain)
	if err != nil {
		return err
	}
	raw, err := dnsconf.Hosts(pod, ips, host, domain, "/etc/hosts")
	if err != nil {
		return err
	}
	if have, err := os.ReadFile(path); err != nil || !bytes.Equal(have, raw) {
		if err := os.WriteFile(path, raw, 0o644); err != nil {
			return fmt.Errorf("writing hosts file: %w", err)
		}
	}
	if err := os.Chmod(path, 0o644); err != nil {
		return fmt.Errorf("writing hosts file: %w", err)
	}
	return nil
}

// makeMessageFile creates the directory dir and, in it, an empty file with a random name, to which every user
// can write the termination message. It returns the path of the file.
func makeMessageFile(dir string) (string, error) {
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return "", err
	}
	var suffix [4]byte
	if _, err := rand.Read(suffix[:]); err != nil {
		return "", err
	}
	path := filepath.Join(dir, hex.EncodeToString(suffix[:]))
	if err := os.WriteFile(path, nil, 0o666); err != nil {
		return "", err
	}
	return path, os.Chmod(path, 0o666)
}

// volumeDevices returns the devices of the container's block volumes. volumes are the pod's volumes by name.
// It returns an error if one is missing or is not a block volume.
func volumeDevices(c *v1.Container, volumes map[string]volume.Result) ([]*runtimeapi.Device, error) {
	var out []*runtimeapi.Device
	for _, d := range c.VolumeDevices {
		v, ok := volumes[d.Name]
		if !ok || v.Device == "" {
			return nil, fmt.Errorf("cannot find volume %q to pass into container %q", d.Name, c.Name)
		}
		access := "mrw"
		if v.ReadOnly {
			access = "r"
		}
		out = append(out, &runtimeapi.Device{HostPath: v.Device, ContainerPath: d.DevicePath, Permissions: access})
	}
	return out, nil
}

// recursive reports whether mounts below the read-only mount m are also read-only. It returns an error if m
// requires that (recursiveReadOnly: Enabled) but the runtime or the mount propagation does not permit it.
//
// https://kubernetes.io/docs/concepts/storage/volumes/#recursive-read-only-mounts
func (t *translator) recursive(pod *v1.Pod, m *v1.VolumeMount) (bool, error) {
	if !m.ReadOnly || m.RecursiveReadOnly == nil || *m.RecursiveReadOnly == v1.RecursiveReadOnlyDisabled {
		return false, nil
	}
	able := false
	if node := t.node.Object(); node != nil {
		handler := ""
		if pod.Spec.RuntimeClassName != nil {
			handler = *pod.Spec.RuntimeClassName
		}
		able = supportsRecursive(node, handler)
	}
	if m.MountPropagation != nil && *m.MountPropagation != v1.MountPropagationNone {
		if *m.RecursiveReadOnly == v1.RecursiveReadOnlyEnabled {
			return false, fmt.Errorf("failed to resolve recursive read-only mode: volume %q requested recursive read-only mode, but it is not compatible with propagation %q", m.Name, *m.MountPropagation)
		}
		return false, nil
	}
	if !able && *m.RecursiveReadOnly == v1.RecursiveReadOnlyEnabled {
		return false, fmt.Errorf("failed to resolve recursive read-only mode: volume %q requested recursive read-only mode, but it is not supported by the runtime", m.Name)
	}
	return able, nil
}

// supportsRecursive reports whether a runtime handler of the node supports recursive read-only mounts. An
// unknown handler is assumed to support what the default handler supports.
func supportsRecursive(node *v1.Node, handler string) bool {
	fallback := false
	for _, r := range node.Status.RuntimeHandlers {
		can := r.Features != nil && ptr.Deref(r.Features.RecursiveReadOnlyMounts, false)
		if r.Name == handler {
			return can
		}
		fallback = fallback || can && r.Name == ""
	}
	return fallback
}

// propagation converts the mount propagation of a volume mount to the CRI's. Nil means private.
func propagation(p *v1.MountPropagationMode) runtimeapi.MountPropagation {
	if p == nil {
		return runtimeapi.MountPropagation_PROPAGATION_PRIVATE
	}
	switch *p {
	case v1.MountPropagationHostToContainer:
		return runtimeapi.MountPropagation_PROPAGATION_HOST_TO_CONTAINER
	case v1.MountPropagationBidirectional:
		return runtimeapi.MountPropagation_PROPAGATION_BIDIRECTIONAL
	}
	return runtimeapi.MountPropagation_PROPAGATION_PRIVATE
}
