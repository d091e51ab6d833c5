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
	"hyperkube/internal/base/backoff"
)

// driverGracePeriod is how long a driver may be disconnected before its ResourceSlices are removed from the
// API, so that the scheduler does not allocate its devices any more.
const driverGracePeriod = 30 * time.Second

// driver is a DRA driver that has registered. While a driver is being replaced by a newer version it has two
// sockets; the newer one is used.
type driver struct {
	sockets []*socket
	// removal is the timer that removes the driver's ResourceSlices. It is nil while the driver is
	// connected.
	removal *time.Timer
}

// connected reports whether at least one instance of the driver is connected.
func (d *driver) connected() bool {
	return slices.ContainsFunc(d.sockets, func(s *socket) bool { return s.connected })
}

// socket is the connection to one instance of a driver. path is the path of its registration socket.
type socket struct {
	path   string
	conn   *grpc.ClientConn
	client draapi.DRAPluginClient
	// connected means that the driver accepts connections. It is guarded by the Manager's mu.
	connected bool
	// cancelWatch stops the watches of the connection and of device health.
	cancelWatch context.CancelFunc
}

// close stops the watches of the driver's state and closes the connection to the driver.
func (s *socket) close() {
	s.cancelWatch()
	_ = s.conn.Close()
}

var _ pluginwatch.Handler = (*Manager)(nil)

// Register connects to a DRA driver that has registered on the node. It returns an error, which is reported
// to the driver, if the driver supports no version of the API that the kubelet supports. It implements
// pluginwatch.Handler.
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
		return fmt.Errorf("connecting to DRA driver: %w", err)
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
	s := &socket{path: p.Socket, conn: conn, client: client, cancelWatch: cancel}
	d.sockets = append(d.sockets, s)
	m.updateRemoval(p.Name, d)
	m.watches.Go(func() { m.watchHealth(ctx, p.Name, conn, p.Versions) })
	m.watches.Go(func() { m.watchConnection(ctx, p.Name, s) })
	return nil
}

// watchConnection keeps the connection to a driver open and tracks its state until ctx is done: a
// driver may serve some time after it registers, stop before its socket is removed, and restart.
func (m *Manager) watchConnection(ctx context.Context, name string, s *socket) {
	for {
		state := s.conn.GetState()
		m.mu.Lock()
		s.connected = state == connectivity.Ready
		if d := m.drivers[name]; d != nil {
			m.updateRemoval(name, d)
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

// updateRemoval stops the timer that removes the ResourceSlices of the driver d if d is connected, and
// otherwise starts it. name is the name of the driver. The caller must hold mu.
func (m *Manager) updateRemoval(name string, d *driver) {
	switch {
	case d.connected():
		if d.removal != nil {
			d.removal.Stop()
			d.removal = nil
		}
	case d.removal == nil && !m.stopped:
		d.removal = time.AfterFunc(driverGracePeriod, func() { m.removeSlices(name) })
	}
}

// Deregister closes the connection to a driver whose registration socket was removed. If the driver has no other
// connection, its ResourceSlices are deleted after driverGracePeriod. It implements pluginwatch.Handler.
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
	m.updateRemoval(p.Name, d)
}

// minRemoveBackoff and maxRemoveBackoff are the first and the longest delay before a failed removal of
// ResourceSlices is retried.
const (
	minRemoveBackoff = time.Second
	maxRemoveBackoff = 5 * time.Minute
)

// client returns the client of the newest instance of a driver, preferably of one that is connected. It
// returns an error if the driver is not registered.
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

// isRegistered reports whether a driver is registered.
func (m *Manager) isRegistered(name string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	d := m.drivers[name]
	return d != nil && len(d.sockets) > 0
}

// removeSlices removes the ResourceSlices of a driver from the API, so that the scheduler does not allocate its
// devices any more. It does nothing if the driver is connected again or there is no API server. Failures are
// retried with a back-off.
func (m *Manager) removeSlices(name string) { m.removeSlicesRetry(name, minRemoveBackoff) }

// removeSlicesRetry does the work of removeSlices, and schedules the next attempt after an error. pause is the delay
// before that attempt. It doubles with each one, up to maxRemoveBackoff.
func (m *Manager) removeSlicesRetry(name string, pause time.Duration) {
	m.mu.Lock()
	back := m.drivers[name] != nil && m.drivers[name].connected()
	m.mu.Unlock()
	if back || m.cfg.Kube == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), driverTimeout)
	defer cancel()
	err := m.cfg.Kube.ResourceV1().ResourceSlices().DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{
		FieldSelector: fields.Set{resourcev1.ResourceSliceSelectorNodeName: m.cfg.NodeName, resourcev1.ResourceSliceSelectorDriver: name}.String(),
	})
	if err == nil {
		return
	}
	m.cfg.Log.Warn("deleting ResourceSlices of stopped DRA driver failed; the scheduler may allocate its devices on this node until a retry succeeds, retrying with back-off", "driver", name, "err", err)
	m.mu.Lock()
	defer m.mu.Unlock()
	if d := m.drivers[name]; !m.stopped && d != nil && !d.connected() {
		d.removal = time.AfterFunc(pause, func() { m.removeSlicesRetry(name, min(2*pause, maxRemoveBackoff)) })
	}
}

// Run removes the ResourceSlices of drivers that have not registered within driverGracePeriod after the
// kubelet's start, and waits until ctx is done. Then it closes the connections to all drivers. The error is
// always nil.
func (m *Manager) Run(ctx context.Context) error {
	timer := time.NewTimer(driverGracePeriod)
	defer timer.Stop()
	retry := backoff.Backoff{First: minRemoveBackoff, Max: maxRemoveBackoff}
	for ctx.Err() == nil {
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
			m.cfg.Log.Warn("deleting ResourceSlices of DRA drivers that have not registered since the start of the kubelet failed; the scheduler may allocate their devices on this node until a retry succeeds, retrying with back-off", "err", err)
		}
		timer.Reset(retry.Next())
	}
	m.mu.Lock()
	m.stopped = true
	for _, d := range m.drivers {
		if d.removal != nil {
			d.removal.Stop()
		}
		for _, s := range d.sockets {
			s.close()
		}
		d.sockets = nil
	}
	m.mu.Unlock()
	m.watches.Wait()
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, t := range m.stale {
		t.Stop()
	}
	return nil
}

// forgetOld removes the ResourceSlices of this node whose drivers are not registered. Without an API server it
// does nothing.
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
		if m.isRegistered(s.Spec.Driver) {
			continue
		}
		err := m.cfg.Kube.ResourceV1().ResourceSlices().Delete(ctx, s.Name, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(s.UID))})
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
