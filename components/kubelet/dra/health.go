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

	"hyperkube/internal/lifecycle"
)

const (
	// believed is for how long what a driver says of a device's health is taken
	// for true, unless it says.
	believed = 30 * time.Second
	// healthRetry is how long after the end of a driver's stream it is asked again.
	healthRetry = 5 * time.Second
	// maxMessage is how long what a driver says of a device may be.
	maxMessage = 1024
	// maxDevices are as many as are known of a driver: what drivers say is not
	// compared with their resource slices.
	maxDevices = 16384
)

// health is that of a device as its driver has told it.
type health struct {
	is      v1.ResourceHealthStatus
	message string
	until   time.Time
	lasts   time.Duration
}

// device names one of a driver.
type device struct{ pool, name string }

// followHealth follows what a driver tells of the health of its devices (KEP-4680)
// until ctx ends, if it can tell.
func (m *Manager) followHealth(ctx context.Context, driver string, conn *grpc.ClientConn, versions []string) {
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
			var told *healthv1.NodeWatchResourcesResponse
			if told, err = stream.Recv(); err == nil {
				m.healthTold(driver, conn, told.GetDevices(), time.Now())
			}
		}
		// Nobody says any more how they are.
		m.healthTold(driver, conn, nil, time.Time{})
		if ctx.Err() != nil || status.Code(err) == codes.Unimplemented {
			return
		}
		m.cfg.Log.Info("a driver tells no more of its devices' health, and is asked again", "driver", driver, "error", err)
		if !lifecycle.Pause(ctx, healthRetry) {
			return
		}
	}
}

// healthTold takes in all that a driver tells now by conn; the zero time stands for
// nothing at all, which counts unless it has told by another since. Pods that have
// devices of which it is news are told.
func (m *Manager) healthTold(driver string, conn *grpc.ClientConn, list []*healthv1.DeviceHealth, now time.Time) {
	m.mu.Lock()
	if now.IsZero() && m.tellers[driver] != conn {
		m.mu.Unlock()
		return
	}
	m.tellers[driver] = conn
	known := m.health[driver]
	if known == nil {
		known = map[device]health{}
		m.health[driver] = known
	}
	news := map[device]bool{}
	told := map[device]bool{}
	next := believed
	for _, d := range list {
		at := device{d.GetDevice().GetPoolName(), d.GetDevice().GetDeviceName()}
		h := health{is: healthOf(d.GetHealth()), message: short(d.GetMessage()), lasts: believed}
		if s := d.GetHealthCheckTimeoutSeconds(); s > 0 {
			h.lasts = time.Duration(s) * time.Second
		}
		h.until = now.Add(h.lasts)
		before, ok := known[at]
		if !ok && len(known) >= maxDevices {
			continue
		}
		if !ok || before.is != h.is || before.message != h.message || before.lasts != h.lasts {
			news[at] = true
		}
		known[at], told[at] = h, true
		next = min(next, h.lasts)
	}
	for at, h := range known {
		if !told[at] && (now.IsZero() || now.After(h.until)) {
			news[at] = h.is != v1.ResourceHealthStatusUnknown
			delete(known, at)
		}
	}
	pods := m.podsWith(driver, func(at device) bool { return news[at] })
	if t := m.stale[driver]; t != nil {
		t.Stop()
	}
	delete(m.stale, driver)
	if len(known) > 0 {
		// What is not told again in time is not known any more.
		m.stale[driver] = time.AfterFunc(next+time.Millisecond, func() { m.healthStale(driver) })
	}
	m.mu.Unlock()
	m.tellChanged(pods)
}

// healthStale tells pods of what has become too old.
func (m *Manager) healthStale(driver string) {
	m.mu.Lock()
	now := time.Now()
	pods := m.podsWith(driver, func(at device) bool {
		h, ok := m.health[driver][at]
		return ok && now.After(h.until)
	})
	m.mu.Unlock()
	m.tellChanged(pods)
}

// podsWith are the pods that have devices of a driver. The caller holds mu.
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

func (m *Manager) tellChanged(pods []types.UID) {
	if len(pods) > 0 && m.cfg.Changed != nil {
		m.cfg.Changed(pods)
	}
}

// Health tells how the devices of a container's claims are, by claim or request.
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

func (m *Manager) healthOf(d Used) v1.ResourceHealth {
	out := v1.ResourceHealth{Health: v1.ResourceHealthStatusUnknown, ResourceID: v1.ResourceID(fmt.Sprintf("%s/%s/%s", d.Driver, d.Pool, d.Name))}
	if len(d.CDI) > 0 {
		out.ResourceID = v1.ResourceID(d.CDI[0])
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if h, ok := m.health[d.Driver][device{d.Pool, d.Name}]; ok && time.Now().Before(h.until) {
		out.Health = h.is
		if h.message != "" {
			out.Message = &h.message
		}
	}
	return out
}

func healthOf(s healthv1.HealthStatus) v1.ResourceHealthStatus {
	switch s {
	case healthv1.HealthStatus_HEALTHY:
		return v1.ResourceHealthStatusHealthy
	case healthv1.HealthStatus_UNHEALTHY:
		return v1.ResourceHealthStatusUnhealthy
	}
	return v1.ResourceHealthStatusUnknown
}

func short(text string) string {
	if len(text) > maxMessage {
		return text[:maxMessage-3] + "..."
	}
	return text
}
