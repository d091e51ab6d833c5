// Package dra makes the devices of pods' resource claims ready on the node: it
// takes in the drivers that register, has them prepare what the scheduler has
// allocated before a pod's containers are made, and take it back when nothing of
// the last pod of a claim runs any more.
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
)

// askFor is how long a driver may take for one call.
const askFor = 45 * time.Second

// Config of a Manager. All fields must be filled, but for Kube, without which pods
// have no claims, and Changed.
type Config struct {
	// Root is the kubelet's folder, in which the state is kept.
	Root     string
	NodeName string
	Kube     kubernetes.Interface
	// Changed is told the pods whose devices are well or unwell now.
	Changed func([]types.UID)
	Log     *slog.Logger
	// Metrics counts what is done; may be nil.
	Metrics *telemetry.Metrics
}

// Manager knows the drivers and what they have prepared. Its methods are safe for
// several goroutines.
type Manager struct {
	cfg  Config
	path string // of the state

	mu      sync.Mutex // guards what follows
	drivers map[string]*driver
	ended   bool // Run is over
	claims  map[types.UID]*Claim
	// busy are the claims with which a driver is occupied; idle is closed, and
	// made anew, when one of them is no longer.
	busy map[types.UID]bool
	idle chan struct{}
	// health of devices by driver, and the connection that told it last; stale
	// have timers that tell of what has become too old.
	health  map[string]map[device]health
	tellers map[string]*grpc.ClientConn
	stale   map[string]*time.Timer
	// following ends when the manager does.
	following sync.WaitGroup
}

// Claim is one of which something is or may be prepared.
type Claim struct {
	UID       types.UID `json:"uid"`
	Namespace string    `json:"namespace"`
	Name      string    `json:"name"`
	// Pods are those that use it.
	Pods []types.UID `json:"pods"`
	// Devices by driver. A driver that has none yet may have prepared some.
	Devices map[string][]Device `json:"devices"`

	// prepared: this process has had it prepared.
	prepared bool
}

// Device is one that a driver has prepared.
type Device struct {
	Pool    string `json:"pool"`
	Name    string `json:"name"`
	ShareID string `json:"shareID,omitempty"`
	// Requests of the claim that it is for; none: all.
	Requests []string `json:"requests,omitempty"`
	// CDI names what the runtime adds to containers.
	CDI []string `json:"cdi,omitempty"`
}

// New makes a Manager that remembers what was prepared before.
func New(cfg Config) (*Manager, error) {
	m := &Manager{
		cfg: cfg, path: filepath.Join(cfg.Root, "dra_manager_state"),
		drivers: map[string]*driver{}, busy: map[types.UID]bool{}, idle: make(chan struct{}),
		health: map[string]map[device]health{}, tellers: map[string]*grpc.ClientConn{}, stale: map[string]*time.Timer{},
	}
	var err error
	m.claims, err = load(m.path)
	return m, err
}

// Prepare makes the devices of a pod's claims ready. It is called again after the
// kubelet has been started anew, and costs nothing once all is ready.
func (m *Manager) Prepare(ctx context.Context, pod *v1.Pod) (err error) {
	if !asks(pod) {
		return nil
	}
	defer m.timed("PrepareResources", time.Now(), &err)
	claims, err := m.allocated(ctx, pod)
	if err != nil || len(claims) == 0 {
		return err
	}
	uids := make([]types.UID, len(claims))
	for i, c := range claims {
		uids[i] = c.UID
	}
	if err := m.occupy(ctx, uids); err != nil {
		return err
	}
	defer m.vacate(uids)
	if err := m.present(claims); err != nil {
		return err
	}
	asked, err := m.note(pod.UID, claims)
	if err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(asked)) {
		if err := m.ask(ctx, name, asked[name]); err != nil {
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

// asks tells whether a pod has resource claims, its own or one that the scheduler
// has made of its extended resources.
func asks(pod *v1.Pod) bool {
	return len(pod.Spec.ResourceClaims) > 0 || pod.Status.ExtendedResourceClaimStatus != nil
}

// allocated gets a pod's claims, which must be allocated and reserved for it.
func (m *Manager) allocated(ctx context.Context, pod *v1.Pod) ([]*resourcev1.ResourceClaim, error) {
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
			continue // none is needed
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

// present tells whether the drivers are there that are to prepare claims. What no
// driver was asked for need not be taken back, so that a pod that waits for a
// driver can end without it.
func (m *Manager) present(claims []*resourcev1.ResourceClaim) error {
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

// note writes down, before any driver is asked, that a pod uses claims. It returns
// those that are to be prepared, by driver.
func (m *Manager) note(pod types.UID, claims []*resourcev1.ResourceClaim) (map[string][]*draapi.Claim, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, claim := range claims {
		if old := m.namesake(claim); old != "" {
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

// namesake is another claim of that name which is not taken back yet, as that of a pod
// that was deleted by force; drivers go by names, too. The caller holds mu.
func (m *Manager) namesake(claim *resourcev1.ResourceClaim) types.UID {
	for uid, c := range m.claims {
		if uid != claim.UID && c.Name == claim.Name && c.Namespace == claim.Namespace {
			return uid
		}
	}
	return ""
}

// ask has one driver prepare claims.
func (m *Manager) ask(ctx context.Context, name string, claims []*draapi.Claim) error {
	client, err := m.client(name)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, askFor)
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

// Release takes back what only a pod used of which nothing runs any more.
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
	defer m.timed("UnprepareResources", time.Now(), &err)
	if err := m.occupy(ctx, uids); err != nil {
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
		// It is not ready any more, even if a driver fails now.
		c.prepared = false
	}
	m.mu.Unlock()
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(asked)) {
		errs = append(errs, m.takeBack(ctx, name, asked[name]))
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

// timed notes an operation when it has ended.
func (m *Manager) timed(operation string, began time.Time, err *error) {
	m.cfg.Metrics.Claims(operation, time.Since(began), *err)
}

// InUse is how many claims are used by pods of the node, by driver; all together
// are those of "<any>".
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

// takeBack has one driver take claims back.
func (m *Manager) takeBack(ctx context.Context, name string, claims []*draapi.Claim) error {
	client, err := m.client(name)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, askFor)
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

// Reconcile takes back what pods used that active says are not there any more; it
// must say so of none that may still run.
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

// occupy waits until no driver is occupied with any of the claims, and makes them
// busy.
func (m *Manager) occupy(ctx context.Context, claims []types.UID) error {
	for {
		m.mu.Lock()
		idle := m.idle
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

func (m *Manager) vacate(claims []types.UID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, uid := range claims {
		delete(m.busy, uid)
	}
	close(m.idle)
	m.idle = make(chan struct{})
}
