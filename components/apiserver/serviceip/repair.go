package serviceip

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"

	"hyperkube/internal/base/lifecycle"
	"hyperkube/internal/store"
)

// Run repairs differences between the Services and their allocated addresses and ports when it starts and whenever
// its watch restarts, and meanwhile restores IPAddress objects that are deleted although their Service uses them. It
// also wakes allocations that wait for a newer set of ports. It returns nil when ctx is canceled.
func (a *Allocator) Run(ctx context.Context) error {
	var done sync.WaitGroup
	defer done.Wait()
	done.Go(func() { a.watch(ctx, a.ranges, func() {}, func(store.Event) { a.queue.notify() }) })
	// Repair runs after the watch has started: the watch sees addresses that are deleted during the
	// repair, and the repair restores those deleted before.
	repair := func() {
		if err := a.Repair(ctx); err != nil && ctx.Err() == nil {
			a.log.Error("comparing allocated cluster IPs and node ports with the Services failed; missing allocations are not restored, so an address or port could be allocated to a second Service; retrying at the next start of the API server or when its watch of IPAddresses restarts", "err", err)
		}
	}
	a.watch(ctx, a.cfg.IPAddresses, repair, func(ev store.Event) {
		if ev.Current == nil && ev.Previous != nil {
			a.restore(ctx, ev.Previous)
		}
	})
	return nil
}

// retryDelay is the delay before a failed watch is started again.
const retryDelay = time.Second

// watch calls f for each event of the collection c until ctx is canceled. It restarts a failed watch after
// retryDelay. It calls begun each time after the watch has started, so that the caller can handle changes that it may
// have missed.
func (a *Allocator) watch(ctx context.Context, c *store.Collection, begun func(), f func(store.Event)) {
	for ctx.Err() == nil {
		err := watchOnce(ctx, c, begun, f)
		if ctx.Err() != nil {
			return
		}
		a.log.Debug("watch of IPAddresses or of node port allocations ended; until it works again, deleted IPAddresses are not restored and allocations of node ports can take longer, watching again in a second", "err", err)
		lifecycle.Pause(ctx, retryDelay)
	}
}

// watchOnce is one attempt of Allocator.watch: it calls begun when the watch of the collection c has started, and f
// for each event. It returns the error that terminated the watch.
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

// restore recreates the deleted IPAddress object in the entry gone if its Service still exists and uses the address.
// Otherwise the address could be allocated to another Service. It ignores objects that this package has not created,
// and only logs a failed write.
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
	// A Service and its addresses are deleted together, so this was a manual deletion.
	e, err := a.cfg.Services.Get(ctx, ref.Namespace+"/"+ref.Name, -1)
	if err != nil {
		return
	}
	svc, err := e.Object()
	if err != nil {
		return
	}
	if err := a.restoreAll(ctx, svc.(*corev1.Service)); err != nil && ctx.Err() == nil {
		a.log.Error("recreating deleted IPAddress of Service failed; the address may be allocated to a second Service; retrying at the next start of the API server or when its watch of IPAddresses restarts", "service", e.Key(), "address", ip.Name, "err", err)
	}
}

// Repair makes the allocated addresses and ports match the existing Services: it releases those that no Service uses
// and allocates those that are missing. It may run concurrently with writes of Services. It returns the first error.
func (a *Allocator) Repair(ctx context.Context) error {
	if err := a.repairAddresses(ctx); err != nil {
		return fmt.Errorf("repairing service addresses: %w", err)
	}
	if err := a.repairPorts(ctx); err != nil {
		a.counts.vectors().portRepairErrors.Inc()
		return fmt.Errorf("repairing node ports: %w", err)
	}
	return nil
}

// repairAddresses deletes the IPAddress objects of this package that no Service uses, and creates
// the missing ones.
func (a *Allocator) repairAddresses(ctx context.Context) error {
	// Read the addresses first: if a Service is not in the later list, it was deleted and its
	// address was deleted with it or leaked.
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
		if svc := inUse[ip.Name]; svc != nil && allocatedTo(ip, svc) {
			continue
		}
		switch _, _, err := a.cfg.Store.Commit(ctx, a.cfg.IPAddresses.Delete(e)); {
		case err == nil:
			a.log.Warn("IPAddress deleted because it belongs to no Service that uses the address; it is created again if another Service uses the address, otherwise the address can be allocated again", "address", ip.Name)
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

// restoreAll creates the missing IPAddress objects for the cluster IPs of a Service. It only logs cluster IPs that
// are invalid or whose IPAddress belongs to another object. It returns the first error of reading or writing the
// store.
func (a *Allocator) restoreAll(ctx context.Context, svc *corev1.Service) error {
	for _, ip := range addressesOf(svc) {
		addr, err := parse(ip)
		if err != nil {
			a.log.Error("Service has an invalid cluster IP, which is not allocated to it and cannot be used: recreate the Service", "service", svc.Namespace+"/"+svc.Name, "address", ip, "err", err)
			continue
		}
		e, err := a.cfg.IPAddresses.Get(ctx, addr.String(), 0)
		if err == nil {
			obj, err := e.Object()
			if err != nil {
				return err
			}
			if !allocatedTo(obj.(*networkingv1.IPAddress), svc) {
				a.log.Error("cluster IP of Service is allocated to another object, so connections to it may reach a different Service: recreate the Service", "service", svc.Namespace+"/"+svc.Name, "address", ip)
			}
			continue
		}
		if !errors.Is(err, store.ErrNotFound) {
			return err
		}
		switch _, _, err := a.cfg.Store.Commit(ctx, a.createOp(addr, svc)); {
		case err == nil:
			a.log.Warn("IPAddress of Service was missing and has been created, so that its cluster IP is not allocated to another Service", "service", svc.Namespace+"/"+svc.Name, "address", ip)
		case errors.Is(err, store.ErrExists):
		default:
			return err
		}
	}
	return nil
}

// repairPorts stores the node ports that Services use as the allocated ports, if the stored ones differ. It only logs
// ports outside of the configured range. A concurrent allocation modifies the same object, so the commit conflicts,
// and the comparison is repeated.
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
					a.log.Error("Service has a node port outside of the node port range, which is not reserved for it: recreate the Service", "service", svc.Namespace+"/"+svc.Name,
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
				a.log.Warn("allocated node ports in etcd differed from the ports of the Services and have been corrected")
			}
			return nil
		}
		if !errors.Is(err, store.ErrConflict) && !errors.Is(err, store.ErrExists) && !errors.Is(err, store.ErrNotFound) {
			return err
		}
	}
}

// services returns all Services, including all writes that completed before the call. It returns an error if the
// store cannot be read or one Service cannot be decoded.
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
