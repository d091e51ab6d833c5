package dynamic

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/admission"

	"hyperkube/components/apiserver/informed"
)

// lazy is a plugin that is made when it is first needed. It is safe for several
// goroutines.
type lazy struct {
	name string
	ops  []admission.Operation
	// count is of the objects that configure the plugin; it is right once
	// gate is open.
	count atomic.Int64
	gate  *informed.Gate
	make  func(name string) (admission.Interface, error)

	once   sync.Once
	plugin admission.Interface
	err    error
}

// Handles as admission.Interface.
func (l *lazy) Handles(op admission.Operation) bool { return slices.Contains(l.ops, op) }

// get returns the plugin, or nil when nothing configures it.
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

type mutating struct{ *lazy }

// Admit as admission.MutationInterface.
func (m mutating) Admit(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	p, err := m.get(ctx, a)
	if err != nil || p == nil {
		return err
	}
	return p.(admission.MutationInterface).Admit(ctx, a, o)
}

type validating struct{ *lazy }

// Validate as admission.ValidationInterface.
func (v validating) Validate(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	p, err := v.get(ctx, a)
	if err != nil || p == nil {
		return err
	}
	return p.(admission.ValidationInterface).Validate(ctx, a, o)
}
