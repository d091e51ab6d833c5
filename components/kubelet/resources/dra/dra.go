// Package dra prepares the devices of pods' ResourceClaims on the node. It accepts registrations of
// DRA drivers, calls them to prepare allocated claims before a pod's containers are created, and to
// unprepare claims when nothing of their last pod runs any more.
//
// https://kubernetes.io/docs/concepts/scheduling-eviction/dynamic-resource-allocation/
package dra

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	draapi "k8s.io/kubelet/pkg/apis/dra/v1"

	"hyperkube/components/kubelet/telemetry"
	"hyperkube/internal/base/broadcast"
)

// driverTimeout is the timeout of a call to a driver.
const driverTimeout = 45 * time.Second

// Config is the configuration of a Manager. All fields are required, except Kube, without which
// pods cannot have claims, Changed and Metrics.
type Config struct {
	// Root is the kubelet's root directory, which contains the state file.
	Root     string
	NodeName string
	Kube     kubernetes.Interface
	// Changed is called with the pods whose devices' health has changed.
	Changed func([]types.UID)
	Log     *slog.Logger
	// Metrics counts operations. It may be nil.
	Metrics *telemetry.Claims
}

// Manager tracks the DRA drivers on this node and the ResourceClaims that they have prepared. Its methods are
// safe for concurrent use.
//
// Size: half of the methods are those of the interfaces for plugin registration, pods, container starts and
// the pod resources API, which use the same claims under one lock.
type Manager struct {
	cfg  Config
	path string // path of the state file

	mu sync.Mutex // guards the following fields
	// drivers are the drivers that have registered, by name. A driver without sockets has stopped.
	drivers map[string]*driver
	stopped bool // Run has returned
	claims  map[types.UID]*Claim
	// busy are the claims for which a driver call is in flight. idle is notified when one of these
	// calls finishes.
	busy map[types.UID]bool
	idle broadcast.Broadcast
	// health is the health of devices by driver. healthConns are the connections that reported it
	// last. stale are timers that report when health data is outdated.
	health      map[string]map[device]health
	healthConns map[string]*grpc.ClientConn
	stale       map[string]*time.Timer
	// watches waits for the watches of drivers.
	watches sync.WaitGroup
}

// Claim is a ResourceClaim that is prepared, or for which a driver was called and may have prepared devices.
// It is saved in the state file.
type Claim struct {
	UID       types.UID `json:"uid"`
	Namespace string    `json:"namespace"`
	Name      string    `json:"name"`
	// Pods are the pods that use the claim.
	Pods []types.UID `json:"pods"`
	// Devices are the prepared devices by driver. A driver with an empty list may have prepared
	// some.
	Devices map[string][]Device `json:"devices"`

	// prepared: this process has prepared the claim.
	prepared bool
}

// Device is a device that a DRA driver has prepared for a claim. Containers access it by its CDI device IDs.
type Device struct {
	Pool    string `json:"pool"`
	Name    string `json:"name"`
	ShareID string `json:"shareID,omitempty"`
	// Requests are the claim's requests that the device serves. Empty means all.
	Requests []string `json:"requests,omitempty"`
	// CDI are the CDI device IDs that the runtime adds to containers.
	CDI []string `json:"cdi,omitempty"`
}

// New returns a Manager with the claims of the state file. An unreadable file is an error, because drivers
// may have prepared devices for its claims.
func New(cfg Config) (*Manager, error) {
	m := &Manager{
		cfg: cfg, path: filepath.Join(cfg.Root, "dra_manager_state"),
		drivers: map[string]*driver{}, busy: map[types.UID]bool{},
		health: map[string]map[device]health{}, healthConns: map[string]*grpc.ClientConn{}, stale: map[string]*time.Timer{},
	}
	var err error
	m.claims, err = load(m.path)
	return m, err
}

// Prepare calls the drivers of the pod's claims to prepare the devices, before the pod's containers are
// created. After a restart of the kubelet it calls the drivers again; once all claims are prepared, and for a
// pod without claims, it calls none. It returns an error, to be retried, if a claim is not allocated to the pod
// or a driver is not registered or fails.
func (m *Manager) Prepare(ctx context.Context, pod *v1.Pod) (err error) {
	if !hasClaims(pod) {
		return nil
	}
	defer m.observe("PrepareResources", time.Now(), &err)
	claims, err := m.getClaims(ctx, pod)
	if err != nil || len(claims) == 0 {
		return err
	}
	uids := make([]types.UID, len(claims))
	for i, c := range claims {
		uids[i] = c.UID
	}
	if err := m.setBusy(ctx, uids); err != nil {
		return err
	}
	defer m.vacate(uids)
	if err := m.checkDrivers(claims); err != nil {
		return err
	}
	asked, err := m.recordUse(pod.UID, claims)
	if err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(asked)) {
		if err := m.prepare(ctx, name, asked[name]); err != nil {
			return err
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, uid := range uids {
		m.claims[uid].prepared = true
	}
	return m.save()
}

// hasClaims reports whether a pod has ResourceClaims, including one that the scheduler has created for
// extended resources.
func hasClaims(pod *v1.Pod) bool {
	return len(pod.Spec.ResourceClaims) > 0 || pod.Status.ExtendedResourceClaimStatus != nil
}

// getClaims gets a pod's claims from the API server. It returns an error if a claim is not allocated or not
// reserved for the pod, if a claim created for a pod belongs to another one, or if there is no API server. A
// claim template that needs no claim is skipped.
func (m *Manager) getClaims(ctx context.Context, pod *v1.Pod) ([]*resourcev1.ResourceClaim, error) {
	if m.cfg.Kube == nil {
		return nil, errors.New("pods without an API server cannot have resource claims")
	}
	var names []string
	owns := map[string]bool{}
	for i := range pod.Spec.ResourceClaims {
		name, owned, err := resourceclaim.Name(pod, &pod.Spec.ResourceClaims[i])
		if err != nil {
			return nil, fmt.Errorf("prepare resource claim: %w", err)
		}
		if name == nil {
			continue // no claim is needed
		}
		names = append(names, *name)
		owns[*name] = owns[*name] || owned
	}
	if s := pod.Status.ExtendedResourceClaimStatus; s != nil {
		names = append(names, s.ResourceClaimName)
		owns[s.ResourceClaimName] = true
	}
	var out []*resourcev1.ResourceClaim
	for _, name := range names {
		owned := owns[name]
		claim, err := m.cfg.Kube.ResourceV1().ResourceClaims(pod.Namespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return nil, fmt.Errorf("fetch ResourceClaim %s: %w", name, err)
		}
		if owned {
			if err := resourceclaim.IsForPod(pod, claim, false); err != nil {
				return nil, err
			}
		}
		if !resourceclaim.IsReservedForPod(pod, claim, false) {
			return nil, fmt.Errorf("pod %s (%s) is not allowed to use ResourceClaim %s (%s)", pod.Name, pod.UID, name, claim.UID)
		}
		if claim.Status.Allocation == nil {
			return nil, fmt.Errorf("ResourceClaim %s is not allocated", claim.Name)
		}
		if !slices.ContainsFunc(out, func(c *resourcev1.ResourceClaim) bool { return c.UID == claim.UID }) {
			out = append(out, claim)
		}
	}
	return out, nil
}

// checkDrivers returns an error if a driver of the claims that are not prepared yet is not registered. It is
// called before any driver, so that a pod that waits for a driver can terminate without it: claims that no
// driver was called for need not be unprepared.
func (m *Manager) checkDrivers(claims []*resourcev1.ResourceClaim) error {
	for _, claim := range claims {
		m.mu.Lock()
		c := m.claims[claim.UID]
		done := c != nil && c.prepared
		m.mu.Unlock()
		if done {
			continue
		}
		for i := range claim.Status.Allocation.Devices.Results {
			if _, err := m.client(claim.Status.Allocation.Devices.Results[i].Driver); err != nil {
				return err
			}
		}
	}
	return nil
}

// recordUse records in the state file, before a driver is called, that the pod uses the claims. It returns the
// claims that are not prepared yet, by driver. It returns an error if another claim with the name of one of
// them is not unprepared yet.
func (m *Manager) recordUse(pod types.UID, claims []*resourcev1.ResourceClaim) (map[string][]*draapi.Claim, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, claim := range claims {
		if old := m.obsoleteClaim(claim); old != "" {
			return nil, fmt.Errorf("old ResourceClaim with same name %s and different UID %s still exists (previous pod force-deleted?!)", claim.Name, old)
		}
	}
	asked := map[string][]*draapi.Claim{}
	changed := false
	for _, claim := range claims {
		c := m.claims[claim.UID]
		if c == nil {
			c = &Claim{UID: claim.UID, Namespace: claim.Namespace, Name: claim.Name, Devices: map[string][]Device{}}
			m.claims[claim.UID] = c
		}
		if !slices.Contains(c.Pods, pod) {
			c.Pods, changed = append(c.Pods, pod), true
		}
		if c.prepared {
			continue
		}
		for i := range claim.Status.Allocation.Devices.Results {
			name := claim.Status.Allocation.Devices.Results[i].Driver
			if _, ok := c.Devices[name]; !ok {
				c.Devices[name], changed = nil, true
			}
		}
		for name := range c.Devices {
			asked[name] = append(asked[name], &draapi.Claim{Namespace: c.Namespace, Name: c.Name, Uid: string(c.UID)})
		}
	}
	if !changed {
		return asked, nil
	}
	return asked, m.save()
}

// obsoleteClaim returns the UID of another claim of the same name that is not unprepared yet, such as
// that of a force-deleted pod, or "". Drivers also identify claims by name. The caller must hold
// mu.
func (m *Manager) obsoleteClaim(claim *resourcev1.ResourceClaim) types.UID {
	for uid, c := range m.claims {
		if uid != claim.UID && c.Name == claim.Name && c.Namespace == claim.Namespace {
			return uid
		}
	}
	return ""
}

// prepare calls the driver of that name to prepare the claims, and stores the devices. It returns an error at
// the first claim that the driver could not prepare or has omitted from its response.
func (m *Manager) prepare(ctx context.Context, name string, claims []*draapi.Claim) error {
	client, err := m.client(name)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, driverTimeout)
	defer cancel()
	resp, err := client.NodePrepareResources(ctx, &draapi.NodePrepareResourcesRequest{Claims: claims})
	if err != nil {
		return fmt.Errorf("NodePrepareResources: %w", err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, claim := range claims {
		one := resp.GetClaims()[claim.Uid]
		switch {
		case one == nil:
			return fmt.Errorf("NodePrepareResources left out ResourceClaim %s", claim.Name)
		case one.Error != "":
			return fmt.Errorf("NodePrepareResources failed for ResourceClaim %s: %s", claim.Name, one.Error)
		}
		var list []Device
		for _, d := range one.Devices {
			list = append(list, Device{Pool: d.PoolName, Name: d.DeviceName, ShareID: d.GetShareId(), Requests: d.RequestNames, CDI: d.CdiDeviceIds})
		}
		m.claims[types.UID(claim.Uid)].Devices[name] = list
	}
	return nil
}

// Release unprepares the claims that only this pod uses, because no process of it runs any more. It returns
// an error, to be retried, if a driver is not registered or fails.
func (m *Manager) Release(ctx context.Context, pod types.UID) (err error) {
	m.mu.Lock()
	var uids []types.UID
	for uid, c := range m.claims {
		if slices.Contains(c.Pods, pod) {
			uids = append(uids, uid)
		}
	}
	m.mu.Unlock()
	if len(uids) == 0 {
		return nil
	}
	defer m.observe("UnprepareResources", time.Now(), &err)
	if err := m.setBusy(ctx, uids); err != nil {
		return err
	}
	defer m.vacate(uids)
	m.mu.Lock()
	asked := map[string][]*draapi.Claim{}
	for _, uid := range uids {
		c := m.claims[uid]
		if c == nil || len(c.Pods) > 1 || !slices.Contains(c.Pods, pod) {
			continue
		}
		for name := range c.Devices {
			asked[name] = append(asked[name], &draapi.Claim{Namespace: c.Namespace, Name: c.Name, Uid: string(c.UID)})
		}
		// The claim is not prepared any more, even if a driver call fails.
		c.prepared = false
	}
	m.mu.Unlock()
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(asked)) {
		errs = append(errs, m.unprepare(ctx, name, asked[name]))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, uid := range uids {
		c := m.claims[uid]
		if c == nil {
			continue
		}
		c.Pods = slices.DeleteFunc(c.Pods, func(have types.UID) bool { return have == pod })
		if len(c.Pods) == 0 {
			delete(m.claims, uid)
		}
	}
	return m.save()
}

// observe records the duration and the result of an operation, for metrics. err points to the result because
// observe is deferred.
func (m *Manager) observe(operation string, began time.Time, err *error) {
	m.cfg.Metrics.Operation(operation, time.Since(began), *err)
}

// InUse returns the number of claims in use by driver. The key "<any>" has the total number.
func (m *Manager) InUse() map[string]int {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := map[string]int{"<any>": len(m.claims)}
	for _, c := range m.claims {
		for driver := range c.Devices {
			out[driver]++
		}
	}
	return out
}

// unprepare calls the driver of that name to unprepare the claims. It returns the errors of all claims,
// including those that the driver has omitted from its response.
func (m *Manager) unprepare(ctx context.Context, name string, claims []*draapi.Claim) error {
	client, err := m.client(name)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, driverTimeout)
	defer cancel()
	resp, err := client.NodeUnprepareResources(ctx, &draapi.NodeUnprepareResourcesRequest{Claims: claims})
	if err != nil {
		return fmt.Errorf("NodeUnprepareResources: %w", err)
	}
	var errs []error
	for _, claim := range claims {
		switch one := resp.GetClaims()[claim.Uid]; {
		case one == nil:
			errs = append(errs, fmt.Errorf("NodeUnprepareResources left out ResourceClaim %s", claim.Name))
		case one.Error != "":
			errs = append(errs, fmt.Errorf("NodeUnprepareResources failed for ResourceClaim %s: %s", claim.Name, one.Error))
		}
	}
	return errors.Join(errs...)
}

// Reconcile releases the claims of the pods for which active returns false, because they were deleted while the
// kubelet was not running. active must return true for each pod of which a process may still run. It continues
// after an error, and returns all errors.
func (m *Manager) Reconcile(ctx context.Context, active func(types.UID) bool) error {
	m.mu.Lock()
	gone := map[types.UID]bool{}
	for _, c := range m.claims {
		for _, uid := range c.Pods {
			if !active(uid) {
				gone[uid] = true
			}
		}
	}
	m.mu.Unlock()
	var errs []error
	for uid := range gone {
		errs = append(errs, m.Release(ctx, uid))
	}
	return errors.Join(errs...)
}

// setBusy waits until no driver call for any of the claims is in flight, and marks the claims as busy, so
// that the caller can call drivers. The caller must call vacate. The error is that of ctx.
func (m *Manager) setBusy(ctx context.Context, claims []types.UID) error {
	for {
		m.mu.Lock()
		idle := m.idle.Next()
		taken := slices.ContainsFunc(claims, func(uid types.UID) bool { return m.busy[uid] })
		if !taken {
			for _, uid := range claims {
				m.busy[uid] = true
			}
		}
		m.mu.Unlock()
		if !taken {
			return nil
		}
		select {
		case <-idle:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// vacate marks the claims as not busy any more, and wakes the callers of setBusy that wait for them.
func (m *Manager) vacate(claims []types.UID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, uid := range claims {
		delete(m.busy, uid)
	}
	m.idle.Send()
}
