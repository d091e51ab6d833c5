//go:build cgo

// Package runtime is the container runtime: CRI v1 on a unix socket, over
// images, sandboxes and containers that it keeps itself. It is a process of
// its own, the parent of every container; when it is gone, containers live on
// and its successor adopts them.
//
// The tour: images (pull, import, unpack), sandbox (namespaces and the pod's
// files), container (libcontainer), logs, process (pidfds); this package joins
// them behind CRI. program is the main package, launch starts it from the one
// binary.
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
	"hyperkube/internal/layout"
)

// Config says where a runtime keeps its things and how it works.
type Config struct {
	// Root holds images and containers across reboots; it must be able to
	// hold the upper folders of overlays.
	Root string
	// State holds what a reboot ends: mounts, FIFOs, addresses.
	State string
	// Socket is the path of the unix socket that CRI is served on.
	Socket string
	// BuiltIn is the program that is the root of the image named
	// BuiltInImage; both empty for none.
	BuiltIn, BuiltInImage string
	// Version is told of, where there is no built-in image that has one.
	Version string
	// ImagesDir holds archives, *.tar, that are imported at the start; empty
	// for none.
	ImagesDir string
	// LinkPrefix begins the names of network links, at most four bytes.
	LinkPrefix string
	// PodCIDRs are used until UpdateRuntimeConfig brings others. Where there are
	// none, the network is not ready until then: pods of a node of several must not
	// get addresses of another's.
	PodCIDRs []netip.Prefix
	// MTU of the pods' links; zero for that of the default route's link.
	MTU int
	// CNIConfDir is where a configuration of network plugins may be; while there
	// is one, they connect new pods. CNIBinDirs are where the plugins are. Empty:
	// the usual places.
	CNIConfDir string
	CNIBinDirs []string
	// CgroupRoot is the cgroup below which pods are that name none.
	CgroupRoot string
	// SlowCgroups leaves the kernel's way of moving processes between cgroups
	// as it is; see favorDynamicCgroups. Where control groups are of version 2
	// alone it is left so in any case.
	SlowCgroups bool
	// Journal is the file of changes to the host; empty for none.
	Journal string
	// StreamAddress is where exec, attach and port-forward are served; a port
	// of zero is any free one.
	StreamAddress string
	// Registries says how images are reached.
	Registries images.Registries
	// Handlers are further ways to run containers, by the names that
	// RuntimeClasses have for them.
	Handlers map[string]Handler
	// CDIDirs are where vendors describe devices (Container Device
	// Interface), the later counts more; empty for the usual ones.
	CDIDirs []string
	// Kubelet is the kubelet's directory, by the path that drivers in pods know,
	// with which they describe what is in it.
	Kubelet layout.Alias
	// Log receives what happens; nil means slog's default.
	Log *slog.Logger
}

func (c *Config) validate() error {
	for name, path := range map[string]string{"root": c.Root, "state": c.State, "socket": c.Socket} {
		if !filepath.IsAbs(path) {
			return fmt.Errorf("the %s must be an absolute path, not %q", name, path)
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
