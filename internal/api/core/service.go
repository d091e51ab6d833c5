package core

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"hyperkube/internal/api"
	"hyperkube/internal/api/validate"
)

// service returns the kind Service. The API server allocates cluster IPs, IP families and node
// ports in addition to this definition, before or after validation, so validation accepts both
// empty and allocated values.
func service() api.Kind[*corev1.Service] {
	doc := corev1.ServiceSpec{}.SwaggerDoc()
	return api.Kind[*corev1.Service]{
		Names: api.Names{
			Kind:       "Service",
			Plural:     "services",
			ShortNames: []string{"svc"},
			Categories: []string{"all"},
		},
		Version:     "v1",
		Scope:       api.Namespaced,
		StoragePath: "services/specs",

		AllowCreateOnUpdate: true,
		New:                 func() *corev1.Service { return &corev1.Service{} },
		NewList:             func() runtime.Object { return &corev1.ServiceList{} },
		Default:             defaultService,
		ValidateName:        apivalidation.NameIsDNSLabel,
		PrepareCreate: func(_ context.Context, s *corev1.Service) {
			s.Status = corev1.ServiceStatus{}
			if s.Spec.ClusterIP != "" && len(s.Spec.ClusterIPs) == 0 {
				s.Spec.ClusterIPs = []string{s.Spec.ClusterIP}
			}
		},
		Validate: func(_ context.Context, s *corev1.Service) field.ErrorList { return validateService(s, nil) },
		Canonicalize: func(s *corev1.Service) {
			// There is no traffic to which the policy could apply.
			if s.Spec.Type == corev1.ServiceTypeExternalName {
				s.Spec.InternalTrafficPolicy = nil
			}
		},
		Warnings: serviceWarnings,
		Update: api.KindUpdate[*corev1.Service]{
			Prepare:     func(_ context.Context, s, old *corev1.Service) { prepareServiceUpdate(s, old) },
			Validate:    validateServiceUpdate,
			ResetFields: [][]string{{"status"}},
		},
		Views: map[string]api.KindUpdate[*corev1.Service]{
			"status": {
				Warnings: func(_ context.Context, s, _ *corev1.Service) []string {
					var out []string
					for i, in := range s.Status.LoadBalancer.Ingress {
						out = append(out, validate.IPWarnings(field.NewPath("status", "loadBalancer", "ingress").Index(i), in.IP)...)
					}
					return out
				},
				Prepare: func(_ context.Context, s, old *corev1.Service) {
					old.Spec.DeepCopyInto(&s.Spec)
				},
				Validate:    validateServiceStatus,
				ResetFields: [][]string{{"spec"}},
			},
		},
		Fields: func(s *corev1.Service) fields.Set {
			return fields.Set{"spec.clusterIP": s.Spec.ClusterIP, "spec.type": string(s.Spec.Type)}
		},
		FieldNames: []string{"spec.clusterIP", "spec.type"},
		Columns: []metav1.TableColumnDefinition{
			api.NameColumn,
			api.Column("Type", "string", doc["type"]),
			api.Column("Cluster-IP", "string", doc["clusterIP"]),
			api.Column("External-IP", "string", doc["externalIPs"]),
			api.Column("Port(s)", "string", doc["ports"]),
			api.AgeColumn,
			api.WideColumn("Selector", "string", doc["selector"]),
		},
		Row: serviceRow,
	}
}

// defaultService sets the defaults of a Service, such as the type ClusterIP, the protocol TCP and the target port,
// which is the port.
func defaultService(s *corev1.Service) {
	spec := &s.Spec
	if spec.SessionAffinity == "" {
		spec.SessionAffinity = corev1.ServiceAffinityNone
	}
	switch config := spec.SessionAffinityConfig; spec.SessionAffinity {
	case corev1.ServiceAffinityNone:
		spec.SessionAffinityConfig = nil
	case corev1.ServiceAffinityClientIP:
		if config == nil || config.ClientIP == nil || config.ClientIP.TimeoutSeconds == nil {
			timeout := corev1.DefaultClientIPServiceAffinitySeconds
			spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: &timeout}}
		}
	}
	if spec.Type == "" {
		spec.Type = corev1.ServiceTypeClusterIP
	}
	for i := range spec.Ports {
		p := &spec.Ports[i]
		if p.Protocol == "" {
			p.Protocol = corev1.ProtocolTCP
		}
		if p.TargetPort == intstr.FromInt32(0) || p.TargetPort == intstr.FromString("") {
			p.TargetPort = intstr.FromInt32(p.Port)
		}
	}
	if externallyAccessible(spec) && spec.ExternalTrafficPolicy == "" {
		spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyCluster
	}
	if spec.InternalTrafficPolicy == nil && usesClusterIP(spec) {
		cluster := corev1.ServiceInternalTrafficPolicyCluster
		spec.InternalTrafficPolicy = &cluster
	}
	if spec.Type != corev1.ServiceTypeLoadBalancer {
		return
	}
	if spec.AllocateLoadBalancerNodePorts == nil {
		yes := true
		spec.AllocateLoadBalancerNodePorts = &yes
	}
	for i := range s.Status.LoadBalancer.Ingress {
		if in := &s.Status.LoadBalancer.Ingress[i]; in.IP != "" && in.IPMode == nil {
			vip := corev1.LoadBalancerIPModeVIP
			in.IPMode = &vip
		}
	}
}

// usesClusterIP reports whether services of this type can have a cluster IP.
func usesClusterIP(s *corev1.ServiceSpec) bool {
	switch s.Type {
	case corev1.ServiceTypeClusterIP, corev1.ServiceTypeNodePort, corev1.ServiceTypeLoadBalancer:
		return true
	}
	return false
}

// usesNodePorts reports whether services of this type can have node ports.
func usesNodePorts(s *corev1.ServiceSpec) bool {
	return s.Type == corev1.ServiceTypeNodePort || s.Type == corev1.ServiceTypeLoadBalancer
}

// externallyAccessible reports whether clients outside of the cluster can reach the service, so that it has an external
// traffic policy.
func externallyAccessible(s *corev1.ServiceSpec) bool {
	return usesNodePorts(s) || s.Type == corev1.ServiceTypeClusterIP && len(s.ExternalIPs) > 0
}

// usesHealthCheckPort reports whether the service has a health check node port, at which load
// balancers ask each node whether it has local endpoints.
func usesHealthCheckPort(s *corev1.ServiceSpec) bool {
	return s.Type == corev1.ServiceTypeLoadBalancer && s.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal
}

// isHeadless reports whether a service has no cluster IP, because it is None.
func isHeadless(s *corev1.ServiceSpec) bool {
	return len(s.ClusterIPs) == 1 && s.ClusterIPs[0] == corev1.ClusterIPNone
}

// prepareServiceUpdate interprets fields that the client left empty: allocated values are kept if
// the new type still needs them, and cleared otherwise, unless the client changed them.
func prepareServiceUpdate(s, old *corev1.Service) {
	old.Status.DeepCopyInto(&s.Status)
	if s.Spec.Type != corev1.ServiceTypeLoadBalancer {
		s.Status.LoadBalancer = corev1.LoadBalancerStatus{}
	}
	keepAllocated(&s.Spec, &old.Spec)
	syncClusterIPs(&s.Spec, &old.Spec)
	clearUnused(&s.Spec, &old.Spec)
}

// keepAllocated sets the cluster IPs and ports that a client has omitted to those of the stored service, if both types
// use them.
func keepAllocated(s, old *corev1.ServiceSpec) {
	if usesClusterIP(s) && usesClusterIP(old) {
		if s.ClusterIP == "" {
			s.ClusterIP = old.ClusterIP
		}
		if len(s.ClusterIPs) == 0 && s.ClusterIP == old.ClusterIP {
			s.ClusterIPs = slices.Clone(old.ClusterIPs)
		}
	}
	if usesNodePorts(s) && usesNodePorts(old) {
		keepNodePorts(s, old)
	}
	if usesHealthCheckPort(s) && usesHealthCheckPort(old) && s.HealthCheckNodePort == 0 {
		s.HealthCheckNodePort = old.HealthCheckNodePort
	}
}

// keepNodePorts sets missing node ports to those that the stored service has for the port of the
// same name, unless the client has assigned them to other ports.
func keepNodePorts(s, old *corev1.ServiceSpec) {
	used := map[int32]bool{}
	for i := range s.Ports {
		used[s.Ports[i].NodePort] = true
	}
	for i := range s.Ports {
		if s.Ports[i].NodePort != 0 {
			continue
		}
		for j := range old.Ports {
			if before := old.Ports[j].NodePort; old.Ports[j].Name == s.Ports[i].Name && before != 0 && !used[before] {
				s.Ports[i].NodePort = before
				used[before] = true
			}
		}
	}
}

// syncClusterIPs updates clusterIPs in s if a client has only changed clusterIP, because older
// clients do not set clusterIPs.
func syncClusterIPs(s, old *corev1.ServiceSpec) {
	if len(s.ClusterIPs) == 0 && s.ClusterIP == old.ClusterIP {
		s.ClusterIPs = slices.Clone(old.ClusterIPs)
	}
	if s.ClusterIP == old.ClusterIP || !slices.Equal(s.ClusterIPs, old.ClusterIPs) {
		return
	}
	s.ClusterIPs = nil
	if s.ClusterIP != "" {
		s.ClusterIPs = []string{s.ClusterIP}
	}
}

// clearUnused clears fields that the new type of a service does not use but the stored one did, unless the client has
// changed them.
func clearUnused(s, old *corev1.ServiceSpec) {
	if usesClusterIP(old) && !usesClusterIP(s) {
		if s.ClusterIP == old.ClusterIP && slices.Equal(s.ClusterIPs, old.ClusterIPs) {
			s.ClusterIP, s.ClusterIPs = "", nil
		}
		if slices.Equal(s.IPFamilies, old.IPFamilies) {
			s.IPFamilies = nil
		}
		if equalPtr(s.IPFamilyPolicy, old.IPFamilyPolicy) {
			s.IPFamilyPolicy = nil
		}
	}
	if usesNodePorts(old) && !usesNodePorts(s) && sameNodePorts(s, old) {
		for i := range s.Ports {
			s.Ports[i].NodePort = 0
		}
	}
	if usesHealthCheckPort(old) && !usesHealthCheckPort(s) && s.HealthCheckNodePort == old.HealthCheckNodePort {
		s.HealthCheckNodePort = 0
	}
	if old.Type == corev1.ServiceTypeLoadBalancer && s.Type != corev1.ServiceTypeLoadBalancer {
		if equalPtr(s.AllocateLoadBalancerNodePorts, old.AllocateLoadBalancerNodePorts) {
			s.AllocateLoadBalancerNodePorts = nil
		}
		if equalPtr(s.LoadBalancerClass, old.LoadBalancerClass) {
			s.LoadBalancerClass = nil
		}
	}
	if externallyAccessible(old) && !externallyAccessible(s) && s.ExternalTrafficPolicy == old.ExternalTrafficPolicy {
		s.ExternalTrafficPolicy = ""
	}
}

// equalPtr reports whether a and b are both nil or point to equal values.
func equalPtr[T comparable](a, b *T) bool {
	if a == nil || b == nil {
		return a == b
	}
	return *a == *b
}

// sameNodePorts reports whether the stored service already has all node ports of s, so that the
// client has not chosen a new one.
func sameNodePorts(s, old *corev1.ServiceSpec) bool {
	for i := range s.Ports {
		if p := s.Ports[i].NodePort; p != 0 && !slices.ContainsFunc(old.Ports, func(o corev1.ServicePort) bool { return o.NodePort == p }) {
			return false
		}
	}
	return true
}

// serviceRow returns the cells of a service.
func serviceRow(s *corev1.Service) []any {
	internal := "<none>"
	if len(s.Spec.ClusterIPs) > 0 {
		internal = s.Spec.ClusterIPs[0]
	}
	return []any{
		s.Name, string(s.Spec.Type), internal, externalIP(s), formatPorts(s.Spec.Ports),
		api.Age(s.CreationTimestamp), labels.FormatLabels(s.Spec.Selector),
	}
}

// externalIP returns the table cell with the addresses at which a service is reached from outside: "<none>" if there
// are none, "<pending>" if a load balancer has not assigned any yet.
func externalIP(s *corev1.Service) string {
	switch s.Spec.Type {
	case corev1.ServiceTypeClusterIP, corev1.ServiceTypeNodePort:
		if len(s.Spec.ExternalIPs) == 0 {
			return "<none>"
		}
		return strings.Join(s.Spec.ExternalIPs, ",")
	case corev1.ServiceTypeLoadBalancer:
		var all []string
		for _, in := range s.Status.LoadBalancer.Ingress {
			if in.IP != "" {
				all = append(all, in.IP)
			} else if in.Hostname != "" {
				all = append(all, in.Hostname)
			}
		}
		slices.Sort(all)
		all = append(slices.Compact(all), s.Spec.ExternalIPs...)
		if len(all) == 0 {
			return "<pending>"
		}
		return strings.Join(all, ",")
	case corev1.ServiceTypeExternalName:
		return s.Spec.ExternalName
	}
	return "<unknown>"
}

// formatPorts returns the table cell of a service's ports, such as "80:30080/TCP", or "<none>".
func formatPorts(ports []corev1.ServicePort) string {
	if len(ports) == 0 {
		return "<none>"
	}
	texts := make([]string, len(ports))
	for i, p := range ports {
		if p.NodePort > 0 {
			texts[i] = fmt.Sprintf("%d:%d/%s", p.Port, p.NodePort, p.Protocol)
		} else {
			texts[i] = fmt.Sprintf("%d/%s", p.Port, p.Protocol)
		}
	}
	return strings.Join(texts, ",")
}
