package scheduler

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/apimachinery/pkg/util/sets"
	resourcelisters "k8s.io/client-go/listers/resource/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	"k8s.io/dynamic-resource-allocation/structured"
	"k8s.io/utils/ptr"

	"hyperkube/components/scheduler/framework"
	"hyperkube/internal/base/broadcast"
	"hyperkube/internal/client"
)

// maxExpressions is the maximum number of compiled CEL expressions of device selectors that are cached.
const maxExpressions = 50

// devices implements framework.Devices: the scheduler's view of resource claims and allocated devices. It starts its
// informers when the first pod requests devices. Only the goroutine of Run uses it, except for lister and changed,
// which are safe for concurrent use after start.
type devices struct {
	// changed is notified when a claim changes.
	changed   broadcast.Broadcast
	requested bool // whether a pod has requested devices
	started   bool
	synced    bool

	classes     classLister
	slices      resourcelisters.ResourceSliceLister
	lister      resourcelisters.ResourceClaimLister
	taintRules  resourcelisters.DeviceTaintRuleLister
	expressions *cel.Cache
	// patched are the ResourceSlices with the taints of DeviceTaintRules; nil if outdated.
	patched []*resourcev1.ResourceSlice

	claims map[string]*resourcev1.ResourceClaim // by namespace/name
	// extended are the claims for pods' extended resources, by pod. byResource are the
	// DeviceClasses of extended resources; nil if outdated.
	extended   map[types.UID]*resourcev1.ResourceClaim
	byResource map[corev1.ResourceName]*resourcev1.DeviceClass
	// pending are the claims whose allocation is being written, or was written and is not in the
	// cache yet. The value is the resource version that contains the result of the write, or ""
	// until it is known.
	pending map[types.UID]string
	// allocations are the devices of each claim; allocated is the sum of them.
	allocations map[types.UID]*resourcev1.AllocationResult
	allocated   structured.AllocatedState
}

var _ framework.Devices = (*devices)(nil)

// newDevices returns a devices without informers. The method start creates them when the first pod requests devices.
func newDevices() *devices {
	return &devices{
		claims: map[string]*resourcev1.ResourceClaim{}, pending: map[types.UID]string{},
		extended:    map[types.UID]*resourcev1.ResourceClaim{},
		allocations: map[types.UID]*resourcev1.AllocationResult{},
		allocated: structured.AllocatedState{
			AllocatedDevices: sets.New[structured.DeviceID](), AllocatedSharedDeviceIDs: sets.New[structured.SharedDeviceID](),
			AggregatedCapacity: structured.NewConsumedCapacityCollection(),
		},
	}
}

// devicesMessage is a message to the goroutine of Scheduler.Run about devices: a changed claim (claim), the result of
// writing an allocation (written), changed slices, classes or taint rules (changed), or that the informers are synced
// (synced). One of these fields is set.
type devicesMessage struct {
	claim *resourcev1.ResourceClaim
	gone  bool
	// written is a claim after an attempt to write its allocation. version is a resource version of
	// the claim after the attempt, or "" if the claim was deleted.
	written *resourcev1.ResourceClaim
	version string
	// made is the claim that was created from written, or nil if written already existed.
	made *resourcev1.ResourceClaim
	// changed is true if slices, classes or taint rules changed.
	changed bool
	// synced is true if all informers of devices are synced.
	synced bool
}

// start creates and starts the informers for devices, which send all events to in. When they are synced, a message with
// synced is sent. The goroutine that waits for that exits when ctx is done.
func (d *devices) start(ctx context.Context, clients *client.Clients, in *inbox) error {
	d.started = true
	res := clients.Informers.Resource().V1()
	d.classes = classLister{res.DeviceClasses().Lister()}
	d.lister = res.ResourceClaims().Lister()
	d.slices, d.taintRules = res.ResourceSlices().Lister(), res.DeviceTaintRules().Lister()
	d.expressions = cel.NewCache(maxExpressions, cel.Features{EnableConsumableCapacity: true})
	changed := func(any) { in.put(message{devices: &devicesMessage{changed: true}}) }
	any := cache.ResourceEventHandlerFuncs{AddFunc: changed, UpdateFunc: func(_, o any) { changed(o) }, DeleteFunc: changed}
	var synced []cache.DoneChecker
	for _, w := range []struct {
		informer cache.SharedIndexInformer
		handler  cache.ResourceEventHandler
	}{
		{res.ResourceClaims().Informer(), handler(func(claim *resourcev1.ResourceClaim, gone bool) {
			d.changed.Send()
			in.put(message{devices: &devicesMessage{claim: claim, gone: gone}})
		})},
		{res.ResourceSlices().Informer(), any},
		{res.DeviceClasses().Informer(), any},
		{res.DeviceTaintRules().Informer(), any},
	} {
		reg, err := w.informer.AddEventHandler(w.handler)
		if err != nil {
			return fmt.Errorf("creating informers of devices: %w", err)
		}
		synced = append(synced, reg.HasSyncedChecker())
	}
	clients.Informers.StartWithContext(ctx)
	go func() {
		if cache.WaitFor(ctx, "", synced...) {
			in.put(message{devices: &devicesMessage{synced: true}})
		}
	}()
	return nil
}

// process updates d with a message. freed reports whether devices may have become available, so that unschedulable pods
// should be tried again. claim is the namespace/name of a changed claim for which pods may be waiting, or "".
func (d *devices) process(m *devicesMessage) (freed bool, claim string) {
	switch {
	case m.claim != nil:
		claim = m.claim.Namespace + "/" + m.claim.Name
		d.updateExtended(m.claim, m.gone)
		if m.gone {
			delete(d.claims, claim)
			delete(d.pending, m.claim.UID)
			// A pod may be waiting for the deletion of its former claim.
			return d.account(m.claim.UID, nil) || extendedOwner(m.claim) != "", claim
		}
		d.claims[claim] = m.claim
		return d.updateAllocated(m.claim), claim
	case m.made != nil:
		return d.movePlanned(m), ""
	case m.written != nil:
		claim = m.written.Namespace + "/" + m.written.Name
		now := d.claims[claim]
		if m.version == "" || now == nil || now.UID != m.written.UID {
			delete(d.pending, m.written.UID)
			return d.account(m.written.UID, nil), claim
		}
		if _, ok := d.pending[now.UID]; ok {
			d.pending[now.UID] = m.version
		}
		return d.updateAllocated(now), claim
	case m.changed:
		d.patched, d.byResource = nil, nil
		return true, ""
	default:
		d.synced = true
		return true, ""
	}
}

// updateAllocated updates the allocated devices with a version of a claim from the cache. It ignores a version that is
// older than the scheduler's own last write of the claim. It reports whether devices became available.
func (d *devices) updateAllocated(claim *resourcev1.ResourceClaim) bool {
	if owner := extendedOwner(claim); owner != "" {
		if _, ok := d.pending[framework.PlannedClaim(owner)]; ok {
			return false // movePlanned updates them
		}
	}
	if written, ok := d.pending[claim.UID]; ok {
		if written == "" {
			return false
		}
		if order, err := resourceversion.CompareResourceVersion(claim.ResourceVersion, written); err == nil && order < 0 {
			return false
		}
		delete(d.pending, claim.UID)
	}
	return d.account(claim.UID, claim.Status.Allocation)
}

// assume counts the devices of a reservation as allocated before the allocations are written, so that the next cycle
// does not allocate them again. r may be nil.
func (d *devices) assume(r *framework.Reservation) {
	if r == nil {
		return
	}
	for _, c := range r.Claims {
		if c.Allocation != nil {
			d.pending[c.Claim.UID] = ""
			d.account(c.Claim.UID, c.Allocation)
		}
	}
}

// account replaces the devices that are allocated to a claim by those in a, which is nil if there are none. It reports
// whether the claim lost its allocation.
func (d *devices) account(claim types.UID, a *resourcev1.AllocationResult) bool {
	was := d.allocations[claim]
	if was == a {
		return false
	}
	d.count(was, false)
	d.count(a, true)
	if a == nil {
		delete(d.allocations, claim)
	} else {
		d.allocations[claim] = a
	}
	return was != nil && a == nil
}

// count adds the devices of an allocation to d.allocated, or removes them if add is false. a may be nil.
func (d *devices) count(a *resourcev1.AllocationResult, add bool) {
	if a == nil {
		return
	}
	for i := range a.Devices.Results {
		r := &a.Devices.Results[i]
		if ptr.Deref(r.AdminAccess, false) {
			continue // admin access does not occupy the device
		}
		id := structured.MakeDeviceID(r.Driver, r.Pool, r.Device)
		if r.ShareID == nil {
			if add {
				d.allocated.AllocatedDevices.Insert(id)
			} else {
				d.allocated.AllocatedDevices.Delete(id)
			}
			continue
		}
		shared, capacity := structured.MakeSharedDeviceID(id, r.ShareID), structured.NewDeviceConsumedCapacity(id, r.ConsumedCapacity)
		if add {
			d.allocated.AllocatedSharedDeviceIDs.Insert(shared)
			d.allocated.AggregatedCapacity.Insert(capacity)
		} else {
			d.allocated.AllocatedSharedDeviceIDs.Delete(shared)
			d.allocated.AggregatedCapacity.Remove(capacity)
		}
	}
}

// Claim returns a claim, or nil if the cache does not contain it.
func (d *devices) Claim(namespace, name string) *resourcev1.ResourceClaim {
	return d.claims[namespace+"/"+name]
}

// Pending reports whether an allocation of the claim is being written, or was written and is not in the cache yet.
func (d *devices) Pending(claim *resourcev1.ResourceClaim) bool {
	_, ok := d.pending[claim.UID]
	return ok
}

// Classes returns a lister of all DeviceClasses.
func (d *devices) Classes() structured.DeviceClassLister { return d.classes }

// Allocated returns the allocated devices of all claims, including allocations that are being written.
func (d *devices) Allocated() structured.AllocatedState { return d.allocated }

// Expressions returns the cache of compiled CEL expressions of device selectors.
func (d *devices) Expressions() *cel.Cache { return d.expressions }

// Slices returns all ResourceSlices, with the taints of DeviceTaintRules added to their devices. The result is cached
// until a slice or rule changes.
func (d *devices) Slices() []*resourcev1.ResourceSlice {
	if d.patched == nil {
		// Listers read from the cache and do not fail.
		all, _ := d.slices.List(labels.Everything())
		rules, _ := d.taintRules.List(labels.Everything())
		d.patched = make([]*resourcev1.ResourceSlice, 0, len(all))
		for _, s := range all {
			d.patched = append(d.patched, withTaints(s, rules))
		}
	}
	return d.patched
}

// withTaints returns the slice s with the taints that rules add to its devices. If there are any, the result is a copy,
// because s is shared with the cache.
func withTaints(s *resourcev1.ResourceSlice, rules []*resourcev1.DeviceTaintRule) *resourcev1.ResourceSlice {
	copied := false
	for _, rule := range rules {
		sel := rule.Spec.DeviceSelector
		if sel == nil || sel.Driver != nil && *sel.Driver != s.Spec.Driver || sel.Pool != nil && *sel.Pool != s.Spec.Pool.Name {
			continue
		}
		for i := range s.Spec.Devices {
			if sel.Device != nil && *sel.Device != s.Spec.Devices[i].Name {
				continue
			}
			if !copied {
				s, copied = s.DeepCopy(), true
			}
			s.Spec.Devices[i].Taints = append(s.Spec.Devices[i].Taints, rule.Spec.Taint)
		}
	}
	return s
}

// classLister implements structured.DeviceClassLister, the interface of the device allocator, with the informer's
// cache.
type classLister struct {
	lister resourcelisters.DeviceClassLister
}

// List returns all DeviceClasses.
func (c classLister) List() ([]*resourcev1.DeviceClass, error) {
	return c.lister.List(labels.Everything())
}

// Get returns a DeviceClass by name, or an error if it does not exist.
func (c classLister) Get(name string) (*resourcev1.DeviceClass, error) { return c.lister.Get(name) }

// usesClaim reports whether a pod uses the resource claim with this key, which is its namespace/name.
func usesClaim(pod *corev1.Pod, key string) bool {
	return slices.ContainsFunc(pod.Spec.ResourceClaims, func(r corev1.PodResourceClaim) bool {
		name, _, err := resourceclaim.Name(pod, &r)
		return err == nil && name != nil && pod.Namespace+"/"+*name == key
	})
}

// devicesChanged processes a message about devices. It queues unschedulable pods that wait for the changed claim
// again, and checks whether gated pods may be scheduled now. It returns the event after which other unschedulable pods
// may fit, or 0 if there is none.
func (s *Scheduler) devicesChanged(m *devicesMessage, now time.Time) framework.Event {
	freed, claim := s.devices.process(m)
	if claim != "" {
		s.queue.resourceClaimChanged(claim, now)
	}
	if claim != "" || m.synced {
		for _, it := range s.queue.gatedWithClaims() {
			if m.synced || usesClaim(it.pod, claim) {
				gate := s.gate(it.pod)
				s.queue.set(it.pod, gate != "", now)
				s.queue.gatedBy(it.pod.UID, gate)
			}
		}
	}
	if freed {
		return framework.DevicesChanged
	}
	return 0
}

// gate returns the name of the PreEnqueue plugin that prevents a pod from being scheduled, or "" if none does. For a
// pod that requests devices, this is DynamicResources while the informers for devices are not synced or a claim does
// not exist.
func (s *Scheduler) gate(pod *corev1.Pod) string {
	set := &s.profiles[pod.Spec.SchedulerName].Plugins
	for _, p := range set.PreEnqueue {
		if p.PreEnqueue(pod) != "" {
			return p.Name()
		}
	}
	if set.Devices == nil || !framework.RequestsDevices(pod) {
		return ""
	}
	s.devices.requested = true
	if !s.devices.synced || set.Devices.MissingClaim(s.devices, pod) != "" {
		return set.Devices.Name()
	}
	return ""
}

// deviceConditions reports whether the drivers have prepared all devices of an allocated claim, according to the
// binding conditions of the devices. It returns an error if a binding failure condition is set or the claim is not
// allocated any more; the pod must then be scheduled again.
func deviceConditions(claim *resourcev1.ResourceClaim) (bool, error) {
	if claim.Status.Allocation == nil {
		return false, fmt.Errorf("claim %s/%s is no longer allocated", claim.Namespace, claim.Name)
	}
	for _, r := range claim.Status.Allocation.Devices.Results {
		if len(r.BindingConditions) == 0 {
			continue
		}
		var conditions []metav1.Condition
		for _, s := range claim.Status.Devices {
			if s.Driver == r.Driver && s.Pool == r.Pool && s.Device == r.Device && (s.ShareID == nil) == (r.ShareID == nil) && (s.ShareID == nil || *s.ShareID == string(*r.ShareID)) {
				conditions = s.Conditions
			}
		}
		is := func(kind string) bool {
			return slices.ContainsFunc(conditions, func(c metav1.Condition) bool { return c.Type == kind && c.Status == metav1.ConditionTrue })
		}
		if i := slices.IndexFunc(r.BindingFailureConditions, is); i >= 0 {
			return false, fmt.Errorf("claim %s/%s binding failed: device %s/%s/%s: %s", claim.Namespace, claim.Name, r.Driver, r.Pool, r.Device, r.BindingFailureConditions[i])
		}
		if slices.ContainsFunc(r.BindingConditions, func(kind string) bool { return !is(kind) }) {
			return false, nil
		}
	}
	return true, nil
}
