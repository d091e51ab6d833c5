package plugins

import (
	"strings"

	corev1 "k8s.io/api/core/v1"

	"hyperkube/components/scheduler/framework"
	"hyperkube/components/scheduler/state"
)

// ImageLocality prefers nodes that already have the pod's images.
type ImageLocality struct{}

// Name returns the name of the plugin in configuration files.
func (ImageLocality) Name() string { return "ImageLocality" }

// The total image sizes between which the score rises from 0 to MaxScore, in bytes. The upper limit
// is multiplied by the number of containers and image volumes.
const (
	imageFloor   = 23 << 20
	imageCeiling = 1000 << 20
)

// Score prefers nodes that have more bytes of the pod's images. It gives no scores and returns false if no node has
// any of them.
func (ImageLocality) Score(c *framework.Cycle, nodes []*state.Node, out []int64) bool {
	spec := &c.Pod.Object.Spec
	var names []string
	for _, containers := range [][]corev1.Container{spec.InitContainers, spec.Containers} {
		for i := range containers {
			if name := withTag(containers[i].Image); c.State.ImageNodes(name) > 0 {
				names = append(names, name)
			}
		}
	}
	count := int64(len(spec.Containers) + len(spec.InitContainers))
	for i := range spec.Volumes {
		if v := spec.Volumes[i].Image; v != nil {
			count++
			if name := withTag(v.Reference); c.State.ImageNodes(name) > 0 {
				names = append(names, name)
			}
		}
	}
	if len(names) == 0 {
		return false
	}
	total := int64(len(c.State.Nodes()))
	for i, n := range nodes {
		var sum int64
		for _, name := range names {
			// An image that only few nodes have counts less, so that not all pods are assigned to
			// the nodes that pulled it first.
			sum += n.Images[name] * int64(c.State.ImageNodes(name)) / total
		}
		sum = min(max(sum, imageFloor), imageCeiling*count)
		out[i] = framework.MaxScore * (sum - imageFloor) / (imageCeiling*count - imageFloor)
	}
	return true
}

// withTag returns the name of an image with the tag "latest" if it has no tag or digest, because nodes report names
// with tags.
func withTag(image string) string {
	if strings.LastIndexByte(image, ':') <= strings.LastIndexByte(image, '/') {
		return image + ":latest"
	}
	return image
}
