package nodestatus

import (
	"context"
	"log/slog"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/record"

	"hyperkube/components/kubelet/cri"
	"hyperkube/internal/base/backoff"
	"hyperkube/internal/base/cloudprovider"
)

// Config is the configuration of a Manager. All fields are required unless their comment says
// otherwise.
type Config struct {
	Name string
	// Object caches the latest Node of the API. New creates one if it is nil.
	Object *Object
	// Kube may be nil. Then only the runtime's configuration is updated.
	Kube   kubernetes.Interface
	CRI    *cri.Client
	Events record.EventRecorder
	Log    *slog.Logger

	Registration Registration
	Status       Status
	Periods      Periods

	// NodeChanged is called when the Node in the API has changed. It may be nil.
	NodeChanged func()
	// Started is called when a newly created node is ready, with the times of the first attempt to
	// register it, of its registration, and of its readiness. It may be nil.
	Started func(asked, registered, ready time.Time)
	// PodCIDR is passed to the runtime until the Node has a pod CIDR. It may be empty.
	PodCIDR string
}

// Registration configures how the kubelet registers the Node: whether it creates the object, and its initial
// labels, taints and other fields.
type Registration struct {
	// Enabled means that the kubelet creates the Node if it does not exist. Otherwise it only updates it.
	Enabled bool
	// Labels, Annotations and Taints are set when the Node is registered. They may be nil.
	Labels, Annotations map[string]string
	Taints              []v1.Taint
	// Unschedulable is the initial value of spec.unschedulable.
	Unschedulable bool
	// ProviderID may be empty.
	ProviderID string
	// CloudProvider is External if a cloud controller manager initializes the Node. Then the kubelet registers it with
	// cloudprovider.Taint and an annotation with Status.IPs, and does not change addresses that the Node has.
	CloudProvider cloudprovider.Setting
	// IsReinstalled reports whether the machine was set up again, so that extended resources in the
	// status of an existing Node are obsolete. It may be nil.
	IsReinstalled func() bool
}

// Status has the functions and values from which the status of the Node is computed.
type Status struct {
	// IPs returns the node's addresses, the primary one first. With an external cloud provider there may be none.
	IPs func() []string
	// Port is the port of the kubelet's server.
	Port    int32
	Machine Machine
	// Capacity and Allocatable are shared and must not be modified.
	Capacity, Allocatable v1.ResourceList
	// Devices returns the device plugin resources: all devices, and the healthy, allocatable ones.
	// It may be nil.
	Devices func() (all, healthy v1.ResourceList)
	// Pressure returns the pressure conditions. It may be nil.
	Pressure func() Pressure
	// NotReadyReasons returns reasons why the node is not ready even if its runtime is. It may be nil.
	NotReadyReasons func() []string
	// VolumesInUse returns the volumes that must not be detached, sorted. It may be nil.
	VolumesInUse func() []v1.UniqueVolumeName
	// MaxImages is the maximum number of images in the status.
	MaxImages int
}

// Periods are the intervals in which the Manager renews the lease and updates the status of the Node.
type Periods struct {
	// Lease is the duration of the lease, and Renew the period of its renewal. Update is the period
	// in which the status is computed. Report is the period in which an unchanged status is sent.
	Lease, Renew, Update, Report time.Duration
}

// Manager registers the node with the API server and keeps the status of the Node and its lease up to date.
// Its exported methods are safe for concurrent use.
type Manager struct {
	cfg    Config
	object *Object
	ready  chan struct{}

	mu    sync.Mutex // guards the following fields
	cidrs string     // pod CIDRs that the runtime was configured with
	// runtime is the status of the container runtime as last read.
	runtime runtimeStatus
	// unschedulable is the last observed spec.unschedulable.
	unschedulable bool
	// registrationStarted is the time of the first attempt to register the Node. registered is the time of its
	// registration, unless the Node existed. Only Run uses them.
	registrationStarted, registered time.Time
}

// New returns a Manager, which does nothing before Run.
func New(cfg Config) *Manager {
	object := cfg.Object
	if object == nil {
		object = NewObject()
	}
	return &Manager{cfg: cfg, object: object, ready: make(chan struct{})}
}

// Ready returns a channel that is closed when the runtime and its network are ready and the API server has
// accepted the status. Without an API server it is closed when the runtime and its network are ready.
func (k *Manager) Ready() <-chan struct{} { return k.ready }

// Changed makes Run compute the status again immediately, because something that it depends on has changed.
// It does not block.
func (k *Manager) Changed() { k.object.Changed() }

// Node returns the latest Node of the API, or nil before it is known. It must not be modified.
func (k *Manager) Node() *v1.Node { return k.object.Node() }

// Observe stores the Node as received from the API, unless a newer one is known, and requests an update of
// the status.
func (k *Manager) Observe(node *v1.Node) {
	if !k.object.replace(node) {
		return
	}
	k.emitSchedulable(node)
	k.notifyNodeChanged()
	k.Changed()
}

// Deleted records that the Node was deleted from the API. Run registers it again.
func (k *Manager) Deleted() {
	k.object.set(nil)
	k.Changed()
}

// Run registers the Node and updates its status and its lease until ctx is done. It updates the status
// periodically and after Changed, and retries failures with a back-off. Without an API server it only passes
// the pod CIDR to the runtime.
func (k *Manager) Run(ctx context.Context) error {
	var lease sync.WaitGroup
	if k.cfg.Kube != nil {
		lease.Go(func() {
			k.renewLease(ctx)
		})
	}
	defer lease.Wait()
	var lastReport time.Time
	announced := false
	retry := backoff.Backoff{First: 20 * time.Millisecond, Max: 5 * time.Second}
	for {
		k.getRuntimeStatus(ctx)
		err := k.setPodCIDRs(ctx)
		next := k.cfg.Periods.Update
		if err == nil && k.cfg.Kube != nil {
			var sent bool
			if sent, err = k.report(ctx, time.Since(lastReport) >= k.cfg.Periods.Report); sent {
				lastReport = time.Now()
			}
		}
		if ctx.Err() != nil {
			return nil
		}
		ok := k.isReady()
		switch {
		case err != nil:
			k.logFailure(err, !retry.Started())
			next = retry.Next()
		case !ok:
			next = min(retry.Next(), time.Second)
		default:
			retry.Reset()
		}
		if ok && err == nil && !announced {
			announced = true
			if k.cfg.Started != nil && !k.registered.IsZero() {
				k.cfg.Started(k.registrationStarted, k.registered, time.Now())
			}
			close(k.ready)
		}
		timer := time.NewTimer(next)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-k.object.trigger:
		case <-timer.C:
		}
		timer.Stop()
	}
}

// logFailure logs that the status was not updated. first is set if the previous attempt has succeeded or there was none.
// The first node of a cluster starts the API server itself and cannot register before, so this is no warning.
func (k *Manager) logFailure(err error, first bool) {
	switch {
	case k.Node() != nil || !utilnet.IsConnectionRefused(err):
		k.cfg.Log.Warn("updating status of this kubelet's Node, or passing its pod CIDRs to the container runtime, failed; the API shows an outdated status until a retry succeeds, retrying with back-off", "err", err)
	case first:
		k.cfg.Log.Info("API server accepts no connections yet; this kubelet registers its Node when it does", "err", err)
	default:
		k.cfg.Log.Debug("API server still accepts no connections", "err", err)
	}
}
