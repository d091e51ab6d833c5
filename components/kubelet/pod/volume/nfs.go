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

// NFS is a path of an NFS server, mounted by the host's mount program.
type NFS struct{}

// Name implements Type and PersistentType.
func (NFS) Name() string { return "kubernetes.io~nfs" }

// Is implements Type.
func (NFS) Is(v *v1.Volume) bool { return v.NFS != nil }

// IsPersistent implements PersistentType.
func (NFS) IsPersistent(pv *v1.PersistentVolume) bool { return pv.Spec.NFS != nil }

// SetUp implements Type.
func (NFS) SetUp(ctx context.Context, r Request) (Result, error) {
	return mountNFS(ctx, r.Volume.NFS, r.Dir, nil, false)
}

// SetUpPersistent implements PersistentType.
func (NFS) SetUpPersistent(ctx context.Context, r PersistentRequest) (Result, error) {
	return mountNFS(ctx, r.PV.Spec.NFS, r.Dir, r.PV.Spec.MountOptions, r.ReadOnly)
}

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
