package aggregation

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/kube-aggregator/pkg/apis/apiregistration/v1/helper"

	"hyperkube/components/apiserver/registry"
	"hyperkube/internal/base/lifecycle"
	"hyperkube/internal/store"
)

// probeInterval is the interval of the checks of an available server. A server that does not respond
// is checked after probeMinInterval, and then at increasing intervals. Checks must be periodic because
// network failures cause no event.
const (
	probeInterval    = 30 * time.Second
	probeMinInterval = 50 * time.Millisecond
)

// probe checks the availability of the other server periodically, and whenever its Service or EndpointSlices change,
// until ctx is canceled. It writes the result to the status of the APIService. If the server is available, it also
// reads its discovery document; otherwise it marks the last one as stale.
func (b *backend) probe(ctx context.Context) {
	changed := make(chan struct{}, 1)
	b.probes.Go(func() {
		b.follow(ctx, b.directory.services, store.WatchOptions{Key: b.namespace + "/" + b.service}, changed)
	})
	b.probes.Go(func() {
		b.follow(ctx, b.directory.slices, store.WatchOptions{Prefix: b.namespace + "/", Match: b.isSlice}, changed)
	})
	failures := 0
	for {
		condition, err := b.check(ctx)
		if ctx.Err() != nil {
			return
		}
		if err == nil {
			err = b.write(ctx, condition)
		}
		if ctx.Err() != nil {
			return
		}
		wait := probeInterval
		if err != nil {
			b.cfg.Log.WarnContext(ctx, "updating condition Available of APIService failed; requests for the aggregated API are forwarded or rejected according to the previous condition, retrying with back-off", "apiservice", b.name, "err", err)
		}
		if err != nil || condition.Reason == reasonFailed {
			wait = min(probeInterval, probeMinInterval<<min(failures, 10))
			failures++
		} else {
			failures = 0
		}
		if condition.Status == apiregistrationv1.ConditionTrue {
			b.discover(ctx)
		} else {
			b.markStale()
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-changed:
			timer.Stop()
			failures = 0
		case <-timer.C:
		}
	}
}

// isSlice reports whether an entry is an EndpointSlice of the server's Service. It returns false if it cannot be
// decoded.
func (b *backend) isSlice(e *store.Entry) bool {
	obj, err := b.directory.slices.Read(e)
	if err != nil {
		return false
	}
	return obj.GetLabels()[discoveryv1.LabelServiceName] == b.service
}

// follow watches the objects of res that opts selects and sends to changed when the watch starts and after every
// change, until ctx is canceled. It starts a failed watch again after a second. It returns immediately if res is nil,
// because the resource is not served.
func (b *backend) follow(ctx context.Context, res *registry.Resource, opts store.WatchOptions, changed chan<- struct{}) {
	for res != nil && ctx.Err() == nil {
		if err := b.watch(ctx, res, opts, changed); ctx.Err() == nil && !errors.Is(err, store.ErrTooOld) {
			b.cfg.Log.WarnContext(ctx, "watching the Service or the EndpointSlices of APIService failed; changes of its availability are noticed only by periodic checks, at most 30 seconds later, retrying the watch in a second", "apiservice", b.name, "service", b.namespace+"/"+b.service, "err", err)
			lifecycle.Pause(ctx, retryDelay)
		}
	}
}

// watch watches the objects of res that opts selects and sends to changed, without blocking, when the watch starts
// and after every change. It returns the error that terminates the watch.
func (b *backend) watch(ctx context.Context, res *registry.Resource, opts store.WatchOptions, changed chan<- struct{}) error {
	w, err := res.Collection.Watch(ctx, opts)
	if err != nil {
		return err
	}
	defer w.Close()
	for {
		// Changes before the start of the watch count as a change.
		select {
		case changed <- struct{}{}:
		default:
		}
		for {
			batch, err := w.Next(ctx)
			if err != nil {
				return err
			}
			if len(batch.Events) > 0 {
				break
			}
		}
	}
}

// Reasons of the condition Available of APIServices, as in upstream.
const (
	reasonFailed = "FailedDiscoveryCheck"
	reasonPassed = "Passed"
)

// check determines the condition Available of the APIService. It is True if the Service exists and the server
// responds to a request for its discovery document; a Service of type ClusterIP must also have the port and ready
// endpoints. The error is always nil.
func (b *backend) check(ctx context.Context) (apiregistrationv1.APIServiceCondition, error) {
	no := func(status apiregistrationv1.ConditionStatus, reason, message string, args ...any) (apiregistrationv1.APIServiceCondition, error) {
		return apiregistrationv1.APIServiceCondition{
			Type: apiregistrationv1.Available, Status: status, Reason: reason, Message: fmt.Sprintf(message, args...),
			LastTransitionTime: metav1.Now(),
		}, nil
	}
	const unknown, isFalse = apiregistrationv1.ConditionUnknown, apiregistrationv1.ConditionFalse
	svc, err := b.directory.service(ctx, b.namespace, b.service)
	switch {
	case errors.Is(err, store.ErrNotFound):
		return no(isFalse, "ServiceNotFound", "service/%s in %q is not present", b.service, b.namespace)
	case err != nil:
		return no(unknown, "ServiceAccessError", "service/%s in %q cannot be checked due to: %v", b.service, b.namespace, err)
	}
	if svc.Spec.Type == corev1.ServiceTypeClusterIP {
		port, ok := portOf(svc, b.port)
		if !ok {
			return no(isFalse, "ServicePortError", "service/%s in %q is not listening on port %d", b.service, b.namespace, b.port)
		}
		all, err := b.directory.slicesOf(ctx, b.namespace, b.service)
		switch {
		case err != nil:
			return no(unknown, "EndpointsAccessError", "service/%s in %q cannot be checked due to: %v", b.service, b.namespace, err)
		case len(all) == 0:
			return no(isFalse, "EndpointsNotFound", "cannot find endpointslices for service/%s in %q", b.service, b.namespace)
		case !slices.ContainsFunc(all, func(s *discoveryv1.EndpointSlice) bool { return serves(s, port.Name) }):
			return no(isFalse, "MissingEndpoints", "endpointslices for service/%s in %q have no addresses with port name %q", b.service, b.namespace, port.Name)
		}
	}
	if err := b.checkReachable(ctx); err != nil {
		return no(isFalse, reasonFailed, "%v", err)
	}
	return no(apiregistrationv1.ConditionTrue, reasonPassed, "all checks passed")
}

// serves reports whether an EndpointSlice has a ready endpoint and a port with the name.
func serves(s *discoveryv1.EndpointSlice, port string) bool {
	return slices.ContainsFunc(s.Endpoints, func(ep discoveryv1.Endpoint) bool { return isReady(&ep) }) &&
		slices.ContainsFunc(s.Ports, func(p discoveryv1.EndpointPort) bool { return p.Name != nil && *p.Name == port && p.Port != nil })
}

// checkReachable returns nil if the server responds to a request for its discovery document with a status 2xx within
// discoveryTimeout. It sends several requests at the same time, because some of several endpoints may not respond.
// One response is enough; otherwise it returns the last error.
func (b *backend) checkReachable(ctx context.Context) error {
	const attempts = 5
	ctx, cancel := context.WithTimeout(ctx, discoveryTimeout)
	defer cancel()
	results := make(chan error, attempts)
	for range attempts {
		go func() {
			resp, err := b.get(ctx, b.path(), nil)
			if err == nil {
				_ = resp.Body.Close()
				if resp.StatusCode < http.StatusOK || resp.StatusCode >= http.StatusMultipleChoices {
					err = &statusError{resp.Request.URL, resp.StatusCode}
				}
			}
			results <- err
		}()
	}
	var err error
	for range attempts {
		if err = <-results; err == nil {
			return nil
		}
	}
	return err
}

// write updates the condition in the status of the APIService if it has changed. It does nothing if the APIService
// was deleted or replaced. It returns an error after three conflicts with other writers.
func (b *backend) write(ctx context.Context, condition apiregistrationv1.APIServiceCondition) error {
	s := b.object(b.name)
	for range 3 {
		if s == nil {
			return nil
		}
		changed := s.DeepCopy()
		helper.SetAPIServiceCondition(changed, condition)
		if equality.Semantic.DeepEqual(s.Status, changed.Status) {
			return nil
		}
		_, err := b.client.UpdateStatus(ctx, changed, metav1.UpdateOptions{})
		switch {
		case err == nil:
			b.cfg.Log.InfoContext(ctx, "condition Available of APIService changed; requests for the aggregated API are rejected with 503 unless the status is True", "apiservice", b.name, "status", condition.Status, "reason", condition.Reason)
			return nil
		case apierrors.IsNotFound(err):
			return nil
		case !apierrors.IsConflict(err):
			return err
		}
		// Another client wrote the APIService, possibly a version that is older than the one from
		// the watch.
		fresh, err := b.client.Get(ctx, b.name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
			return nil
		case err != nil:
			return err
		case fresh.UID != s.UID || !equality.Semantic.DeepEqual(fresh.Spec, s.Spec):
			return nil // the APIService was replaced; the new one has its own probe
		}
		s = fresh
	}
	return errors.New("too many conflicting updates")
}
