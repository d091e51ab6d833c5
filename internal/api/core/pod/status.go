package pod

import (
	"fmt"
	"math"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	netutils "k8s.io/utils/net"

	"hyperkube/internal/api/validate"
)

// validateStatus validates a status update, usually from the kubelet.
func validateStatus(p, old *corev1.Pod) field.ErrorList {
	e := &validate.Errors{}
	checkAnnotationUpdate(e, p, old)
	for i, cond := range p.Status.Conditions {
		notNegative(e, field.NewPath("status", "conditions").Index(i).Child("observedGeneration"), cond.ObservedGeneration)
		switch cond.Type {
		case corev1.PodScheduled, corev1.PodReady, corev1.PodInitialized:
		default:
			e.QualifiedName(field.NewPath("status", "conditions").Index(i).Child("Type"), string(cond.Type))
		}
	}
	path := field.NewPath("status")
	if name := p.Status.NominatedNodeName; name != "" && name != old.Status.NominatedNodeName {
		e.InvalidAll(path.Child("nominatedNodeName"), name, apivalidation.NameIsDNSSubdomain(name, false))
		if old.Spec.NodeName != "" {
			e.Forbidden(path.Child("nominatedNodeName"), "may not be set on pods that are already bound to a node")
		}
	}
	notNegative(e, path.Child("observedGeneration"), p.Status.ObservedGeneration)
	e.Add(apivalidation.ValidateImmutableField(p.Status.QOSClass, old.Status.QOSClass, path.Child("qosClass")))
	checkTransitionsOf(e, p, old, path)
	checkClaimStatuses(e, p, path.Child("resourceClaimStatuses"))
	checkExtendedClaim(e, p, path.Child("extendedResourceClaimStatus"))
	checkPodIPs(e, p, old, path.Child("podIPs"))
	checkHostIPs(e, p, old, path.Child("hostIPs"))
	for _, group := range []struct {
		name       string
		statuses   []corev1.ContainerStatus
		containers []corev1.Container
	}{
		{"containerStatuses", p.Status.ContainerStatuses, p.Spec.Containers},
		{"initContainerStatuses", p.Status.InitContainerStatuses, p.Spec.InitContainers},
		{"ephemeralContainerStatuses", p.Status.EphemeralContainerStatuses, nil},
	} {
		for i := range group.statuses {
			at := path.Child(group.name).Index(i)
			checkStatusUser(e, p, &group.statuses[i], at.Child("user", "linux"))
			if group.name == "ephemeralContainerStatuses" && len(group.statuses[i].AllocatedResourcesStatus) > 0 {
				e.Forbidden(at.Child("allocatedResourcesStatus"), "must not be specified in container status")
				continue
			}
			checkAllocated(e, &group.statuses[i], group.containers, at.Child("allocatedResourcesStatus"))
		}
	}
	return e.List
}

func notNegative(e *validate.Errors, at *field.Path, generation int64) {
	if generation < 0 {
		e.Invalid(at, generation, "must be a non-negative integer")
	}
}

// statusWarnings returns warnings for IP addresses in non-standard notation.
func statusWarnings(p *corev1.Pod) []string {
	var out []string
	for i, ip := range p.Status.PodIPs {
		out = append(out, validate.IPWarnings(field.NewPath("status", "podIPs").Index(i).Child("ip"), ip.IP)...)
	}
	for i, ip := range p.Status.HostIPs {
		out = append(out, validate.IPWarnings(field.NewPath("status", "hostIPs").Index(i).Child("ip"), ip.IP)...)
	}
	return out
}

// containerRestartPolicy returns the restart policy of the container name, or nil if the pod's
// policy applies. A container with restart rules may be restarted in any case, so its policy is
// Always.
func containerRestartPolicy(containers []corev1.Container, name string) *corev1.ContainerRestartPolicy {
	for i := range containers {
		if containers[i].Name == name {
			if len(containers[i].RestartPolicyRules) > 0 {
				always := corev1.ContainerRestartPolicyAlways
				return &always
			}
			return containers[i].RestartPolicy
		}
	}
	return nil
}

// checkTransitionsOf rejects a status update in which a terminated container that must not be
// restarted is running or waiting again. If a rule of a container restarts all containers, it only
// checks ephemeral containers.
func checkTransitionsOf(e *validate.Errors, p, old *corev1.Pod, path *field.Path) {
	if !restartsAll(old.Spec.Containers) && !restartsAll(old.Spec.InitContainers) {
		checkTransitions(e, p.Status.ContainerStatuses, old.Status.ContainerStatuses, path.Child("containerStatuses"),
			func(name string) *corev1.ContainerRestartPolicy {
				return containerRestartPolicy(old.Spec.Containers, name)
			}, old.Spec.RestartPolicy)
		checkTransitions(e, p.Status.InitContainerStatuses, old.Status.InitContainerStatuses, path.Child("initContainerStatuses"),
			func(name string) *corev1.ContainerRestartPolicy {
				return containerRestartPolicy(old.Spec.InitContainers, name)
			}, old.Spec.RestartPolicy)
	}
	checkTransitions(e, p.Status.EphemeralContainerStatuses, old.Status.EphemeralContainerStatuses, path.Child("ephemeralContainerStatuses"),
		func(string) *corev1.ContainerRestartPolicy { return nil }, corev1.RestartPolicyNever)
}

// restartsAll reports whether one of the containers has a restart rule that restarts all containers
// of the pod.
func restartsAll(containers []corev1.Container) bool {
	return slices.ContainsFunc(containers, func(c corev1.Container) bool {
		return slices.ContainsFunc(c.RestartPolicyRules, func(r corev1.ContainerRestartRule) bool {
			return r.Action == corev1.ContainerRestartRuleActionRestartAllContainers
		})
	})
}

// checkTransitions rejects a status update in which a terminated container that must not be
// restarted is running or waiting again. was contains the stored statuses. own returns the restart
// policy of a container, or nil if the pod's policy applies.
func checkTransitions(e *validate.Errors, is, was []corev1.ContainerStatus, path *field.Path,
	own func(string) *corev1.ContainerRestartPolicy, pod corev1.RestartPolicy) {
	if pod == corev1.RestartPolicyAlways {
		return
	}
	for i := range was {
		ended := was[i].State.Terminated
		if ended == nil {
			continue
		}
		policy := string(pod)
		if p := own(was[i].Name); p != nil {
			policy = string(*p)
		}
		if policy == string(corev1.RestartPolicyAlways) || policy == string(corev1.RestartPolicyOnFailure) && ended.ExitCode != 0 {
			continue
		}
		for j := range is {
			if is[j].Name == was[i].Name && is[j].State.Terminated == nil {
				e.Forbidden(path.Index(i).Child("state"), "may not be transitioned to non-terminated state")
			}
		}
	}
}

func checkClaimStatuses(e *validate.Errors, p *corev1.Pod, path *field.Path) {
	for i, s := range p.Status.ResourceClaimStatuses {
		at := path.Index(i).Child("name")
		if !slices.ContainsFunc(p.Spec.ResourceClaims, func(c corev1.PodResourceClaim) bool { return c.Name == s.Name }) {
			e.Invalid(at, s.Name, "must match the name of an entry in `spec.resourceClaims`")
		}
		if slices.ContainsFunc(p.Status.ResourceClaimStatuses[:i], func(o corev1.PodResourceClaimStatus) bool { return o.Name == s.Name }) {
			e.Duplicate(at, s.Name)
		}
		if s.ResourceClaimName != nil {
			e.InvalidAll(path.Index(i).Child("resourceClaimName"), s.ResourceClaimName, validation.IsDNS1123Subdomain(*s.ResourceClaimName))
		}
	}
}

const onePerFamily = "may specify no more than one IP for each IP family"

// checkPodIPs validates podIPs and podIP of a pod's status: at most one address for each IP family, of which podIP is
// the first. Addresses of the stored pod old may have any syntax that was valid earlier.
func checkPodIPs(e *validate.Errors, p, old *corev1.Pod, path *field.Path) {
	var before []string
	for _, ip := range old.Status.PodIPs {
		before = append(before, ip.IP)
	}
	ips := make([]string, len(p.Status.PodIPs))
	for i, ip := range p.Status.PodIPs {
		ips[i] = ip.IP
		e.LegacyIP(path.Index(i), ip.IP, before)
	}
	if len(ips) > 1 {
		checkFamilies(e, ips, p.Status.PodIPs, path)
	}
	switch first := p.Status.PodIP; {
	case (first != "") != (len(ips) > 0):
		e.Invalid(path, p.Status.PodIPs, "podIP and podIPs must either both be set or both be unset")
	case len(ips) > 0 && ips[0] != first:
		e.Invalid(path.Index(0).Child("ip"), ips[0], "must be equal to `podIP`")
	}
}

// checkFamilies checks that several IP addresses are one for each IP family. value is the value that the error contains.
func checkFamilies(e *validate.Errors, ips []string, value any, path *field.Path) {
	dual, err := netutils.IsDualStackIPStrings(ips)
	if err != nil {
		e.Add(field.ErrorList{field.InternalError(path, fmt.Errorf("failed to check for dual stack with error:%w", err))})
	}
	if !dual || len(ips) > 2 {
		e.Invalid(path, value, onePerFamily)
	}
}

// checkHostIPs validates hostIPs of a pod's status, if they are set: at most one address for each IP family, of which
// hostIP is the first. Addresses of the stored pod old may have any syntax that was valid earlier.
func checkHostIPs(e *validate.Errors, p, old *corev1.Pod, path *field.Path) {
	if len(p.Status.HostIPs) == 0 {
		return
	}
	if first := p.Status.HostIPs[0].IP; first != p.Status.HostIP {
		e.Invalid(path.Index(0).Child("ip"), first, "must be equal to `hostIP`")
	}
	var before []string
	for _, ip := range old.Status.HostIPs {
		before = append(before, ip.IP)
	}
	ips := make([]string, len(p.Status.HostIPs))
	for i, ip := range p.Status.HostIPs {
		ips[i] = ip.IP
		e.LegacyIP(path.Index(i), ip.IP, before)
	}
	if len(ips) < 2 {
		return
	}
	checkFamilies(e, ips, p.Status.HostIPs, path)
}

// checkStatusUser validates the user and the groups of a container's status, which must not be set for a Windows pod.
func checkStatusUser(e *validate.Errors, p *corev1.Pod, s *corev1.ContainerStatus, at *field.Path) {
	if s.User == nil || s.User.Linux == nil {
		return
	}
	if p.Spec.OS != nil && p.Spec.OS.Name == corev1.Windows {
		e.Forbidden(at, "cannot be set for a windows pod")
		return
	}
	// The runtime reports the UID, so all UIDs of the kernel are valid.
	if uid := s.User.Linux.UID; uid < 0 || uid > math.MaxUint32 {
		e.Invalid(at.Child("uid"), uid, fmt.Sprintf("must be between 0 and %d, inclusive", int64(math.MaxUint32)))
	}
	e.InvalidAll(at.Child("gid"), s.User.Linux.GID, validation.IsValidGroupID(s.User.Linux.GID))
	for i, gid := range s.User.Linux.SupplementalGroups {
		e.InvalidAll(at.Child("supplementalGroups").Index(i), gid, validation.IsValidGroupID(gid))
	}
}

// checkAllocated validates the health of allocated devices in the status s of a container. Each
// must belong to a claim or request of the container of this name in containers; this is not
// checked if there is no such container.
func checkAllocated(e *validate.Errors, s *corev1.ContainerStatus, containers []corev1.Container, path *field.Path) {
	i := slices.IndexFunc(containers, func(c corev1.Container) bool { return c.Name == s.Name })
	for j, r := range s.AllocatedResourcesStatus {
		at := path.Index(j)
		if i >= 0 {
			claims, requests := containers[i].Resources.Claims, containers[i].Resources.Requests
			if strings.HasPrefix(string(r.Name), "claim:") {
				if !slices.ContainsFunc(claims, func(c corev1.ResourceClaim) bool {
					name := "claim:" + c.Name
					if c.Request != "" {
						name += "/" + c.Request
					}
					return name == string(r.Name)
				}) {
					e.Invalid(at.Child("name"), r.Name, "must match one of the container's resource claims as 'claim:<claimName>/<requestName>' when container.resources.claims[*].request is set or 'claim:<claimName>' when it is empty")
				}
			} else if _, ok := requests[r.Name]; !ok {
				e.Invalid(at.Child("name"), r.Name, "must match one of the container's resource requests")
			}
		}
		for k, health := range r.Resources {
			validate.OneOf(e, at.Child("resources").Index(k).Child("health"), health.Health,
				corev1.ResourceHealthStatusHealthy, corev1.ResourceHealthStatusUnhealthy, corev1.ResourceHealthStatusUnknown)
			if slices.ContainsFunc(r.Resources[:k], func(o corev1.ResourceHealth) bool { return o.ResourceID == health.ResourceID }) {
				e.Duplicate(at.Child("resources").Index(k).Child("resourceID"), health.ResourceID)
			}
		}
	}
}

// checkExtendedClaim validates which requests of a ResourceClaim the scheduler has mapped to the
// extended resources of containers (KEP-5004).
func checkExtendedClaim(e *validate.Errors, p *corev1.Pod, path *field.Path) {
	s := p.Status.ExtendedResourceClaimStatus
	if s == nil {
		return
	}
	requests := map[string]corev1.ResourceList{}
	for _, list := range [][]corev1.Container{p.Spec.InitContainers, p.Spec.Containers} {
		for i := range list {
			requests[list[i].Name] = list[i].Resources.Requests
		}
	}
	mappings := path.Child("requestMappings")
	if len(s.RequestMappings) == 0 {
		e.Add(field.ErrorList{field.Required(mappings, "at least one request mapping is required")})
	}
	seen := map[corev1.ContainerExtendedResourceRequest]bool{}
	for i, m := range s.RequestMappings {
		at := mappings.Index(i)
		requested, ok := requests[m.ContainerName]
		if !ok {
			e.Invalid(at.Child("containerName"), m.ContainerName, "must match the name of an entry in spec.initContainers.name or spec.containers.name")
		} else if _, ok := requested[corev1.ResourceName(m.ResourceName)]; !ok {
			e.Invalid(at.Child("resourceName"), m.ResourceName, "must match the extended resource name of an entry in spec.initContainers.resources.requests or spec.containers.resources.requests")
		}
		e.InvalidAll(path.Child("requestName"), m.RequestName, validation.IsDNS1123Label(m.RequestName))
		if seen[m] {
			e.Add(field.ErrorList{
				field.Duplicate(at.Child("containerName"), m.ContainerName),
				field.Duplicate(at.Child("resourceName"), m.ResourceName),
				field.Duplicate(at.Child("requestName"), m.RequestName),
			})
		}
		seen[m] = true
	}
	if s.ResourceClaimName == "" {
		e.Add(field.ErrorList{field.Required(path.Child("resourceClaimName"), "")})
		return
	}
	e.InvalidAll(path.Child("resourceClaimName"), s.ResourceClaimName, apivalidation.NameIsDNSSubdomain(s.ResourceClaimName, false))
}
