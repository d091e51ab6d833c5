package translate

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
)

// writeGatewayStatus writes the status of all Gateways and ListenerSets.
func (t *translator) writeGatewayStatus() {
	for _, gw := range t.ordered {
		t.status.Gateways[nameOf(gw)] = t.gatewayStatus(gw)
		for _, set := range gw.sets {
			t.status.ListenerSets[nameOf(set)] = t.listenerSetStatus(set)
		}
	}
}

// gatewayStatus returns the status of a Gateway.
func (t *translator) gatewayStatus(gw *gateway) gatewayv1.GatewayStatus {
	addresses, missing := gw.granted(t.addressesOf(gw.frontend))
	status := gatewayv1.GatewayStatus{Addresses: addresses, Listeners: []gatewayv1.ListenerStatus{}}
	valid, invalid, attachedSets := 0, 0, int32(0)
	for _, l := range gw.listeners {
		if l.set != nil {
			continue
		}
		if l.accepted() {
			valid++
		} else {
			invalid++
		}
		status.Listeners = append(status.Listeners, gatewayv1.ListenerStatus{
			Name: l.spec.Name, SupportedKinds: l.kinds, AttachedRoutes: l.attached, Conditions: t.listenerConditions(l, gw.Generation),
		})
	}
	for _, set := range gw.sets {
		if set.problem == nil && set.acceptedListeners() > 0 {
			attachedSets++
		}
	}
	status.AttachedListenerSets = &attachedSets
	accepted := condition(string(gatewayv1.GatewayConditionAccepted), string(gatewayv1.GatewayReasonAccepted), "", gw.Generation)
	if invalid > 0 {
		accepted.Reason, accepted.Message = string(gatewayv1.GatewayReasonListenersNotValid), "some listeners are invalid, see their conditions"
	}
	if valid == 0 && invalid > 0 && attachedSets == 0 {
		accepted.Status = metav1.ConditionFalse
	}
	if gw.problem != nil {
		accepted = failed(string(gatewayv1.GatewayConditionAccepted), gw.problem.reason, gw.problem.message, gw.Generation)
	}
	programmed := condition(string(gatewayv1.GatewayConditionProgrammed), string(gatewayv1.GatewayReasonProgrammed), "", gw.Generation)
	switch {
	case accepted.Status != metav1.ConditionTrue:
		programmed = failed(programmed.Type, string(gatewayv1.GatewayReasonInvalid), "the Gateway is not accepted", gw.Generation)
	case missing != "":
		programmed = failed(programmed.Type, string(gatewayv1.GatewayReasonAddressNotUsable), "the Service of the gateway does not have the address "+missing, gw.Generation)
	case len(addresses) == 0:
		programmed = failed(programmed.Type, string(gatewayv1.GatewayReasonAddressNotAssigned), t.unassigned(gw.frontend), gw.Generation)
	}
	status.Conditions = []metav1.Condition{accepted, programmed}
	if gw.hasClientCertificate() {
		status.Conditions = append(status.Conditions, resolve(string(gatewayv1.GatewayConditionResolvedRefs), string(gatewayv1.GatewayReasonResolvedRefs), gw.unresolved, gw.Generation))
	}
	if gw.allowsInsecureClients() {
		status.Conditions = append(status.Conditions, condition(string(gatewayv1.GatewayConditionInsecureFrontendValidationMode), string(gatewayv1.GatewayReasonConfigurationChanged),
			"clients without a valid certificate are admitted", gw.Generation))
	}
	return status
}

// allowsInsecureClients reports whether spec.tls.frontend admits clients whose certificate is not verified.
func (gw *gateway) allowsInsecureClients() bool {
	if gw.Spec.TLS == nil || gw.Spec.TLS.Frontend == nil {
		return false
	}
	insecure := func(c gatewayv1.TLSConfig) bool {
		return c.Validation != nil && c.Validation.Mode == gatewayv1.AllowInsecureFallback
	}
	for _, p := range gw.Spec.TLS.Frontend.PerPort {
		if insecure(p.TLS) {
			return true
		}
	}
	return insecure(gw.Spec.TLS.Frontend.Default)
}

// listenerConditions returns the conditions of a listener. generation is that of the object that contains it.
func (t *translator) listenerConditions(l *listener, generation int64) []metav1.Condition {
	refs := resolve(string(gatewayv1.ListenerConditionResolvedRefs), string(gatewayv1.ListenerReasonResolvedRefs), l.unresolved, generation)
	conflicted := failed(string(gatewayv1.ListenerConditionConflicted), string(gatewayv1.ListenerReasonNoConflicts), "", generation)
	if l.conflict != nil {
		conflicted = condition(string(gatewayv1.ListenerConditionConflicted), l.conflict.reason, l.conflict.message, generation)
	}
	accepted := resolve(string(gatewayv1.ListenerConditionAccepted), string(gatewayv1.ListenerReasonAccepted), l.invalid, generation)
	if l.invalid == nil && l.conflict != nil {
		accepted = failed(string(gatewayv1.ListenerConditionAccepted), l.conflict.reason, l.conflict.message, generation)
	}
	programmed := condition(string(gatewayv1.ListenerConditionProgrammed), string(gatewayv1.ListenerReasonProgrammed), "", generation)
	switch {
	case l.conflict != nil:
		programmed = failed(programmed.Type, l.conflict.reason, l.conflict.message, generation)
	case l.out == nil:
		programmed = failed(programmed.Type, string(gatewayv1.ListenerReasonInvalid), "the listener is invalid, see its other conditions", generation)
	case !t.serves(l.port):
		programmed = failed(programmed.Type, string(gatewayv1.ListenerReasonPending), "the Service of the gateway does not have the port yet", generation)
	}
	out := []metav1.Condition{accepted, programmed, refs, conflicted}
	if other := t.overlapping(l); other != nil {
		out = append(out, condition(string(gatewayv1.ListenerConditionOverlappingTLSConfig), string(gatewayv1.ListenerReasonOverlappingHostnames), "the hostname overlaps with that of listener "+other.Name, generation))
	}
	return out
}

// acceptedListeners returns the number of the set's listeners that are accepted and can serve connections.
func (s *listenerSet) acceptedListeners() int {
	n := 0
	for _, l := range s.listeners {
		if l.accepted() && l.out != nil {
			n++
		}
	}
	return n
}

// listenerSetStatus returns the status of a ListenerSet.
func (t *translator) listenerSetStatus(set *listenerSet) gatewayv1.ListenerSetStatus {
	var status gatewayv1.ListenerSetStatus
	accepted := condition(string(gatewayv1.ListenerSetConditionAccepted), string(gatewayv1.ListenerSetReasonAccepted), "", set.Generation)
	programmed := condition(string(gatewayv1.ListenerSetConditionProgrammed), string(gatewayv1.ListenerSetReasonProgrammed), "", set.Generation)
	if set.problem != nil {
		status.Conditions = []metav1.Condition{
			failed(accepted.Type, set.problem.reason, set.problem.message, set.Generation),
			failed(programmed.Type, set.problem.reason, set.problem.message, set.Generation),
		}
		return status
	}
	for _, l := range set.listeners {
		status.Listeners = append(status.Listeners, gatewayv1.ListenerEntryStatus{
			Name: l.spec.Name, SupportedKinds: l.kinds, AttachedRoutes: l.attached, Conditions: t.listenerConditions(l, set.Generation),
		})
	}
	switch n := set.acceptedListeners(); {
	case n == 0:
		reason := string(gatewayv1.ListenerSetReasonListenersNotValid)
		accepted = failed(accepted.Type, reason, "no listener is valid, see their conditions", set.Generation)
		programmed = failed(programmed.Type, reason, "no listener is valid, see their conditions", set.Generation)
	case n < len(set.listeners):
		accepted.Reason, accepted.Message = string(gatewayv1.ListenerSetReasonListenersNotValid), "some listeners are invalid, see their conditions"
	}
	if programmed.Status == metav1.ConditionTrue && len(t.addressesOf(set.gateway.frontend)) == 0 {
		programmed = failed(programmed.Type, string(gatewayv1.ListenerSetReasonPending), t.unassigned(set.gateway.frontend), set.Generation)
	}
	status.Conditions = []metav1.Condition{accepted, programmed}
	return status
}

// isKind reports whether a reference, with the default group and kind of its field, is to the group and kind.
func isKind[G, K ~string](group *G, kind *K, wantGroup G, wantKind K) bool {
	return ptr.Deref(group, wantGroup) == wantGroup && ptr.Deref(kind, wantKind) == wantKind
}
