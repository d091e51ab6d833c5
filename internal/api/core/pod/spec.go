package pod

import (
	"fmt"
	"math"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"hyperkube/internal/api/validate"
)

// checkSpec validates the spec of a pod or pod template, the spec of c, and adds the errors to c. path is its field
// path.
func (c *checker) checkSpec(path *field.Path) {
	spec := c.spec
	if spec.TerminationGracePeriodSeconds == nil {
		c.Required(path.Child("terminationGracePeriodSeconds"), "")
	}
	c.checkVolumes(path.Child("volumes"))
	checkPodClaims(&c.Errors, c.spec, path.Child("resourceClaims"))
	c.checkContainers(path.Child("containers"))
	c.checkInitContainers(path.Child("initContainers"))
	c.checkEphemeralContainers(path.Child("ephemeralContainers"))
	c.checkPodResources(path.Child("resources"))
	if spec.HostNetwork {
		c.checkHostNetworkPorts(path.Child("containers"))
	}
	validate.RequiredOneOf(&c.Errors, path.Child("restartPolicy"), spec.RestartPolicy,
		corev1.RestartPolicyAlways, corev1.RestartPolicyOnFailure, corev1.RestartPolicyNever)
	validate.RequiredOneOf(&c.Errors, path.Child("dnsPolicy"), spec.DNSPolicy,
		corev1.DNSClusterFirstWithHostNet, corev1.DNSClusterFirst, corev1.DNSDefault, corev1.DNSNone)
	c.Add(metavalidation.ValidateLabels(spec.NodeSelector, path.Child("nodeSelector")))
	checkPodSecurityContext(&c.Errors, c.spec, path.Child("securityContext"))
	checkSharedProcesses(&c.Errors, c.spec, path)
	checkAffinity(&c.Errors, c.spec, path.Child("affinity"))
	checkDNSConfig(&c.Errors, c.spec, path.Child("dnsConfig"))
	for i, gate := range spec.ReadinessGates {
		c.QualifiedName(path.Child("readinessGates").Index(i).Child("conditionType"), string(gate.ConditionType))
	}
	checkSchedulingGates(&c.Errors, c.spec, path.Child("schedulingGates"))
	c.checkSpreadConstraints(path.Child("topologySpreadConstraints"))
	checkHostProcess(&c.Errors, c.spec, path)
	c.checkHostUsers(path)
	checkNames(&c.Errors, c.spec, path)
	Tolerations(&c.Errors, spec.Tolerations, path.Child("tolerations"))
	for i, alias := range spec.HostAliases {
		at := path.Child("hostAliases").Index(i)
		c.LegacyIP(at.Child("ip"), alias.IP, nil)
		for j, name := range alias.Hostnames {
			c.Subdomain(at.Child("hostnames").Index(j), name)
		}
	}
	if spec.PreemptionPolicy != nil {
		validate.RequiredOneOf(&c.Errors, path.Child("preemptionPolicy"), *spec.PreemptionPolicy,
			corev1.PreemptLowerPriority, corev1.PreemptNever)
	}
	if len(spec.Overhead) > 0 {
		checkRequirements(&c.Errors, &corev1.ResourceRequirements{Limits: spec.Overhead}, validate.ContainerResourceName, path.Child("overhead"))
	}
	checkOS(&c.Errors, c.spec, path)
	checkFileKeyVolumes(&c.Errors, c.spec, path)
}

// checkNames validates the names in a pod's spec, such as those of the node and the service account, if they are set,
// and the active deadline.
func checkNames(e *validate.Errors, spec *corev1.PodSpec, path *field.Path) {
	subdomain := func(name, value string) {
		if value != "" {
			e.InvalidAll(path.Child(name), value, apivalidation.NameIsDNSSubdomain(value, false))
		}
	}
	subdomain("serviceAccountName", spec.ServiceAccountName)
	subdomain("nodeName", spec.NodeName)
	if d := spec.ActiveDeadlineSeconds; d != nil && (*d < 1 || *d > math.MaxInt32) {
		e.Invalid(path.Child("activeDeadlineSeconds"), *d, validation.InclusiveRangeError(1, math.MaxInt32))
	}
	if spec.Hostname != "" {
		e.Label(path.Child("hostname"), spec.Hostname)
	}
	if spec.Subdomain != "" {
		e.Label(path.Child("subdomain"), spec.Subdomain)
	}
	checkHostnameOverride(e, spec, path)
	subdomain("priorityClassName", spec.PriorityClassName)
	if spec.RuntimeClassName != nil {
		e.InvalidAll(path.Child("runtimeClassName"), *spec.RuntimeClassName, apivalidation.NameIsDNSSubdomain(*spec.RuntimeClassName, false))
	}
}

// checkHostnameOverride validates spec.hostnameOverride, which replaces the hostname inside of the
// containers (KEP-4762).
func checkHostnameOverride(e *validate.Errors, spec *corev1.PodSpec, path *field.Path) {
	if spec.HostnameOverride == nil {
		return
	}
	at, name := path.Child("hostnameOverride"), *spec.HostnameOverride
	if ptr.Deref(spec.SetHostnameAsFQDN, false) {
		e.Forbidden(at, "may not be specified when setHostnameAsFQDN is true")
	}
	if spec.HostNetwork {
		e.Forbidden(at, "may not be specified when hostNetwork is true")
	}
	if len(name) > 64 {
		e.Add(field.ErrorList{field.TooLong(at, name, 64)})
	}
	e.Subdomain(at, name)
}

// checkHostNetworkPorts checks that the host ports of a pod in the host network equal the container
// ports. In templates, host ports may be missing, because they are only defaulted in pods.
func (c *checker) checkHostNetworkPorts(path *field.Path) {
	for i := range c.spec.Containers {
		for j, p := range c.spec.Containers[i].Ports {
			if (c.isPod || p.HostPort != 0) && p.HostPort != p.ContainerPort {
				c.Invalid(path.Index(i).Child("ports").Index(j).Child("hostPort"), p.HostPort,
					"must match `containerPort` when `hostNetwork` is true")
			}
		}
	}
}

// checkHostUsers rejects the host's network, PID and IPC namespaces and block devices if the pod
// has its own user namespace.
func (c *checker) checkHostUsers(path *field.Path) {
	if c.hostUsers {
		return
	}
	const detail = "when `hostUsers` is false"
	if c.spec.HostNetwork {
		c.Forbidden(path.Child("hostNetwork"), detail)
	}
	if c.spec.HostPID {
		c.Forbidden(path.Child("HostPID"), detail)
	}
	if c.spec.HostIPC {
		c.Forbidden(path.Child("HostIPC"), detail)
	}
	// Devices can neither be ID-mapped nor change their owner.
	eachContainer(c.spec, path, func(ctr *corev1.Container, at *field.Path) {
		if len(ctr.VolumeDevices) > 0 {
			c.Forbidden(at.Child("volumeDevices"), detail)
		}
	})
}

func checkSchedulingGates(e *validate.Errors, spec *corev1.PodSpec, path *field.Path) {
	gates := spec.SchedulingGates
	for i, gate := range gates {
		e.QualifiedName(path.Index(i), gate.Name)
		if slices.Contains(gates[:i], gate) {
			e.Duplicate(path.Index(i), gate.Name)
		}
	}
}

// Limits of the libc resolver for a pod's DNS configuration: name servers, search domains, and their total length.
const (
	maxNameservers = 3
	maxSearches    = 32
	maxSearchChars = 2048
)

// checkDNSConfig validates the DNS configuration of a pod, which may be missing unless the DNS policy is None. That
// policy requires a name server.
func checkDNSConfig(e *validate.Errors, spec *corev1.PodSpec, at *field.Path) {
	d := spec.DNSConfig
	if spec.DNSPolicy == corev1.DNSNone {
		if d == nil {
			e.Required(at, fmt.Sprintf("must provide `dnsConfig` when `dnsPolicy` is %s", corev1.DNSNone))
			return
		}
		if len(d.Nameservers) == 0 {
			e.Required(at.Child("nameservers"), fmt.Sprintf("must provide at least one DNS nameserver when `dnsPolicy` is %s", corev1.DNSNone))
			return
		}
	}
	if d == nil {
		return
	}
	if len(d.Nameservers) > maxNameservers {
		e.Invalid(at.Child("nameservers"), d.Nameservers, fmt.Sprintf("must not have more than %v nameservers", maxNameservers))
	}
	for i, ip := range d.Nameservers {
		e.LegacyIP(at.Child("nameservers").Index(i), ip, nil)
	}
	if len(d.Searches) > maxSearches {
		e.Invalid(at.Child("searches"), d.Searches, fmt.Sprintf("must not have more than %v search paths", maxSearches))
	}
	if len(strings.Join(d.Searches, " ")) > maxSearchChars {
		e.Invalid(at.Child("searches"), d.Searches, fmt.Sprintf("must not have more than %v characters (including spaces) in the search list", maxSearchChars))
	}
	for i, search := range d.Searches {
		if search == "." {
			continue
		}
		search = strings.TrimSuffix(search, ".")
		e.InvalidAll(at.Child("searches").Index(i), search, validation.IsDNS1123SubdomainWithUnderscore(search))
	}
	for i, option := range d.Options {
		if option.Name == "" {
			e.Required(at.Child("options").Index(i), "must not be empty")
		}
	}
}
