// Package volume makes the volumes of pods on the node, one file a type. A
// volume is a directory below the pod's own, found again by its path alone, so
// that the kubelet needs to remember nothing over a restart.
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

// Objects gets ConfigMaps and Secrets; their errors are the API's.
type Objects interface {
	ConfigMap(ctx context.Context, namespace, name string) (*v1.ConfigMap, error)
	Secret(ctx context.Context, namespace, name string) (*v1.Secret, error)
}

// Tokens gets service account tokens bound to the pod.
type Tokens interface {
	// Token returns a token and when a new one should be asked for.
	Token(ctx context.Context, pod *v1.Pod, p *v1.ServiceAccountTokenProjection) (token string, refresh time.Time, err error)
}

// Request is one volume of one pod to be set up.
type Request struct {
	Pod    *v1.Pod
	Volume *v1.Volume
	// Dir is where the volume's content goes; its parent exists.
	Dir string
}

// Result is a volume that is set up.
type Result struct {
	// Plugin is what made it, in the words of metrics: kubernetes.io/secret, say.
	Plugin string
	// Name is the volume's own, where it has one: the persistent volume's.
	Name string
	// Path is on the host. Empty for a volume that is an image or a device.
	Path string
	// Device is the path on the host of a volume that is one.
	Device string
	// Image is the reference of the image that is the volume, empty else.
	Image *v1.ImageVolumeSource
	// ReadOnly volumes are mounted so whatever the container asks.
	ReadOnly bool
	// Persistent: it is what a claim is bound to, or a driver's; one that is
	// ReadOnly is so in every container.
	Persistent bool
	// Relabel: the runtime is to give the files the SELinux label of the container.
	Relabel bool
	// Refresh is when SetUp must be called again; zero is never.
	Refresh time.Time
	// Measure tells how full the volume is, where that is not what its files or
	// its file system tell; nil: it is.
	Measure func(ctx context.Context) (*Usage, error)
}

// Usage is how full a volume is, in bytes and files. What is nil is not known.
type Usage struct {
	Capacity, Available, Used      *uint64
	Inodes, InodesFree, InodesUsed *uint64
}

// Type is one type of volume. Methods are safe for several goroutines, though
// never called at once for one volume.
type Type interface {
	// Name is the folder's name below a pod's volumes, as upstream's plugins
	// are named.
	Name() string
	// Is tells whether the volume is of this type.
	Is(v *v1.Volume) bool
	// SetUp makes the volume or brings it up to date. It is idempotent.
	SetUp(ctx context.Context, r Request) (Result, error)
}

// Slow tells whether setting up a volume may have to wait for others.
func Slow(v *v1.Volume) bool {
	if v.Projected != nil {
		return slices.ContainsFunc(v.Projected.Sources, func(s v1.VolumeProjection) bool { return s.PodCertificate != nil })
	}
	return ByClaim(v) || v.CSI != nil || v.NFS != nil || v.ISCSI != nil
}

// ByClaim tells whether the volume is what a claim is bound to.
func ByClaim(v *v1.Volume) bool { return v.PersistentVolumeClaim != nil || v.Ephemeral != nil }

// Set makes the volumes of all pods of the node. It keeps no state.
type Set struct {
	// Root is the kubelet's root directory.
	Root  string
	Types []Type
	// SELinux tells that the host has it; without, nothing is relabelled.
	SELinux bool
	// Metrics counts what is made and taken back; may be nil.
	Metrics *telemetry.Metrics
}

// ErrUnsupported is returned for a type of volume that no Type is for.
var ErrUnsupported = errors.New("no volume plugin matched")

// PodDir is the directory of all that the kubelet keeps of a pod.
func (s *Set) PodDir(uid types.UID) string { return filepath.Join(s.Root, "pods", string(uid)) }

// SetUp makes one volume.
func (s *Set) SetUp(ctx context.Context, pod *v1.Pod, v *v1.Volume) (Result, error) {
	for _, t := range s.Types {
		if !t.Is(v) {
			continue
		}
		parent := filepath.Join(s.PodDir(pod.UID), "volumes", t.Name())
		if err := os.MkdirAll(parent, 0o750); err != nil {
			return Result{}, fmt.Errorf("making the pod's directory: %w", err)
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
		s.Metrics.Stored(r.Plugin, operation, time.Since(began), err)
		return r, err
	}
	return Result{}, ErrUnsupported
}

// pluginOf is what metrics call the type whose folder is so named.
func pluginOf(folder string, v *v1.Volume) string {
	driver := ""
	if v.CSI != nil {
		driver = v.CSI.Driver
	}
	return pluginName(folder, driver)
}

// pluginName is a type's name in metrics, with the driver of one that has several.
func pluginName(folder, driver string) string {
	name := strings.ReplaceAll(folder, "~", "/")
	if name == "" {
		// The claim has not led to a volume.
		return Unknown
	}
	if driver != "" {
		name += ":" + driver
	}
	return name
}

// Unknown stands for what makes a volume while nobody knows.
const Unknown = "N/A"

// Plugin is what makes a volume, in the words of metrics; Unknown if it is what a
// claim is bound to.
func (s *Set) Plugin(v *v1.Volume) string {
	for _, t := range s.Types {
		if t.Is(v) {
			return pluginOf(t.Name(), v)
		}
	}
	return Unknown
}

// UIDs returns the pods that have a directory.
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

// Found is how many volumes a pod has on the disk.
func (s *Set) Found(pod types.UID) (int, error) {
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

// unmountBelow unmounts everything at or below dir, the deepest first.
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

// Unmount takes away all that is mounted at path, be it several times; nothing is
// no error.
func Unmount(path string) error {
	for {
		err := unix.Unmount(path, unix.UMOUNT_NOFOLLOW)
		if errors.Is(err, unix.EBUSY) {
			// Whoever still holds it keeps it; nobody finds it any more.
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
