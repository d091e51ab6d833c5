package controller

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"hyperkube/components/gateway/translate"
	"hyperkube/internal/base/backoff"
)

// writer writes the Services and statuses of translations. Only the leader has one.
type writer struct {
	controller *Controller
	owner      metav1.OwnerReference
	// warned contains the problems of Ingresses that events have been created for.
	warned map[types.NamespacedName]string
}

func newWriter(c *Controller) *writer {
	return &writer{controller: c, warned: map[types.NamespacedName]string{}}
}

// run writes the result of every translation until ctx is done. It omits results that were replaced while it wrote, and
// retries after errors with a back-off. It always returns nil.
func (w *writer) run(ctx context.Context) error {
	retry := backoff.Backoff{First: 100 * time.Millisecond, Max: 10 * time.Second}
	for {
		next := w.controller.translated.Next()
		if err := w.write(ctx); err != nil && ctx.Err() == nil {
			// After a conflict, the informer delivers the newer object soon.
			if !apierrors.IsConflict(err) {
				w.controller.cfg.Log.Warn("writing Services and statuses of the gateway failed; statuses and ports of Gateways may be outdated, retrying with back-off", "err", err)
			}
			if !retry.Pause(ctx) {
				return nil
			}
			continue
		}
		retry.Reset()
		select {
		case <-ctx.Done():
			return nil
		case <-next:
		}
	}
}

// write writes the Services and statuses of the last translation. It does nothing before the first translation. It writes
// all Services, and statuses up to the first error.
func (w *writer) write(ctx context.Context) error {
	result := w.controller.result.Load()
	if result == nil {
		return nil
	}
	if err := w.findOwner(ctx); err != nil {
		return err
	}
	return errors.Join(w.syncServices(ctx, result.Frontends), w.writeStatuses(ctx, &result.Status))
}

// findOwner finds the DaemonSet of the gateway, which owns the Services, so that they are deleted with it.
func (w *writer) findOwner(ctx context.Context) error {
	if w.owner.UID != "" {
		return nil
	}
	cfg := w.controller.cfg
	owner, err := cfg.Clients.Kube.AppsV1().DaemonSets(cfg.Namespace).Get(ctx, cfg.Owner, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("reading DaemonSet %s of the gateway: %w", cfg.Owner, err)
	}
	w.owner = metav1.OwnerReference{APIVersion: "apps/v1", Kind: "DaemonSet", Name: owner.Name, UID: owner.UID}
	return nil
}

// object is an object of the Gateway API.
type object interface {
	metav1.Object
	runtime.Object
}

// update writes the status of an object if change changes it. It does nothing if the object does not exist. It returns
// a conflict if the object in the informer is outdated.
func update[T object](ctx context.Context, w *writer, resource string, informer cache.SharedIndexInformer, name types.NamespacedName, change func(T)) error {
	key := name.Name
	if name.Namespace != "" {
		key = name.String()
	}
	obj, ok, err := informer.GetStore().GetByKey(key)
	current, is := obj.(T)
	if err != nil || !ok || !is {
		return nil // deleted in the meantime
	}
	next := current.DeepCopyObject().(T)
	change(next)
	if equality.Semantic.DeepEqual(current, next) {
		return nil
	}
	request := w.controller.src.gateway.Put().Resource(resource).Name(name.Name).SubResource("status").Body(next)
	if name.Namespace != "" {
		request = request.Namespace(name.Namespace)
	}
	err = request.Do(ctx).Error()
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("writing status of %s %s: %w", resource, key, err)
	}
	return nil
}

// optionalConditions are the types of conditions that are absent instead of False.
var optionalConditions = []string{
	string(gatewayv1.GatewayConditionInsecureFrontendValidationMode), string(gatewayv1.GatewayConditionResolvedRefs),
	string(gatewayv1.ListenerConditionOverlappingTLSConfig),
}

// setConditions replaces the conditions of this controller in list, and keeps the transition times of unchanged ones and
// the conditions of other types.
func setConditions(list *[]metav1.Condition, conditions []metav1.Condition) {
	for _, kind := range optionalConditions {
		if meta.FindStatusCondition(conditions, kind) == nil {
			meta.RemoveStatusCondition(list, kind)
		}
	}
	for _, c := range conditions {
		meta.SetStatusCondition(list, c)
	}
}

// writeStatuses writes the statuses of all objects whose status differs from s. It stops at the first error.
func (w *writer) writeStatuses(ctx context.Context, s *translate.Status) error {
	by := w.controller.src.byKind
	for name, conditions := range s.Classes {
		if err := update(ctx, w, "gatewayclasses", by["gatewayclasses"], types.NamespacedName{Name: name}, func(o *gatewayv1.GatewayClass) {
			setConditions(&o.Status.Conditions, conditions)
			o.Status.SupportedFeatures = supportedFeatures()
		}); err != nil {
			return err
		}
	}
	for name, status := range s.Gateways {
		if err := update(ctx, w, "gateways", by["gateways"], name, func(o *gatewayv1.Gateway) { setGatewayStatus(&o.Status, status) }); err != nil {
			return err
		}
	}
	for name, status := range s.ListenerSets {
		if err := update(ctx, w, "listenersets", by["listenersets"], name, func(o *gatewayv1.ListenerSet) { setListenerSetStatus(&o.Status, status) }); err != nil {
			return err
		}
	}
	if err := w.writeRoutes(ctx, s); err != nil {
		return err
	}
	for _, policy := range list[gatewayv1.BackendTLSPolicy](by["backendtlspolicies"]) {
		name := types.NamespacedName{Namespace: policy.Namespace, Name: policy.Name}
		if err := update(ctx, w, "backendtlspolicies", by["backendtlspolicies"], name, func(o *gatewayv1.BackendTLSPolicy) {
			o.Status.Ancestors = mergeAncestors(o.Status.Ancestors, s.Policies[name])
		}); err != nil {
			return err
		}
	}
	return w.writeIngresses(ctx, s)
}

// writeRoutes writes the statuses of all routes, also of those that do not refer to this gateway any more.
func (w *writer) writeRoutes(ctx context.Context, s *translate.Status) error {
	by := w.controller.src.byKind
	for _, r := range list[gatewayv1.HTTPRoute](by["httproutes"]) {
		if err := writeRoute(ctx, w, "httproutes", "HTTPRoute", r, s, func(o *gatewayv1.HTTPRoute) *gatewayv1.RouteStatus { return &o.Status.RouteStatus }); err != nil {
			return err
		}
	}
	for _, r := range list[gatewayv1.GRPCRoute](by["grpcroutes"]) {
		if err := writeRoute(ctx, w, "grpcroutes", "GRPCRoute", r, s, func(o *gatewayv1.GRPCRoute) *gatewayv1.RouteStatus { return &o.Status.RouteStatus }); err != nil {
			return err
		}
	}
	for _, r := range list[gatewayv1.TLSRoute](by["tlsroutes"]) {
		if err := writeRoute(ctx, w, "tlsroutes", "TLSRoute", r, s, func(o *gatewayv1.TLSRoute) *gatewayv1.RouteStatus { return &o.Status.RouteStatus }); err != nil {
			return err
		}
	}
	for _, r := range list[gatewayv1.TCPRoute](by["tcproutes"]) {
		if err := writeRoute(ctx, w, "tcproutes", "TCPRoute", r, s, func(o *gatewayv1.TCPRoute) *gatewayv1.RouteStatus { return &o.Status.RouteStatus }); err != nil {
			return err
		}
	}
	for _, r := range list[gatewayv1.UDPRoute](by["udproutes"]) {
		if err := writeRoute(ctx, w, "udproutes", "UDPRoute", r, s, func(o *gatewayv1.UDPRoute) *gatewayv1.RouteStatus { return &o.Status.RouteStatus }); err != nil {
			return err
		}
	}
	return nil
}

// writeRoute writes the status of a route. statusOf returns the status in the object.
func writeRoute[T object](ctx context.Context, w *writer, resource string, kind gatewayv1.Kind, r T, s *translate.Status, statusOf func(T) *gatewayv1.RouteStatus) error {
	name := types.NamespacedName{Namespace: r.GetNamespace(), Name: r.GetName()}
	desired := s.Routes[translate.RouteKey{Kind: kind, NamespacedName: name}]
	if hasParents(statusOf(r).Parents, desired) {
		return nil // the usual case, in which the object must not be copied
	}
	return update(ctx, w, resource, w.controller.src.byKind[resource], name, func(o T) {
		status := statusOf(o)
		status.Parents = mergeParents(status.Parents, desired)
	})
}

// hasParents reports whether the parent statuses of this controller in current are those of desired.
func hasParents(current, desired []gatewayv1.RouteParentStatus) bool {
	own := 0
	for i := range current {
		if current[i].ControllerName != translate.ControllerName {
			continue
		}
		if own == len(desired) || !sameParent(&current[i], &desired[own]) {
			return false
		}
		own++
	}
	return own == len(desired)
}

// sameParent reports whether two parent statuses are equal, except for the transition times of their conditions.
func sameParent(a, b *gatewayv1.RouteParentStatus) bool {
	return equality.Semantic.DeepEqual(a.ParentRef, b.ParentRef) && slices.EqualFunc(a.Conditions, b.Conditions, func(a, b metav1.Condition) bool {
		return a.Type == b.Type && a.Status == b.Status && a.Reason == b.Reason && a.Message == b.Message && a.ObservedGeneration == b.ObservedGeneration
	})
}

// mergeParents returns the parent statuses of a route: those of other controllers, and desired, with the transition times of
// unchanged conditions.
func mergeParents(current, desired []gatewayv1.RouteParentStatus) []gatewayv1.RouteParentStatus {
	var out []gatewayv1.RouteParentStatus
	for _, p := range current {
		if p.ControllerName != translate.ControllerName {
			out = append(out, p)
		}
	}
	for _, d := range desired {
		next := gatewayv1.RouteParentStatus{ParentRef: d.ParentRef, ControllerName: d.ControllerName}
		for _, p := range current {
			if p.ControllerName == d.ControllerName && equality.Semantic.DeepEqual(p.ParentRef, d.ParentRef) {
				next.Conditions = p.Conditions
			}
		}
		setConditions(&next.Conditions, d.Conditions)
		out = append(out, next)
	}
	if out == nil && current != nil {
		out = []gatewayv1.RouteParentStatus{} // the field is required
	}
	return out
}

// mergeAncestors returns the ancestor statuses of a policy, as mergeParents does.
func mergeAncestors(current, desired []gatewayv1.PolicyAncestorStatus) []gatewayv1.PolicyAncestorStatus {
	var out []gatewayv1.PolicyAncestorStatus
	for _, p := range current {
		if p.ControllerName != translate.ControllerName {
			out = append(out, p)
		}
	}
	for _, d := range desired {
		next := gatewayv1.PolicyAncestorStatus{AncestorRef: d.AncestorRef, ControllerName: d.ControllerName}
		for _, p := range current {
			if p.ControllerName == d.ControllerName && equality.Semantic.DeepEqual(p.AncestorRef, d.AncestorRef) {
				next.Conditions = p.Conditions
			}
		}
		setConditions(&next.Conditions, d.Conditions)
		out = append(out, next)
	}
	if out == nil && current != nil {
		out = []gatewayv1.PolicyAncestorStatus{}
	}
	return out
}

// setGatewayStatus replaces the status of a Gateway by desired. Conditions that have not changed keep their transition
// time, and conditions of other controllers are kept.
func setGatewayStatus(to *gatewayv1.GatewayStatus, desired gatewayv1.GatewayStatus) {
	setConditions(&to.Conditions, desired.Conditions)
	to.Addresses, to.AttachedListenerSets = desired.Addresses, desired.AttachedListenerSets
	listeners := make([]gatewayv1.ListenerStatus, 0, len(desired.Listeners))
	for _, d := range desired.Listeners {
		var conditions []metav1.Condition
		for _, l := range to.Listeners {
			if l.Name == d.Name {
				conditions = l.Conditions
			}
		}
		setConditions(&conditions, d.Conditions)
		d.Conditions = conditions
		listeners = append(listeners, d)
	}
	to.Listeners = listeners
}

// setListenerSetStatus replaces the status of a ListenerSet by desired. Conditions that have not changed keep their
// transition time, and conditions of other controllers are kept.
func setListenerSetStatus(to *gatewayv1.ListenerSetStatus, desired gatewayv1.ListenerSetStatus) {
	setConditions(&to.Conditions, desired.Conditions)
	var listeners []gatewayv1.ListenerEntryStatus
	for _, d := range desired.Listeners {
		var conditions []metav1.Condition
		for _, l := range to.Listeners {
			if l.Name == d.Name {
				conditions = l.Conditions
			}
		}
		setConditions(&conditions, d.Conditions)
		d.Conditions = conditions
		listeners = append(listeners, d)
	}
	to.Listeners = listeners
}

// warnIngress creates a Warning event with the problems of an Ingress, unless there are none or the last event of this
// process has the same.
func (w *writer) warnIngress(ctx context.Context, in *networkingv1.Ingress, problems []string) error {
	name := types.NamespacedName{Namespace: in.Namespace, Name: in.Name}
	text := strings.Join(problems, "; ")
	if w.warned[name] == text {
		return nil
	}
	if text != "" {
		now := metav1.Now()
		_, err := w.controller.cfg.Clients.Kube.CoreV1().Events(in.Namespace).Create(ctx, &corev1.Event{
			ObjectMeta:     metav1.ObjectMeta{GenerateName: in.Name + "-"},
			InvolvedObject: corev1.ObjectReference{APIVersion: "networking.k8s.io/v1", Kind: "Ingress", Namespace: in.Namespace, Name: in.Name, UID: in.UID},
			Type:           corev1.EventTypeWarning, Reason: "InvalidIngress", Message: text, Count: 1, FirstTimestamp: now, LastTimestamp: now,
			Source: corev1.EventSource{Component: managedBy}, ReportingController: translate.ControllerName,
		}, metav1.CreateOptions{})
		if err != nil {
			return fmt.Errorf("creating event about Ingress %s: %w", name, err)
		}
	}
	w.warned[name] = text
	return nil
}

// writeIngresses writes the addresses of all Ingresses of this controller to their status, and creates events about
// their problems. It stops at the first error.
func (w *writer) writeIngresses(ctx context.Context, s *translate.Status) error {
	for name := range w.warned {
		if _, ok := s.Ingresses[name]; !ok {
			delete(w.warned, name)
		}
	}
	for name, addresses := range s.Ingresses {
		current := get[networkingv1.Ingress](w.controller.src.ingresses, name.Namespace, name.Name)
		if current == nil {
			continue // deleted in the meantime
		}
		if err := w.warnIngress(ctx, current, s.IngressProblems[name]); err != nil {
			return err
		}
		if equality.Semantic.DeepEqual(current.Status.LoadBalancer.Ingress, addresses) || len(current.Status.LoadBalancer.Ingress)+len(addresses) == 0 {
			continue
		}
		next := current.DeepCopy()
		next.Status.LoadBalancer.Ingress = addresses
		_, err := w.controller.cfg.Clients.Kube.NetworkingV1().Ingresses(name.Namespace).UpdateStatus(ctx, next, metav1.UpdateOptions{FieldManager: managedBy})
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("writing status of Ingress %s: %w", name, err)
		}
	}
	return nil
}
