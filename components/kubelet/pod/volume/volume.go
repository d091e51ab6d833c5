// Package volume implements the volumes of pods on the node, with one file per type. A volume is a
// directory below the pod's directory, which is found by its path alone, so that the kubelet needs
// no state across restarts.
package volume

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"hyperkube/components/kubelet/telemetry"
)

// Objects provides ConfigMaps and Secrets. Errors are those of the API.
type Objects interface {
	ConfigMap(ctx context.Context, namespace, name string) (*v1.ConfigMap, error)
	Secret(ctx context.Context, namespace, name string) (*v1.Secret, error)
}

// Tokens provides service account tokens that are bound to pods.
type Tokens interface {
	// Token returns a token and when it must be refreshed.
	Token(ctx context.Context, pod *v1.Pod, p *v1.ServiceAccountTokenProjection) (token string, refresh time.Time, err error)
}

// Request is a request to set up a volume of a pod in the directory Dir.
type Request struct {
	Pod    *v1.Pod
	Volume *v1.Volume
	// Dir is the directory for the volume's content. Its parent exists.
	Dir string
}

// Result describes a volume after its setup, for the mounts of containers and for statistics.
type Result struct {
	// Plugin is the name of the volume plugin in metrics, for example kubernetes.io/secret.
	Plugin string
	// Name is the name of the PersistentVolume, if there is one.
	Name string
	// Path is the path on the host. It is empty for image volumes and block devices.
	Path string
	// Device is the path on the host of a block device.
	Device string
	// Image is the source of an image volume; otherwise nil.
	Image *v1.ImageVolumeSource
	// ReadOnly volumes are mounted read-only even if the container does not request it.
	ReadOnly bool
	// Persistent is true for PersistentVolumes and CSI volumes. If they are ReadOnly, they are so
	// in every container.
	Persistent bool
	// Relabel means that the runtime must set the SELinux label of the container on the files.
	Relabel bool
	// Refresh is when SetUp must be called again; zero means never.
	Refresh time.Time
	// Measure returns the usage of the volume. If it is nil, the usage is that of its files or of
	// its file system.
	Measure func(ctx context.Context) (*Usage, error)
}

// Usage is the usage of a volume, in bytes and inodes. Unknown values are nil.
type Usage struct {
	Capacity, Available, Used      *uint64
	Inodes, InodesFree, InodesUsed *uint64
}

// Type is a type of volume. Methods are safe for concurrent use, but are never called concurrently
// for the same volume.
type Type interface {
	// Name is the name of the directory of these volumes below a pod's volumes directory, as
	// upstream names its plugins.
	Name() string
	// Is reports whether the volume is of this type.
	Is(v *v1.Volume) bool
	// SetUp sets up or updates the volume. It is idempotent.
	SetUp(ctx context.Context, r Request) (Result, error)
}

// MayBlock reports whether the setup of the volume may have to wait for other components or servers: volumes of
// claims, CSI, NFS and iSCSI, and projected volumes with a pod certificate. Such volumes are set up
// concurrently.
func MayBlock(v *v1.Volume) bool {
	if v.Projected != nil {
		return slices.ContainsFunc(v.Projected.Sources, func(s v1.VolumeProjection) bool { return s.PodCertificate != nil })
	}
	return RefersToClaim(v) || v.CSI != nil || v.NFS != nil || v.ISCSI != nil
}

// RefersToClaim reports whether the volume refers to a PersistentVolumeClaim, by name or as a generic
// ephemeral volume.
func RefersToClaim(v *v1.Volume) bool { return v.PersistentVolumeClaim != nil || v.Ephemeral != nil }

// Set sets up and tears down the volumes of all pods of the node by their types. It has no state.
type Set struct {
	// Root is the kubelet's root directory.
	Root  string
	Types []Type
	// SELinux means that the host has SELinux enabled; otherwise nothing is relabelled.
	SELinux bool
	// Metrics counts operations; it may be nil.
	Metrics *telemetry.Volumes
}

// ErrUnsupported is the error for a volume that no Type or PersistentType supports.
var ErrUnsupported = errors.New("no volume plugin matched")

// PodDir returns the directory of a pod below the kubelet's root directory.
func (s *Set) PodDir(uid types.UID) string { return filepath.Join(s.Root, "pods", string(uid)) }

// SetUp sets up or updates one volume v of a pod by its Type, and records the metrics. It creates the parent of
// the volume's directory. It returns ErrUnsupported if there is no such Type.
func (s *Set) SetUp(ctx context.Context, pod *v1.Pod, v *v1.Volume) (Result, error) {
	for _, t := range s.Types {
		if !t.Is(v) {
			continue
		}
		parent := filepath.Join(s.PodDir(pod.UID), "volumes", t.Name())
		if err := os.MkdirAll(parent, 0o750); err != nil {
			return Result{}, fmt.Errorf("creating the pod's directory: %w", err)
		}
		began := time.Now()
		r, err := t.SetUp(ctx, Request{Pod: pod, Volume: v, Dir: filepath.Join(parent, v.Name)})
		if r.Plugin == "" {
			r.Plugin = pluginOf(t.Name(), v)
		}
		operation := "volume_mount"
		if r.Device != "" {
			operation = "map_volume"
		}
		r.Relabel = r.Relabel && s.SELinux
		s.Metrics.VolumeOperation(r.Plugin, operation, time.Since(began), err)
		return r, err
	}
	return Result{}, ErrUnsupported
}

// pluginOf returns the plugin name of the volume v, which is a label of volume metrics. dir is the directory name
// of its Type.
func pluginOf(dir string, v *v1.Volume) string {
	driver := ""
	if v.CSI != nil {
		driver = v.CSI.Driver
	}
	return pluginName(dir, driver)
}

// pluginName returns the plugin name, a label of volume metrics, of the Type with the directory name dir, or
// UnknownPlugin if dir is "". driver is the name of the CSI driver, or "" for other volumes.
func pluginName(dir, driver string) string {
	name := strings.ReplaceAll(dir, "~", "/")
	if name == "" {
		// The persistent volume of the claim is not known yet.
		return UnknownPlugin
	}
	if driver != "" {
		name += ":" + driver
	}
	return name
}

// UnknownPlugin is the plugin name in metrics of a volume whose type is not known, because its claim was not
// resolved or no Type supports it.
const UnknownPlugin = "N/A"

// Plugin returns the plugin name of a volume in metrics. It is UnknownPlugin if the volume refers to a claim
// or no Type supports it.
func (s *Set) Plugin(v *v1.Volume) string {
	for _, t := range s.Types {
		if t.Is(v) {
			return pluginOf(t.Name(), v)
		}
	}
	return UnknownPlugin
}

// UIDs returns the UIDs of the pods that have a directory on disk, including pods that were deleted while the
// kubelet did not run.
func (s *Set) UIDs() ([]types.UID, error) {
	entries, err := os.ReadDir(filepath.Join(s.Root, "pods"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("listing the pods' directories: %w", err)
	}
	var out []types.UID
	for _, e := range entries {
		if e.IsDir() {
			out = append(out, types.UID(e.Name()))
		}
	}
	return out, nil
}

// CountVolumes returns the number of volumes in a pod's directory. After an error the number is incomplete.
func (s *Set) CountVolumes(pod types.UID) (int, error) {
	n := 0
	for _, kind := range []string{"volumes", "volumeDevices"} {
		plugins, err := os.ReadDir(filepath.Join(s.Root, "pods", string(pod), kind))
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return n, fmt.Errorf("listing a pod's volumes: %w", err)
		}
		for _, p := range plugins {
			list, err := os.ReadDir(filepath.Join(s.Root, "pods", string(pod), kind, p.Name()))
			if err != nil && !errors.Is(err, os.ErrNotExist) {
				return n, fmt.Errorf("listing a pod's volumes: %w", err)
			}
			n += len(list)
		}
	}
	return n, nil
}

// unmountBelow unmounts everything at or below dir, deepest mounts first. It stops at the first error. A directory
// that does not exist is no error.
func unmountBelow(dir string) error {
	real, err := filepath.EvalSymlinks(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("finding mounts: %w", err)
	}
	mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(real))
	if err != nil {
		return fmt.Errorf("reading mounts: %w", err)
	}
	points := make([]string, 0, len(mounts))
	for _, m := range mounts {
		points = append(points, m.Mountpoint)
	}
	slices.SortFunc(points, func(a, b string) int { return strings.Count(b, "/") - strings.Count(a, "/") })
	for _, p := range points {
		if err := Unmount(p); err != nil {
			return err
		}
	}
	return nil
}

// Unmount removes all mounts at path, even if processes use them. Without a mount it does nothing.
func Unmount(path string) error {
	for {
		err := unix.Unmount(path, unix.UMOUNT_NOFOLLOW)
		if errors.Is(err, unix.EBUSY) {
			// Processes that use the mount keep it, but it is removed from the file system.
			err = unix.Unmount(path, unix.UMOUNT_NOFOLLOW|unix.MNT_DETACH)
		}
		if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("unmounting %s: %w", path, err)
		}
	}
}
