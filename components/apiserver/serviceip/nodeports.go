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

// nodePorts allocates and frees so that w.is has what it shall have.
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
	revision, err := w.turn.take(ctx, current)
	if err != nil {
		return err
	}
	before := len(w.ops)
	err = w.choosePorts(ctx)
	if err != nil || len(w.ops) == before {
		w.turn.pass(revision)
	}
	return err
}

// choosePorts makes the operation that stores the ports.
func (w *write) choosePorts(ctx context.Context) error {
	// What was chosen in an attempt that did not work out is taken back.
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
			// It may be free by now, and the cache not know it yet.
			copy(w.servicePorts(), before)
			w.setHealthPort(health)
			continue
		}
		for _, n := range next.notes {
			w.notePort(n.scope, n.err)
		}
		if err != nil {
			return w.portError(err)
		}
		return w.storePorts(set, next, entry)
	}
}

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

// pick makes set what it is after the write, and sets the ports of w.is. What
// is freed is only free after the write, so it cannot be taken in the same.
func (w *write) pick(set *ports) error {
	is, was := w.is, w.was
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

// portError carries where in the service the trouble is.
type portError struct {
	path  *field.Path
	value int32
	err   error
}

func (e *portError) Error() string { return e.err.Error() }
func (e *portError) Unwrap() error { return e.err }

// healthError is about the health check's port.
type healthError struct{ err error }

func (e *healthError) Error() string { return e.err.Error() }
func (e *healthError) Unwrap() error { return e.err }

// portError makes of err what the client is told.
func (w *write) portError(err error) error {
	if at := (*portError)(nil); errors.As(err, &at) {
		return invalid(w.is, field.Invalid(at.path, at.value, at.err.Error()))
	}
	if h := (*healthError)(nil); errors.As(err, &h) {
		return apierrors.NewInternalError(err)
	}
	return apierrors.NewInternalError(fmt.Errorf("failed to allocate a nodePort: %w", err))
}

// pickNew takes the ports of a new service. Entries of one port number, such
// as TCP and UDP of DNS, share a node port.
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
			wished := wishedFor(p.Port, svc.Spec.Ports)
			if wished == 0 {
				port, err := set.choose()
				if err != nil {
					return err
				}
				wished = int32(port)
			} else if err := set.take(int(wished)); err != nil {
				return &portError{nodePortPath(i), wished, err}
			}
			p.NodePort = wished
			shared[p.Port] = wished
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

// pickChanged takes what a changed service has not had before.
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

func pickHealth(svc *corev1.Service, set *ports) error {
	if wished := svc.Spec.HealthCheckNodePort; wished != 0 {
		if err := set.take(int(wished)); err != nil {
			return &healthError{fmt.Errorf("failed to allocate requested HealthCheck NodePort %v: %w", wished, err)}
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

// portsChange tells whether a write has anything to do with ports, so that
// most need not look.
func (w *write) portsChange() bool {
	is, was := w.is, w.was
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

func (w *write) servicePorts() []corev1.ServicePort {
	if w.is == nil {
		return nil
	}
	return w.is.Spec.Ports
}

func (w *write) healthPort() int32 {
	if w.is == nil {
		return 0
	}
	return w.is.Spec.HealthCheckNodePort
}

func (w *write) setHealthPort(port int32) {
	if w.is != nil {
		w.is.Spec.HealthCheckNodePort = port
	}
}

func free(set *ports, list []int32) {
	for _, p := range list {
		set.free(int(p))
	}
}

func hasNodePorts(svc *corev1.Service) bool {
	return svc.Spec.Type == corev1.ServiceTypeNodePort || svc.Spec.Type == corev1.ServiceTypeLoadBalancer
}

// allocates tells whether ports are given to entries that name none.
func allocates(svc *corev1.Service) bool {
	switch svc.Spec.Type {
	case corev1.ServiceTypeNodePort:
		return true
	case corev1.ServiceTypeLoadBalancer:
		return svc.Spec.AllocateLoadBalancerNodePorts == nil || *svc.Spec.AllocateLoadBalancerNodePorts
	}
	return false
}

// needsHealthPort tells whether load balancers ask each node whether it has
// endpoints.
func needsHealthPort(svc *corev1.Service) bool {
	return svc.Spec.Type == corev1.ServiceTypeLoadBalancer && svc.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal
}

func portsOf(svc *corev1.Service) []int32 {
	var out []int32
	for i := range svc.Spec.Ports {
		if p := svc.Spec.Ports[i].NodePort; p != 0 {
			out = append(out, p)
		}
	}
	return out
}

func wishedFor(port int32, all []corev1.ServicePort) int32 {
	for i := range all {
		if all[i].Port == port && all[i].NodePort != 0 {
			return all[i].NodePort
		}
	}
	return 0
}

func nodePortPath(i int) *field.Path {
	return field.NewPath("spec", "ports").Index(i).Child("nodePort")
}
