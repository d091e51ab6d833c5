package networking

import (
	"context"
	"reflect"
	"slices"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	netutils "k8s.io/utils/net"

	"hyperkube/internal/api"
	"hyperkube/internal/api/validate"
)

func networkPolicy() api.Kind[*networkingv1.NetworkPolicy] {
	return api.Kind[*networkingv1.NetworkPolicy]{
		Names:   api.Names{Kind: "NetworkPolicy", Plural: "networkpolicies", ShortNames: []string{"netpol"}},
		Group:   group,
		Version: version,
		Scope:   api.Namespaced,
		New:     func() *networkingv1.NetworkPolicy { return &networkingv1.NetworkPolicy{} },
		NewList: func() runtime.Object { return &networkingv1.NetworkPolicyList{} },
		Default: defaultNetworkPolicy,
		PrepareCreate: func(_ context.Context, p *networkingv1.NetworkPolicy) {
			p.Generation = 1
		},
		Validate: func(_ context.Context, p *networkingv1.NetworkPolicy) field.ErrorList {
			return validateNetworkPolicy(&p.Spec, nil, nil, field.NewPath("spec"))
		},
		Warnings: networkPolicyWarnings,
		Update: api.KindUpdate[*networkingv1.NetworkPolicy]{
			Prepare: func(_ context.Context, p, old *networkingv1.NetworkPolicy) {
				p.Generation = old.Generation
				if !reflect.DeepEqual(p.Spec, old.Spec) {
					p.Generation++
				}
			},
			Validate: func(_ context.Context, p, old *networkingv1.NetworkPolicy) field.ErrorList {
				return validateNetworkPolicy(&p.Spec, &old.Spec.PodSelector, blocksOf(&old.Spec), field.NewPath("spec"))
			},
		},
		Columns: []metav1.TableColumnDefinition{
			api.NameColumn,
			api.Column("Pod-Selector", "string", networkingv1.NetworkPolicySpec{}.SwaggerDoc()["podSelector"]),
			api.AgeColumn,
		},
		Row: func(p *networkingv1.NetworkPolicy) []any {
			return []any{p.Name, metav1.FormatLabelSelector(&p.Spec.PodSelector), api.Age(p.CreationTimestamp)}
		},
	}
}

// networkPolicyWarnings returns warnings for IP blocks in a notation that future versions may
// reject, such as leading zeros.
func networkPolicyWarnings(_ context.Context, p, _ *networkingv1.NetworkPolicy) []string {
	var out []string
	peers := func(at *field.Path, peers []networkingv1.NetworkPolicyPeer) {
		for i := range peers {
			block, at := peers[i].IPBlock, at.Index(i).Child("ipBlock")
			if block == nil {
				continue
			}
			out = append(out, validate.CIDRWarnings(at.Child("cidr"), block.CIDR)...)
			for j, except := range block.Except {
				out = append(out, validate.CIDRWarnings(at.Child("except").Index(j), except)...)
			}
		}
	}
	spec := field.NewPath("spec")
	for i := range p.Spec.Ingress {
		peers(spec.Child("ingress").Index(i).Child("from"), p.Spec.Ingress[i].From)
	}
	for i := range p.Spec.Egress {
		peers(spec.Child("egress").Index(i).Child("to"), p.Spec.Egress[i].To)
	}
	return out
}

// defaultNetworkPolicy sets missing protocols to TCP and missing policy types: Ingress, and Egress if there are egress
// rules.
func defaultNetworkPolicy(p *networkingv1.NetworkPolicy) {
	ports := func(list []networkingv1.NetworkPolicyPort) {
		for i := range list {
			if list[i].Protocol == nil {
				tcp := corev1.ProtocolTCP
				list[i].Protocol = &tcp
			}
		}
	}
	for i := range p.Spec.Ingress {
		ports(p.Spec.Ingress[i].Ports)
	}
	for i := range p.Spec.Egress {
		ports(p.Spec.Egress[i].Ports)
	}
	if len(p.Spec.PolicyTypes) == 0 {
		// Without policyTypes, a policy always applies to ingress.
		p.Spec.PolicyTypes = []networkingv1.PolicyType{networkingv1.PolicyTypeIngress}
		if len(p.Spec.Egress) != 0 {
			p.Spec.PolicyTypes = append(p.Spec.PolicyTypes, networkingv1.PolicyTypeEgress)
		}
	}
}

// blocksOf returns all IP blocks of a stored policy's spec. They remain valid even in a notation
// that new IP blocks must not have.
func blocksOf(spec *networkingv1.NetworkPolicySpec) []string {
	var out []string
	add := func(peers []networkingv1.NetworkPolicyPeer) {
		for _, p := range peers {
			if p.IPBlock != nil {
				out = append(append(out, p.IPBlock.CIDR), p.IPBlock.Except...)
			}
		}
	}
	for _, r := range spec.Ingress {
		add(r.From)
	}
	for _, r := range spec.Egress {
		add(r.To)
	}
	return out
}

// validateNetworkPolicy validates a policy's spec. stored is the pod selector and known the IP
// blocks of the stored policy, whose invalid label values and notations remain valid; both are nil
// on create.
func validateNetworkPolicy(spec *networkingv1.NetworkPolicySpec, stored *metav1.LabelSelector, known []string, path *field.Path) field.ErrorList {
	opts := validate.SelectorOptions(stored)
	errs := metav1validation.ValidateLabelSelector(&spec.PodSelector, opts, path.Child("podSelector"))
	for i, r := range spec.Ingress {
		at := path.Child("ingress").Index(i)
		errs = append(errs, validatePolicyPorts(r.Ports, at.Child("ports"))...)
		errs = append(errs, validatePeers(r.From, opts, known, at.Child("from"))...)
	}
	for i, r := range spec.Egress {
		at := path.Child("egress").Index(i)
		errs = append(errs, validatePolicyPorts(r.Ports, at.Child("ports"))...)
		errs = append(errs, validatePeers(r.To, opts, known, at.Child("to"))...)
	}
	types := []networkingv1.PolicyType{networkingv1.PolicyTypeIngress, networkingv1.PolicyTypeEgress}
	if len(spec.PolicyTypes) > len(types) {
		return append(errs, field.Invalid(path.Child("policyTypes"), &spec.PolicyTypes, "may not specify more than two policyTypes"))
	}
	for i, t := range spec.PolicyTypes {
		if !slices.Contains(types, t) {
			errs = append(errs, field.NotSupported(path.Child("policyTypes").Index(i), t, types))
		}
	}
	return errs
}

func validatePolicyPorts(ports []networkingv1.NetworkPolicyPort, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	protocols := []corev1.Protocol{corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP}
	for i, p := range ports {
		at := path.Index(i)
		if p.Protocol != nil && !slices.Contains(protocols, *p.Protocol) {
			errs = append(errs, field.NotSupported(at.Child("protocol"), *p.Protocol, protocols))
		}
		if p.Port == nil {
			if p.EndPort != nil {
				errs = append(errs, field.Invalid(at.Child("endPort"), *p.EndPort, "may not be specified when `port` is not specified"))
			}
			continue
		}
		if p.Port.Type == intstr.String {
			if p.EndPort != nil {
				errs = append(errs, field.Invalid(at.Child("endPort"), *p.EndPort, "may not be specified when `port` is non-numeric"))
			}
			for _, msg := range validation.IsValidPortName(p.Port.StrVal) {
				errs = append(errs, field.Invalid(at.Child("port"), p.Port.StrVal, msg))
			}
			continue
		}
		for _, msg := range validation.IsValidPortNum(int(p.Port.IntVal)) {
			errs = append(errs, field.Invalid(at.Child("port"), p.Port.IntVal, msg))
		}
		if p.EndPort != nil {
			if *p.EndPort < p.Port.IntVal {
				errs = append(errs, field.Invalid(at.Child("endPort"), *p.EndPort, "must be greater than or equal to `port`"))
			}
			for _, msg := range validation.IsValidPortNum(int(*p.EndPort)) {
				errs = append(errs, field.Invalid(at.Child("endPort"), *p.EndPort, msg))
			}
		}
	}
	return errs
}

// validatePeers validates the peers of a rule. Each has an ipBlock, or a pod selector, a namespace selector or both.
// known are the CIDRs of the stored object, which may have any syntax that was valid earlier.
func validatePeers(peers []networkingv1.NetworkPolicyPeer, opts metav1validation.LabelSelectorValidationOptions, known []string, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i, p := range peers {
		at := path.Index(i)
		kinds := 0
		if p.PodSelector != nil {
			kinds++
			errs = append(errs, metav1validation.ValidateLabelSelector(p.PodSelector, opts, at.Child("podSelector"))...)
		}
		if p.NamespaceSelector != nil {
			kinds++
			errs = append(errs, metav1validation.ValidateLabelSelector(p.NamespaceSelector, opts, at.Child("namespaceSelector"))...)
		}
		if p.IPBlock != nil {
			kinds++
			errs = append(errs, validateIPBlock(p.IPBlock, known, at.Child("ipBlock"))...)
		}
		switch {
		case kinds == 0:
			errs = append(errs, field.Required(at, "must specify a peer"))
		case kinds > 1 && p.IPBlock != nil:
			errs = append(errs, field.Forbidden(at, "may not specify both ipBlock and another peer"))
		}
	}
	return errs
}

// validateIPBlock validates a CIDR and its exceptions, which must be smaller parts of it. known are the CIDRs of the
// stored object, which may have any syntax that was valid earlier.
func validateIPBlock(b *networkingv1.IPBlock, known []string, path *field.Path) field.ErrorList {
	if b.CIDR == "" {
		return field.ErrorList{field.Required(path.Child("cidr"), "").MarkCoveredByDeclarative()}
	}
	errs := validation.IsValidCIDRForLegacyField(path.Child("cidr"), b.CIDR, true, known)
	_, block, err := netutils.ParseCIDRSloppy(b.CIDR)
	if err != nil {
		return errs
	}
	for i, except := range b.Except {
		at := path.Child("except").Index(i)
		errs = append(errs, validation.IsValidCIDRForLegacyField(at, except, true, known)...)
		_, inner, err := netutils.ParseCIDRSloppy(except)
		if err != nil {
			continue
		}
		is, _ := inner.Mask.Size()
		of, _ := block.Mask.Size()
		if !block.Contains(inner.IP) || of >= is {
			errs = append(errs, field.Invalid(at, except, "must be a strict subset of `cidr`"))
		}
	}
	return errs
}
