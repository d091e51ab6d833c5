package networking

import (
	"context"
	"fmt"
	"slices"
	"strings"

	networkingv1 "k8s.io/api/networking/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	pathvalidation "k8s.io/apimachinery/pkg/api/validation/path"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	netutils "k8s.io/utils/net"

	"hyperkube/internal/api"
	"hyperkube/internal/api/validate"
)

// classAnnotation is the deprecated annotation with the ingress class, which spec.ingressClassName
// has replaced.
const classAnnotation = "kubernetes.io/ingress.class"

func ingress() api.Kind[*networkingv1.Ingress] {
	return api.Kind[*networkingv1.Ingress]{
		Names:   api.Names{Kind: "Ingress", Plural: "ingresses", ShortNames: []string{"ing"}},
		Group:   group,
		Version: version,
		// The historical path in upstream.
		StoragePath: "ingress",
		Scope:       api.Namespaced,
		New:         func() *networkingv1.Ingress { return &networkingv1.Ingress{} },
		NewList:     func() runtime.Object { return &networkingv1.IngressList{} },
		PrepareCreate: func(_ context.Context, i *networkingv1.Ingress) {
			i.Status = networkingv1.IngressStatus{}
			i.Generation = 1
		},
		Validate: func(_ context.Context, i *networkingv1.Ingress) field.ErrorList {
			errs := validateIngressSpec(&i.Spec, nil, field.NewPath("spec"))
			if class, ok := i.Annotations[classAnnotation]; ok && i.Spec.IngressClassName != nil && *i.Spec.IngressClassName != class {
				errs = append(errs, field.Invalid(field.NewPath("annotations").Child(classAnnotation), class, "must match `ingressClassName` when both are specified"))
			}
			return errs
		},
		Warnings: func(_ context.Context, i, old *networkingv1.Ingress) []string {
			if _, ok := i.Annotations[classAnnotation]; ok && old == nil && i.Spec.IngressClassName == nil {
				return []string{fmt.Sprintf("annotation %q is deprecated, please use 'spec.ingressClassName' instead", classAnnotation)}
			}
			return nil
		},
		Update: api.KindUpdate[*networkingv1.Ingress]{
			AsNew: true,
			Prepare: func(_ context.Context, i, old *networkingv1.Ingress) {
				old.Status.DeepCopyInto(&i.Status)
				i.Generation = old.Generation
				if !apiequality.Semantic.DeepEqual(i.Spec, old.Spec) {
					i.Generation++
				}
			},
			Validate: func(_ context.Context, i, old *networkingv1.Ingress) field.ErrorList {
				return validateIngressSpec(&i.Spec, &old.Spec, field.NewPath("spec"))
			},
			ResetFields: [][]string{{"status"}},
		},
		Views: map[string]api.KindUpdate[*networkingv1.Ingress]{
			"status": {
				Warnings: func(_ context.Context, i, _ *networkingv1.Ingress) []string {
					var out []string
					for n, in := range i.Status.LoadBalancer.Ingress {
						out = append(out, validate.IPWarnings(field.NewPath("status", "loadBalancer", "ingress").Index(n), in.IP)...)
					}
					return out
				},
				Prepare: func(_ context.Context, i, old *networkingv1.Ingress) {
					old.Spec.DeepCopyInto(&i.Spec)
					i.Generation = old.Generation
				},
				Validate: func(_ context.Context, i, old *networkingv1.Ingress) field.ErrorList {
					return validateIngressStatus(i, old)
				},
				ResetFields: [][]string{{"spec"}},
			},
		},
		Columns: []metav1.TableColumnDefinition{
			api.NameColumn,
			api.Column("Class", "string", "The name of the IngressClass resource that should be used for additional configuration"),
			api.Column("Hosts", "string", "Hosts that incoming requests are matched against before the ingress rule"),
			api.Column("Address", "string", "Address is a list containing ingress points for the load-balancer"),
			api.Column("Ports", "string", "Ports of TLS configurations that open"),
			api.AgeColumn,
		},
		Row: func(i *networkingv1.Ingress) []any {
			class := "<none>"
			if i.Spec.IngressClassName != nil {
				class = *i.Spec.IngressClassName
			}
			ports := "80"
			if len(i.Spec.TLS) > 0 {
				ports = "80, 443"
			}
			return []any{i.Name, class, hostsCell(i.Spec.Rules), addressCell(&i.Status.LoadBalancer), ports, api.Age(i.CreationTimestamp)}
		},
	}
}

// hostsCell returns the table cell with the hosts of rules, or "*" if there are none.
func hostsCell(rules []networkingv1.IngressRule) string {
	var hosts []string
	for _, r := range rules {
		if r.Host != "" {
			hosts = append(hosts, r.Host)
		}
	}
	if len(hosts) == 0 {
		return "*"
	}
	return join(hosts, 3)
}

// addressCell returns the table cell with the addresses and hostnames of an Ingress, sorted.
func addressCell(s *networkingv1.IngressLoadBalancerStatus) string {
	var all []string
	for _, i := range s.Ingress {
		switch {
		case i.IP != "":
			all = append(all, i.IP)
		case i.Hostname != "":
			all = append(all, i.Hostname)
		}
	}
	slices.Sort(all)
	return strings.Join(slices.Compact(all), ",")
}

// validateIngressSpec validates an Ingress's spec. old is the spec of the stored object, nil on
// create. Upstream did not validate the names of Secrets and the rules of wildcard hosts in the
// past, so they are not validated if old has invalid ones.
func validateIngressSpec(spec, old *networkingv1.IngressSpec, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	anySecret := old != nil && slices.ContainsFunc(old.TLS, func(t networkingv1.IngressTLS) bool {
		return len(validateTLSSecret(t.SecretName, nil)) > 0
	})
	anyStar := old != nil && slices.ContainsFunc(old.Rules, func(r networkingv1.IngressRule) bool {
		return hasStar(r.Host) && len(validateHTTP(r.HTTP, nil)) > 0
	})
	if len(spec.Rules) == 0 && spec.DefaultBackend == nil {
		errs = append(errs, field.Invalid(path, spec.Rules, "either `defaultBackend` or `rules` must be specified"))
	}
	if spec.DefaultBackend != nil {
		errs = append(errs, validateBackend(spec.DefaultBackend, path.Child("defaultBackend"))...)
	}
	for i := range spec.Rules {
		r, at := &spec.Rules[i], path.Child("rules").Index(i)
		errs = append(errs, validateIngressHost(r.Host, at.Child("host"))...)
		if !anyStar || !hasStar(r.Host) {
			errs = append(errs, validateHTTP(r.HTTP, at.Child("http"))...)
		}
	}
	for i, t := range spec.TLS {
		at := path.Child("tls").Index(i)
		for k, host := range t.Hosts {
			errs = append(errs, validateHostName(host, at.Child("hosts").Index(k))...)
		}
		if !anySecret {
			errs = append(errs, validateTLSSecret(t.SecretName, at.Child("secretName"))...)
		}
	}
	if c := spec.IngressClassName; c != nil {
		for _, msg := range apivalidation.NameIsDNSSubdomain(*c, false) {
			errs = append(errs, field.Invalid(path.Child("ingressClassName"), *c, msg))
		}
	}
	return errs
}

func validateTLSSecret(name string, path *field.Path) field.ErrorList {
	if name == "" {
		return nil
	}
	var errs field.ErrorList
	for _, msg := range apivalidation.NameIsDNSSubdomain(name, false) {
		errs = append(errs, field.Invalid(path, name, msg))
	}
	return errs
}

// hasStar reports whether the name of a host contains a wildcard.
func hasStar(host string) bool { return strings.Contains(host, "*") }

// validateHostName validates the name of a host, whose first label may be "*".
func validateHostName(host string, path *field.Path) field.ErrorList {
	check := validation.IsDNS1123Subdomain
	if hasStar(host) {
		check = validation.IsWildcardDNS1123Subdomain
	}
	var errs field.ErrorList
	for _, msg := range check(host) {
		errs = append(errs, field.Invalid(path, host, msg))
	}
	return errs
}

func validateIngressHost(host string, path *field.Path) field.ErrorList {
	if host == "" {
		return nil
	}
	var errs field.ErrorList
	if netutils.ParseIPSloppy(host) != nil {
		errs = append(errs, field.Invalid(path, host, "must be a DNS name, not an IP address"))
	}
	return append(errs, validateHostName(host, path)...)
}

func validateHTTP(http *networkingv1.HTTPIngressRuleValue, path *field.Path) field.ErrorList {
	if http == nil {
		return nil
	}
	var errs field.ErrorList
	paths := path.Child("paths")
	if len(http.Paths) == 0 {
		errs = append(errs, field.Required(paths, ""))
	}
	for i := range http.Paths {
		errs = append(errs, validateHTTPPath(&http.Paths[i], paths.Index(i))...)
	}
	return errs
}

// validateHTTPPath validates a path of an Ingress rule and its backend. The path must start with "/", but may be empty
// for the type ImplementationSpecific. For the other types it must be normalized.
func validateHTTPPath(p *networkingv1.HTTPIngressPath, path *field.Path) field.ErrorList {
	const exact, prefix, specific = networkingv1.PathTypeExact, networkingv1.PathTypePrefix, networkingv1.PathTypeImplementationSpecific
	if p.PathType == nil {
		return field.ErrorList{field.Required(path.Child("pathType"), "pathType must be specified")}
	}
	var errs field.ErrorList
	at := path.Child("path")
	switch *p.PathType {
	case exact, prefix:
		if !strings.HasPrefix(p.Path, "/") {
			errs = append(errs, field.Invalid(at, p.Path, "must be an absolute path"))
		}
		if p.Path == "" {
			break
		}
		for _, s := range []string{"//", "/./", "/../", "%2f", "%2F"} {
			if strings.Contains(p.Path, s) {
				errs = append(errs, field.Invalid(at, p.Path, fmt.Sprintf("must not contain '%s'", s)))
			}
		}
		for _, s := range []string{"/..", "/."} {
			if strings.HasSuffix(p.Path, s) {
				errs = append(errs, field.Invalid(at, p.Path, fmt.Sprintf("cannot end with '%s'", s)))
			}
		}
	case specific:
		if p.Path != "" && !strings.HasPrefix(p.Path, "/") {
			errs = append(errs, field.Invalid(at, p.Path, "must be an absolute path"))
		}
	default:
		errs = append(errs, field.NotSupported(path.Child("pathType"), *p.PathType, []networkingv1.PathType{exact, specific, prefix}))
	}
	return append(errs, validateBackend(&p.Backend, path.Child("backend"))...)
}

// validateBackend validates a backend of an Ingress: either a resource or a Service, with the name or the number of a
// port. It does not check whether they exist.
func validateBackend(b *networkingv1.IngressBackend, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	switch {
	case b.Resource != nil && b.Service != nil:
		return field.ErrorList{field.Invalid(path, "", "cannot set both resource and service backends")}
	case b.Resource != nil:
		at := path.Child("resource")
		if b.Resource.APIGroup != nil {
			for _, msg := range validation.IsDNS1123Subdomain(*b.Resource.APIGroup) {
				errs = append(errs, field.Invalid(at.Child("apiGroup"), *b.Resource.APIGroup, msg))
			}
		}
		for _, f := range []struct{ name, value string }{{"kind", b.Resource.Kind}, {"name", b.Resource.Name}} {
			if f.value == "" {
				errs = append(errs, field.Required(at.Child(f.name), ""))
				continue
			}
			for _, msg := range pathvalidation.IsValidPathSegmentName(f.value) {
				errs = append(errs, field.Invalid(at.Child(f.name), f.value, msg))
			}
		}
		return errs
	case b.Service == nil:
		return field.ErrorList{field.Invalid(path, "", "resource or service backend is required")}
	}
	at := path.Child("service")
	if b.Service.Name == "" {
		errs = append(errs, field.Required(at.Child("name"), ""))
	} else {
		for _, msg := range apivalidation.NameIsDNSLabel(b.Service.Name, false) {
			errs = append(errs, field.Invalid(at.Child("name"), b.Service.Name, msg))
		}
	}
	port := b.Service.Port
	switch {
	case port.Name != "" && port.Number != 0:
		errs = append(errs, field.Invalid(path, "", "cannot set both port name & port number"))
	case port.Name != "":
		for _, msg := range validation.IsValidPortName(port.Name) {
			errs = append(errs, field.Invalid(at.Child("port", "name"), port.Name, msg))
		}
	case port.Number != 0:
		for _, msg := range validation.IsValidPortNum(int(port.Number)) {
			errs = append(errs, field.Invalid(at.Child("port", "number"), port.Number, msg))
		}
	default:
		errs = append(errs, field.Required(path, "port name or number is required"))
	}
	return errs
}

// validateIngressStatus validates the load balancer status. Addresses of the stored object old may have any syntax that
// was valid earlier.
func validateIngressStatus(i, old *networkingv1.Ingress) field.ErrorList {
	var known []string
	for _, in := range old.Status.LoadBalancer.Ingress {
		if in.IP != "" {
			known = append(known, in.IP)
		}
	}
	var errs field.ErrorList
	path := field.NewPath("status", "loadBalancer", "ingress")
	for n, in := range i.Status.LoadBalancer.Ingress {
		at := path.Index(n)
		if in.IP != "" {
			errs = append(errs, validation.IsValidIPForLegacyField(at.Child("ip"), in.IP, true, known)...)
		}
		if in.Hostname != "" {
			for _, msg := range validation.IsDNS1123Subdomain(in.Hostname) {
				errs = append(errs, field.Invalid(at.Child("hostname"), in.Hostname, msg))
			}
			if netutils.ParseIPSloppy(in.Hostname) != nil {
				errs = append(errs, field.Invalid(at.Child("hostname"), in.Hostname, "must be a DNS name, not an IP address"))
			}
		}
	}
	return errs
}
