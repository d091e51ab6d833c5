package serviceip

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"

	"hyperkube/internal/lifecycle"
	"hyperkube/internal/store"
)

// Run mends what is amiss, and keeps the addresses of services from being deleted
// by hand, until ctx ends.
func (a *Allocator) Run(ctx context.Context) error {
	var done sync.WaitGroup
	defer done.Wait()
	done.Go(func() { a.watch(ctx, a.ranges, func() {}, func(store.Event) { a.turn.tell() }) })
	// What is deleted while it mends is seen by the watch, and what was deleted
	// before the watch is mended.
	mend := func() {
		if err := a.Repair(ctx); err != nil && ctx.Err() == nil {
			a.log.Error("Could not mend the addresses and ports of services", "error", err)
		}
	}
	a.watch(ctx, a.cfg.IPAddresses, mend, func(ev store.Event) {
		if ev.Current == nil && ev.Previous != nil {
			a.restore(ctx, ev.Previous)
		}
	})
	return nil
}

// again is the pause before a watch that was lost is begun anew.
const again = time.Second

// watch calls f for each event of a collection until ctx ends, and begun before
// whenever it begins to watch.
func (a *Allocator) watch(ctx context.Context, c *store.Collection, begun func(), f func(store.Event)) {
	for ctx.Err() == nil {
		err := watchOnce(ctx, c, begun, f)
		if ctx.Err() != nil {
			return
		}
		a.log.Debug("Lost a watch", "error", err)
		lifecycle.Pause(ctx, again)
	}
}

func watchOnce(ctx context.Context, c *store.Collection, begun func(), f func(store.Event)) error {
	w, err := c.Watch(ctx, store.WatchOptions{})
	if err != nil {
		return err
	}
	defer w.Close()
	begun()
	for {
		batch, err := w.Next(ctx)
		if err != nil {
			return err
		}
		for _, ev := range batch.Events {
			f(ev)
		}
	}
}

// restore writes an address again that was deleted although its service has
// it.
func (a *Allocator) restore(ctx context.Context, gone *store.Entry) {
	obj, err := gone.Object()
	if err != nil {
		return
	}
	ip := obj.(*networkingv1.IPAddress)
	ref := ip.Spec.ParentRef
	if ip.Labels[networkingv1.LabelManagedBy] != managedBy || ref == nil {
		return
	}
	// The service goes with its address; only a deletion by hand leaves it.
	e, err := a.cfg.Services.Get(ctx, ref.Namespace+"/"+ref.Name, -1)
	if err != nil {
		return
	}
	svc, err := e.Object()
	if err != nil {
		return
	}
	if err := a.restoreAll(ctx, svc.(*corev1.Service)); err != nil && ctx.Err() == nil {
		a.log.Error("Could not restore the address of a service", "service", e.Key(), "address", ip.Name, "error", err)
	}
}

// Repair makes the addresses and ports in use those of the services that
// exist. It may run at any time and beside others.
func (a *Allocator) Repair(ctx context.Context) error {
	if err := a.repairAddresses(ctx); err != nil {
		return fmt.Errorf("mending service addresses: %w", err)
	}
	if err := a.repairPorts(ctx); err != nil {
		a.counts.vectors().portMends.Inc()
		return fmt.Errorf("mending node ports: %w", err)
	}
	return nil
}

func (a *Allocator) repairAddresses(ctx context.Context) error {
	// The addresses are read first: a service that is not in the later list
	// is gone, and its address with it or leaked.
	addresses, err := a.cfg.IPAddresses.List(ctx, store.ListOptions{Revision: -1})
	if err != nil {
		return err
	}
	services, err := a.services(ctx)
	if err != nil {
		return err
	}
	inUse := map[string]*corev1.Service{}
	for _, svc := range services {
		for _, ip := range addressesOf(svc) {
			if addr, err := parse(ip); err == nil {
				inUse[addr.String()] = svc
			}
		}
	}
	for _, e := range addresses.Entries {
		obj, err := e.Object()
		if err != nil {
			return err
		}
		ip := obj.(*networkingv1.IPAddress)
		if ip.Labels[networkingv1.LabelManagedBy] != managedBy {
			continue
		}
		if svc := inUse[ip.Name]; svc != nil && belongs(ip, svc) {
			continue
		}
		switch _, _, err := a.cfg.Store.Commit(ctx, a.cfg.IPAddresses.Delete(e)); {
		case err == nil:
			a.log.Warn("Freed an address that no service has", "address", ip.Name)
		case errors.Is(err, store.ErrConflict), errors.Is(err, store.ErrNotFound):
		default:
			return err
		}
	}
	for _, svc := range services {
		if err := a.restoreAll(ctx, svc); err != nil {
			return err
		}
	}
	return nil
}

// restoreAll writes what is missing of a service's addresses.
func (a *Allocator) restoreAll(ctx context.Context, svc *corev1.Service) error {
	for _, ip := range addressesOf(svc) {
		addr, err := parse(ip)
		if err != nil {
			a.log.Error("A service has an address that is none", "service", svc.Namespace+"/"+svc.Name, "address", ip)
			continue
		}
		e, err := a.cfg.IPAddresses.Get(ctx, addr.String(), 0)
		if err == nil {
			obj, err := e.Object()
			if err != nil {
				return err
			}
			if !belongs(obj.(*networkingv1.IPAddress), svc) {
				a.log.Error("Two have the same address", "service", svc.Namespace+"/"+svc.Name, "address", ip)
			}
			continue
		}
		if !errors.Is(err, store.ErrNotFound) {
			return err
		}
		switch _, _, err := a.cfg.Store.Commit(ctx, a.createOp(addr, svc)); {
		case err == nil:
			a.log.Warn("Allocated the address of a service that had none", "service", svc.Namespace+"/"+svc.Name, "address", ip)
		case errors.Is(err, store.ErrExists):
		default:
			return err
		}
	}
	return nil
}

// repairPorts writes the ports of all services where others are written. A
// change of ports in between changes the same object, so the comparison fails
// and all is looked at again.
func (a *Allocator) repairPorts(ctx context.Context) error {
	for {
		is, entry, err := a.load(ctx, -1)
		if err != nil {
			return err
		}
		services, err := a.services(ctx)
		if err != nil {
			return err
		}
		want := newPorts(a.cfg.NodePorts)
		for _, svc := range services {
			list := portsOf(svc)
			if needsHealthPort(svc) && svc.Spec.HealthCheckNodePort != 0 {
				list = append(list, svc.Spec.HealthCheckNodePort)
			}
			for _, p := range list {
				if !a.cfg.NodePorts.Contains(int(p)) {
					a.log.Error("A service has a node port out of the range", "service", svc.Namespace+"/"+svc.Name,
						"port", p, "range", a.cfg.NodePorts.String())
					continue
				}
				want.set(int(p), true)
			}
		}
		if want.equal(is) && entry != nil {
			return nil
		}
		op, err := a.storeOp(want, entry)
		if err != nil {
			return err
		}
		_, _, err = a.cfg.Store.Commit(ctx, op)
		if err == nil {
			if entry != nil {
				a.log.Warn("Mended the node ports in use")
			}
			return nil
		}
		if !errors.Is(err, store.ErrConflict) && !errors.Is(err, store.ErrExists) && !errors.Is(err, store.ErrNotFound) {
			return err
		}
	}
}

func (a *Allocator) services(ctx context.Context) ([]*corev1.Service, error) {
	page, err := a.cfg.Services.List(ctx, store.ListOptions{Revision: -1})
	if err != nil {
		return nil, err
	}
	out := make([]*corev1.Service, len(page.Entries))
	for i, e := range page.Entries {
		obj, err := e.Object()
		if err != nil {
			return nil, err
		}
		out[i] = obj.(*corev1.Service)
	}
	return out, nil
}
