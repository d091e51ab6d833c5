//go:build cgo

// Package runtime is the container runtime. It serves CRI v1 on a unix socket and manages images,
// sandboxes and containers. It runs in a dedicated process that is the parent of every container.
// When the process exits, containers keep running and the next runtime process adopts them.
//
// Two things let the next process continue with a container's streams. A holder is a small process
// that keeps the container's stdin or terminal open while no runtime runs. A spool is a file that
// buffers the container's output between the pipe and the log, so that no line is lost or repeated.
//
// Subpackages: images (pull, import, unpack), sandbox (namespaces and pod files), container
// (libcontainer), logs, and internal/host/process (pidfds). This package combines them to a CRI
// implementation. program is the main package, and launch starts it from the hyperkube binary.
//
// https://kubernetes.io/docs/concepts/architecture/cri/
package runtime

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"path/filepath"

	"hyperkube/components/runtime/images"
	"hyperkube/internal/host/layout"
	"hyperkube/internal/host/packetfilter"
)

// Config configures a runtime.
//
// Size: one field for each flag of the runtime's program.
type Config struct {
	// Root is the directory of images and containers, which persists across reboots. Its file
	// system must support overlayfs upper directories.
	Root string
	// State is the directory of state that does not outlive a reboot: mounts, FIFOs, addresses.
	State string
	// Socket is the path of the unix socket that serves CRI.
	Socket string
	// BuiltIn is the program in the root directory of the image named BuiltInImage. Both are empty
	// to disable it.
	BuiltIn, BuiltInImage string
	// Version is the runtime version to report if there is no built-in image.
	Version string
	// ImagesDir is a directory with archives (*.tar) to import at startup. Empty disables the
	// import.
	ImagesDir string
	// LinkPrefix is the name prefix of network links, at most four bytes.
	LinkPrefix string
	// PodCIDRs are used until UpdateRuntimeConfig sets others. If empty, the network is not ready
	// until then, because pods must not get addresses of another node.
	PodCIDRs []netip.Prefix
	// MTU of the pods' links. Zero means the MTU of the link with the default route.
	MTU int
	// CNIConfDir is the CNI configuration directory. If it contains a configuration, CNI plugins
	// connect new pods. CNIBinDirs are the directories of plugin binaries. Empty means the default
	// directories.
	CNIConfDir string
	CNIBinDirs []string
	// CgroupRoot is the parent cgroup of pods that do not specify one.
	CgroupRoot string
	// SlowCgroups disables favorDynamicCgroups, which changes how the kernel moves processes
	// between cgroups. It has no effect with cgroup v2.
	SlowCgroups bool
	// PacketFilter is how the rules of the pod network are written. Empty means packetfilter.IPTables.
	PacketFilter packetfilter.Mode
	// Journal is the path of the journal of host changes. Empty disables the journal.
	Journal string
	// StreamAddress is the listen address of exec, attach and port-forward. Port zero selects a
	// free port.
	StreamAddress string
	// Registries configures the access to image registries.
	Registries images.Registries
	// Handlers are additional runtime handlers for RuntimeClasses, by name.
	Handlers map[string]Handler
	// CDIDirs are the directories of CDI files (Container Device Interface). Later directories take
	// precedence. Empty means the default directories.
	CDIDirs []string
	// Kubelet contains the path of the kubelet's directory, and the path under which CDI files refer
	// to it because drivers in pods use that one.
	Kubelet layout.Alias
	// Log receives log messages. Nil means slog's default.
	Log *slog.Logger
}

// validate returns an error if a required field is missing or a value is not valid, and sets the defaults of empty
// fields.
func (c *Config) validate() error {
	for name, path := range map[string]string{"root": c.Root, "state": c.State, "socket": c.Socket} {
		if !filepath.IsAbs(path) {
			return fmt.Errorf("%s must be an absolute path, not %q", name, path)
		}
	}
	if (c.BuiltIn == "") != (c.BuiltInImage == "") {
		return errors.New("the built-in image needs both a program and a name")
	}
	if err := checkHandlers(c.Handlers); err != nil {
		return err
	}
	if c.LinkPrefix == "" {
		c.LinkPrefix = "hk"
	}
	if c.CNIConfDir == "" {
		c.CNIConfDir = "/etc/cni/net.d"
	}
	if len(c.CNIBinDirs) == 0 {
		c.CNIBinDirs = []string{"/opt/cni/bin", "/usr/lib/cni"}
	}
	if c.StreamAddress == "" {
		c.StreamAddress = "127.0.0.1:0"
	}
	if c.Log == nil {
		c.Log = slog.Default()
	}
	return nil
}
