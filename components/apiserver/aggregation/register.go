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

// The label of APIServices that the server keeps: those of its own groups are
// written when it starts, and left to whoever changes them until it starts
// again; those of custom resources follow their definitions.
const (
	managedLabel   = "kube-aggregator.kubernetes.io/automanaged"
	managedOnStart = "onstart"
	managedAlways  = "true"
)

// registrar keeps an APIService for each group and version that this server
// serves. It is not for use by several goroutines.
type registrar struct {
	*Aggregator
	// started: those that are written on start have been.
	started bool
}

// atOnce is how many APIServices are written at the same time.
const atOnce = 8

// register writes what is missing or wrong, and deletes what is left over.
func (r *registrar) register(ctx context.Context) error {
	want := r.wanted()
	have := r.objects()
	var mu sync.Mutex
	var errs []error
	var g errgroup.Group
	g.SetLimit(atOnce)
	do := func(name string, f func() error) {
		g.Go(func() error {
			// What others did in the meantime comes by as an event.
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
			// It named another server before.
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

// manages tells whether the server may change an APIService now.
func (r *registrar) manages(s *apiregistrationv1.APIService) bool {
	switch s.Labels[managedLabel] {
	case managedAlways:
		return true
	case managedOnStart:
		return !r.started
	}
	return false
}

func isLocal(s *apiregistrationv1.APIService) bool {
	c := helper.GetAPIServiceConditionByType(s, apiregistrationv1.Available)
	return c != nil && c.Status == apiregistrationv1.ConditionTrue && c.Reason == "Local"
}

// wanted are the APIServices of what is served here, by name.
func (r *registrar) wanted() map[string]*apiregistrationv1.APIService {
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
