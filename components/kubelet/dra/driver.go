package dra

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/status"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	draapi "k8s.io/kubelet/pkg/apis/dra/v1"
	drabeta "k8s.io/kubelet/pkg/apis/dra/v1beta1"

	"hyperkube/components/kubelet/pluginwatch"
)

// absence is how long a driver may be away before what it has said of its devices
// is not believed any more.
const absence = 30 * time.Second

// driver is one that has registered. There may be two sockets of a driver for a
// while, when it is replaced: the newer one counts.
type driver struct {
	sockets []*socket
	// leave ends the wait after which the driver's devices are forgotten; nil
	// while it answers.
	leave *time.Timer
}

// answers tells whether one of its sockets is connected.
func (d *driver) answers() bool {
	return slices.ContainsFunc(d.sockets, func(s *socket) bool { return s.connected })
}

type socket struct {
	path   string
	conn   *grpc.ClientConn
	client draapi.DRAPluginClient
	// connected: there is somebody at the other end. The manager's lock guards it.
	connected bool
	// forget ends what follows the driver's word.
	forget context.CancelFunc
}

func (s *socket) close() {
	s.forget()
	_ = s.conn.Close()
}

var _ pluginwatch.Handler = (*Manager)(nil)

// Register implements pluginwatch.Handler.
func (m *Manager) Register(_ context.Context, p pluginwatch.Plugin) error {
	if p.Name == "" {
		return errors.New("DRA plugin name is empty")
	}
	current := slices.Contains(p.Versions, draapi.DRAPluginService)
	if !current && !slices.Contains(p.Versions, drabeta.DRAPluginService) {
		return fmt.Errorf("none of the DRA gRPC API versions are supported: %q, need %q or %q", p.Versions, draapi.DRAPluginService, drabeta.DRAPluginService)
	}
	conn, err := pluginwatch.Dial(p.Endpoint, grpc.WithIdleTimeout(0),
		grpc.WithUnaryInterceptor(func(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn, call grpc.UnaryInvoker, opts ...grpc.CallOption) error {
			began := time.Now()
			err := call(ctx, method, req, reply, conn, opts...)
			m.cfg.Metrics.ClaimCall(p.Name, method, status.Code(err).String(), time.Since(began))
			return err
		}))
	if err != nil {
		return fmt.Errorf("connecting to the driver: %w", err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	d := m.drivers[p.Name]
	if d == nil {
		d = &driver{}
		m.drivers[p.Name] = d
	}
	client := draapi.NewDRAPluginClient(conn)
	if !current {
		client = drabeta.V1Beta1ClientWrapper{DRAPluginClient: drabeta.NewDRAPluginClient(conn)}
	}
	ctx, cancel := context.WithCancel(context.Background())
	s := &socket{path: p.Socket, conn: conn, client: client, forget: cancel}
	d.sockets = append(d.sockets, s)
	m.settle(p.Name, d)
	m.following.Go(func() { m.followHealth(ctx, p.Name, conn, p.Versions) })
	m.following.Go(func() { m.followConnection(ctx, p.Name, s) })
	return nil
}

// followConnection keeps a driver connected and knows whether it is, until ctx ends:
// what has registered may serve later, end before its socket goes, and come back.
func (m *Manager) followConnection(ctx context.Context, name string, s *socket) {
	for {
		state := s.conn.GetState()
		m.mu.Lock()
		s.connected = state == connectivity.Ready
		if d := m.drivers[name]; d != nil {
			m.settle(name, d)
		}
		m.mu.Unlock()
		switch state {
		case connectivity.Idle:
			s.conn.Connect()
		case connectivity.Shutdown:
			return
		}
		if !s.conn.WaitForStateChange(ctx, state) {
			return
		}
	}
}

// settle begins the wait after which a driver's devices are forgotten, or ends it,
// by whether the driver answers. The caller holds mu.
func (m *Manager) settle(name string, d *driver) {
	switch {
	case d.answers():
		if d.leave != nil {
			d.leave.Stop()
			d.leave = nil
		}
	case d.leave == nil && !m.ended:
		d.leave = time.AfterFunc(absence, func() { m.forget(name) })
	}
}

// Deregister implements pluginwatch.Handler.
func (m *Manager) Deregister(p pluginwatch.Plugin) {
	m.mu.Lock()
	defer m.mu.Unlock()
	d := m.drivers[p.Name]
	if d == nil {
		return
	}
	d.sockets = slices.DeleteFunc(d.sockets, func(s *socket) bool {
		if s.path == p.Socket {
			s.close()
			return true
		}
		return false
	})
	m.settle(p.Name, d)
}

// Bounds of the time between attempts to remove what a driver has told.
const (
	forgetFirst = time.Second
	forgetMost  = 5 * time.Minute
)

// client returns the newest connection to a driver, of those that have somebody at
// the other end if there are any.
func (m *Manager) client(name string) (draapi.DRAPluginClient, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	d := m.drivers[name]
	if d == nil || len(d.sockets) == 0 {
		return nil, fmt.Errorf("DRA driver %s is not registered", name)
	}
	for _, s := range slices.Backward(d.sockets) {
		if s.connected {
			return s.client, nil
		}
	}
	return d.sockets[len(d.sockets)-1].client, nil
}

// there tells whether a driver is registered.
func (m *Manager) there(name string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	d := m.drivers[name]
	return d != nil && len(d.sockets) > 0
}

// forget removes what a driver has told of its devices, unless it is back. What fails
// is tried again later: a scheduler that still knew the devices would give them away.
func (m *Manager) forget(name string) { m.forgetAgain(name, forgetFirst) }

func (m *Manager) forgetAgain(name string, pause time.Duration) {
	m.mu.Lock()
	back := m.drivers[name] != nil && m.drivers[name].answers()
	m.mu.Unlock()
	if back || m.cfg.Kube == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), askFor)
	defer cancel()
	err := m.cfg.Kube.ResourceV1().ResourceSlices().DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{
		FieldSelector: fields.Set{resourcev1.ResourceSliceSelectorNodeName: m.cfg.NodeName, resourcev1.ResourceSliceSelectorDriver: name}.String(),
	})
	if err == nil {
		return
	}
	m.cfg.Log.Warn("removing the resource slices of a driver that has gone failed, trying again", "driver", name, "error", err)
	m.mu.Lock()
	defer m.mu.Unlock()
	if d := m.drivers[name]; !m.ended && d != nil && !d.answers() {
		d.leave = time.AfterFunc(pause, func() { m.forgetAgain(name, min(2*pause, forgetMost)) })
	}
}

// Run removes, some time after the kubelet's start, what drivers told before it of
// which nothing has been seen since, and waits for ctx to end; then it leaves the
// drivers.
func (m *Manager) Run(ctx context.Context) error {
	timer := time.NewTimer(absence)
	defer timer.Stop()
	for pause := forgetFirst; ctx.Err() == nil; pause = min(2*pause, forgetMost) {
		select {
		case <-ctx.Done():
			continue
		case <-timer.C:
		}
		err := m.forgetOld(ctx)
		if err == nil {
			<-ctx.Done()
			continue
		}
		if ctx.Err() == nil {
			m.cfg.Log.Warn("removing the resource slices of drivers that have gone failed, trying again", "error", err)
		}
		timer.Reset(pause)
	}
	m.mu.Lock()
	m.ended = true
	for _, d := range m.drivers {
		if d.leave != nil {
			d.leave.Stop()
		}
		for _, s := range d.sockets {
			s.close()
		}
		d.sockets = nil
	}
	m.mu.Unlock()
	m.following.Wait()
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, t := range m.stale {
		t.Stop()
	}
	return nil
}

func (m *Manager) forgetOld(ctx context.Context) error {
	if m.cfg.Kube == nil {
		return nil
	}
	list, err := m.cfg.Kube.ResourceV1().ResourceSlices().List(ctx, metav1.ListOptions{
		FieldSelector: fields.Set{resourcev1.ResourceSliceSelectorNodeName: m.cfg.NodeName}.String(),
	})
	if err != nil {
		return err
	}
	var errs []error
	for i := range list.Items {
		s := &list.Items[i]
		if m.there(s.Spec.Driver) {
			continue
		}
		err := m.cfg.Kube.ResourceV1().ResourceSlices().Delete(ctx, s.Name, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(s.UID))})
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
