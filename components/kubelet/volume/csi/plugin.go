package csi

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/record"

	"hyperkube/components/kubelet/pluginwatch"
	"hyperkube/components/kubelet/telemetry"
	"hyperkube/components/kubelet/volume"
	"hyperkube/internal/lifecycle"
)

// Tokens gets service account tokens bound to a pod.
type Tokens interface {
	// Bound returns a token for an audience, empty for the API's own, when it
	// expires and when a new one should be asked for. seconds may be nil.
	Bound(ctx context.Context, pod *v1.Pod, audience string, seconds *int64) (token string, expires, refresh time.Time, err error)
}

// Config of a Plugin.
type Config struct {
	// Root is the kubelet's root directory.
	Root, NodeName string
	// Kube may be nil: then there are no CSIDrivers, and no CSINode is kept.
	Kube kubernetes.Interface
	// Node returns the Node as the API has it, nil while it is not known.
	Node   func() *v1.Node
	Tokens Tokens
	Events record.EventRecorder
	Log    *slog.Logger
	// Metrics counts what drivers are asked; may be nil.
	Metrics *telemetry.Metrics
	// FileLabel tells which SELinux label the files of a container with these options
	// have, empty where that is not known; nil without SELinux.
	FileLabel func(*v1.SELinuxOptions) string
	// InUse is called, and must not block, when what InUse returns has changed;
	// Registered when a driver has registered. They may be nil.
	InUse, Registered func()
}

// Plugin uses volumes of CSI drivers. Its methods are safe for several
// goroutines. It is a handler of plugins of type CSIPlugin, a volume.Type for
// inline volumes and a volume.PersistentType.
type Plugin struct {
	cfg    Config
	places places
	sweep  chan struct{} // capacity 1: look for staged volumes that nobody uses

	// users of volumes that are to be attached, by the pods' own places and those of
	// what is staged; the node's status tells of them.
	users volume.Users

	mu      sync.Mutex // guards what follows
	drivers map[string]*driver
	// made are the places published to by this process, with the volumes that
	// are there; staged the volumes.
	made   map[string]key
	staged map[key]bool
	// growths are of volumes in made.
	growths map[key]growth
	locks   map[key]*volumeLock
	// changed is closed, and another made, when the node, the drivers or what is
	// attached has changed.
	changed chan struct{}

	// attachFor is how long a volume may take to be attached.
	attachFor time.Duration
	csiNode   sync.Mutex // serializes changes of the CSINode
}

type volumeLock struct {
	sync.Mutex
	waiting int // guarded by Plugin.mu
}

// New makes a Plugin. What earlier kubelets left is in use at once.
func New(cfg Config) (*Plugin, error) {
	p := &Plugin{
		cfg: cfg, places: places{cfg.Root}, sweep: make(chan struct{}, 1), drivers: map[string]*driver{},
		made: map[string]key{}, growths: map[key]growth{}, staged: map[key]bool{}, locks: map[key]*volumeLock{}, changed: make(chan struct{}), attachFor: attachFor,
	}
	p.users.Changed = cfg.InUse
	uses, usesErr := p.places.uses()
	for _, u := range uses {
		if u.Attachment != "" {
			p.users.Use(u.key().unique(), u.dir)
		}
	}
	staged, err := p.places.allStaged()
	if err := errors.Join(usesErr, err); err != nil {
		// One volume must not keep the node from running pods.
		cfg.Log.Error("what is known of a volume is damaged: unmount it by hand and remove the file", "error", err)
	}
	for _, s := range staged {
		if s.Attachment != "" {
			p.users.Use(s.key().unique(), p.places.staged(s.key()))
		}
	}
	return p, nil
}

// How long it takes until a volume that could not be unstaged is tried again;
// upstream's.
const (
	retryFirst = 500 * time.Millisecond
	retryMost  = 2*time.Minute + 2*time.Second
)

// Run keeps the CSINode, and takes back volumes that were left staged though
// nobody uses them, until ctx ends.
func (p *Plugin) Run(ctx context.Context) error {
	defer func() {
		p.mu.Lock()
		drivers := slices.Collect(maps.Values(p.drivers))
		p.mu.Unlock()
		for _, d := range drivers {
			d.close()
		}
	}()
	var begin sync.WaitGroup
	defer begin.Wait()
	begin.Go(func() {
		p.beginNode(ctx)
	})
	wait := retryFirst
	for {
		var again <-chan time.Time
		if err := p.unstageLeft(ctx); err != nil && ctx.Err() == nil {
			p.cfg.Log.Warn("taking back staged volumes that nobody uses failed, trying again", "error", err, "after", wait)
			again = time.After(wait)
			wait = min(2*wait, retryMost)
		} else {
			wait = retryFirst
		}
		select {
		case <-ctx.Done():
			return nil
		case <-p.sweep:
		case <-again:
		}
	}
}

// Register implements pluginwatch.Handler.
func (p *Plugin) Register(ctx context.Context, plugin pluginwatch.Plugin) error {
	if err := checkPlugin(plugin); err != nil {
		return err
	}
	d, err := dial(plugin, p.cfg.Metrics)
	if err != nil {
		return err
	}
	err = d.ask(ctx)
	if err == nil {
		err = p.tellNode(ctx, d)
	}
	if err != nil {
		d.conn.Close()
		return err
	}
	// The driver stays when the call ends that it registers in.
	follow, stop := context.WithCancel(context.WithoutCancel(ctx))
	d.stop, d.followed = stop, make(chan struct{})
	go func() {
		defer close(d.followed)
		if p.cfg.Kube != nil {
			p.keepCount(follow, d)
		}
	}()
	p.mu.Lock()
	old := p.drivers[plugin.Name]
	p.drivers[plugin.Name] = d
	p.tell()
	p.mu.Unlock()
	if old != nil {
		old.close()
	}
	p.sweepSoon()
	if p.cfg.Registered != nil {
		p.cfg.Registered()
	}
	return nil
}

// sweepSoon has Run look for staged volumes that nobody uses.
func (p *Plugin) sweepSoon() {
	select {
	case p.sweep <- struct{}{}:
	default:
	}
}

// Deregister implements pluginwatch.Handler.
func (p *Plugin) Deregister(plugin pluginwatch.Plugin) {
	p.mu.Lock()
	d := p.drivers[plugin.Name]
	if d == nil || d.plugin.Socket != plugin.Socket {
		// Another instance has taken its place.
		p.mu.Unlock()
		return
	}
	delete(p.drivers, plugin.Name)
	p.mu.Unlock()
	d.close()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := p.forgetDriver(ctx, plugin.Name); err != nil {
		p.cfg.Log.Warn("telling the API that a CSI driver has gone failed", "driver", plugin.Name, "error", err)
	}
}

// Observe says that the Node has changed.
func (p *Plugin) Observe() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.tell()
}

// tell wakes who waits for a change. The caller holds mu.
func (p *Plugin) tell() {
	close(p.changed)
	p.changed = make(chan struct{})
}

// await returns once ok does, which is called anew after every change.
func (p *Plugin) await(ctx context.Context, ok func() bool) error {
	for {
		p.mu.Lock()
		changed := p.changed
		p.mu.Unlock()
		if ok() {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// driver returns a driver, waiting for it to register for no longer than wait.
func (p *Plugin) driver(ctx context.Context, name string, wait time.Duration) (*driver, error) {
	var d *driver
	get := func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		d = p.drivers[name]
		return d != nil
	}
	if !get() && wait > 0 {
		short, cancel := context.WithTimeout(ctx, wait)
		defer cancel()
		_ = p.await(short, get)
	}
	if d == nil {
		return nil, fmt.Errorf("driver name %s not found in the list of registered CSI drivers", name)
	}
	return d, nil
}

// lock makes the caller the only one who works on a volume until unlock is
// called.
func (p *Plugin) lock(k key) (unlock func()) {
	p.mu.Lock()
	l := p.locks[k]
	if l == nil {
		l = &volumeLock{}
		p.locks[k] = l
	}
	l.waiting++
	p.mu.Unlock()
	l.Lock()
	return func() {
		l.Unlock()
		p.mu.Lock()
		defer p.mu.Unlock()
		if l.waiting--; l.waiting == 0 {
			delete(p.locks, k)
		}
	}
}

// VolumesInUse returns what must not be detached, sorted.
func (p *Plugin) VolumesInUse() []v1.UniqueVolumeName { return p.users.InUse() }

// object returns the API's CSIDriver, nil if there is none.
func (p *Plugin) object(ctx context.Context, name string) (*storagev1.CSIDriver, error) {
	if p.cfg.Kube == nil {
		return nil, nil
	}
	obj, err := p.cfg.Kube.StorageV1().CSIDrivers().Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("getting CSIDriver %s: %w", name, err)
	}
	return obj, nil
}

// attachFor bounds the wait for a volume to be attached, as upstream does.
const attachFor = 2*time.Minute + 3*time.Second

// attachment waits until the volume is attached, and returns what the attacher
// has to tell the driver. The node says that the volume is in use before it is,
// lest it be detached at once. It is errUnattached when the driver says meanwhile
// that its volumes are not attached at all, and volume.ErrAttachLimit when the wait
// was in vain because the node takes no more of them.
func (p *Plugin) attachment(ctx context.Context, k key, dir string) (map[string]string, error) {
	name := k.unique()
	p.users.Use(name, dir)
	wait, cancel := context.WithTimeout(ctx, p.attachFor)
	defer cancel()
	there := func() bool { return volume.Given(p.cfg.Node(), name) }
	if !there() {
		follow, stop := context.WithCancelCause(wait)
		var following sync.WaitGroup
		following.Go(func() {
			p.followObject(follow, k.driver, func(obj *storagev1.CSIDriver) {
				if obj != nil && obj.Spec.AttachRequired != nil && !*obj.Spec.AttachRequired {
					stop(errUnattached)
				}
			})
		})
		err := p.await(follow, there)
		if cause := context.Cause(follow); err != nil && errors.Is(cause, errUnattached) {
			err = cause
		}
		stop(nil)
		following.Wait()
		if errors.Is(err, context.DeadlineExceeded) {
			full, why := p.exhausted(ctx, k)
			if why != nil {
				p.cfg.Log.Debug("finding out why a volume is not attached failed", "volume", k.unique(), "error", why)
			}
			if full {
				err = fmt.Errorf("%w: %w", volume.ErrAttachLimit, err)
			}
		}
		if err != nil {
			return nil, err
		}
	}
	id := attachmentName(k, p.cfg.NodeName)
	a, err := p.cfg.Kube.StorageV1().VolumeAttachments().Get(ctx, id, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("kubernetes.io/csi: attachment.Get failed: %w", err)
	}
	if !a.Status.Attached || a.DeletionTimestamp != nil {
		return nil, fmt.Errorf("kubernetes.io/csi: volume attachment %s is not attached", id)
	}
	return a.Status.AttachmentMetadata, nil
}

// errUnattached is that a driver's volumes need not be attached.
var errUnattached = errors.New("the driver's volumes are not attached")

// followAgain is how long it takes until a watch that has ended is begun again.
const followAgain = time.Second

// followObject calls seen with the API's CSIDriver as it is and whenever it changes,
// nil when it is deleted, until ctx ends.
func (p *Plugin) followObject(ctx context.Context, name string, seen func(*storagev1.CSIDriver)) {
	for ctx.Err() == nil {
		w, err := p.cfg.Kube.StorageV1().CSIDrivers().Watch(ctx, metav1.SingleObject(metav1.ObjectMeta{Name: name}))
		if err != nil {
			p.cfg.Log.Debug("following a CSIDriver failed, trying again", "driver", name, "error", err)
		} else {
			followed(ctx, w, seen)
			w.Stop()
		}
		lifecycle.Pause(ctx, followAgain)
	}
}

// followed reads a watch of one CSIDriver until it or ctx ends.
func followed(ctx context.Context, w watch.Interface, seen func(*storagev1.CSIDriver)) {
	for {
		select {
		case <-ctx.Done():
			return
		case e, ok := <-w.ResultChan():
			if !ok {
				return
			}
			if obj, ok := e.Object.(*storagev1.CSIDriver); ok && e.Type == watch.Deleted {
				seen(nil)
			} else if ok {
				seen(obj)
			}
		}
	}
}

// secret returns a Secret's keys for a driver; nil for no reference.
func (p *Plugin) secret(ctx context.Context, ref *v1.SecretReference) (map[string]string, error) {
	if ref == nil {
		return nil, nil
	}
	s, err := p.cfg.Kube.CoreV1().Secrets(ref.Namespace).Get(ctx, ref.Name, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("failed to get secret from %q:%q: %w", ref.Namespace, ref.Name, err)
	}
	out := make(map[string]string, len(s.Data))
	for k, v := range s.Data {
		out[k] = string(v)
	}
	return out, nil
}

// unstageLeft takes back volumes that are staged though no pod uses them, for a
// kubelet was killed in between.
func (p *Plugin) unstageLeft(ctx context.Context) error {
	staged, err := p.places.allStaged()
	errs := []error{err}
	for _, s := range staged {
		d, err := p.driver(ctx, s.Driver, 0)
		if err != nil {
			continue // when it registers
		}
		unlock := p.lock(s.key())
		err = p.unstage(ctx, d, s.key(), "")
		unlock()
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// missing tells whether err is that there is no such file.
func missing(err error) bool { return errors.Is(err, fs.ErrNotExist) }
