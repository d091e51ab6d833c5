package translate

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"hyperkube/components/gateway/model"
)

// Values of appProtocol of a Service's port that the gateway distinguishes.
const (
	appProtocolH2C = "kubernetes.io/h2c"
	appProtocolWS  = "kubernetes.io/ws"
	appProtocolWSS = "kubernetes.io/wss"
)

// backend resolves a reference of a route to a port of a Service. protocol is used if the Service does not specify one.
// The backend is nil if there is a problem. The target is the Service's port, for policies; it is nil if the port does not exist.
func (t *translator) backend(from grantFrom, ref gatewayv1.BackendObjectReference, protocol model.BackendProtocol) (*model.Backend, *policyTarget, *problem) {
	if !isKind(ref.Group, ref.Kind, "", "Service") {
		return nil, nil, &problem{string(gatewayv1.RouteReasonInvalidKind), "backends must be Services"}
	}
	namespace := string(ptr.Deref(ref.Namespace, gatewayv1.Namespace(from.namespace)))
	name := string(ref.Name)
	if !t.grants.allow(from, grantTo{"", "Service", namespace}, name) {
		return nil, nil, &problem{string(gatewayv1.RouteReasonRefNotPermitted), fmt.Sprintf("no ReferenceGrant allows to refer to Service %s/%s", namespace, name)}
	}
	svc := t.Lookup.Service(namespace, name)
	if svc == nil {
		return nil, nil, &problem{string(gatewayv1.RouteReasonBackendNotFound), fmt.Sprintf("Service %s/%s does not exist", namespace, name)}
	}
	if svc.Spec.Type == corev1.ServiceTypeExternalName {
		// The name could lead to any address, also of the gateway itself or of the node.
		return nil, nil, &problem{string(gatewayv1.RouteReasonBackendNotFound), fmt.Sprintf("Service %s/%s has the type ExternalName, which is not supported", namespace, name)}
	}
	number := ptr.Deref(ref.Port, 0)
	protocols := corev1.ProtocolTCP
	if from.kind == "UDPRoute" {
		protocols = corev1.ProtocolUDP
	}
	i := slices.IndexFunc(svc.Spec.Ports, func(p corev1.ServicePort) bool { return p.Port == number && p.Protocol == protocols })
	if i < 0 {
		return nil, nil, &problem{string(gatewayv1.RouteReasonBackendNotFound), fmt.Sprintf("Service %s/%s has no port %d", namespace, name, number)}
	}
	port := svc.Spec.Ports[i]
	key := model.BackendKey{Namespace: namespace, Service: name, Port: number, UDP: protocols == corev1.ProtocolUDP, Protocol: protocol}
	switch ptr.Deref(port.AppProtocol, "") {
	case appProtocolH2C:
		key.Protocol = model.BackendH2C
	case appProtocolWS, appProtocolWSS:
		key.Protocol = model.BackendHTTP1
	}
	target := &policyTarget{namespace: namespace, service: name, section: port.Name}
	policy := t.policies.of(target)
	if policy != nil {
		if policy.tls == nil {
			// Requests must not be sent without the TLS that a policy demands.
			return nil, target, nil
		}
		key.TLS = policy.version
	}
	b := t.backends[key]
	if b == nil {
		b = &model.Backend{Key: key}
		if policy != nil {
			b.TLS = policy.tls
		}
		t.backends[key] = b
	}
	return b, target, nil
}
