package dra

import (
	"maps"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
)

// CDI returns the CDI device IDs of the container's claims, which the runtime adds to the container.
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

// Use is a ResourceClaim, and those of its devices that a container uses.
type Use struct {
	Namespace, Name string
	Devices         []Used
}

// Used is a device of a claim and the driver that has prepared it.
type Used struct {
	Driver string
	Device
}

// Uses returns the claims of the pod, and their prepared devices, that the container uses, including those for
// extended resources. Claims that are not prepared are omitted.
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

// uses returns the devices of a request of the pod's claim of that name; a request of "" means all. It
// returns nil if the pod has no such prepared claim. The caller must hold mu.
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

// serves reports whether a device belongs to the request want of a claim. requests are the claim's requests
// that the device is allocated for. want also matches its subrequests, "want/name". All devices match if want
// is "", and a device without requests belongs to every request.
func serves(requests []string, want string) bool {
	return want == "" || len(requests) == 0 || slices.ContainsFunc(requests, func(r string) bool {
		main, _, _ := strings.Cut(r, "/")
		return r == want || main == want
	})
}
