package dynamic

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/admission"

	"hyperkube/components/apiserver/syncgate"
)

// lazy is an admission plugin for webhooks or policies that is created by the first request after an object that
// configures it exists. It is safe for concurrent use.
type lazy struct {
	name string
	ops  []admission.Operation
	// count is the number of objects that configure the plugin. It is accurate once gate is open, which means that
	// the informer of these objects has synced.
	count atomic.Int64
	gate  *syncgate.Gate
	make  func(name string) (admission.Interface, error)

	once   sync.Once
	plugin admission.Interface
	err    error
}

// Handles implements admission.Interface. It reports whether the plugin handles the operation,
// without creating the plugin.
func (l *lazy) Handles(op admission.Operation) bool { return slices.Contains(l.ops, op) }

// get returns the plugin, which it creates on first use, or nil if no object configures it. It returns an error that
// rejects the request if the informer has not synced in time or the plugin cannot be created; it does not try to
// create the plugin again.
func (l *lazy) get(ctx context.Context, a admission.Attributes) (admission.Interface, error) {
	if err := l.gate.Wait(ctx); err != nil {
		return nil, admission.NewForbidden(a, fmt.Errorf("not yet ready to handle request"))
	}
	if l.count.Load() <= 0 {
		return nil, nil
	}
	l.once.Do(func() {
		if l.plugin, l.err = l.make(l.name); l.err != nil {
			l.err = fmt.Errorf("admission plugin %s: %w", l.name, l.err)
		}
	})
	if l.err != nil {
		return nil, apierrors.NewInternalError(l.err)
	}
	return l.plugin, nil
}

// mutating is a lazy plugin that changes objects.
type mutating struct{ *lazy }

// Admit calls the mutating plugin, which is created at the first call. It does nothing if no object configures the
// plugin.
func (m mutating) Admit(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	p, err := m.get(ctx, a)
	if err != nil || p == nil {
		return err
	}
	return p.(admission.MutationInterface).Admit(ctx, a, o)
}

// validating is a lazy plugin that accepts or rejects requests.
type validating struct{ *lazy }

// Validate calls the validating plugin, which is created at the first call. It does nothing if no object configures
// the plugin.
func (v validating) Validate(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	p, err := v.get(ctx, a)
	if err != nil || p == nil {
		return err
	}
	return p.(admission.ValidationInterface).Validate(ctx, a, o)
}
