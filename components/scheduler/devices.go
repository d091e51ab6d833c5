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
	"hyperkube/internal/client"
)

// expressionsKept is how many compiled expressions of selectors are kept.
const expressionsKept = 50

// devices is framework.Devices. It is owned by the goroutine of Run, but for lister
// and changed, once it is started. Nothing is known until a pod has asked for
// devices.
type devices struct {
	// changed rings when a claim changes.
	changed *bell
	wanted  bool // a pod has resource claims
	started bool
	synced  bool

	classes     classLister
	slices      resourcelisters.ResourceSliceLister
	lister      resourcelisters.ResourceClaimLister
	taintRules  resourcelisters.DeviceTaintRuleLister
	expressions *cel.Cache
	// patched are the slices with the taints of rules; nil: to be made.
	patched []*resourcev1.ResourceSlice

	claims map[string]*resourcev1.ResourceClaim // by namespace/name
	// extended are the claims that were made for pods' extended resources, by pod,
	// and byResource the classes; nil: to be made.
	extended   map[types.UID]*resourcev1.ResourceClaim
	byResource map[corev1.ResourceName]*resourcev1.DeviceClass
	// pending are the allocations that are being written, or were and have not
	// come back. The value is the version that has them or, if they could not be
	// written, has not; "" while that is not known.
	pending map[types.UID]string
	// had are the devices of claims, whose sum is allocated.
	had       map[types.UID]*resourcev1.AllocationResult
	allocated structured.AllocatedState
}

var _ framework.Devices = (*devices)(nil)

func newDevices() *devices {
	return &devices{
		changed: newBell(),
		claims:  map[string]*resourcev1.ResourceClaim{}, pending: map[types.UID]string{},
		extended: map[types.UID]*resourcev1.ResourceClaim{},
		had:      map[types.UID]*resourcev1.AllocationResult{},
		allocated: structured.AllocatedState{
			AllocatedDevices: sets.New[structured.DeviceID](), AllocatedSharedDeviceIDs: sets.New[structured.SharedDeviceID](),
			AggregatedCapacity: structured.NewConsumedCapacityCollection(),
		},
	}
}

// devicesMessage is what has happened to devices.
type devicesMessage struct {
	claim *resourcev1.ResourceClaim
	gone  bool
	// written is a claim whose allocation was written, or failed to be; version
	// is one of the claim after that, "" if it is gone.
	written *resourcev1.ResourceClaim
	version string
	// made is the claim that was made of written, which had none before; nil: it
	// was there.
	made *resourcev1.ResourceClaim
	// changed: slices, classes or taint rules.
	changed bool
	// synced: all that is there is known.
	synced bool
}

// start has the informers started, which tell all to in. The goroutine that waits
// for them ends with ctx.
func (d *devices) start(ctx context.Context, clients *client.Clients, in *inbox) error {
	d.started = true
	res := clients.Informers.Resource().V1()
	d.classes = classLister{res.DeviceClasses().Lister()}
	d.lister = res.ResourceClaims().Lister()
	d.slices, d.taintRules = res.ResourceSlices().Lister(), res.DeviceTaintRules().Lister()
	d.expressions = cel.NewCache(expressionsKept, cel.Features{EnableConsumableCapacity: true})
	changed := func(any) { in.put(message{devices: &devicesMessage{changed: true}}) }
	any := cache.ResourceEventHandlerFuncs{AddFunc: changed, UpdateFunc: func(_, o any) { changed(o) }, DeleteFunc: changed}
	var synced []cache.DoneChecker
	for _, w := range []struct {
		informer cache.SharedIndexInformer
		handler  cache.ResourceEventHandler
	}{
		{res.ResourceClaims().Informer(), handler(func(claim *resourcev1.ResourceClaim, gone bool) {
			d.changed.ring()
			in.put(message{devices: &devicesMessage{claim: claim, gone: gone}})
		})},
		{res.ResourceSlices().Informer(), any},
		{res.DeviceClasses().Informer(), any},
		{res.DeviceTaintRules().Informer(), any},
	} {
		reg, err := w.informer.AddEventHandler(w.handler)
		if err != nil {
			return fmt.Errorf("preparing informers of devices: %w", err)
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

// take takes a message in. It tells whether devices may have become free, and
// which claim, by namespace/name, pods may wait for.
func (d *devices) take(m *devicesMessage) (freed bool, claim string) {
	switch {
	case m.claim != nil:
		claim = m.claim.Namespace + "/" + m.claim.Name
		d.noteExtended(m.claim, m.gone)
		if m.gone {
			delete(d.claims, claim)
			delete(d.pending, m.claim.UID)
			// A pod may have waited for the end of a claim of its own.
			return d.account(m.claim.UID, nil) || extendedOwner(m.claim) != "", claim
		}
		d.claims[claim] = m.claim
		return d.settle(m.claim), claim
	case m.made != nil:
		return d.handOver(m), ""
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
		return d.settle(now), claim
	case m.changed:
		d.patched, d.byResource = nil, nil
		return true, ""
	default:
		d.synced = true
		return true, ""
	}
}

// settle accounts for a claim as it is known, unless it is older than what was
// written of it.
func (d *devices) settle(claim *resourcev1.ResourceClaim) bool {
	if owner := extendedOwner(claim); owner != "" {
		if _, ok := d.pending[framework.PlannedClaim(owner)]; ok {
			return false // handOver does it
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

// assume shows the allocations of a reservation as made.
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

// account notes what a claim has now, nil for nothing, and tells whether it had
// something before that it has no longer.
func (d *devices) account(claim types.UID, a *resourcev1.AllocationResult) bool {
	was := d.had[claim]
	if was == a {
		return false
	}
	d.count(was, false)
	d.count(a, true)
	if a == nil {
		delete(d.had, claim)
	} else {
		d.had[claim] = a
	}
	return was != nil && a == nil
}

// count adds an allocation to what is allocated, or takes it off.
func (d *devices) count(a *resourcev1.AllocationResult, add bool) {
	if a == nil {
		return
	}
	for i := range a.Devices.Results {
		r := &a.Devices.Results[i]
		if ptr.Deref(r.AdminAccess, false) {
			continue // it takes nothing from others
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

// Claim as framework.Devices.
func (d *devices) Claim(namespace, name string) *resourcev1.ResourceClaim {
	return d.claims[namespace+"/"+name]
}

// Pending as framework.Devices.
func (d *devices) Pending(claim *resourcev1.ResourceClaim) bool {
	_, ok := d.pending[claim.UID]
	return ok
}

// Classes as framework.Devices.
func (d *devices) Classes() structured.DeviceClassLister { return d.classes }

// Allocated as framework.Devices.
func (d *devices) Allocated() structured.AllocatedState { return d.allocated }

// Expressions as framework.Devices.
func (d *devices) Expressions() *cel.Cache { return d.expressions }

// Slices as framework.Devices.
func (d *devices) Slices() []*resourcev1.ResourceSlice {
	if d.patched == nil {
		// Listers from memory do not fail.
		all, _ := d.slices.List(labels.Everything())
		rules, _ := d.taintRules.List(labels.Everything())
		d.patched = make([]*resourcev1.ResourceSlice, 0, len(all))
		for _, s := range all {
			d.patched = append(d.patched, withTaints(s, rules))
		}
	}
	return d.patched
}

// withTaints returns a slice with the taints that rules add to its devices, in a copy
// if there are any.
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

// classLister is structured.DeviceClassLister.
type classLister struct {
	lister resourcelisters.DeviceClassLister
}

// List returns all classes.
func (c classLister) List() ([]*resourcev1.DeviceClass, error) {
	return c.lister.List(labels.Everything())
}

// Get returns the class of a name.
func (c classLister) Get(name string) (*resourcev1.DeviceClass, error) { return c.lister.Get(name) }

// usesClaim tells whether a pod has the resource claim of a key, namespace/name.
func usesClaim(pod *corev1.Pod, key string) bool {
	return slices.ContainsFunc(pod.Spec.ResourceClaims, func(r corev1.PodResourceClaim) bool {
		name, _, err := resourceclaim.Name(pod, &r)
		return err == nil && name != nil && pod.Namespace+"/"+*name == key
	})
}

// takeDevices takes in what has happened to devices, and tells what that is to
// waiting pods.
func (s *Scheduler) takeDevices(m *devicesMessage, now time.Time) framework.Event {
	freed, claim := s.devices.take(m)
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

// gate is the plugin because of which a pod must not be tried yet, "" for none.
func (s *Scheduler) gate(pod *corev1.Pod) string {
	set := &s.profiles[pod.Spec.SchedulerName].Plugins
	for _, p := range set.PreEnqueue {
		if p.PreEnqueue(pod) != "" {
			return p.Name()
		}
	}
	if set.Devices == nil || !framework.AsksDevices(pod) {
		return ""
	}
	s.devices.wanted = true
	if !s.devices.synced || set.Devices.MissingClaim(s.devices, pod) != "" {
		return set.Devices.Name()
	}
	return ""
}

// deviceConditions tells whether drivers have made a claim's devices ready for a
// pod to be bound; an error is that they cannot.
func deviceConditions(claim *resourcev1.ResourceClaim) (bool, error) {
	if claim.Status.Allocation == nil {
		return false, fmt.Errorf("claim %s/%s is not allocated any more", claim.Namespace, claim.Name)
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
