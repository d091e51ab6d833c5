package eviction

import (
	"slices"

	v1 "k8s.io/api/core/v1"
)

// Disks describes which file systems a node has in addition to nodefs. The zero value is a node
// with a single file system.
type Disks struct {
	// Images: images are on another file system than logs and volumes. Layers: writable layers are
	// on nodefs although images are not.
	Images, Layers bool
}

// parts are the kinds of pods' files on a file system.
type parts struct{ layers, logs, volumes bool }

// parts returns the kinds of pods' files that a signal covers.
//
// https://kubernetes.io/docs/concepts/scheduling-eviction/node-pressure-eviction/#eviction-signals
func (d Disks) parts(s Signal) parts {
	images := s == ImageFsAvailable || s == ImageFsInodesFree
	switch {
	case !d.Images:
		return parts{layers: true, logs: true, volumes: true}
	case d.Layers:
		return parts{layers: !images, logs: !images, volumes: !images}
	default:
		return parts{layers: images, logs: !images, volumes: !images}
	}
}

// Reclaim describes what may be removed to reclaim disk space before a pod is evicted.
type Reclaim struct {
	// Containers are exited containers; Images are unused images.
	Containers, Images bool
}

// reclaimable returns what to remove when the threshold of a signal is met, depending on the file system
// of the signal.
func (d Disks) reclaimable(s Signal) Reclaim {
	short := signals[s].resource
	if short != v1.ResourceEphemeralStorage && short != ResourceInodes {
		return Reclaim{}
	}
	images := s == ImageFsAvailable || s == ImageFsInodesFree
	switch {
	case !d.Images:
		return Reclaim{Containers: true, Images: true}
	case d.Layers:
		return Reclaim{Containers: !images, Images: images}
	default:
		return Reclaim{Containers: images, Images: images}
	}
}

// WithoutContainerFs returns the thresholds without those of containerfs, and reports whether there
// were any. Writable layers are on nodefs or imagefs, whose thresholds apply.
func WithoutContainerFs(list []Threshold) ([]Threshold, bool) {
	out := slices.DeleteFunc(slices.Clone(list), func(t Threshold) bool {
		return t.Signal == ContainerFsAvailable || t.Signal == ContainerFsInodesFree
	})
	return out, len(out) < len(list)
}
