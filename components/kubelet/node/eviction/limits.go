package eviction

import (
	"fmt"

	v1 "k8s.io/api/core/v1"
	resourcehelper "k8s.io/component-helpers/resource"

	"hyperkube/internal/pod/podutil"
)

// Storage is the local storage that a pod uses, in bytes, which the eviction manager compares with the limits of
// the pod and its containers.
type Storage struct {
	// Containers is the usage that counts against the limit of each container, by name: its logs
	// and, unless images have a separate file system, its writable layer. EmptyDirs is by volume
	// name.
	Containers, EmptyDirs map[string]int64
	// Rest is the usage that counts only against the limit of the pod.
	Rest int64
}

// limitedContainers returns the app containers and sidecars, whose storage limits apply as long as the pod
// runs.
func limitedContainers(pod *v1.Pod) []*v1.Container {
	var out []*v1.Container
	for i := range pod.Spec.Containers {
		out = append(out, &pod.Spec.Containers[i])
	}
	for i := range pod.Spec.InitContainers {
		if c := &pod.Spec.InitContainers[i]; podutil.Sidecar(c) {
			out = append(out, c)
		}
	}
	return out
}

// hasLimits reports whether the pod has limits of emptyDir volumes or of ephemeral storage. Only such pods
// are measured.
func hasLimits(pod *v1.Pod) bool {
	for i := range pod.Spec.Volumes {
		if e := pod.Spec.Volumes[i].EmptyDir; e != nil && e.SizeLimit != nil && e.SizeLimit.Sign() > 0 {
			return true
		}
	}
	_, ok := resourcehelper.PodLimits(pod, resourcehelper.PodResourcesOptions{})[v1.ResourceEphemeralStorage]
	return ok
}

// overLimit returns the message of the eviction and the metrics signal of the first local storage limit that
// the usage s of the pod exceeds, or empty strings.
//
// https://kubernetes.io/docs/concepts/storage/ephemeral-storage/
func overLimit(pod *v1.Pod, s Storage) (message, signal string) {
	for i := range pod.Spec.Volumes {
		e := pod.Spec.Volumes[i].EmptyDir
		if e == nil || e.SizeLimit == nil || e.SizeLimit.Sign() <= 0 {
			continue
		}
		name := pod.Spec.Volumes[i].Name
		if s.EmptyDirs[name] > e.SizeLimit.Value() {
			return fmt.Sprintf("Usage of EmptyDir volume %q exceeds the limit %q. ", name, e.SizeLimit.String()), "emptydirfs.limit"
		}
	}
	limits := resourcehelper.PodLimits(pod, resourcehelper.PodResourcesOptions{})
	if limit, ok := limits[v1.ResourceEphemeralStorage]; ok {
		total := s.Rest
		for _, n := range s.Containers {
			total += n
		}
		for i := range pod.Spec.Volumes {
			if e := pod.Spec.Volumes[i].EmptyDir; e == nil || e.Medium == v1.StorageMediumDefault {
				total += s.EmptyDirs[pod.Spec.Volumes[i].Name]
			}
		}
		if total > limit.Value() {
			return fmt.Sprintf("Pod ephemeral local storage usage exceeds the total limit of containers %s. ", limit.String()), "ephemeralpodfs.limit"
		}
	}
	for _, c := range limitedContainers(pod) {
		limit, ok := c.Resources.Limits[v1.ResourceEphemeralStorage]
		if ok && limit.Sign() != 0 && s.Containers[c.Name] > limit.Value() {
			return fmt.Sprintf("Container %s exceeded its local ephemeral storage limit %q. ", c.Name, limit.String()), "ephemeralcontainerfs.limit"
		}
	}
	return "", ""
}
