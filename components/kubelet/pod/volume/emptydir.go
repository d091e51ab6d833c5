package volume

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	apiresource "k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/component-helpers/resource"
)

// EmptyDir is the Type of emptyDir volumes: directories that exist as long as their pod, on disk, in memory
// or in huge pages.
type EmptyDir struct {
	// Allocatable returns the allocatable resources of the node; memory volumes are not larger than
	// its memory.
	Allocatable func() v1.ResourceList
}

// Name returns the name of the directory of emptyDir volumes in a pod's volumes directory.
func (EmptyDir) Name() string { return "kubernetes.io~empty-dir" }

// Is reports whether v is an emptyDir. A volume without a source is one, too.
func (EmptyDir) Is(v *v1.Volume) bool {
	return v.EmptyDir != nil || v.VolumeSource == v1.VolumeSource{}
}

// SetUp creates the directory, mounts a tmpfs or huge pages there if the medium requires it, and changes the
// group to the pod's fsGroup. An existing directory is kept with its content.
func (t EmptyDir) SetUp(_ context.Context, r Request) (Result, error) {
	fresh, err := makeDir(r.Dir)
	if err != nil {
		return Result{}, err
	}
	if src := r.Volume.EmptyDir; src != nil {
		switch src.Medium {
		case v1.StorageMediumDefault:
		case v1.StorageMediumMemory:
			if err := mountTmpfs(r.Dir, t.size(r.Pod, src)); err != nil {
				return Result{}, err
			}
		default:
			if pages, ok := strings.CutPrefix(string(src.Medium), string(v1.StorageMediumHugePages)); ok {
				if err := mountHugePages(r.Pod, r.Dir, pages); err != nil {
					return Result{}, err
				}
				break
			}
			return Result{}, fmt.Errorf("unknown storage medium %q", src.Medium)
		}
	}
	// A directory created before a crash or a restart of the machine may still need its group.
	if group := FSGroup(r.Pod); group != nil && (fresh || lacksGroup(r.Dir)) {
		if err := setGroup(r.Dir, *group, false); err != nil {
			return Result{}, err
		}
	}
	return Result{Path: r.Dir, Relabel: true}, nil
}

// mountHugePages mounts a file system of huge pages at dir unless one is mounted. suffix is the part of the
// medium after "HugePages": "-" and a page size, or empty for the page size that the pod's containers request.
// It returns an error if the containers do not request pages of that size or, for an empty suffix, request
// several sizes.
//
// https://kubernetes.io/docs/tasks/manage-hugepages/scheduling-hugepages/
func mountHugePages(pod *v1.Pod, dir, suffix string) error {
	if mounted, err := mountinfo.Mounted(dir); err != nil || mounted {
		return err
	}
	asked := resource.PodRequests(pod, resource.PodResourcesOptions{})
	size := strings.TrimPrefix(suffix, "-")
	for name := range asked {
		own, ok := strings.CutPrefix(string(name), v1.ResourceHugePagesPrefix)
		if !ok || suffix != "" {
			continue
		}
		if size != "" {
			return errors.New("medium HugePages can be used only if container requests/limits has one page size")
		}
		size = own
	}
	if size == "" {
		return errors.New("containers have no huge page limits")
	}
	if _, ok := asked[v1.ResourceName(v1.ResourceHugePagesPrefix+size)]; !ok {
		return fmt.Errorf("medium HugePages-%s has no container that requests such pages", size)
	}
	bytes, err := apiresource.ParseQuantity(size)
	if err != nil {
		return fmt.Errorf("unknown page size %q: %w", size, err)
	}
	if err := unix.Mount("nodev", dir, "hugetlbfs", 0, fmt.Sprintf("pagesize=%d,mode=1777", bytes.Value())); err != nil {
		return fmt.Errorf("mounting huge pages: %w", err)
	}
	return nil
}

// makeDir creates a directory that every user can write to, and reports whether it is new.
func makeDir(dir string) (bool, error) {
	err := os.Mkdir(dir, 0o777)
	if errors.Is(err, os.ErrExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("creating the volume's directory: %w", err)
	}
	if err := os.Chmod(dir, 0o777); err != nil {
		return false, fmt.Errorf("creating the volume's directory: %w", err)
	}
	return true, nil
}

// size returns the maximum size of a memory volume in bytes: the smallest of its sizeLimit, the allocatable
// memory of the node, and the memory limit of the pod, if the pod or all of its containers have one. 0 means no
// limit.
func (t EmptyDir) size(pod *v1.Pod, src *v1.EmptyDirVolumeSource) int64 {
	var size int64
	smaller := func(v int64) {
		if v > 0 && (size == 0 || v < size) {
			size = v
		}
	}
	if t.Allocatable != nil {
		all := t.Allocatable()
		smaller(all.Memory().Value())
	}
	// A pod with a container without a memory limit is unlimited, unless it has a pod-level limit.
	limited := len(pod.Spec.Containers) > 0
	for _, list := range [][]v1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			_, has := list[i].Resources.Limits[v1.ResourceMemory]
			limited = limited && has
		}
	}
	if whole := pod.Spec.Resources; whole != nil {
		_, has := whole.Limits[v1.ResourceMemory]
		limited = limited || has
	}
	if limited {
		limits := resource.PodLimits(pod, resource.PodResourcesOptions{})
		smaller(limits.Memory().Value())
	}
	if src.SizeLimit != nil {
		smaller(src.SizeLimit.Value())
	}
	return size
}

// FSGroup returns the pod's fsGroup, nil if it has none.
//
// https://kubernetes.io/docs/tasks/configure-pod-container/security-context/
func FSGroup(pod *v1.Pod) *int64 {
	if pod.Spec.SecurityContext == nil {
		return nil
	}
	return pod.Spec.SecurityContext.FSGroup
}
