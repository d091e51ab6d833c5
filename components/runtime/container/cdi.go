//go:build cgo

package container

import (
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"

	"hyperkube/components/runtime/cdi"
)

// applyCDI applies the edits of the CDI devices in the container's configuration to spec: environment variables, device
// nodes, mounts, hooks and groups. It returns an error if a device is not defined in the CDI files.
func applyCDI(in Input, spec *specs.Spec) error {
	var names []string
	for _, d := range in.Config.GetCDIDevices() {
		names = append(names, d.GetName())
	}
	edits, err := cdi.Resolve(names, in.CDIDirs)
	if err != nil {
		return fmt.Errorf("CDI device injection failed: %w", err)
	}
	for _, variable := range edits.Env {
		name, _, _ := strings.Cut(variable, "=")
		i := slices.IndexFunc(spec.Process.Env, func(v string) bool { return strings.HasPrefix(v, name+"=") })
		if i >= 0 {
			spec.Process.Env[i] = variable
		} else {
			spec.Process.Env = append(spec.Process.Env, variable)
		}
	}
	for _, node := range edits.DeviceNodes {
		if err := addDeviceNode(in, node, spec); err != nil {
			return fmt.Errorf("CDI device injection failed: %w", err)
		}
	}
	for _, m := range edits.Mounts {
		kind, options := m.Type, m.Options
		if kind == "" {
			kind = "bind"
		}
		if kind == "bind" && !slices.Contains(options, "bind") && !slices.Contains(options, "rbind") {
			options = append([]string{"rbind"}, options...)
		}
		spec.Mounts = slices.DeleteFunc(spec.Mounts, func(o specs.Mount) bool { return o.Destination == m.ContainerPath })
		spec.Mounts = append(spec.Mounts, specs.Mount{Destination: m.ContainerPath, Source: in.Kubelet.ToActual(m.HostPath), Type: kind, Options: options})
	}
	sortMounts(spec.Mounts)
	for _, h := range edits.Hooks {
		if spec.Hooks == nil {
			spec.Hooks = &specs.Hooks{}
		}
		hook := specs.Hook{Path: h.Path, Args: h.Args, Env: h.Env, Timeout: h.Timeout}
		switch h.HookName {
		case "prestart":
			spec.Hooks.Prestart = append(spec.Hooks.Prestart, hook) //nolint:staticcheck // vendors still use it
		case "createRuntime":
			spec.Hooks.CreateRuntime = append(spec.Hooks.CreateRuntime, hook)
		case "createContainer":
			spec.Hooks.CreateContainer = append(spec.Hooks.CreateContainer, hook)
		case "startContainer":
			spec.Hooks.StartContainer = append(spec.Hooks.StartContainer, hook)
		case "poststart":
			spec.Hooks.Poststart = append(spec.Hooks.Poststart, hook)
		}
	}
	for _, gid := range edits.AdditionalGIDs {
		if gid != 0 && !slices.Contains(spec.Process.User.AdditionalGids, gid) {
			spec.Process.User.AdditionalGids = append(spec.Process.User.AdditionalGids, gid)
		}
	}
	return nil
}

// addDeviceNode adds a device node of a CDI device to spec and allows access to it. The type, numbers and mode
// that the CDI file does not set are those of the device on the host; the owner is then the user of the
// container. It returns an error if the host has no such device or its type differs.
func addDeviceNode(in Input, node cdi.DeviceNode, spec *specs.Spec) error {
	device := specs.LinuxDevice{Path: node.Path, Type: node.Type, Major: node.Major, Minor: node.Minor, UID: node.UID, GID: node.GID}
	if node.FileMode != nil {
		mode := os.FileMode(*node.FileMode)
		device.FileMode = &mode
	}
	source := node.HostPath
	if source == "" {
		source = node.Path
	}
	if device.Type == "" || device.Major == 0 && device.Type != "p" {
		list, err := hostDevices(source, node.Path)
		if err != nil {
			return err
		}
		if len(list) != 1 {
			return fmt.Errorf("%s is not a device", source)
		}
		host := list[0]
		if device.Type != "" && device.Type != host.Type {
			return fmt.Errorf("%s is a device of type %q, not %q", source, host.Type, device.Type)
		}
		device.Type, device.Major, device.Minor = host.Type, host.Major, host.Minor
		if device.FileMode == nil {
			device.FileMode = host.FileMode
		}
	}
	// The user of the container gets access to the device.
	if device.UID == nil && spec.Process.User.UID > 0 {
		device.UID = &spec.Process.User.UID
	}
	if device.GID == nil && spec.Process.User.GID > 0 {
		device.GID = &spec.Process.User.GID
	}
	placeDevice(in, source, device, spec)
	if device.Type == "b" || device.Type == "c" {
		access := node.Permissions
		if access == "" {
			access = "rwm"
		}
		spec.Linux.Resources.Devices = append(spec.Linux.Resources.Devices,
			specs.LinuxDeviceCgroup{Allow: true, Type: device.Type, Major: &device.Major, Minor: &device.Minor, Access: access})
	}
	return nil
}
