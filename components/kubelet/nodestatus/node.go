package nodestatus

import (
	"context"
	"log/slog"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/record"

	"hyperkube/components/kubelet/cri"
	"hyperkube/internal/client"
)

// Config of a Keeper. All fields but those marked may not be empty.
type Config struct {
	Name string
	// Kube may be nil: then only the runtime is kept informed.
	Kube   kubernetes.Interface
	CRI    *cri.Client
	Events record.EventRecorder
	Log    *slog.Logger
	// Register: make the Node if there is none.
	Register bool
	// Labels, Annotations and Taints are added when the Node is registered; may
	// be nil.
	Labels, Annotations map[string]string
	Taints              []v1.Taint
	// Unschedulable as registered.
	Unschedulable bool
	// IPs returns the node's addresses, the primary one first.
	IPs func() []string
	// ProviderID may be empty.
	ProviderID string
	// Port is where the kubelet serves.
	Port    int32
	Machine Machine
	// Capacity and Allocatable are shared; they are not changed.
	Capacity, Allocatable v1.ResourceList
	// Devices returns what device plugins have: all, and what can be given to
	// pods. May be nil.
	Devices func() (all, healthy v1.ResourceList)
	// Renewed tells whether the machine was set up anew, so that a Node that is there
	// already tells of extended resources that it may not have; may be nil.
	Renewed func() bool
	// Pressure returns what runs short; may be nil.
	Pressure func() Pressure
	// Wrong returns why the node is not ready though its runtime is; may be nil.
	Wrong func() []string
	// VolumesInUse returns the volumes that must not be detached, sorted; may be
	// nil.
	VolumesInUse func() []v1.UniqueVolumeName
	// Seen is called when the Node that the API has has changed; may be nil.
	Seen func()
	// Started is called when a node that was not there before is ready, with when it
	// was first tried to register it, when it was registered, and when it was known
	// to be ready; may be nil.
	Started func(asked, registered, ready time.Time)
	// PodCIDR is given to the runtime until the Node has one; may be empty.
	PodCIDR string
	// Lease is the lease's duration, Renew how often it is renewed, Update how
	// often the status is computed, Report how often it is sent when nothing has
	// changed.
	Lease, Renew, Update, Report time.Duration
	// MaxImages is how many images the status lists.
	MaxImages int
}

// Keeper keeps the Node and its lease.
type Keeper struct {
	cfg     Config
	ready   chan struct{}
	trigger chan struct{}

	mu      sync.Mutex // guards what follows
	node    *v1.Node   // as the API has it, nil before it is known
	cidrs   string     // what the runtime was told
	runtime runtimeSays
	// unschedulable is what the Node said last.
	unschedulable bool
	// asked is when it was first tried to register the Node, and registered when it
	// was, if it was not there before. Only Run uses them.
	asked, registered time.Time
}

// New makes a Keeper.
func New(cfg Config) *Keeper {
	return &Keeper{cfg: cfg, ready: make(chan struct{}), trigger: make(chan struct{}, 1)}
}

// Ready is closed once the API knows that the node is ready; without an API,
// once the runtime is.
func (k *Keeper) Ready() <-chan struct{} { return k.ready }

// Changed makes the Keeper look anew, for something that the status tells has
// changed. It does not block.
func (k *Keeper) Changed() {
	select {
	case k.trigger <- struct{}{}:
	default:
	}
}

// Node returns the Node as the API has it, nil before it is known. It is
// shared.
func (k *Keeper) Node() *v1.Node {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.node
}

// Observe takes in the Node as a watch tells of it.
func (k *Keeper) Observe(node *v1.Node) {
	k.mu.Lock()
	if k.node != nil && k.node.UID == node.UID && !client.Newer(node.ResourceVersion, k.node.ResourceVersion) {
		k.mu.Unlock()
		return
	}
	k.node = node
	k.mu.Unlock()
	k.schedulable(node)
	k.seen()
	k.Changed()
}

// Deleted takes in that the API has no such Node any more; it is registered
// anew.
func (k *Keeper) Deleted() {
	k.mu.Lock()
	k.node = nil
	k.mu.Unlock()
	k.Changed()
}

// Run keeps everything until ctx ends.
func (k *Keeper) Run(ctx context.Context) error {
	var lease sync.WaitGroup
	if k.cfg.Kube != nil {
		lease.Go(func() {
			k.keepLease(ctx)
		})
	}
	defer lease.Wait()
	var lastReport time.Time
	announced := false
	pause := 20 * time.Millisecond
	for {
		k.askRuntime(ctx)
		err := k.tellRuntime(ctx)
		next := k.cfg.Update
		if err == nil && k.cfg.Kube != nil {
			var sent bool
			if sent, err = k.report(ctx, time.Since(lastReport) >= k.cfg.Report); sent {
				lastReport = time.Now()
			}
		}
		if ctx.Err() != nil {
			return nil
		}
		ok := k.isReady()
		switch {
		case err != nil:
			k.cfg.Log.Warn("keeping the node's status failed, trying again", "error", err)
			next = pause
			pause = min(2*pause, 5*time.Second)
		case !ok:
			next = min(pause, time.Second)
			pause = min(2*pause, 5*time.Second)
		default:
			pause = 20 * time.Millisecond
		}
		if ok && err == nil && !announced {
			announced = true
			if k.cfg.Started != nil && !k.registered.IsZero() {
				k.cfg.Started(k.asked, k.registered, time.Now())
			}
			close(k.ready)
		}
		timer := time.NewTimer(next)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-k.trigger:
		case <-timer.C:
		}
		timer.Stop()
	}
}
