package volume

import (
	"context"
	"fmt"
	"net"
	"os"
	"strings"

	"github.com/moby/sys/mountinfo"
	v1 "k8s.io/api/core/v1"
)

// NFS is the Type and PersistentType of NFS volumes, which the host's mount program mounts.
type NFS struct{}

// Name returns the name of the directory of NFS volumes in a pod's volumes directory.
func (NFS) Name() string { return "kubernetes.io~nfs" }

// Is reports whether v is an NFS volume.
func (NFS) Is(v *v1.Volume) bool { return v.NFS != nil }

// IsPersistent reports whether pv is an NFS volume.
func (NFS) IsPersistent(pv *v1.PersistentVolume) bool { return pv.Spec.NFS != nil }

// SetUp mounts the volume in the pod's directory.
func (NFS) SetUp(ctx context.Context, r Request) (Result, error) {
	return mountNFS(ctx, r.Volume.NFS, r.Dir, nil, false)
}

// SetUpPersistent mounts the PersistentVolume in the pod's directory, with its mount options.
func (NFS) SetUpPersistent(ctx context.Context, r PersistentRequest) (Result, error) {
	return mountNFS(ctx, r.PV.Spec.NFS, r.Dir, r.PV.Spec.MountOptions, r.ReadOnly)
}

// mountNFS mounts the NFS export src at dir, which it creates, unless dir is already a mount point. It is
// mounted read-only if src or readOnly requires it.
func mountNFS(ctx context.Context, src *v1.NFSVolumeSource, dir string, options []string, readOnly bool) (Result, error) {
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return Result{}, fmt.Errorf("creating the volume's directory: %w", err)
	}
	readOnly = readOnly || src.ReadOnly
	result := Result{Path: dir, ReadOnly: readOnly, Persistent: true}
	if mounted, err := mountinfo.Mounted(dir); err != nil || mounted {
		return result, err
	}
	server := src.Server
	if ip := net.ParseIP(server); ip != nil && strings.Contains(server, ":") {
		server = "[" + server + "]"
	}
	if readOnly {
		options = append([]string{"ro"}, options...)
	}
	if err := mountTool(ctx, "nfs", server+":"+src.Path, dir, options); err != nil {
		// A directory without a mount must not look like a volume.
		os.Remove(dir)
		return Result{}, err
	}
	return result, nil
}
