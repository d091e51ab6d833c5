package core

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	netutils "k8s.io/utils/net"

	"hyperkube/internal/api/validate"
)

// validateService validates a service. old is the stored service, whose values in legacy notations
// remain valid, or nil on create.
func validateService(s, old *corev1.Service) field.ErrorList {
	e, path := &validate.Errors{}, field.NewPath("spec")
	spec := &s.Spec
	var before corev1.ServiceSpec
	if old != nil {
		before = old.Spec
	}
	serviceTopology(e, s)
	if len(spec.Ports) == 0 && !isHeadless(spec) && spec.Type != corev1.ServiceTypeExternalName {
		e.Required(path.Child("ports"), "")
	}
	serviceType(e, spec, path)
	servicePorts(e, spec, path.Child("ports"))
	e.Add(metavalidation.ValidateLabels(spec.Selector, path.Child("selector")))
	validate.RequiredOneOf(e, path.Child("sessionAffinity"), spec.SessionAffinity, corev1.ServiceAffinityClientIP, corev1.ServiceAffinityNone)
	serviceAffinity(e, spec, path.Child("sessionAffinityConfig"))
	serviceAddresses(e, spec, &before, path)
	for i, ip := range spec.ExternalIPs {
		at, found := path.Child("externalIPs").Index(i), len(e.List)
		e.LegacyIP(at, ip, before.ExternalIPs)
		if len(e.List) == found {
			e.EndpointIP(at, ip)
		}
	}
	validate.RequiredOneOf(e, path.Child("type"), spec.Type,
		corev1.ServiceTypeClusterIP, corev1.ServiceTypeExternalName, corev1.ServiceTypeLoadBalancer, corev1.ServiceTypeNodePort)
	serviceNodePorts(e, spec, path.Child("ports"))
	serviceSourceRanges(e, s, old, path)
	serviceLoadBalancer(e, spec, path)
	serviceTraffic(e, spec, path)
	return e.List
}

// serviceTopology checks that the annotation for topology-aware routing and its deprecated name have the same value if
// both are set.
func serviceTopology(e *validate.Errors, s *corev1.Service) {
	mode, ok := s.Annotations[corev1.AnnotationTopologyMode]
	hints, both := s.Annotations[corev1.DeprecatedAnnotationTopologyAwareHints]
	if ok && both && mode != hints {
		e.Invalid(field.NewPath("metadata", "annotations").Key(corev1.AnnotationTopologyMode), mode,
			fmt.Sprintf("must match annotations[%s] when both are specified", corev1.DeprecatedAnnotationTopologyAwareHints))
	}
}

// serviceType validates the fields of a Service that its type requires or does not allow, and adds the errors to e.
// path is the field path of spec.
func serviceType(e *validate.Errors, spec *corev1.ServiceSpec, path *field.Path) {
	switch spec.Type {
	case corev1.ServiceTypeLoadBalancer, corev1.ServiceTypeNodePort:
		if isHeadless(spec) {
			e.Invalid(path.Child("clusterIPs").Index(0), spec.ClusterIPs[0], fmt.Sprintf("may not be set to 'None' for %s services", spec.Type))
		}
	case corev1.ServiceTypeExternalName:
		const detail = "may not be set for ExternalName services"
		if len(spec.ClusterIPs) > 0 {
			e.Forbidden(path.Child("clusterIPs"), detail)
		}
		if len(spec.IPFamilies) > 0 {
			e.Forbidden(path.Child("ipFamilies"), detail)
		}
		if spec.IPFamilyPolicy != nil {
			e.Forbidden(path.Child("ipFamilyPolicy"), detail)
		}
		// A trailing dot marks a fully qualified name.
		if name := strings.TrimSuffix(spec.ExternalName, "."); name == "" {
			e.Required(path.Child("externalName"), "")
		} else {
			e.Subdomain(path.Child("externalName"), name)
		}
	}
}

// servicePorts validates the ports of a service. Names must be unique, and are required if there are several ports.
func servicePorts(e *validate.Errors, spec *corev1.ServiceSpec, path *field.Path) {
	for i := range spec.Ports {
		p, at := &spec.Ports[i], path.Index(i)
		switch {
		case p.Name != "":
			e.Label(at.Child("name"), p.Name)
			if slices.ContainsFunc(spec.Ports[:i], func(o corev1.ServicePort) bool { return o.Name == p.Name }) {
				e.Duplicate(at.Child("name"), p.Name)
			}
		case len(spec.Ports) > 1:
			e.Required(at.Child("name"), "")
		}
		e.InvalidAll(at.Child("port"), p.Port, validation.IsValidPortNum(int(p.Port)))
		validate.RequiredOneOf(e, at.Child("protocol"), p.Protocol, corev1.ProtocolSCTP, corev1.ProtocolTCP, corev1.ProtocolUDP)
		if p.TargetPort.Type == intstr.String {
			e.InvalidAll(at.Child("targetPort"), p.TargetPort.StrVal, validation.IsValidPortName(p.TargetPort.StrVal))
		} else {
			e.InvalidAll(at.Child("targetPort"), p.TargetPort.IntValue(), validation.IsValidPortNum(p.TargetPort.IntValue()))
		}
		if p.AppProtocol != nil {
			e.QualifiedName(at.Child("appProtocol"), *p.AppProtocol)
		}
	}
}

// serviceNodePorts checks that the Service's type allows its node ports, and that no two ports have the same protocol
// and node port, or the same protocol and port. path is the field path of the ports.
func serviceNodePorts(e *validate.Errors, spec *corev1.ServiceSpec, path *field.Path) {
	if spec.Type == corev1.ServiceTypeClusterIP {
		for i := range spec.Ports {
			if spec.Ports[i].NodePort != 0 {
				e.Forbidden(path.Index(i).Child("nodePort"), "may not be used when `type` is 'ClusterIP'")
			}
		}
	}
	for i, p := range spec.Ports {
		if p.NodePort != 0 && slices.ContainsFunc(spec.Ports[:i], func(o corev1.ServicePort) bool { return o.Protocol == p.Protocol && o.NodePort == p.NodePort }) {
			e.Duplicate(path.Index(i).Child("nodePort"), p.NodePort)
		}
	}
	for i, p := range spec.Ports {
		if slices.ContainsFunc(spec.Ports[:i], func(o corev1.ServicePort) bool { return o.Protocol == p.Protocol && o.Port == p.Port }) {
			e.Duplicate(path.Index(i), corev1.ServicePort{Protocol: p.Protocol, Port: p.Port})
		}
	}
}

// serviceAffinity checks that the configuration of the session affinity fits its type, and that the timeout is at most
// a day.
func serviceAffinity(e *validate.Errors, spec *corev1.ServiceSpec, at *field.Path) {
	config := spec.SessionAffinityConfig
	switch spec.SessionAffinity {
	case corev1.ServiceAffinityNone:
		if config != nil {
			e.Forbidden(at, fmt.Sprintf("must not be set when session affinity is %s", corev1.ServiceAffinityNone))
		}
	case corev1.ServiceAffinityClientIP:
		missing := fmt.Sprintf("when session affinity type is %s", corev1.ServiceAffinityClientIP)
		switch timeout := at.Child("clientIP", "timeoutSeconds"); {
		case config == nil:
			e.Required(at, missing)
		case config.ClientIP == nil:
			e.Required(at.Child("clientIP"), missing)
		case config.ClientIP.TimeoutSeconds == nil:
			e.Required(timeout, missing)
		default:
			const most = 24 * 60 * 60
			if n := *config.ClientIP.TimeoutSeconds; n <= 0 || n > most {
				e.Invalid(timeout, n, fmt.Sprintf("must be greater than 0 and less than %d", most))
			}
		}
	}
}

// serviceAddresses validates the requested or allocated cluster IPs of one or two families. before is the stored spec,
// empty on create. It does nothing for the type ExternalName.
func serviceAddresses(e *validate.Errors, spec, before *corev1.ServiceSpec, path *field.Path) {
	if spec.Type == corev1.ServiceTypeExternalName {
		return
	}
	ips := path.Child("clusterIPs")
	switch {
	case spec.ClusterIP == "" && len(spec.ClusterIPs) > 0:
		e.Invalid(ips, spec.ClusterIPs, "must be empty when `clusterIP` is not specified")
	case spec.ClusterIP != "" && len(spec.ClusterIPs) == 0:
		e.Required(ips, "")
	case spec.ClusterIP != "" && spec.ClusterIPs[0] != spec.ClusterIP:
		e.Invalid(ips, spec.ClusterIPs, "first value must match `clusterIP`")
	}
	for i, family := range spec.IPFamilies {
		at := path.Child("ipFamilies").Index(i)
		validate.OneOf(e, at, family, corev1.IPv4Protocol, corev1.IPv6Protocol)
		if slices.Contains(spec.IPFamilies[:i], family) {
			e.Duplicate(at, family)
		}
	}
	if p := spec.IPFamilyPolicy; p != nil {
		validate.OneOf(e, path.Child("ipFamilyPolicy"), *p,
			corev1.IPFamilyPolicyPreferDualStack, corev1.IPFamilyPolicyRequireDualStack, corev1.IPFamilyPolicySingleStack)
	}
	bad := false
	for i, ip := range spec.ClusterIPs {
		if i == 0 && ip == corev1.ClusterIPNone {
			if len(spec.ClusterIPs) > 1 {
				bad = true
				e.Invalid(ips, spec.ClusterIPs, "'None' must be the first and only value")
			}
			continue
		}
		found := len(e.List)
		e.LegacyIP(ips.Index(i), ip, before.ClusterIPs)
		bad = bad || len(e.List) > found
	}
	if len(spec.ClusterIPs) > 2 {
		e.Invalid(ips, spec.ClusterIPs, "may only hold up to 2 values")
	}
	if bad {
		return
	}
	if len(spec.ClusterIPs) > 1 {
		if dual, err := netutils.IsDualStackIPStrings(spec.ClusterIPs); err != nil || !dual {
			e.Invalid(ips, spec.ClusterIPs, "may specify no more than one IP for each IP family")
		}
	}
	if isHeadless(spec) {
		return
	}
	for i := range min(len(spec.ClusterIPs), len(spec.IPFamilies)) {
		ip, family := spec.ClusterIPs[i], spec.IPFamilies[i]
		if is6 := netutils.IsIPv6String(ip); is6 == (family == corev1.IPv4Protocol) && (family == corev1.IPv4Protocol || family == corev1.IPv6Protocol) {
			e.Invalid(ips.Index(i), ip, fmt.Sprintf("expected an %s value as indicated by `ipFamilies[%v]`", family, i))
		}
	}
}

const onlyLoadBalancer = "may only be used when `type` is 'LoadBalancer'"

// serviceSourceRanges validates the source ranges of a load balancer, in the spec or in the
// annotation that preceded the field. old is the stored service, or nil on create.
func serviceSourceRanges(e *validate.Errors, s, old *corev1.Service, path *field.Path) {
	var before corev1.Service
	if old != nil {
		before = *old
	}
	balancer := s.Spec.Type == corev1.ServiceTypeLoadBalancer
	if len(s.Spec.LoadBalancerSourceRanges) > 0 {
		at := path.Child("LoadBalancerSourceRanges")
		if !balancer {
			e.Forbidden(at, onlyLoadBalancer)
		}
		for i, cidr := range s.Spec.LoadBalancerSourceRanges {
			// For compatibility, surrounding whitespace is allowed.
			e.LegacyCIDR(at.Index(i), strings.TrimSpace(cidr), before.Spec.LoadBalancerSourceRanges)
		}
		return
	}
	value, ok := s.Annotations[corev1.AnnotationLoadBalancerSourceRangesKey]
	if !ok {
		return
	}
	at := field.NewPath("metadata", "annotations").Key(corev1.AnnotationLoadBalancerSourceRangesKey)
	if !balancer {
		e.Forbidden(at, onlyLoadBalancer)
	}
	if strings.TrimSpace(value) == "" || value == before.Annotations[corev1.AnnotationLoadBalancerSourceRangesKey] {
		return
	}
	for cidr := range strings.SplitSeq(value, ",") {
		e.LegacyCIDR(at, strings.TrimSpace(cidr), nil)
	}
}

// serviceLoadBalancer checks that the fields for load balancers are set only, and as required, for the type
// LoadBalancer.
func serviceLoadBalancer(e *validate.Errors, spec *corev1.ServiceSpec, path *field.Path) {
	balancer := spec.Type == corev1.ServiceTypeLoadBalancer
	if spec.AllocateLoadBalancerNodePorts != nil && !balancer {
		e.Forbidden(path.Child("allocateLoadBalancerNodePorts"), onlyLoadBalancer)
	}
	if spec.AllocateLoadBalancerNodePorts == nil && balancer {
		e.Required(field.NewPath("allocateLoadBalancerNodePorts"), "")
	}
	serviceLoadBalancerClass(e, spec, path)
}

func serviceLoadBalancerClass(e *validate.Errors, spec *corev1.ServiceSpec, path *field.Path) {
	if spec.LoadBalancerClass == nil {
		return
	}
	if spec.Type == corev1.ServiceTypeLoadBalancer {
		e.QualifiedName(path.Child("loadBalancerClass"), *spec.LoadBalancerClass)
	} else {
		e.Forbidden(path.Child("loadBalancerClass"), onlyLoadBalancer)
	}
}

// serviceTraffic validates the internal and external traffic policies, the health check node port, and the traffic
// distribution.
func serviceTraffic(e *validate.Errors, spec *corev1.ServiceSpec, path *field.Path) {
	external := path.Child("externalTrafficPolicy")
	switch {
	case externallyAccessible(spec):
		validate.RequiredOneOf(e, external, spec.ExternalTrafficPolicy, corev1.ServiceExternalTrafficPolicyCluster, corev1.ServiceExternalTrafficPolicyLocal)
	case spec.ExternalTrafficPolicy != "":
		e.Invalid(external, spec.ExternalTrafficPolicy, "may only be set for externally-accessible services")
	}
	if port := spec.HealthCheckNodePort; port != 0 {
		at := path.Child("healthCheckNodePort")
		if usesHealthCheckPort(spec) {
			e.InvalidAll(at, port, validation.IsValidPortNum(int(port)))
		} else {
			e.Invalid(at, port, "may only be set when `type` is 'LoadBalancer' and `externalTrafficPolicy` is 'Local'")
		}
	}
	internal := path.Child("internalTrafficPolicy")
	if p := spec.InternalTrafficPolicy; p != nil {
		validate.OneOf(e, internal, *p, corev1.ServiceInternalTrafficPolicyCluster, corev1.ServiceInternalTrafficPolicyLocal)
	} else if usesClusterIP(spec) {
		e.Required(internal, "")
	}
	if d := spec.TrafficDistribution; d != nil {
		validate.OneOf(e, path.Child("trafficDistribution"), *d, corev1.ServiceTrafficDistributionPreferClose,
			corev1.ServiceTrafficDistributionPreferSameZone, corev1.ServiceTrafficDistributionPreferSameNode)
	}
}

const onceSet = "may not change once set"

// validateServiceUpdate validates an update of a Service: which fields must not change, and then the Service itself.
// Cluster IPs and IP families are only compared if neither Service has the type ExternalName.
func validateServiceUpdate(_ context.Context, s, old *corev1.Service) field.ErrorList {
	e, path := &validate.Errors{}, field.NewPath("spec")
	if s.Spec.Type != corev1.ServiceTypeExternalName && old.Spec.Type != corev1.ServiceTypeExternalName {
		clusterIPsUpdate(e, &s.Spec, &old.Spec, path)
		familiesUpdate(e, &s.Spec, &old.Spec, path)
	}
	if s.Spec.Type == corev1.ServiceTypeLoadBalancer && old.Spec.Type == corev1.ServiceTypeLoadBalancer &&
		!equalPtr(s.Spec.LoadBalancerClass, old.Spec.LoadBalancerClass) {
		e.Invalid(path.Child("loadBalancerClass"), s.Spec.LoadBalancerClass, onceSet)
	}
	// Reported here first; duplicates below are dropped.
	serviceLoadBalancerClass(e, &s.Spec, path)
	if usesHealthCheckPort(&s.Spec) && usesHealthCheckPort(&old.Spec) && s.Spec.HealthCheckNodePort != old.Spec.HealthCheckNodePort {
		e.Forbidden(path.Child("healthCheckNodePort"), "field is immutable")
	}
	e.Add(validateService(s, old))
	return e.List
}

// clusterIPsUpdate validates an update of the cluster IPs. The IP of the second family may be
// added, and removed if the policy becomes SingleStack. The first one is immutable.
func clusterIPsUpdate(e *validate.Errors, s, old *corev1.ServiceSpec, path *field.Path) {
	if isHeadless(s) && isHeadless(old) {
		return
	}
	at, is, was := path.Child("clusterIPs"), s.ClusterIPs, old.ClusterIPs
	if len(is) == len(was) {
		for i := range was {
			if is[i] != was[i] {
				e.Invalid(at.Index(i), is, onceSet)
			}
		}
		return
	}
	if len(is) > 0 && len(was) > 0 && is[0] != was[0] {
		e.Invalid(at.Index(0), is, onceSet)
	}
	if len(was) < len(is) {
		return
	}
	if len(is) == 0 {
		e.Invalid(at.Index(0), is, "primary clusterIP can not be unset")
	}
	if len(is) == 1 && !isSingleStack(s) {
		e.Invalid(path.Child("ipFamilyPolicy"), s.IPFamilyPolicy, "must be 'SingleStack' to release the secondary cluster IP")
	}
}

// isSingleStack reports whether the IP family policy of a service is SingleStack.
func isSingleStack(s *corev1.ServiceSpec) bool {
	return s.IPFamilyPolicy != nil && *s.IPFamilyPolicy == corev1.IPFamilyPolicySingleStack
}

// familiesUpdate validates an update of the IP families, by the same rules as clusterIPsUpdate. Headless services may
// change them.
func familiesUpdate(e *validate.Errors, s, old *corev1.ServiceSpec, path *field.Path) {
	if isHeadless(s) || isHeadless(old) {
		return
	}
	at, is, was := path.Child("ipFamilies").Index(0), s.IPFamilies, old.IPFamilies
	if len(is) == len(was) {
		for i := range was {
			if is[i] != was[i] {
				e.Invalid(at, is, onceSet)
			}
		}
		return
	}
	if len(is) > 0 && len(was) > 0 && is[0] != was[0] {
		e.Invalid(at, s.ClusterIPs, onceSet)
	}
	if len(was) < len(is) {
		return
	}
	if len(s.ClusterIPs) == 0 {
		e.Invalid(at, is, "primary ipFamily can not be unset")
	}
	if len(is) == 1 && !isSingleStack(s) {
		e.Invalid(path.Child("ipFamilyPolicy"), s.IPFamilyPolicy, "must be 'SingleStack' to release the secondary IP family")
	}
}

// validateServiceStatus validates an update of the load balancer status. Only Services of the type LoadBalancer may
// have one. Addresses of the stored object old may have any syntax that was valid earlier.
func validateServiceStatus(_ context.Context, s, old *corev1.Service) field.ErrorList {
	e, path := &validate.Errors{}, field.NewPath("status", "loadBalancer", "ingress")
	if s.Spec.Type != corev1.ServiceTypeLoadBalancer && len(s.Status.LoadBalancer.Ingress) > 0 {
		e.Forbidden(path, "may only be used when `spec.type` is 'LoadBalancer'")
		return e.List
	}
	var before []string
	for _, in := range old.Status.LoadBalancer.Ingress {
		before = append(before, in.IP)
	}
	for i, in := range s.Status.LoadBalancer.Ingress {
		at := path.Index(i)
		if in.IP != "" {
			e.LegacyIP(at.Child("ip"), in.IP, before)
		}
		switch {
		case in.IPMode == nil:
			if in.IP != "" {
				e.Required(at.Child("ipMode"), "must be specified when `ip` is set")
			}
		case in.IP == "":
			e.Forbidden(at.Child("ipMode"), "may not be specified when `ip` is not set")
		default:
			validate.OneOf(e, at.Child("ipMode"), *in.IPMode, corev1.LoadBalancerIPModeProxy, corev1.LoadBalancerIPModeVIP)
		}
		if in.Hostname != "" {
			e.Subdomain(at.Child("hostname"), in.Hostname)
			if netutils.ParseIPSloppy(in.Hostname) != nil {
				e.Invalid(at.Child("hostname"), in.Hostname, "must be a DNS name, not an IP address")
			}
		}
	}
	return e.List
}

// serviceWarnings returns warnings for fields that are deprecated or ignored, and for addresses in a non-standard
// notation.
func serviceWarnings(_ context.Context, s, _ *corev1.Service) []string {
	var out []string
	add := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	spec, path := &s.Spec, field.NewPath("spec")
	if _, ok := s.Annotations[corev1.DeprecatedAnnotationTopologyAwareHints]; ok {
		add("annotation %s is deprecated, please use %s instead", corev1.DeprecatedAnnotationTopologyAwareHints, corev1.AnnotationTopologyMode)
	}
	headless := spec.Type == corev1.ServiceTypeClusterIP && spec.ClusterIP == corev1.ClusterIPNone
	if spec.ClusterIP != "" && spec.ClusterIP != corev1.ClusterIPNone {
		for i, ip := range spec.ClusterIPs {
			out = append(out, validate.IPWarnings(path.Child("clusterIPs").Index(i), ip)...)
		}
	}
	if headless {
		if spec.LoadBalancerIP != "" {
			add("spec.loadBalancerIP is ignored for headless services")
		}
		if len(spec.ExternalIPs) > 0 {
			add("spec.externalIPs is ignored for headless services")
		}
		if spec.SessionAffinity != corev1.ServiceAffinityNone {
			add("spec.SessionAffinity is ignored for headless services")
		}
	}
	for i, ip := range spec.ExternalIPs {
		out = append(out, validate.IPWarnings(path.Child("externalIPs").Index(i), ip)...)
	}
	if len(spec.ExternalIPs) > 0 && !headless && spec.Type != corev1.ServiceTypeExternalName {
		add("spec.externalIPs is deprecated and may no longer be implemented in some clusters")
	}
	if spec.LoadBalancerIP != "" {
		out = append(out, validate.IPWarnings(path.Child("loadBalancerIP"), spec.LoadBalancerIP)...)
	}
	for i, cidr := range spec.LoadBalancerSourceRanges {
		out = append(out, validate.CIDRWarnings(path.Child("loadBalancerSourceRanges").Index(i), cidr)...)
	}
	if spec.Type == corev1.ServiceTypeExternalName && len(spec.ExternalIPs) > 0 {
		add("spec.externalIPs is ignored when spec.type is %q", corev1.ServiceTypeExternalName)
	}
	if spec.Type != corev1.ServiceTypeExternalName && spec.ExternalName != "" {
		add("spec.externalName is ignored when spec.type is not %q", corev1.ServiceTypeExternalName)
	}
	if d := spec.TrafficDistribution; d != nil && *d == corev1.ServiceTrafficDistributionPreferClose {
		add("spec.trafficDistribution: %q is deprecated; use %q", corev1.ServiceTrafficDistributionPreferClose, corev1.ServiceTrafficDistributionPreferSameZone)
	}
	return out
}
