package admission

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/plugin/resourcequota"
	quotaconfig "k8s.io/apiserver/pkg/admission/plugin/resourcequota/apis/resourcequota"
	quotavalidation "k8s.io/apiserver/pkg/admission/plugin/resourcequota/apis/resourcequota/validation"
	quotav1 "k8s.io/apiserver/pkg/quota/v1"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/utils/lru"

	"hyperkube/components/apiserver/request"
	"hyperkube/components/apiserver/syncgate"
	"hyperkube/internal/api/quota"
)

const (
	// quotaAttempts is the maximum number of attempts to add a request's usage to quotas that other clients change
	// meanwhile.
	quotaAttempts = 10
	// writtenQuotasSize is the number of quotas for which the last written state is cached.
	writtenQuotasSize = 1000
)

// resourceQuota is the plugin ResourceQuota. It adds the resources of a new or changed object to
// the usage in the status of the namespace's ResourceQuotas, or rejects the request if a quota
// would be exceeded. It runs last, so that nothing is reserved for requests that other plugins
// reject.
//
// https://kubernetes.io/docs/concepts/policy/resource-quotas/
type resourceQuota struct {
	operations
	kube       kubernetes.Interface
	lister     corelisters.ResourceQuotaLister
	gate       *syncgate.Gate
	apiCache   *namespaceCache[*corev1.ResourceQuota]
	evaluators quotav1.Registry
	// limited lists resources that may only be used in namespaces where a quota limits them.
	limited []quotaconfig.LimitedResource
	// written caches quotas as last written by this plugin (type writtenQuota), by namespace and name,
	// because the informer may lag behind. It has its own lock.
	written *lru.Cache

	mu sync.Mutex
	// locks contains a lock for each namespace with active requests, so that only one request per
	// namespace reserves at a time. Guarded by mu.
	locks map[string]*namespaceLock
}

// writtenQuota is a quota in the state in which this plugin last wrote it. It identifies the sequence of writes to
// which this write belongs.
type writtenQuota struct {
	quota *corev1.ResourceQuota
	// sequence identifies an uninterrupted sequence of writes by this plugin: it changes when another
	// client has written the quota in between.
	sequence *writeSequence
}

// writeSequence identifies consecutive writes of one quota by this plugin, between which no other client has written
// the quota. Sequences are compared by pointer, so each needs a distinct address: the field makes sure that it has
// one.
type writeSequence struct{ _ byte }

// namespaceLock is a lock that can be awaited with a context. Sending to its channel acquires it.
type namespaceLock struct {
	held chan struct{}
	// users is the number of requests that hold the lock or wait for it. Guarded by
	// resourceQuota.mu.
	users int
}

// newResourceQuota creates the plugin ResourceQuota. It returns nil, which disables the plugin, if ResourceQuotas are
// not served, and an error if its configuration file is invalid.
func newResourceQuota(cfg *Config) (admission.Interface, error) {
	if !cfg.Serves(corev1.SchemeGroupVersion.WithResource("resourcequotas")) {
		return nil, nil
	}
	limited, err := limitedResources(cfg.Files["ResourceQuota"])
	if err != nil {
		return nil, err
	}
	inf := cfg.Informers.Core().V1().ResourceQuotas()
	return &resourceQuota{
		operations: onCreateUpdate,
		kube:       cfg.Kube,
		lister:     inf.Lister(),
		gate:       syncgate.NewGate(inf.Informer().HasSyncedChecker()),
		apiCache:   newNamespaceCache[*corev1.ResourceQuota](),
		evaluators: quota.New(nil, time.Now),
		limited:    limited,
		written:    lru.New(writtenQuotasSize),
		locks:      map[string]*namespaceLock{},
	}, nil
}

// limitedResources returns the limited resources in data, the plugin's configuration. It returns an
// error if the configuration is invalid.
//
// https://kubernetes.io/docs/concepts/policy/resource-quotas/#limit-priority-class-consumption-by-default
func limitedResources(data []byte) ([]quotaconfig.LimitedResource, error) {
	if len(data) == 0 {
		return nil, nil
	}
	c, err := resourcequota.LoadConfiguration(bytes.NewReader(data))
	if err != nil {
		return nil, err
	}
	return c.LimitedResources, quotavalidation.ValidateConfiguration(c).ToAggregate()
}

// Validate adds what the new or changed object uses to the usage in the quotas of its namespace. It returns a
// Forbidden error if a quota would be exceeded. It does nothing for objects without a namespace, for kinds that are
// never counted, and if the namespace has no quotas and no resource is limited by configuration.
func (p *resourceQuota) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	namespace := a.GetNamespace()
	if namespace == "" || a.GetOperation() == admission.Create && a.GetKind().GroupKind() == corev1.SchemeGroupVersion.WithKind("Namespace").GroupKind() {
		return nil
	}
	resource := a.GetResource().GroupResource()
	if quota.Ignored(resource) {
		return nil
	}
	evaluator := p.evaluators.Get(resource)
	if evaluator == nil {
		evaluator = quota.Count(resource, nil)
		if _, ok := a.GetObject().(*resourcev1.ResourceClaim); ok && resource == quota.DeviceClaims {
			evaluator = quota.Claims(nil, p.devices(ctx))
		}
	}
	if !evaluator.Handles(a) {
		return nil
	}
	if err := p.gate.Wait(ctx); err != nil {
		return apierrors.NewInternalError(err)
	}
	if some, err := p.find(ctx, namespace); err != nil || len(some) == 0 && len(p.limited) == 0 {
		return err
	}
	done, err := p.lock(ctx, namespace)
	if err != nil {
		return apierrors.NewInternalError(fmt.Errorf("resource quota evaluation timed out: %w", err))
	}
	defer done()
	quotas, err := p.quotas(ctx, namespace)
	if err != nil {
		return err
	}
	return p.reserve(ctx, a, evaluator, quotas)
}

// devices returns functions that read, through the API, the device classes, pods and claims from which the usage of a
// ResourceClaim is computed. They are called too rarely to justify informers.
func (p *resourceQuota) devices(ctx context.Context) quota.Devices {
	return quota.Devices{
		Classes: func() ([]*resourcev1.DeviceClass, error) {
			list, err := p.kube.ResourceV1().DeviceClasses().List(ctx, metav1.ListOptions{})
			if err != nil {
				return nil, err
			}
			return pointers(list.Items), nil
		},
		Pod: func(namespace, name string) (*corev1.Pod, error) {
			pod, err := p.kube.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
			if apierrors.IsNotFound(err) {
				return nil, nil
			}
			return pod, err
		},
		Claims: func(namespace string) ([]*resourcev1.ResourceClaim, error) {
			list, err := p.kube.ResourceV1().ResourceClaims(namespace).List(ctx, metav1.ListOptions{})
			if err != nil {
				return nil, err
			}
			return pointers(list.Items), nil
		},
		Now: time.Now,
	}
}

// pointers returns pointers to the elements of items.
func pointers[T any](items []T) []*T {
	out := make([]*T, len(items))
	for i := range items {
		out[i] = &items[i]
	}
	return out
}

// lock acquires the lock of a namespace, so that only one request per namespace changes the usage of quotas at a
// time. The caller must call done to release it. It returns the error of ctx if ctx is done first.
func (p *resourceQuota) lock(ctx context.Context, namespace string) (done func(), err error) {
	p.mu.Lock()
	t := p.locks[namespace]
	if t == nil {
		t = &namespaceLock{held: make(chan struct{}, 1)}
		p.locks[namespace] = t
	}
	t.users++
	p.mu.Unlock()
	leave := func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if t.users--; t.users == 0 {
			delete(p.locks, namespace)
		}
	}
	select {
	case t.held <- struct{}{}:
		return func() { <-t.held; leave() }, nil
	case <-ctx.Done():
		leave()
		return nil, ctx.Err()
	}
}

// find returns the namespace's quotas from the informer or, if the informer has none, from the API, whose answer is
// cached. They are shared and must not be modified.
func (p *resourceQuota) find(ctx context.Context, namespace string) ([]*corev1.ResourceQuota, error) {
	found, err := p.lister.ResourceQuotas(namespace).List(labels.Everything())
	if err == nil && len(found) == 0 {
		found, err = p.apiCache.get(namespace, func() (found []*corev1.ResourceQuota, _ error) {
			list, err := p.kube.CoreV1().ResourceQuotas(namespace).List(ctx, metav1.ListOptions{})
			if err != nil {
				return nil, err
			}
			for i := range list.Items {
				found = append(found, &list.Items[i])
			}
			return found, nil
		})
	}
	if err != nil {
		return nil, fmt.Errorf("error resolving quota: %w", err)
	}
	return found, nil
}

// quotas returns copies of the namespace's quotas, sorted by name. If this plugin has written a quota and the
// informer has not received that write yet, it returns the quota as written.
func (p *resourceQuota) quotas(ctx context.Context, namespace string) ([]corev1.ResourceQuota, error) {
	found, err := p.find(ctx, namespace)
	if err != nil {
		return nil, err
	}
	out := make([]corev1.ResourceQuota, 0, len(found))
	for _, q := range found {
		if own, ok := p.written.Get(q.Namespace + "/" + q.Name); ok {
			own, ok := own.(writtenQuota)
			switch {
			case ok && own.quota.UID == q.UID && newer(own.quota, q):
				q = own.quota
			case !ok || own.quota.UID != q.UID || newer(q, own.quota):
				p.written.Remove(q.Namespace + "/" + q.Name)
			}
		}
		out = append(out, *q.DeepCopy())
	}
	slices.SortFunc(out, func(x, y corev1.ResourceQuota) int { return strings.Compare(x.Name, y.Name) })
	return out, nil
}

// newer reports whether a has a later resource version than b. It returns false if one of them is invalid.
func newer(a, b *corev1.ResourceQuota) bool {
	c, err := resourceversion.CompareResourceVersion(a.ResourceVersion, b.ResourceVersion)
	return err == nil && c > 0
}

// reserve adds the usage of the request to quotas and writes those whose usage changes. After a write conflict it
// reads the quota again and repeats the check; after quotaAttempts attempts in total it returns the conflict. It ignores
// quotas that were deleted meanwhile. It returns a Forbidden error if a quota would be exceeded. On a dry run it only
// checks.
//
// The reservation is released if the request fails later.
func (p *resourceQuota) reserve(ctx context.Context, a admission.Attributes, evaluator quotav1.Evaluator, quotas []corev1.ResourceQuota) error {
	for attempt := 1; ; attempt++ {
		next, err := resourcequota.CheckRequest(quotas, a, evaluator, p.limited)
		if err != nil || a.IsDryRun() {
			return err
		}
		var again []corev1.ResourceQuota
		var lost error
		for i := range next {
			if quotav1.Equals(quotas[i].Status.Used, next[i].Status.Used) {
				continue
			}
			client := p.kube.CoreV1().ResourceQuotas(next[i].Namespace)
			written, err := client.UpdateStatus(ctx, &next[i], metav1.UpdateOptions{})
			switch {
			case err == nil:
				p.recordWrite(ctx, &quotas[i], written)
				continue
			case apierrors.IsNotFound(err):
				continue // the quota was deleted
			case !apierrors.IsConflict(err):
				return err
			}
			lost = err
			fresh, err := client.Get(ctx, next[i].Name, metav1.GetOptions{})
			if apierrors.IsNotFound(err) {
				continue
			}
			if err != nil {
				return err
			}
			again = append(again, *fresh)
		}
		if len(again) == 0 {
			return nil
		}
		if attempt == quotaAttempts {
			return lost
		}
		quotas = again
	}
}

// recordWrite caches written, the quota that this plugin has just stored as an update of base, and registers a
// function that releases the reservation if the request fails. If this plugin has also written base, the new write
// continues its writeSequence.
func (p *resourceQuota) recordWrite(ctx context.Context, base, written *corev1.ResourceQuota) {
	key := written.Namespace + "/" + written.Name
	now := writtenQuota{quota: written, sequence: &writeSequence{}}
	if before, ok := p.written.Get(key); ok {
		if before, ok := before.(writtenQuota); ok && before.quota.UID == base.UID && before.quota.ResourceVersion == base.ResourceVersion {
			now.sequence = before.sequence
		}
	}
	p.written.Add(key, now)
	reserved := quotav1.Subtract(written.Status.Used, base.Status.Used)
	request.OnFailure(ctx, func(ctx context.Context) { p.release(ctx, key, now.sequence, reserved) })
}

// release subtracts the resources reserved by a failed request from the usage of the quota with the key
// (NAMESPACE/NAME). since is the writeSequence of the reservation. It does nothing if another client has written the
// quota since then, because the quota controller has then recalculated the usage without the failed request. If the
// release itself fails, the next recalculation corrects the usage.
func (p *resourceQuota) release(ctx context.Context, key string, since *writeSequence, reserved corev1.ResourceList) {
	namespace, _, _ := strings.Cut(key, "/")
	done, err := p.lock(ctx, namespace)
	if err != nil {
		return
	}
	defer done()
	found, ok := p.written.Get(key)
	if !ok {
		return
	}
	own, ok := found.(writtenQuota)
	if !ok || own.sequence != since {
		return
	}
	next := own.quota.DeepCopy()
	next.Status.Used = quotav1.SubtractWithNonNegativeResult(next.Status.Used, reserved)
	// The update is based on the state that this plugin wrote, so another client's write causes a
	// conflict.
	if written, err := p.kube.CoreV1().ResourceQuotas(namespace).UpdateStatus(ctx, next, metav1.UpdateOptions{}); err == nil {
		p.written.Add(key, writtenQuota{quota: written, sequence: own.sequence})
	}
}
