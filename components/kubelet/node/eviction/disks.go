package eviction

import (
	"slices"

	v1 "k8s.io/api/core/v1"
)

// Disks describes how images and writable layers are distributed over the file systems of the node. The zero
// value is a node with a single file system, nodefs.
type Disks struct {
	// Images means that images are on another file system (imagefs) than logs and volumes (nodefs). Layers
	// means that writable layers are on nodefs although images are not.
	Images, Layers bool
}

// parts are the kinds of files of pods: writable layers, logs and volumes.
type parts struct{ layers, logs, volumes bool }

// parts returns the kinds of pods' files that are on the file system of the signal s. Their usage determines
// which pod is evicted first.
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

// Reclaim is what must be removed to reclaim disk space before a pod is evicted.
type Reclaim struct {
	// Containers means exited containers and those of terminated pods; Images means unused images.
	Containers, Images bool
}

// reclaimable returns what can be removed on the file system of the signal s when its threshold is met. It is
// empty for signals that are not about disks.
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

// WithoutContainerFs returns the thresholds of list without those of containerfs, and reports whether there
// were any. Writable layers are always on nodefs or imagefs, whose thresholds apply.
func WithoutContainerFs(list []Threshold) ([]Threshold, bool) {
	out := slices.DeleteFunc(slices.Clone(list), func(t Threshold) bool {
		return t.Signal == ContainerFsAvailable || t.Signal == ContainerFsInodesFree
	})
	return out, len(out) < len(list)
}
