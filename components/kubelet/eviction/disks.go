package eviction

import (
	"slices"

	v1 "k8s.io/api/core/v1"
)

// Disks says which file systems a node has beside that of its pods. The zero value
// is a node with one for everything.
type Disks struct {
	// Images: images are not where pods have their logs and volumes. Layers: what
	// containers write is, though images are not.
	Images, Layers bool
}

// parts are which files of pods are on a file system.
type parts struct{ layers, logs, volumes bool }

// parts tells what of pods' files a signal is about.
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

// Room says what may be removed to make room before a pod has to go.
type Room struct {
	// Containers that have ended, and Images that nobody uses.
	Containers, Images bool
}

// room tells what to remove when a signal calls for it: what is on that file
// system.
func (d Disks) room(s Signal) Room {
	short := signals[s].resource
	if short != v1.ResourceEphemeralStorage && short != ResourceInodes {
		return Room{}
	}
	images := s == ImageFsAvailable || s == ImageFsInodesFree
	switch {
	case !d.Images:
		return Room{Containers: true, Images: true}
	case d.Layers:
		return Room{Containers: !images, Images: images}
	default:
		return Room{Containers: images, Images: images}
	}
}

// WithoutContainerFs leaves out thresholds of what containers write: it is on the
// file system of pods or on that of images, whose thresholds are those of it, too.
// It tells whether there were any.
func WithoutContainerFs(list []Threshold) ([]Threshold, bool) {
	out := slices.DeleteFunc(slices.Clone(list), func(t Threshold) bool {
		return t.Signal == ContainerFsAvailable || t.Signal == ContainerFsInodesFree
	})
	return out, len(out) < len(list)
}
