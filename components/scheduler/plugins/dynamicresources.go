package plugins

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	"k8s.io/dynamic-resource-allocation/structured"

	"hyperkube/components/scheduler/framework"
	"hyperkube/components/scheduler/state"
)

// allocationFeatures are the features of the device allocator that are enabled by default in Kubernetes v1.37.
var allocationFeatures = structured.Features{
	AdminAccess: true, ConsumableCapacity: true, DeviceBindingAndStatus: true, DeviceTaints: true,
	PartitionableDevices: true, PrioritizedList: true,
}

// DynamicResources finds nodes on which the devices for a pod's resource claims are available, and
// allocates them.
// https://kubernetes.io/docs/concepts/scheduling-eviction/dynamic-resource-allocation/
type DynamicResources struct {
	// FilterTimeout limits the search for devices on one node; zero means no limit.
	FilterTimeout time.Duration
	// BindingTimeout limits how long drivers may take to prepare devices.
	BindingTimeout time.Duration
}

// Name returns the name of the plugin in configuration files.
func (DynamicResources) Name() string { return "DynamicResources" }

// Wakes implements framework.Waker. After one of the returned events in the cluster, the scheduler tries a pod again
// that this plugin has rejected. ClaimChanged covers changes of the pod's own claims only.
func (DynamicResources) Wakes() framework.Event {
	return framework.NodeAdded | framework.NodeLabelsChanged | framework.NodeAllocatableChanged | framework.PodRemoved | framework.ClaimChanged | framework.DevicesChanged
}

// MissingClaim returns why a pod cannot be scheduled yet because one of its resource claims does not exist, or "" if
// all exist.
func (DynamicResources) MissingClaim(d framework.Devices, pod *corev1.Pod) string {
	_, why := claimsOf(d, pod)
	return why
}

// claimsOf returns the resource claims of a pod. If one does not exist or belongs to another pod, it returns a message
// instead.
func claimsOf(d framework.Devices, pod *corev1.Pod) ([]*resourcev1.ResourceClaim, string) {
	var out []*resourcev1.ResourceClaim
	for i := range pod.Spec.ResourceClaims {
		name, owned, err := resourceclaim.Name(pod, &pod.Spec.ResourceClaims[i])
		if err != nil {
			return nil, err.Error()
		}
		if name == nil {
			continue // no claim is needed
		}
		claim := d.Claim(pod.Namespace, *name)
		if claim == nil {
			return nil, fmt.Sprintf("resourceclaim.resource.k8s.io %q not found", *name)
		}
		if owned {
			if err := resourceclaim.IsForPod(pod, claim, false); err != nil {
				return nil, err.Error()
			}
		}
		out = append(out, claim)
	}
	return out, ""
}

// usableClaims returns the resource claims of the pod that is being scheduled. If one cannot be used now, for example
// because its allocation is being written, it returns a message with the reason instead.
func usableClaims(c *framework.Cycle) ([]*resourcev1.ResourceClaim, string) {
	pod := c.Pod.Object
	all, why := claimsOf(c.Devices, pod)
	for _, claim := range all {
		switch {
		case claim.DeletionTimestamp != nil:
			return nil, fmt.Sprintf("resourceclaim %q is being deleted", claim.Name)
		case c.Devices.Pending(claim):
			return nil, fmt.Sprintf("resource claim %s/%s is in the process of being allocated", claim.Namespace, claim.Name)
		case claim.Status.Allocation == nil:
			if why := unknownClass(c.Devices.Classes(), claim); why != "" {
				return nil, why
			}
		case len(claim.Status.ReservedFor) >= resourcev1.ResourceClaimReservedForMaxSize && !resourceclaim.IsReservedForPod(pod, claim, false):
			return nil, "resourceclaim in use"
		}
	}
	return all, why
}

// unknownClass returns a message if the claim requests a device class that does not exist, or "".
func unknownClass(classes structured.DeviceClassLister, claim *resourcev1.ResourceClaim) string {
	for _, r := range claim.Spec.Devices.Requests {
		if r.Exactly != nil {
			if _, err := classes.Get(r.Exactly.DeviceClassName); err != nil {
				return fmt.Sprintf("request %s: device class %s does not exist", r.Name, r.Exactly.DeviceClassName)
			}
		}
		for _, sub := range r.FirstAvailable {
			if _, err := classes.Get(sub.DeviceClassName); err != nil {
				return fmt.Sprintf("request %s/%s: device class %s does not exist", r.Name, sub.Name, sub.DeviceClassName)
			}
		}
	}
	return ""
}

// Filter rejects nodes that cannot access the devices of the pod's allocated claims, or on which no devices are
// available for the other claims. Without usable claims it rejects all nodes.
func (p DynamicResources) Filter(c *framework.Cycle) (*framework.Check, error) {
	if c.Devices == nil {
		return nil, nil
	}
	claims, refused := usableClaims(c)
	if refused != "" {
		return &framework.Check{Refused: refused}, nil
	}
	extended := newExtended(c)
	if len(claims) == 0 && extended == nil {
		return nil, nil
	}
	if extended != nil && extended.stale {
		return &framework.Check{Node: func(*state.Node) []framework.Reason {
			return reason("cannot schedule extended resource claim", false)
		}}, nil
	}
	var where []*nodeaffinity.NodeSelector
	var open []*resourcev1.ResourceClaim
	for _, claim := range claims {
		switch a := claim.Status.Allocation; {
		case a == nil:
			open = append(open, claim)
		case a.NodeSelector != nil:
			s, err := nodeaffinity.NewNodeSelector(a.NodeSelector)
			if err != nil {
				return nil, fmt.Errorf("resourceclaim %q: %w", claim.Name, err)
			}
			where = append(where, s)
		}
	}
	allocator, err := allocatorOf(c, len(open) > 0 || extended != nil)
	if err != nil {
		return nil, err
	}
	var fatal error
	return &framework.Check{Failed: func() error { return fatal }, Node: func(n *state.Node) []framework.Reason {
		for _, s := range where {
			if !s.Match(n.Object) {
				return reason("resourceclaim not available on the node", true)
			}
		}
		if allocator == nil {
			return nil
		}
		if fatal != nil {
			return reason(fatal.Error(), true)
		}
		all := open
		if own, _ := extended.claim(n); own != nil {
			all = append(slices.Clip(open), own)
		}
		if len(all) == 0 {
			return nil
		}
		_, why, err := p.allocate(allocator, n, all)
		if err != nil {
			// The claims are invalid on any node.
			fatal = err
			return reason(err.Error(), true)
		}
		if why != "" {
			return reason(why, true)
		}
		return nil
	}}, nil
}

// allocatorOf returns an allocator of devices based on the devices known to the scheduling cycle c. any is whether
// there is anything to allocate. If it is false, the result is nil.
func allocatorOf(c *framework.Cycle, any bool) (structured.Allocator, error) {
	if !any {
		return nil, nil
	}
	return structured.NewAllocator(context.Background(), allocationFeatures, c.Devices.Allocated(), c.Devices.Classes(), c.Devices.Slices(), c.Devices.Expressions())
}

// allocate finds devices on a node for the claims in open and returns one allocation for each, in the same order. If
// there are not enough devices, or the search takes longer than FilterTimeout, it returns a message instead. It returns
// an error if a claim is invalid.
func (p DynamicResources) allocate(a structured.Allocator, n *state.Node, open []*resourcev1.ResourceClaim) ([]resourcev1.AllocationResult, string, error) {
	ctx := context.Background()
	if p.FilterTimeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, p.FilterTimeout)
		defer cancel()
	}
	found, err := a.Allocate(ctx, n.Object, open)
	switch {
	case errors.Is(err, structured.ErrFailedAllocationOnNode):
		return nil, err.Error(), nil
	case errors.Is(err, context.DeadlineExceeded):
		return nil, "timed out trying to allocate devices", nil
	case err != nil:
		return nil, "", err
	case len(found) == 0:
		return nil, "cannot allocate all claims", nil
	case len(found) != len(open):
		return nil, "", fmt.Errorf("got %d allocations for %d claims", len(found), len(open))
	}
	return found, "", nil
}

// Reserve allocates devices on the chosen node for the pod's claims. The result contains the allocations to write and
// the claims to whose consumers the pod is added. It returns nil if the pod has no claims.
func (p DynamicResources) Reserve(c *framework.Cycle, n *state.Node) (*framework.Reservation, error) {
	pod := c.Pod.Object
	if c.Devices == nil {
		return nil, nil
	}
	claims, refused := usableClaims(c)
	if refused != "" {
		return nil, errors.New(refused)
	}
	own, requests := newExtended(c).claim(n)
	if own != nil {
		claims = append(claims, own)
	}
	if len(claims) == 0 {
		return nil, nil
	}
	open := slices.DeleteFunc(slices.Clone(claims), func(claim *resourcev1.ResourceClaim) bool { return claim.Status.Allocation != nil })
	allocator, err := allocatorOf(c, len(open) > 0)
	if err != nil {
		return nil, err
	}
	var found []resourcev1.AllocationResult
	if allocator != nil {
		var why string
		if found, why, err = p.allocate(allocator, n, open); err != nil {
			return nil, err
		}
		if why != "" {
			return nil, errors.New(why)
		}
	}
	r := &framework.Reservation{DevicesTimeout: p.BindingTimeout}
	for _, claim := range claims {
		one := framework.Claimed{Claim: claim, Pod: pod}
		if claim.Status.Allocation == nil {
			one.Allocation, found = &found[0], found[1:]
		}
		if claim == own {
			one.Requests = requests
		}
		r.Claims = append(r.Claims, one)
	}
	return r, nil
}

// Freeable returns a claim whose allocation should be removed because it may be the reason why the pod fits no node.
// The next attempt can then allocate devices on other nodes. It returns the pod's claim for extended resources, or a
// claim that no other pod has reserved and whose allocation excludes some nodes. It returns nil if there is no such
// claim.
func (DynamicResources) Freeable(c *framework.Cycle) *resourcev1.ResourceClaim {
	if c.Devices == nil {
		return nil
	}
	if claim := c.Devices.ExtendedClaim(c.Pod.Object.UID); claim != nil && claim.DeletionTimestamp == nil {
		return claim
	}
	claims, refused := usableClaims(c)
	if refused != "" {
		return nil
	}
	for _, claim := range claims {
		a := claim.Status.Allocation
		if a == nil || a.NodeSelector == nil || slices.ContainsFunc(claim.Status.ReservedFor, func(r resourcev1.ResourceClaimConsumerReference) bool { return r.UID != c.Pod.Object.UID }) {
			continue
		}
		s, err := nodeaffinity.NewNodeSelector(a.NodeSelector)
		if err != nil {
			continue
		}
		if slices.ContainsFunc(c.State.Nodes(), func(n *state.Node) bool { return !s.Match(n.Object) }) {
			return claim
		}
	}
	return nil
}
