// Package servicecidr protects ServiceCIDRs that are in use. Each has a finalizer, which is removed
// when no IPAddress requires the range, and a Ready condition, which shows whether addresses are
// allocated from it.
//
// https://kubernetes.io/docs/tasks/network/extend-service-ip-ranges/
package servicecidr

import (
	"context"
	"encoding/json"
	"net/netip"
	"slices"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	applymetav1 "k8s.io/client-go/applyconfigurations/meta/v1"
	applynetworkingv1 "k8s.io/client-go/applyconfigurations/networking/v1"
	networkinglisters "k8s.io/client-go/listers/networking/v1"

	"hyperkube/components/controllers/internal/control"
)

const (
	// grace is the time after a deletion until all API servers have observed it and allocate no
	// more addresses from the range.
	grace = 10 * time.Second

	// fieldManager is the field manager of this controller's writes.
	fieldManager = "service-cidr-controller"

	// finalizer delays the deletion of a ServiceCIDR as long as IPAddresses require it.
	finalizer = "networking.k8s.io/service-cidr-finalizer"

	readyMessage       = "Kubernetes Service CIDR is ready"
	terminatingMessage = "There are still IPAddresses referencing the ServiceCIDR, please remove them or create a new ServiceCIDR"
)

// Controller adds the finalizer and the Ready condition to each ServiceCIDR, and removes the finalizer of a deleted one
// when no IPAddress requires it.
type Controller struct {
	*control.Loop
	env       control.Env
	cidrs     networkinglisters.ServiceCIDRLister
	addresses networkinglisters.IPAddressLister
}

// New returns a Controller that uses the API client, the informers and the event recorder in env. The caller then
// starts the informers and calls Run.
func New(env control.Env) (*Controller, error) {
	env = env.Defaulted()
	cidrs, addresses := env.Informers.Networking().V1().ServiceCIDRs(), env.Informers.Networking().V1().IPAddresses()
	c := &Controller{env: env, cidrs: cidrs.Lister(), addresses: addresses.Lister()}
	c.Loop = control.NewLoop(env, "service-cidrs", c.sync)
	all := func(*networkingv1.ServiceCIDR) { c.enqueueDeleting(nil) }
	if err := c.Watch(cidrs.Informer(), control.Handlers(
		// A created or deleted ServiceCIDR affects which of those being deleted are needed.
		func(s *networkingv1.ServiceCIDR) { c.Add(s.Name); c.enqueueDeleting(nil) },
		func(_, s *networkingv1.ServiceCIDR) { c.Add(s.Name); c.enqueueDeleting(nil) },
		all)); err != nil {
		return nil, err
	}
	return c, c.Watch(addresses.Informer(), control.Handlers(nil, nil, func(a *networkingv1.IPAddress) { c.enqueueDeleting(a) }))
}

// enqueueDeleting enqueues the ServiceCIDRs that are being deleted. If a is not nil, it omits those that do not contain
// a.
func (c *Controller) enqueueDeleting(a *networkingv1.IPAddress) {
	all, err := c.cidrs.List(labels.Everything())
	if err != nil {
		return
	}
	for _, s := range all {
		if s.DeletionTimestamp == nil {
			continue
		}
		if a != nil {
			if addr, err := netip.ParseAddr(a.Name); err != nil || !contains(s, addr) {
				continue
			}
		}
		c.Add(s.Name)
	}
}

// sync maintains the finalizer and condition of the ServiceCIDR with the name. The finalizer of a deleted one is
// removed no earlier than grace after the deletion.
func (c *Controller) sync(ctx context.Context, name string) error {
	s, err := c.cidrs.Get(name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	has := slices.Contains(s.Finalizers, finalizer)
	if s.DeletionTimestamp == nil {
		if !has {
			if err := c.finalizers(ctx, s, append(slices.Clone(s.Finalizers), finalizer)); err != nil {
				return err
			}
		}
		if meta.FindStatusCondition(s.Status.Conditions, networkingv1.ServiceCIDRConditionReady) != nil {
			return nil // the condition is already set
		}
		return c.condition(ctx, name, metav1.Condition{Status: metav1.ConditionTrue, Message: readyMessage})
	}
	if !has {
		return nil
	}
	needed, err := c.needed(s)
	if err != nil {
		return err
	}
	if needed {
		return c.condition(ctx, name, metav1.Condition{
			Status: metav1.ConditionFalse, Reason: networkingv1.ServiceCIDRReasonTerminating, Message: terminatingMessage,
		})
	}
	if left := grace - c.env.Clock.Now().Sub(s.DeletionTimestamp.Time); left > 0 {
		c.AddAfter(name, left)
		return nil
	}
	return c.finalizers(ctx, s, slices.DeleteFunc(slices.Clone(s.Finalizers), func(f string) bool { return f == finalizer }))
}

// needed reports whether some IPAddress is in s but in no other ServiceCIDR. Those that are being deleted do not count.
func (c *Controller) needed(s *networkingv1.ServiceCIDR) (bool, error) {
	all, err := c.cidrs.List(labels.Everything())
	if err != nil {
		return false, err
	}
	others := slices.DeleteFunc(slices.Clone(all), func(o *networkingv1.ServiceCIDR) bool { return o.Name == s.Name || o.DeletionTimestamp != nil })
	addresses, err := c.addresses.List(labels.Everything())
	if err != nil {
		return false, err
	}
	for _, a := range addresses {
		addr, err := netip.ParseAddr(a.Name)
		if err != nil || !contains(s, addr) {
			continue
		}
		if !slices.ContainsFunc(others, func(o *networkingv1.ServiceCIDR) bool { return contains(o, addr) }) {
			return true, nil
		}
	}
	return false, nil
}

// contains reports whether one of the ranges of s contains addr.
func contains(s *networkingv1.ServiceCIDR, addr netip.Addr) bool {
	return slices.ContainsFunc(s.Spec.CIDRs, func(text string) bool {
		p, err := netip.ParsePrefix(text)
		return err == nil && p.Contains(addr)
	})
}

// finalizers replaces the finalizers of s in the API server by next. It returns a conflict error if s has changed in
// the meantime.
func (c *Controller) finalizers(ctx context.Context, s *networkingv1.ServiceCIDR, next []string) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"uid": s.UID, "resourceVersion": s.ResourceVersion, "finalizers": next,
	}})
	if err != nil {
		return err
	}
	_, err = c.env.Kube.NetworkingV1().ServiceCIDRs().Patch(ctx, s.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// condition sets the Ready condition of the ServiceCIDR with the name, unless it already has the status, reason and
// message of cond. It sets the type and transition time of cond.
func (c *Controller) condition(ctx context.Context, name string, cond metav1.Condition) error {
	cond.Type, cond.LastTransitionTime = networkingv1.ServiceCIDRConditionReady, metav1.NewTime(c.env.Clock.Now())
	s, err := c.cidrs.Get(name)
	if err != nil {
		return err
	}
	if old := meta.FindStatusCondition(s.Status.Conditions, cond.Type); old != nil && old.Status == cond.Status && old.Reason == cond.Reason && old.Message == cond.Message {
		return nil
	}
	_, err = c.env.Kube.NetworkingV1().ServiceCIDRs().ApplyStatus(ctx, applynetworkingv1.ServiceCIDR(name).WithStatus(
		applynetworkingv1.ServiceCIDRStatus().WithConditions(applymetav1.Condition().
			WithType(cond.Type).WithStatus(cond.Status).WithReason(cond.Reason).WithMessage(cond.Message).WithLastTransitionTime(cond.LastTransitionTime)),
	), metav1.ApplyOptions{FieldManager: fieldManager, Force: true})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
