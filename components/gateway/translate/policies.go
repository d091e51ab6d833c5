package translate

import (
	"crypto/x509"
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"hyperkube/components/gateway/model"
)

// policyTarget is a port of a Service. section is the name of the port; in a policy, "" stands for all ports.
type policyTarget struct{ namespace, service, section string }

// policy is a BackendTLSPolicy with its TLS configuration and its problems.
type policy struct {
	*gatewayv1.BackendTLSPolicy
	tls *model.BackendTLS // nil if the policy is invalid
	// version identifies the content of the policy and of the objects that it refers to.
	version              string
	rejected, unresolved *problem
	// gateways are those whose routes use a target of the policy.
	gateways []*gateway
}

// policies are all BackendTLSPolicies, and by target those that are effective.
type policies struct {
	all       []*policy
	effective map[policyTarget]*policy
}

// indexPolicies validates all BackendTLSPolicies. Of several policies for one target, the oldest is effective.
func (t *translator) indexPolicies() *policies {
	p := &policies{effective: map[policyTarget]*policy{}}
	for _, obj := range sortedByAge(t.BackendPolicies) {
		pol := &policy{BackendTLSPolicy: obj}
		t.compilePolicy(pol)
		claimed := 0
		for _, ref := range obj.Spec.TargetRefs {
			if ref.Group != "" || ref.Kind != "Service" {
				continue
			}
			target := policyTarget{obj.Namespace, string(ref.Name), string(ptr.Deref(ref.SectionName, ""))}
			if p.effective[target] == nil {
				p.effective[target] = pol
				claimed++
			} else if pol.rejected == nil {
				pol.rejected = &problem{string(gatewayv1.PolicyReasonConflicted), "an older BackendTLSPolicy has the same target"}
			}
		}
		p.all = append(p.all, pol)
	}
	return p
}

// compilePolicy sets the TLS configuration and the problems of a policy. A policy that refers to CA certificates of
// which none is valid is rejected and has no configuration.
func (t *translator) compilePolicy(p *policy) {
	v := p.Spec.Validation
	out := &model.BackendTLS{ServerName: string(v.Hostname)}
	versions := []string{string(p.UID), fmt.Sprint(p.Generation)}
	if len(v.CACertificateRefs) > 0 {
		out.Roots = x509.NewCertPool()
		valid := 0
		for _, ref := range v.CACertificateRefs {
			switch {
			case ref.Group != "" || ref.Kind != "ConfigMap":
				p.unresolved = &problem{string(gatewayv1.BackendTLSPolicyReasonInvalidKind), "CA certificates must be ConfigMaps"}
			case !t.addRoots(out.Roots, p.Namespace, string(ref.Name)):
				p.unresolved = &problem{string(gatewayv1.BackendTLSPolicyReasonInvalidCACertificateRef), fmt.Sprintf("ConfigMap %s/%s does not exist or has no certificates in the key ca.crt", p.Namespace, ref.Name)}
			default:
				valid++
				versions = append(versions, t.Lookup.ConfigMap(p.Namespace, string(ref.Name)).ResourceVersion)
			}
		}
		if valid == 0 {
			p.rejected = &problem{string(gatewayv1.BackendTLSPolicyReasonNoValidCACertificate), "no CA certificate is valid"}
			return
		}
	}
	for _, name := range v.SubjectAltNames {
		if name.Type == gatewayv1.URISubjectAltNameType {
			out.URIs = append(out.URIs, string(name.URI))
		} else {
			out.Names = append(out.Names, strings.ToLower(string(name.Hostname)))
		}
	}
	p.tls, p.version = out, strings.Join(versions, "/")
}

// of returns the policy that is effective for a target: one for its port, or else one for the whole Service. It is nil if
// there is none.
func (p *policies) of(target *policyTarget) *policy {
	if pol := p.effective[*target]; pol != nil {
		return pol
	}
	return p.effective[policyTarget{target.namespace, target.service, ""}]
}

// used records that a route of a Gateway uses a target, so that the status of the target's policies contains the Gateway.
func (p *policies) used(target *policyTarget, gw *gateway) {
	for _, pol := range p.all {
		for _, ref := range pol.Spec.TargetRefs {
			section := string(ptr.Deref(ref.SectionName, ""))
			if pol.Namespace == target.namespace && string(ref.Name) == target.service && (section == "" || section == target.section) {
				pol.addGateway(gw)
			}
		}
	}
}

// addGateway adds a Gateway to the status of the policy.
func (p *policy) addGateway(gw *gateway) {
	if !slices.Contains(p.gateways, gw) {
		p.gateways = append(p.gateways, gw)
	}
}

// writeStatus writes the status of all policies, which is the same for each Gateway.
func (p *policies) writeStatus(out map[types.NamespacedName][]gatewayv1.PolicyAncestorStatus) {
	for _, pol := range p.all {
		for _, gw := range pol.gateways {
			out[nameOf(pol)] = append(out[nameOf(pol)], gatewayv1.PolicyAncestorStatus{
				AncestorRef: gatewayv1.ParentReference{
					Group: ptr.To(gatewayv1.Group(gatewayv1.GroupName)), Kind: ptr.To(gatewayv1.Kind("Gateway")),
					Namespace: new(gatewayv1.Namespace(gw.Namespace)), Name: gatewayv1.ObjectName(gw.Name),
				},
				ControllerName: ControllerName,
				Conditions: []metav1.Condition{
					resolve(string(gatewayv1.PolicyConditionAccepted), string(gatewayv1.PolicyReasonAccepted), pol.rejected, pol.Generation),
					resolve(string(gatewayv1.BackendTLSPolicyConditionResolvedRefs), string(gatewayv1.BackendTLSPolicyReasonResolvedRefs), pol.unresolved, pol.Generation),
				},
			})
		}
	}
}
