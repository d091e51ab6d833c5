package dra

import (
	"maps"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
)

// CDI names what the runtime is to add to a container for the claims that it
// lists.
func (m *Manager) CDI(pod *v1.Pod, c *v1.Container) []string {
	var out []string
	for _, u := range m.Uses(pod, c) {
		for _, d := range u.Devices {
			for _, name := range d.Device.CDI {
				if !slices.Contains(out, name) {
					out = append(out, name)
				}
			}
		}
	}
	return out
}

// Use is what a container has of one claim.
type Use struct {
	Namespace, Name string
	Devices         []Used
}

// Used is a device of a driver.
type Used struct {
	Driver string
	Device
}

// Uses are the claims of which a container has devices.
func (m *Manager) Uses(pod *v1.Pod, c *v1.Container) []Use {
	if len(c.Resources.Claims) == 0 && pod.Status.ExtendedResourceClaimStatus == nil {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []Use
	if s := pod.Status.ExtendedResourceClaimStatus; s != nil {
		for _, r := range s.RequestMappings {
			if r.ContainerName == c.Name {
				out = append(out, m.uses(pod, s.ResourceClaimName, r.RequestName)...)
			}
		}
	}
	for _, want := range c.Resources.Claims {
		i := slices.IndexFunc(pod.Spec.ResourceClaims, func(r v1.PodResourceClaim) bool { return r.Name == want.Name })
		if i < 0 {
			continue
		}
		name, _, err := resourceclaim.Name(pod, &pod.Spec.ResourceClaims[i])
		if err != nil || name == nil {
			continue
		}
		out = append(out, m.uses(pod, *name, want.Request)...)
	}
	return out
}

// uses is what a pod has of one request of a claim, "" for all. The caller holds mu.
func (m *Manager) uses(pod *v1.Pod, name, request string) []Use {
	for _, claim := range m.claims {
		if claim.Name != name || claim.Namespace != pod.Namespace || !slices.Contains(claim.Pods, pod.UID) {
			continue
		}
		use := Use{Namespace: claim.Namespace, Name: claim.Name}
		for _, driver := range slices.Sorted(maps.Keys(claim.Devices)) {
			for _, d := range claim.Devices[driver] {
				if serves(d.Requests, request) {
					use.Devices = append(use.Devices, Used{driver, d})
				}
			}
		}
		return []Use{use}
	}
	return nil
}

// serves tells whether a device that is for some requests of a claim is one of a
// container that wants one request, "" for all.
func serves(requests []string, want string) bool {
	return want == "" || len(requests) == 0 || slices.ContainsFunc(requests, func(r string) bool {
		main, _, _ := strings.Cut(r, "/")
		return r == want || main == want
	})
}
