package serviceip

import (
	"context"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"hyperkube/internal/store"
)

// nodePorts adds the operation that allocates the missing node ports of w.obj, the new version of the Service, and
// releases those that only w.old, the old version, uses. It sets the chosen ports in w.obj. It does nothing if the
// write changes no ports. Otherwise it waits until no other allocation is in progress, see allocationQueue.
func (w *write) nodePorts(ctx context.Context) error {
	if !w.portsChange() {
		return nil
	}
	current := func() int64 {
		if e := w.ranges.Cached(portsKey); e != nil {
			return e.Revision()
		}
		return 0
	}
	revision, err := w.queue.wait(ctx, current)
	if err != nil {
		return err
	}
	before := len(w.ops)
	err = w.choosePorts(ctx)
	if err != nil || len(w.ops) == before {
		w.queue.release(revision)
	}
	return err
}

// choosePorts chooses the ports, based on the cached set of allocated ports, and adds the operation that stores the
// new set. If a requested port is allocated according to the cache, it tries again after the cache has caught up with
// etcd. Then the error is for the client.
func (w *write) choosePorts(ctx context.Context) error {
	// Reset to these ports after a failed attempt.
	before := slices.Clone(w.servicePorts())
	health := w.healthPort()
	for revision := int64(0); ; revision = -1 {
		set, entry, err := w.load(ctx, revision)
		if err != nil {
			return err
		}
		next := set.clone()
		err = w.pick(next)
		if errors.Is(err, errPortTaken) && revision == 0 {
			// The port may have been released, and the cache may not have seen that yet.
			copy(w.servicePorts(), before)
			w.setHealthPort(health)
			continue
		}
		for _, n := range next.notes {
			w.recordPort(n.scope, n.err)
		}
		if err != nil {
			return w.portError(err)
		}
		return w.storePorts(set, next, entry)
	}
}

// storePorts adds the operation that replaces the stored set was by is, unless they are equal.
// entry is the store's entry of was, nil if none is stored yet.
func (w *write) storePorts(was, is *ports, entry *store.Entry) error {
	if is.equal(was) {
		return nil
	}
	op, err := w.storeOp(is, entry)
	if err != nil {
		return err
	}
	w.ops = append(w.ops, op)
	return nil
}

// pick sets the node ports of w.obj, the new version of the Service (nil if it is deleted), and changes set to the
// ports that are allocated after the write. Ports that the write releases cannot be allocated in the same write. The
// error may be a *portError or a *healthError.
func (w *write) pick(set *ports) error {
	is, was := w.obj, w.old
	var had []int32
	if was != nil {
		had = portsOf(was)
	}
	if is == nil {
		free(set, had)
		if needsHealthPort(was) {
			free(set, []int32{was.Spec.HealthCheckNodePort})
		}
		return nil
	}
	if hasNodePorts(is) {
		var err error
		if was == nil {
			err = pickNew(is, set)
		} else {
			err = pickChanged(is, had, set)
		}
		if err != nil {
			return err
		}
	}
	var freeHealth int32
	switch needed, needs := was != nil && needsHealthPort(was), needsHealthPort(is); {
	case !needed && needs:
		if err := pickHealth(is, set); err != nil {
			return err
		}
	case needed && !needs:
		freeHealth = was.Spec.HealthCheckNodePort
		if is.Spec.HealthCheckNodePort == freeHealth {
			is.Spec.HealthCheckNodePort = 0
		}
	}
	if was != nil {
		var has []int32
		if hasNodePorts(is) {
			has = portsOf(is)
		}
		if hasNodePorts(was) {
			free(set, slices.DeleteFunc(had, func(p int32) bool { return slices.Contains(has, p) }))
		}
	}
	if freeHealth != 0 {
		free(set, []int32{freeHealth})
	}
	return nil
}

// portError is an error about a requested port, with the path of its field and its value.
type portError struct {
	path  *field.Path
	value int32
	err   error
}

// Error returns the message of the cause.
func (e *portError) Error() string { return e.err.Error() }

// Unwrap returns the cause.
func (e *portError) Unwrap() error { return e.err }

// healthError is an error about healthCheckNodePort, the port where load balancers check a node.
type healthError struct{ err error }

// Error returns the message of the cause.
func (e *healthError) Error() string { return e.err.Error() }

// Unwrap returns the cause.
func (e *healthError) Unwrap() error { return e.err }

// portError converts an error of pick to the API error for the client: 422 for a *portError, 500
// for others.
func (w *write) portError(err error) error {
	if at := (*portError)(nil); errors.As(err, &at) {
		return invalid(w.obj, field.Invalid(at.path, at.value, at.err.Error()))
	}
	if h := (*healthError)(nil); errors.As(err, &h) {
		return apierrors.NewInternalError(err)
	}
	return apierrors.NewInternalError(fmt.Errorf("failed to allocate a nodePort: %w", err))
}

// pickNew allocates the requested and the missing node ports of a new Service in set; the missing ones only if
// allocates returns true for the Service. Entries with the same port number, such as TCP and UDP of DNS, share a node
// port. It returns a *portError for a requested port that is not available.
func pickNew(svc *corev1.Service, set *ports) error {
	shared := map[int32]int32{}
	for i := range svc.Spec.Ports {
		p := &svc.Spec.Ports[i]
		if p.NodePort == 0 && !allocates(svc) {
			continue
		}
		got, ok := shared[p.Port]
		switch {
		case !ok:
			requested := requestedPort(p.Port, svc.Spec.Ports)
			if requested == 0 {
				port, err := set.choose()
				if err != nil {
					return err
				}
				requested = int32(port)
			} else if err := set.take(int(requested)); err != nil {
				return &portError{nodePortPath(i), requested, err}
			}
			p.NodePort = requested
			shared[p.Port] = requested
		case p.NodePort == 0:
			p.NodePort = got
		case p.NodePort != got:
			if err := set.take(int(p.NodePort)); err != nil {
				return &portError{nodePortPath(i), p.NodePort, err}
			}
		}
	}
	return nil
}

// pickChanged allocates the new node ports of a changed Service in set; missing ones only if allocates returns true
// for the Service. had are the ports that the Service had before the change, which it may keep. It returns a
// *portError for a requested port that is not available, or that two entries with the same protocol share.
func pickChanged(svc *corev1.Service, had []int32, set *ports) error {
	type used struct {
		protocol corev1.Protocol
		port     int32
	}
	var all []used
	taken := map[int32]bool{}
	for i := range svc.Spec.Ports {
		p := &svc.Spec.Ports[i]
		switch {
		case p.NodePort == 0 && !allocates(svc):
			continue
		case p.NodePort == 0:
			port, err := set.choose()
			if err != nil {
				return err
			}
			p.NodePort = int32(port)
		case !slices.Contains(had, p.NodePort) && !taken[p.NodePort]:
			if err := set.take(int(p.NodePort)); err != nil {
				return &portError{nodePortPath(i), p.NodePort, err}
			}
			taken[p.NodePort] = true
		}
		this := used{p.Protocol, p.NodePort}
		if slices.Contains(all, this) {
			return &portError{nodePortPath(i), p.NodePort, fmt.Errorf("duplicate nodePort: %v", this)}
		}
		all = append(all, this)
	}
	return nil
}

// pickHealth allocates the requested healthCheckNodePort of a Service in set, or chooses one. The
// error is a *healthError.
func pickHealth(svc *corev1.Service, set *ports) error {
	if requested := svc.Spec.HealthCheckNodePort; requested != 0 {
		if err := set.take(int(requested)); err != nil {
			return &healthError{fmt.Errorf("failed to allocate requested HealthCheck NodePort %v: %w", requested, err)}
		}
		return nil
	}
	port, err := set.choose()
	if err != nil {
		return &healthError{fmt.Errorf("failed to allocate a HealthCheck NodePort %v: %w", 0, err)}
	}
	svc.Spec.HealthCheckNodePort = int32(port)
	return nil
}

// portsChange reports whether the write may allocate or release node ports. Most writes do not, and
// then neither need the queue nor the stored set.
func (w *write) portsChange() bool {
	is, was := w.obj, w.old
	concerned := func(svc *corev1.Service) bool { return svc != nil && (hasNodePorts(svc) || needsHealthPort(svc)) }
	if !concerned(is) && !concerned(was) {
		return false
	}
	if is == nil || was == nil || hasNodePorts(is) != hasNodePorts(was) || needsHealthPort(is) != needsHealthPort(was) {
		return true
	}
	had, has := portsOf(was), portsOf(is)
	slices.Sort(had)
	slices.Sort(has)
	if !slices.Equal(slices.Compact(had), slices.Compact(has)) {
		return true
	}
	return allocates(is) && slices.ContainsFunc(is.Spec.Ports, func(p corev1.ServicePort) bool { return p.NodePort == 0 })
}

// servicePorts returns spec.ports of the new version of the Service, or nil if the write deletes the Service.
func (w *write) servicePorts() []corev1.ServicePort {
	if w.obj == nil {
		return nil
	}
	return w.obj.Spec.Ports
}

// healthPort returns healthCheckNodePort of the new version of the Service, or 0 if the write deletes the Service.
func (w *write) healthPort() int32 {
	if w.obj == nil {
		return 0
	}
	return w.obj.Spec.HealthCheckNodePort
}

// setHealthPort sets healthCheckNodePort of the new version of the Service. It does nothing if the write deletes the
// Service.
func (w *write) setHealthPort(port int32) {
	if w.obj != nil {
		w.obj.Spec.HealthCheckNodePort = port
	}
}

// free releases the node ports in list: it marks them as free in set.
func free(set *ports, list []int32) {
	for _, p := range list {
		set.free(int(p))
	}
}

// hasNodePorts reports whether Services of this type may have node ports.
func hasNodePorts(svc *corev1.Service) bool {
	return svc.Spec.Type == corev1.ServiceTypeNodePort || svc.Spec.Type == corev1.ServiceTypeLoadBalancer
}

// allocates reports whether missing node ports of the Service are allocated automatically: always for the type
// NodePort, and for LoadBalancer unless allocateLoadBalancerNodePorts is false.
func allocates(svc *corev1.Service) bool {
	switch svc.Spec.Type {
	case corev1.ServiceTypeNodePort:
		return true
	case corev1.ServiceTypeLoadBalancer:
		return svc.Spec.AllocateLoadBalancerNodePorts == nil || *svc.Spec.AllocateLoadBalancerNodePorts
	}
	return false
}

// needsHealthPort reports whether a Service has a healthCheckNodePort, where load balancers check
// whether a node has local endpoints.
func needsHealthPort(svc *corev1.Service) bool {
	return svc.Spec.Type == corev1.ServiceTypeLoadBalancer && svc.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal
}

// portsOf returns the node ports of a Service that are set, without healthCheckNodePort.
func portsOf(svc *corev1.Service) []int32 {
	var out []int32
	for i := range svc.Spec.Ports {
		if p := svc.Spec.Ports[i].NodePort; p != 0 {
			out = append(out, p)
		}
	}
	return out
}

// requestedPort returns the node port that is requested for the first entry with the number port
// that requests one, or 0 if none does.
func requestedPort(port int32, all []corev1.ServicePort) int32 {
	for i := range all {
		if all[i].Port == port && all[i].NodePort != 0 {
			return all[i].NodePort
		}
	}
	return 0
}

// nodePortPath returns the path of the node port of spec.ports[i].
func nodePortPath(i int) *field.Path {
	return field.NewPath("spec", "ports").Index(i).Child("nodePort")
}
