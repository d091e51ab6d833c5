package dra

import (
	"context"
	"fmt"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	healthv1 "k8s.io/kubelet/pkg/apis/dra-health/v1"
	healthv1alpha1 "k8s.io/kubelet/pkg/apis/dra-health/v1alpha1"

	"hyperkube/internal/base/lifecycle"
)

const (
	// defaultHealthTimeout is how long a reported health is valid if the driver does not specify it.
	defaultHealthTimeout = 30 * time.Second
	// healthRetry is the delay before a closed health stream is opened again.
	healthRetry = 5 * time.Second
	// maxMessage is the maximum length of a health message.
	maxMessage = 1024
	// maxDevices is the maximum number of devices per driver whose health is stored. Reported
	// devices are not compared with the ResourceSlices.
	maxDevices = 16384
)

// health is the health of a device as its driver has reported it last. It is unknown after expires.
type health struct {
	status  v1.ResourceHealthStatus
	message string
	expires time.Time
	timeout time.Duration
}

// device identifies a device of a driver by its pool and its name.
type device struct{ pool, name string }

// watchHealth receives the health of a driver's devices (KEP-4680) on the connection conn until ctx is done. It
// opens a closed stream again after healthRetry. versions are the gRPC services that the driver has registered;
// if none of them reports health, or the driver does not implement it, watchHealth returns.
func (m *Manager) watchHealth(ctx context.Context, driver string, conn *grpc.ClientConn, versions []string) {
	var open func() (healthv1.DRAResourceHealth_NodeWatchResourcesClient, error)
	switch {
	case slices.Contains(versions, healthv1.DRAResourceHealthService):
		open = func() (healthv1.DRAResourceHealth_NodeWatchResourcesClient, error) {
			return healthv1.NewDRAResourceHealthClient(conn).NodeWatchResources(ctx, &healthv1.NodeWatchResourcesRequest{})
		}
	case slices.Contains(versions, healthv1alpha1.DRAResourceHealthService):
		open = func() (healthv1.DRAResourceHealth_NodeWatchResourcesClient, error) {
			client := healthv1.V1Alpha1ClientWrapper{Client: healthv1alpha1.NewDRAResourceHealthClient(conn)}
			return client.NodeWatchResources(ctx, &healthv1.NodeWatchResourcesRequest{})
		}
	default:
		return
	}
	for {
		stream, err := open()
		for err == nil {
			var response *healthv1.NodeWatchResourcesResponse
			if response, err = stream.Recv(); err == nil {
				m.updateHealth(driver, conn, response.GetDevices(), time.Now())
			}
		}
		// The health of the devices is unknown from now on.
		m.updateHealth(driver, conn, nil, time.Time{})
		if ctx.Err() != nil || status.Code(err) == codes.Unimplemented {
			return
		}
		m.cfg.Log.Info("device health stream of DRA driver closed; the health of its devices is unknown until the stream is open again, retrying in 5 seconds", "driver", driver, "err", err)
		if !lifecycle.Pause(ctx, healthRetry) {
			return
		}
	}
}

// updateHealth stores the health of a driver's devices that the driver has reported on conn. A device that it
// did not report keeps its health until that expires. A zero time means that conn was closed: the health of all
// devices becomes unknown, unless another connection has reported since. Pods that use devices whose health has
// changed are passed to Changed.
func (m *Manager) updateHealth(driver string, conn *grpc.ClientConn, list []*healthv1.DeviceHealth, now time.Time) {
	m.mu.Lock()
	if now.IsZero() && m.healthConns[driver] != conn {
		m.mu.Unlock()
		return
	}
	m.healthConns[driver] = conn
	known := m.health[driver]
	if known == nil {
		known = map[device]health{}
		m.health[driver] = known
	}
	news := map[device]bool{}
	response := map[device]bool{}
	next := defaultHealthTimeout
	for _, d := range list {
		at := device{d.GetDevice().GetPoolName(), d.GetDevice().GetDeviceName()}
		h := health{status: healthOf(d.GetHealth()), message: short(d.GetMessage()), timeout: defaultHealthTimeout}
		if s := d.GetHealthCheckTimeoutSeconds(); s > 0 {
			h.timeout = time.Duration(s) * time.Second
		}
		h.expires = now.Add(h.timeout)
		before, ok := known[at]
		if !ok && len(known) >= maxDevices {
			continue
		}
		if !ok || before.status != h.status || before.message != h.message || before.timeout != h.timeout {
			news[at] = true
		}
		known[at], response[at] = h, true
		next = min(next, h.timeout)
	}
	for at, h := range known {
		if !response[at] && (now.IsZero() || now.After(h.expires)) {
			news[at] = h.status != v1.ResourceHealthStatusUnknown
			delete(known, at)
		}
	}
	pods := m.podsWith(driver, func(at device) bool { return news[at] })
	if t := m.stale[driver]; t != nil {
		t.Stop()
	}
	delete(m.stale, driver)
	if len(known) > 0 {
		// A health that is not reported again in time becomes unknown.
		m.stale[driver] = time.AfterFunc(next+time.Millisecond, func() { m.notifyStale(driver) })
	}
	m.mu.Unlock()
	m.notifyChanged(pods)
}

// notifyStale notifies the pods that use devices of the driver whose health was not reported again in time.
func (m *Manager) notifyStale(driver string) {
	m.mu.Lock()
	now := time.Now()
	pods := m.podsWith(driver, func(at device) bool {
		h, ok := m.health[driver][at]
		return ok && now.After(h.expires)
	})
	m.mu.Unlock()
	m.notifyChanged(pods)
}

// podsWith returns the pods that have devices of a driver for which is returns true. The caller must hold mu.
func (m *Manager) podsWith(driver string, is func(device) bool) []types.UID {
	var pods []types.UID
	for _, c := range m.claims {
		if slices.ContainsFunc(c.Devices[driver], func(d Device) bool { return is(device{d.Pool, d.Name}) }) {
			for _, uid := range c.Pods {
				if !slices.Contains(pods, uid) {
					pods = append(pods, uid)
				}
			}
		}
	}
	return pods
}

// notifyChanged calls Config.Changed, if it is set, with the pods whose devices have changed their health. It does
// nothing if there are none.
func (m *Manager) notifyChanged(pods []types.UID) {
	if len(pods) > 0 && m.cfg.Changed != nil {
		m.cfg.Changed(pods)
	}
}

// Health returns the health of the devices of a container's claims, by claim or request, for the pod's
// status. It returns nil for init and ephemeral containers.
func (m *Manager) Health(pod *v1.Pod, container string) []v1.ResourceStatus {
	i := slices.IndexFunc(pod.Spec.Containers, func(c v1.Container) bool { return c.Name == container })
	if i < 0 {
		return nil
	}
	var out []v1.ResourceStatus
	for _, want := range pod.Spec.Containers[i].Resources.Claims {
		s := v1.ResourceStatus{Name: v1.ResourceName("claim:" + want.Name)}
		if want.Request != "" {
			s.Name += v1.ResourceName("/" + want.Request)
		}
		one := &v1.Container{Resources: v1.ResourceRequirements{Claims: []v1.ResourceClaim{want}}}
		for _, use := range m.Uses(pod, one) {
			for _, d := range use.Devices {
				h := m.healthOf(d)
				if !slices.ContainsFunc(s.Resources, func(have v1.ResourceHealth) bool { return have.ResourceID == h.ResourceID }) {
					s.Resources = append(s.Resources, h)
				}
			}
		}
		if len(s.Resources) > 0 && !slices.ContainsFunc(out, func(have v1.ResourceStatus) bool { return have.Name == s.Name }) {
			out = append(out, s)
		}
	}
	return out
}

// healthOf returns the health of a device, which is unknown if the driver has not reported it in time.
func (m *Manager) healthOf(d Used) v1.ResourceHealth {
	out := v1.ResourceHealth{Health: v1.ResourceHealthStatusUnknown, ResourceID: v1.ResourceID(fmt.Sprintf("%s/%s/%s", d.Driver, d.Pool, d.Name))}
	if len(d.CDI) > 0 {
		out.ResourceID = v1.ResourceID(d.CDI[0])
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if h, ok := m.health[d.Driver][device{d.Pool, d.Name}]; ok && time.Now().Before(h.expires) {
		out.Health = h.status
		if h.message != "" {
			out.Message = &h.message
		}
	}
	return out
}

// healthOf converts the health that a driver reports to that of the API.
func healthOf(s healthv1.HealthStatus) v1.ResourceHealthStatus {
	switch s {
	case healthv1.HealthStatus_HEALTHY:
		return v1.ResourceHealthStatusHealthy
	case healthv1.HealthStatus_UNHEALTHY:
		return v1.ResourceHealthStatusUnhealthy
	}
	return v1.ResourceHealthStatusUnknown
}

// short truncates a health message to maxMessage bytes.
func short(text string) string {
	if len(text) > maxMessage {
		return text[:maxMessage-3] + "..."
	}
	return text
}
