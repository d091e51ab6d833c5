package controller

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"hyperkube/components/gateway/model"
	"hyperkube/components/gateway/translate"
)

const (
	// managedByLabel with managedBy marks the Services that the gateway creates.
	managedByLabel = "app.kubernetes.io/managed-by"
	managedBy      = "hyperkube-gateway"
	// gatewayLabel is the label with the name of the Gateway to which a Service belongs, and namespaceAnnotation the
	// annotation with its namespace.
	gatewayLabel        = "gateway.networking.k8s.io/gateway-name"
	namespaceAnnotation = "hyperkube.io/gateway-namespace"
	// addressesAnnotation requests addresses from the load balancer.
	addressesAnnotation = "metallb.io/loadBalancerIPs"
)

// The range of ports at which the gateway's pods listen. They are the target ports of the gateway's Services.
const (
	firstLocalPort = 20000
	lastLocalPort  = 29999
)

// isFrontend reports whether the gateway has created a Service.
func isFrontend(svc *corev1.Service) bool { return svc.Labels[managedByLabel] == managedBy }

// localPorts returns the local ports to which Services map their ports.
func localPorts(services map[string]*corev1.Service) map[model.PortID]int32 {
	out := map[model.PortID]int32{}
	for name, svc := range services {
		for _, p := range svc.Spec.Ports {
			out[model.PortID{Frontend: name, Number: p.Port, UDP: p.Protocol == corev1.ProtocolUDP}] = p.TargetPort.IntVal
		}
	}
	return out
}

// desiredService returns the Service of a frontend. existing is the Service as it is, or nil; fields that the gateway
// does not set, and ports that the frontend still has, are kept. Target ports of new ports are taken from allocate,
// whose error is returned.
func (c *Controller) desiredService(f *translate.Frontend, existing *corev1.Service, owner metav1.OwnerReference, allocate func() (int32, error)) (*corev1.Service, error) {
	svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: f.Name, Namespace: c.cfg.Namespace}}
	if existing != nil {
		svc = existing.DeepCopy()
	}
	svc.OwnerReferences = []metav1.OwnerReference{owner}
	svc.Labels, svc.Annotations = merge(svc.Labels, f.Labels), merge(svc.Annotations, f.Annotations)
	svc.Labels[managedByLabel] = managedBy
	if f.Gateway.Name != "" {
		svc.Annotations[namespaceAnnotation] = f.Gateway.Namespace
		if len(f.Gateway.Name) <= 63 { // the longest value of a label
			svc.Labels[gatewayLabel] = f.Gateway.Name
		}
	}
	if _, ok := f.Annotations[addressesAnnotation]; !ok {
		delete(svc.Annotations, addressesAnnotation)
	}
	if len(f.Addresses) > 0 {
		if f.Type == corev1.ServiceTypeLoadBalancer {
			svc.Annotations[addressesAnnotation] = strings.Join(f.Addresses, ",")
		} else if existing == nil { // cannot be changed later
			svc.Spec.ClusterIP, svc.Spec.ClusterIPs = f.Addresses[0], f.Addresses
		}
	}
	svc.Spec.Type, svc.Spec.Selector = f.Type, c.cfg.Selector
	svc.Spec.IPFamilyPolicy = ptr.To(corev1.IPFamilyPolicyPreferDualStack)
	if f.Type == corev1.ServiceTypeLoadBalancer {
		// The gateway runs on every node, so that the node that a client connects to serves it, and sees its address.
		svc.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
	}
	before := svc.Spec.Ports
	svc.Spec.Ports = nil
	for _, id := range f.Ports {
		protocol := corev1.ProtocolTCP
		if id.UDP {
			protocol = corev1.ProtocolUDP
		}
		i := slices.IndexFunc(before, func(p corev1.ServicePort) bool { return p.Port == id.Number && p.Protocol == protocol })
		if i >= 0 {
			svc.Spec.Ports = append(svc.Spec.Ports, before[i])
			continue
		}
		local, err := allocate()
		if err != nil {
			return nil, err
		}
		svc.Spec.Ports = append(svc.Spec.Ports, corev1.ServicePort{
			Name: fmt.Sprintf("%s-%d", strings.ToLower(string(protocol)), id.Number), Port: id.Number, Protocol: protocol, TargetPort: intstr.FromInt32(local),
		})
	}
	return svc, nil
}

// merge returns a with the entries of b.
func merge(a, b map[string]string) map[string]string {
	out := make(map[string]string, len(a)+len(b))
	maps.Copy(out, a)
	maps.Copy(out, b)
	return out
}

// syncServices creates, updates and deletes Services of the gateway so that they are those of frontends. It returns the errors of
// all Services, for example if all local ports are in use or a Gateway requests an address that is not available.
func (w *writer) syncServices(ctx context.Context, frontends []translate.Frontend) error {
	c := w.controller
	existing := map[string]*corev1.Service{}
	used := map[int32]bool{}
	for _, svc := range list[corev1.Service](c.src.services) {
		if svc.Namespace != c.cfg.Namespace || !isFrontend(svc) {
			continue
		}
		existing[svc.Name] = svc
		for _, p := range svc.Spec.Ports {
			used[p.TargetPort.IntVal] = true
		}
	}
	allocate := func() (int32, error) {
		for port := int32(firstLocalPort); port <= lastLocalPort; port++ {
			if !used[port] {
				used[port] = true
				return port, nil
			}
		}
		return 0, fmt.Errorf("all %d local ports of the gateway are in use", lastLocalPort-firstLocalPort+1)
	}
	api := c.cfg.Clients.Kube.CoreV1().Services(c.cfg.Namespace)
	var failed []error
	for i := range frontends {
		f := &frontends[i]
		old := existing[f.Name]
		delete(existing, f.Name)
		desired, err := c.desiredService(f, old, w.owner, allocate)
		if err != nil {
			failed = append(failed, err)
			continue
		}
		switch {
		case old == nil:
			_, err = api.Create(ctx, desired, metav1.CreateOptions{FieldManager: managedBy})
		case !equality.Semantic.DeepEqual(old, desired):
			_, err = api.Update(ctx, desired, metav1.UpdateOptions{FieldManager: managedBy})
		}
		if err != nil {
			failed = append(failed, fmt.Errorf("writing Service %s of the gateway: %w", f.Name, err))
		}
	}
	for name := range existing {
		if err := api.Delete(ctx, name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			failed = append(failed, fmt.Errorf("deleting Service %s of the gateway: %w", name, err))
		}
	}
	return errors.Join(failed...)
}
