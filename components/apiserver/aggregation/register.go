package aggregation

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"sync"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/kube-aggregator/pkg/apis/apiregistration/v1/helper"
)

// managedLabel is the label of APIServices that this server manages. With the value managedOnStart (built-in
// groups) they are written at startup, and changes by clients are kept until the next start. With
// managedAlways (groups of custom resources) they are written whenever the served groups change.
const (
	managedLabel   = "kube-aggregator.kubernetes.io/automanaged"
	managedOnStart = "onstart"
	managedAlways  = "true"
)

// registrar creates, updates and deletes the APIServices of the group versions that this server
// itself serves. It is not safe for concurrent use.
type registrar struct {
	*Aggregator
	// started is true once the APIServices that are written at startup have been written.
	started bool
}

// writeConcurrency is the maximum number of APIServices that are written concurrently.
const writeConcurrency = 8

// register creates or corrects the APIServices of the group versions that this server serves, deletes managed ones of
// group versions that it does not serve anymore, and marks APIServices without spec.service as available. It returns
// an error if it must be called again. Conflicts with other clients are not an error, because their changes arrive as
// events.
func (r *registrar) register(ctx context.Context) error {
	want := r.desired()
	have := r.objects()
	var mu sync.Mutex
	var errs []error
	var g errgroup.Group
	g.SetLimit(writeConcurrency)
	do := func(name string, f func() error) {
		g.Go(func() error {
			// Concurrent changes by other clients arrive as events.
			if err := f(); err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) && !apierrors.IsAlreadyExists(err) {
				mu.Lock()
				defer mu.Unlock()
				errs = append(errs, fmt.Errorf("APIService %s: %w", name, err))
			}
			return nil
		})
	}
	for name, s := range want {
		has, onStart := have[name], s.Labels[managedLabel] == managedOnStart
		if onStart && r.started {
			continue
		}
		switch {
		case has == nil:
			do(name, func() error {
				_, err := r.client.Create(ctx, s, metav1.CreateOptions{})
				return err
			})
		case r.manages(has) && !reflect.DeepEqual(has.Spec, s.Spec):
			do(name, func() error {
				changed := has.DeepCopy()
				changed.Spec = s.Spec
				_, err := r.client.Update(ctx, changed, metav1.UpdateOptions{})
				return err
			})
		}
	}
	for name, s := range have {
		switch {
		case want[name] == nil && r.manages(s):
			do(name, func() error {
				return r.client.Delete(ctx, name, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(s.UID))})
			})
		case s.Spec.Service == nil && !isLocal(s):
			// It referred to another server before.
			do(name, func() error {
				changed := s.DeepCopy()
				helper.SetAPIServiceCondition(changed, helper.NewLocalAvailableAPIServiceCondition())
				_, err := r.client.UpdateStatus(ctx, changed, metav1.UpdateOptions{})
				return err
			})
		}
	}
	_ = g.Wait()
	if len(errs) > 0 {
		return errors.Join(errs...)
	}
	r.started = true
	return nil
}

// manages reports whether the server may change or delete an APIService now, according to its managedLabel: always,
// only before the APIServices were written at startup, or never without the label.
func (r *registrar) manages(s *apiregistrationv1.APIService) bool {
	switch s.Labels[managedLabel] {
	case managedAlways:
		return true
	case managedOnStart:
		return !r.started
	}
	return false
}

// isLocal reports whether the condition Available in the status of an APIService is True with the reason Local, which
// means that this server serves it.
func isLocal(s *apiregistrationv1.APIService) bool {
	c := helper.GetAPIServiceConditionByType(s, apiregistrationv1.Available)
	return c != nil && c.Status == apiregistrationv1.ConditionTrue && c.Reason == "Local"
}

// desired returns the desired APIServices of the group versions that this server serves, by name. The group of
// APIServices has none.
func (r *registrar) desired() map[string]*apiregistrationv1.APIService {
	out := map[string]*apiregistrationv1.APIService{}
	for _, gv := range r.cfg.Registry.GroupVersions() {
		if gv.Group == apiregistrationv1.GroupName {
			continue
		}
		label, priority := managedOnStart, r.builtIn[gv]
		if priority == (Priority{}) {
			label, priority = managedAlways, customResources
		}
		out[gv.Version+"."+gv.Group] = &apiregistrationv1.APIService{
			ObjectMeta: metav1.ObjectMeta{Name: gv.Version + "." + gv.Group, Labels: map[string]string{managedLabel: label}},
			Spec: apiregistrationv1.APIServiceSpec{
				Group: gv.Group, Version: gv.Version, GroupPriorityMinimum: priority.Group, VersionPriority: priority.Version,
			},
		}
	}
	return out
}
