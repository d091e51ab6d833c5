package former

import (
	extensionsv1beta1 "k8s.io/api/extensions/v1beta1"
	networkingv1 "k8s.io/api/networking/v1"
	networkingv1beta1 "k8s.io/api/networking/v1beta1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"hyperkube/internal/api"
)

// networkingVersions returns the readers of Ingresses in v1beta1 of two groups.
func networkingVersions() []version {
	v1 := networkingv1.SchemeGroupVersion
	return []version{
		{"Ingress", v1, networkingv1beta1.SchemeGroupVersion, convertByName(ingress)},
		// The same message in another group.
		{"Ingress", v1, extensionsv1beta1.SchemeGroupVersion, convertByName(ingress)},
	}
}

// ingress sets the fields of now that are different in v1beta1: backends contained the name and
// port of the service directly, and the default path type was ImplementationSpecific.
func ingress(old *networkingv1beta1.Ingress, now *networkingv1.Ingress) error {
	if b := old.Spec.Backend; b != nil {
		now.Spec.DefaultBackend = &networkingv1.IngressBackend{Resource: b.Resource, Service: backend(b.ServiceName, b.ServicePort)}
	}
	for i := range old.Spec.Rules {
		if old.Spec.Rules[i].HTTP == nil {
			continue
		}
		for j, p := range old.Spec.Rules[i].HTTP.Paths {
			path := &now.Spec.Rules[i].HTTP.Paths[j]
			path.Backend.Service = backend(p.Backend.ServiceName, p.Backend.ServicePort)
			api.SetDefault(&path.PathType, networkingv1.PathTypeImplementationSpecific)
		}
	}
	return nil
}

// backend returns the reference to the port of a Service, or nil if both are empty.
func backend(name string, port intstr.IntOrString) *networkingv1.IngressServiceBackend {
	if name == "" && port == (intstr.IntOrString{}) {
		return nil
	}
	return &networkingv1.IngressServiceBackend{Name: name, Port: networkingv1.ServiceBackendPort{Name: port.StrVal, Number: port.IntVal}}
}
