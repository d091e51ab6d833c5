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

	"hyperkube/components/apiserver/informed"
	"hyperkube/components/apiserver/request"
	"hyperkube/internal/quota"
)

const (
	// quotaAttempts to reserve from a quota that others write too.
	quotaAttempts = 10
	// quotasKept is of how many quotas the last written state is remembered.
	quotasKept = 1000
)

// resourceQuota reserves what a new or changed object uses in the status of the
// namespace's ResourceQuotas, or refuses it. It comes last, so that nothing is
// reserved for what another plugin refuses.
//
// https://kubernetes.io/docs/concepts/policy/resource-quotas/
type resourceQuota struct {
	operations
	kube       kubernetes.Interface
	lister     corelisters.ResourceQuotaLister
	gate       *informed.Gate
	asked      *asked[*corev1.ResourceQuota]
	evaluators quotav1.Registry
	// limited may only be used where a quota covers them.
	limited []quotaconfig.LimitedResource
	// written are quotas as this plugin wrote them (of type ledger), by
	// namespace and name: the informer may be behind. It has a lock of its own.
	written *lru.Cache

	mu sync.Mutex
	// turns are of the namespaces with requests at work: one of each at a time
	// reserves. Guarded by mu.
	turns map[string]*turn
}

// ledger is a quota as this plugin wrote it.
type ledger struct {
	quota *corev1.ResourceQuota
	// line is the same for all that was written with nobody else's write
	// between.
	line *line
}

// line is compared by address, so it has one of its own.
type line struct{ _ byte }

// turn is taken by putting into its channel.
type turn struct {
	taken chan struct{}
	// users have it or wait for it; guarded by resourceQuota.mu.
	users int
}

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
		gate:       informed.NewGate(inf.Informer().HasSyncedChecker()),
		asked:      newAsked[*corev1.ResourceQuota](),
		evaluators: quota.New(nil, time.Now),
		limited:    limited,
		written:    lru.New(quotasKept),
		turns:      map[string]*turn{},
	}, nil
}

// limitedResources are those of the plugin's configuration.
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

// Validate implements admission.ValidationInterface.
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
	done, err := p.wait(ctx, namespace)
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

// devices is what claims are measured by: too rarely for informers.
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

func pointers[T any](items []T) []*T {
	out := make([]*T, len(items))
	for i := range items {
		out[i] = &items[i]
	}
	return out
}

// wait takes the namespace's turn; done gives it back.
func (p *resourceQuota) wait(ctx context.Context, namespace string) (done func(), err error) {
	p.mu.Lock()
	t := p.turns[namespace]
	if t == nil {
		t = &turn{taken: make(chan struct{}, 1)}
		p.turns[namespace] = t
	}
	t.users++
	p.mu.Unlock()
	leave := func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if t.users--; t.users == 0 {
			delete(p.turns, namespace)
		}
	}
	select {
	case t.taken <- struct{}{}:
		return func() { <-t.taken; leave() }, nil
	case <-ctx.Done():
		leave()
		return nil, ctx.Err()
	}
}

// find are the namespace's as the informer knows them, or, if it knows none, as
// the API does.
func (p *resourceQuota) find(ctx context.Context, namespace string) ([]*corev1.ResourceQuota, error) {
	found, err := p.lister.ResourceQuotas(namespace).List(labels.Everything())
	if err == nil && len(found) == 0 {
		found, err = p.asked.about(namespace, func() (found []*corev1.ResourceQuota, _ error) {
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

// quotas are the namespace's, each as new as is known here, by name.
func (p *resourceQuota) quotas(ctx context.Context, namespace string) ([]corev1.ResourceQuota, error) {
	found, err := p.find(ctx, namespace)
	if err != nil {
		return nil, err
	}
	out := make([]corev1.ResourceQuota, 0, len(found))
	for _, q := range found {
		if own, ok := p.written.Get(q.Namespace + "/" + q.Name); ok {
			own, ok := own.(ledger)
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

// newer tells whether a is a later state than b.
func newer(a, b *corev1.ResourceQuota) bool {
	c, err := resourceversion.CompareResourceVersion(a.ResourceVersion, b.ResourceVersion)
	return err == nil && c > 0
}

// reserve checks the request against quotas and writes those of which it uses
// some. Quotas that others wrote meanwhile are read and checked again.
//
// What is reserved is given back when the request fails nevertheless.
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
				p.noted(ctx, &quotas[i], written)
				continue
			case apierrors.IsNotFound(err):
				continue // it limits nothing any more
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

// noted remembers written, which was made from base, and how to give back what
// it reserves.
func (p *resourceQuota) noted(ctx context.Context, base, written *corev1.ResourceQuota) {
	key := written.Namespace + "/" + written.Name
	now := ledger{quota: written, line: &line{}}
	if before, ok := p.written.Get(key); ok {
		if before, ok := before.(ledger); ok && before.quota.UID == base.UID && before.quota.ResourceVersion == base.ResourceVersion {
			now.line = before.line
		}
	}
	p.written.Add(key, now)
	reserved := quotav1.Subtract(written.Status.Used, base.Status.Used)
	request.OnFailure(ctx, func(ctx context.Context) { p.giveBack(ctx, key, now.line, reserved) })
}

// giveBack takes reserved off a quota, unless someone else has written it since
// it was reserved: the controller has then counted what there is, and what
// failed is not in it. What cannot be given back is found by its next count.
func (p *resourceQuota) giveBack(ctx context.Context, key string, since *line, reserved corev1.ResourceList) {
	namespace, _, _ := strings.Cut(key, "/")
	done, err := p.wait(ctx, namespace)
	if err != nil {
		return
	}
	defer done()
	found, ok := p.written.Get(key)
	if !ok {
		return
	}
	own, ok := found.(ledger)
	if !ok || own.line != since {
		return
	}
	next := own.quota.DeepCopy()
	next.Status.Used = quotav1.SubtractWithNonNegativeResult(next.Status.Used, reserved)
	// Based on the state that this plugin wrote: another's is a conflict.
	if written, err := p.kube.CoreV1().ResourceQuotas(namespace).UpdateStatus(ctx, next, metav1.UpdateOptions{}); err == nil {
		p.written.Add(key, ledger{quota: written, line: own.line})
	}
}
