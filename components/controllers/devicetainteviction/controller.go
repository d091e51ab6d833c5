// Package devicetainteviction deletes pods that use devices with NoExecute taints that their claims
// do not tolerate, immediately or when the toleration expires. It reports the progress in the
// status of each DeviceTaintRule.
//
// https://kubernetes.io/docs/concepts/scheduling-eviction/dynamic-resource-allocation/#device-taints-and-tolerations
package devicetainteviction

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	corelisters "k8s.io/client-go/listers/core/v1"
	resourcelisters "k8s.io/client-go/listers/resource/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/dynamic-resource-allocation/resourceclaim"

	"hyperkube/components/controllers/internal/control"
	"hyperkube/internal/pod/podutil"
)

// claimKey and ruleKey are the prefixes of keys in the work queue: before the namespace/name of a ResourceClaim, and
// before the name of a DeviceTaintRule.
const (
	claimKey = "claim:"
	ruleKey  = "rule:"

	// byPool is the name of the index of claims and slices by "driver/pool".
	byPool = "devicepool"
)

// Controller evicts pods with tainted devices. Each sync handles a ResourceClaim or a DeviceTaintRule. Use New to
// create it.
type Controller struct {
	*control.Loop
	env    control.Env
	pods   corelisters.PodLister
	claims resourcelisters.ResourceClaimLister
	rules  resourcelisters.DeviceTaintRuleLister
	// claimIndex and sliceIndex have the index byPool.
	claimIndex, sliceIndex cache.Indexer
	control                control.PodControl

	mu sync.Mutex // guards the fields below
	// due are the pending evictions, by the claim's key and the pod's UID.
	due map[string]map[types.UID]bool
	// evicted counts the evicted pods by rule UID since the start.
	evicted map[types.UID]int
}

// New returns a Controller that uses the API client, the informers and the event recorder in env. It adds an index to
// the shared informers of claims and slices, so create it only once per informer factory. The caller starts the
// informers and calls Run.
func New(env control.Env) (*Controller, error) {
	env = env.Defaulted()
	res := env.Informers.Resource().V1()
	pods := env.Informers.Core().V1().Pods()
	claims, slices, rules := res.ResourceClaims().Informer(), res.ResourceSlices().Informer(), res.DeviceTaintRules().Informer()
	c := &Controller{
		env: env, pods: pods.Lister(), claims: res.ResourceClaims().Lister(), rules: res.DeviceTaintRules().Lister(),
		claimIndex: claims.GetIndexer(), sliceIndex: slices.GetIndexer(),
		control: control.PodControl{Kube: env.Kube, Events: env.Events},
		due:     map[string]map[types.UID]bool{}, evicted: map[types.UID]int{},
	}
	c.Loop = control.NewLoop(env, "device-taint-eviction", c.sync)
	// The informers are shared: another controller may add indexers as well.
	if err := errors.Join(
		claims.AddIndexers(cache.Indexers{byPool: poolsOfClaim}), slices.AddIndexers(cache.Indexers{byPool: poolOfSlice}),
	); err != nil {
		return nil, err
	}
	return c, errors.Join(
		c.Watch(pods.Informer(), control.AddedOrUpdated(c.enqueueClaims)),
		c.Watch(claims, control.AnyEvent(c.claimChanged)),
		c.Watch(slices, control.AnyEvent(func(s *resourcev1.ResourceSlice) { c.addClaims(s.Spec.Driver + "/" + s.Spec.Pool.Name) })),
		c.Watch(rules, control.Handlers(c.ruleChanged, func(_, r *resourcev1.DeviceTaintRule) { c.ruleChanged(r) }, func(r *resourcev1.DeviceTaintRule) {
			c.mu.Lock()
			delete(c.evicted, r.UID)
			c.mu.Unlock()
			c.ruleChanged(r)
		})),
	)
}

// ruleChanged enqueues a rule that was added, changed or deleted, and the claims with devices that it selects.
func (c *Controller) ruleChanged(r *resourcev1.DeviceTaintRule) {
	c.Add(ruleKey + r.Name)
	for _, claim := range c.selectedClaims(r) {
		c.Add(claimKey + claim.Namespace + "/" + claim.Name)
	}
}

// enqueueClaims enqueues the claims that a pod uses, because the cache may contain the pod later than the claims that
// are reserved for it.
func (c *Controller) enqueueClaims(p *corev1.Pod) {
	for i := range p.Spec.ResourceClaims {
		if name, _, err := resourceclaim.Name(p, &p.Spec.ResourceClaims[i]); err == nil && name != nil {
			c.Add(claimKey + p.Namespace + "/" + *name)
		}
	}
	if s := p.Status.ExtendedResourceClaimStatus; s != nil {
		c.Add(claimKey + p.Namespace + "/" + s.ResourceClaimName)
	}
}

// poolsOfClaim is the index function of byPool for claims: it returns the pools of their allocated devices.
func poolsOfClaim(obj any) ([]string, error) {
	claim, ok := obj.(*resourcev1.ResourceClaim)
	if !ok || claim.Status.Allocation == nil {
		return nil, nil
	}
	var out []string
	for _, r := range claim.Status.Allocation.Devices.Results {
		out = append(out, r.Driver+"/"+r.Pool)
	}
	return out, nil
}

// poolOfSlice is the index function of byPool for ResourceSlices.
func poolOfSlice(obj any) ([]string, error) {
	s, ok := obj.(*resourcev1.ResourceSlice)
	if !ok {
		return nil, nil
	}
	return []string{s.Spec.Driver + "/" + s.Spec.Pool.Name}, nil
}

// claimChanged enqueues a claim, and the rules that select its devices, whose status contains numbers of pods and
// devices.
func (c *Controller) claimChanged(claim *resourcev1.ResourceClaim) {
	c.Add(claimKey + claim.Namespace + "/" + claim.Name)
	rules, err := c.rules.List(labels.Everything())
	if err != nil {
		return
	}
	for _, r := range rules {
		if countDevices(r, claim) > 0 {
			c.Add(ruleKey + r.Name)
		}
	}
}

// addClaims enqueues the claims with devices of a pool ("driver/pool"), because the taints of its devices may have
// changed.
func (c *Controller) addClaims(pool string) {
	objs, err := c.claimIndex.ByIndex(byPool, pool)
	if err != nil {
		return
	}
	for _, o := range objs {
		if claim, ok := o.(*resourcev1.ResourceClaim); ok {
			c.Add(claimKey + claim.Namespace + "/" + claim.Name)
		}
	}
}

// sync handles a claim or a rule, depending on the prefix of key.
func (c *Controller) sync(ctx context.Context, key string) error {
	if name, ok := strings.CutPrefix(key, ruleKey); ok {
		return c.syncRule(ctx, name)
	}
	key = strings.TrimPrefix(key, claimKey)
	namespace, name := control.SplitKey(key)
	claim, err := c.claims.ResourceClaims(namespace).Get(name)
	if apierrors.IsNotFound(err) {
		c.cancel(key, nil)
		return nil
	}
	if err != nil {
		return err
	}
	return c.syncClaim(ctx, key, claim)
}

// syncClaim evicts the pods that use a claim if one of its devices has a taint that is not tolerated any more. If the
// toleration expires later, it schedules another sync for that time. key is the claim's namespace/name.
func (c *Controller) syncClaim(ctx context.Context, key string, claim *resourcev1.ResourceClaim) error {
	at, by, tainted, err := c.evictionTime(claim)
	if err != nil {
		return err
	}
	if !tainted {
		c.cancel(key, nil)
		return nil
	}
	left := at.Sub(c.env.Clock.Now())
	waiting := map[types.UID]bool{}
	var errs []error
	for _, p := range c.claimUsers(claim) {
		if left > 0 {
			waiting[p.UID] = true
			continue
		}
		errs = append(errs, c.evict(ctx, p, by))
	}
	c.cancel(key, waiting)
	if left > 0 {
		c.AddAfter(claimKey+key, left)
	}
	return errors.Join(errs...)
}

// cancel replaces the pending evictions of the claim with this key by waiting, the UIDs of pods that are evicted later.
// If waiting is empty, it emits an event on each pod whose pending eviction is canceled and that still exists.
func (c *Controller) cancel(key string, waiting map[types.UID]bool) {
	c.mu.Lock()
	was := c.due[key]
	if len(waiting) > 0 {
		c.due[key] = waiting
	} else {
		delete(c.due, key)
	}
	c.mu.Unlock()
	if len(waiting) > 0 || len(was) == 0 {
		return
	}
	namespace, _, _ := strings.Cut(key, "/")
	pods, err := c.pods.Pods(namespace).List(labels.Everything())
	if err != nil {
		return
	}
	for _, p := range pods {
		if was[p.UID] && p.DeletionTimestamp == nil {
			c.env.Events.Event(p, corev1.EventTypeNormal, "DeviceTaintManagerEviction", "Cancelling deletion")
		}
	}
}

// claimUsers returns the pods that a claim is reserved for and that have not terminated and are not being deleted.
func (c *Controller) claimUsers(claim *resourcev1.ResourceClaim) []*corev1.Pod {
	var out []*corev1.Pod
	for _, r := range claim.Status.ReservedFor {
		if r.APIGroup != "" || r.Resource != "pods" {
			continue
		}
		p, err := c.pods.Pods(claim.Namespace).Get(r.Name)
		if err == nil && p.UID == r.UID && p.DeletionTimestamp == nil && !podutil.Terminal(p) {
			out = append(out, p)
		}
	}
	return out
}

// taint is a taint of a device, and the DeviceTaintRule that adds it. rule is nil if the driver has set the taint.
type taint struct {
	resourcev1.DeviceTaint
	rule *resourcev1.DeviceTaintRule
}

// taints returns all taints of an allocated device: those in the newest generation of its pool's ResourceSlices, and
// those of rules.
func (c *Controller) taints(r *resourcev1.DeviceRequestAllocationResult) ([]taint, error) {
	var out []taint
	objs, err := c.sliceIndex.ByIndex(byPool, r.Driver+"/"+r.Pool)
	if err != nil {
		return nil, err
	}
	newest := int64(-1)
	var device *resourcev1.Device
	for _, o := range objs {
		s, ok := o.(*resourcev1.ResourceSlice)
		if !ok || s.Spec.Pool.Generation < newest {
			continue
		}
		if s.Spec.Pool.Generation > newest {
			newest, device = s.Spec.Pool.Generation, nil
		}
		for i := range s.Spec.Devices {
			if s.Spec.Devices[i].Name == r.Device {
				device = &s.Spec.Devices[i]
			}
		}
	}
	if device != nil {
		for _, t := range device.Taints {
			out = append(out, taint{t, nil})
		}
	}
	rules, err := c.rules.List(labels.Everything())
	if err != nil {
		return nil, err
	}
	for _, rule := range rules {
		if selects(rule.Spec.DeviceSelector, r.Driver, r.Pool, r.Device) {
			out = append(out, taint{rule.Spec.Taint, rule})
		}
	}
	return out, nil
}

// selects reports whether the selector of a rule selects a device. A nil selector selects none.
func selects(s *resourcev1.DeviceTaintSelector, driver, pool, device string) bool {
	return s != nil && (s.Driver == nil || *s.Driver == driver) && (s.Pool == nil || *s.Pool == pool) && (s.Device == nil || *s.Device == device)
}

// evictionTime returns the time at which the pods that use a claim must be evicted, and the rules that cause it.
// tainted is false if the claim's devices have no taint that requires an eviction; the other results are then not used.
func (c *Controller) evictionTime(claim *resourcev1.ResourceClaim) (at time.Time, by []*resourcev1.DeviceTaintRule, tainted bool, err error) {
	if claim.Status.Allocation == nil {
		return time.Time{}, nil, false, nil
	}
	for i := range claim.Status.Allocation.Devices.Results {
		r := &claim.Status.Allocation.Devices.Results[i]
		taints, err := c.taints(r)
		if err != nil {
			return time.Time{}, nil, false, err
		}
		for _, t := range taints {
			end, evicts := evictsAt(t.DeviceTaint, r.Tolerations)
			if !evicts {
				continue
			}
			if t.rule != nil {
				by = append(by, t.rule)
			}
			if !tainted || end.Before(at) {
				at = end
			}
			tainted = true
		}
	}
	return at, by, tainted, nil
}

// evictsAt returns the time at which a taint evicts the pods that use a device with these tolerations. It returns false
// if the taint has another effect or is tolerated forever.
func evictsAt(t resourcev1.DeviceTaint, tolerations []resourcev1.DeviceToleration) (time.Time, bool) {
	if t.Effect != resourcev1.DeviceTaintEffectNoExecute {
		return time.Time{}, false
	}
	var at time.Time
	if t.TimeAdded != nil {
		at = t.TimeAdded.Time
	}
	found, wait := false, time.Duration(0)
	for _, toleration := range tolerations {
		if !resourceclaim.ToleratesTaint(toleration, t) {
			continue
		}
		if toleration.TolerationSeconds == nil {
			return time.Time{}, false
		}
		d := time.Duration(max(0, *toleration.TolerationSeconds)) * time.Second
		if !found || d < wait {
			found, wait = true, d
		}
	}
	return at.Add(wait), true
}

// evict sets the DisruptionTarget condition of a pod, emits an event and deletes the pod. by are the DeviceTaintRules
// that cause the eviction, whose status counts the evicted pods. It is not an error if the pod was deleted already.
func (c *Controller) evict(ctx context.Context, p *corev1.Pod, by []*resourcev1.DeviceTaintRule) error {
	c.env.Events.Event(p, corev1.EventTypeNormal, "DeviceTaintManagerEviction", "Marking for deletion")
	next := *p.Status.DeepCopy()
	if control.SetPodCondition(&next, corev1.PodCondition{
		Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, ObservedGeneration: p.Generation,
		Reason: "DeletionByDeviceTaintManager", Message: "Device Taint manager: deleting due to NoExecute taint",
	}, c.env.Clock.Now()) {
		if err := c.control.PatchStatus(ctx, p, next); err != nil {
			if apierrors.IsNotFound(err) {
				return nil
			}
			return err
		}
	}
	err := c.env.Kube.CoreV1().Pods(p.Namespace).Delete(ctx, p.Name, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(p.UID))})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, rule := range by {
		c.evicted[rule.UID]++
		c.Add(ruleKey + rule.Name)
	}
	return nil
}
