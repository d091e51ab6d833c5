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
	"hyperkube/components/kubelet/pod/volume"
	"hyperkube/components/kubelet/telemetry"
	"hyperkube/internal/base/backoff"
	"hyperkube/internal/base/broadcast"
	"hyperkube/internal/base/lifecycle"
)

// Tokens provides service account tokens that are bound to pods, for drivers that require them.
type Tokens interface {
	// Bound returns a token for an audience, when it expires, and when it must be refreshed. An
	// empty audience is that of the API server. seconds may be nil.
	Bound(ctx context.Context, pod *v1.Pod, audience string, seconds *int64) (token string, expires, refresh time.Time, err error)
}

// Config is the configuration of a Plugin.
type Config struct {
	// Root is the kubelet's root directory.
	Root, NodeName string
	// Kube may be nil: then there are no CSIDrivers and no CSINode.
	Kube kubernetes.Interface
	// Node returns the Node object of the API, or nil while it is not known.
	Node   func() *v1.Node
	Tokens Tokens
	Events record.EventRecorder
	Log    *slog.Logger
	// Metrics counts calls to drivers; it may be nil.
	Metrics *telemetry.Volumes
	// FileLabel returns the SELinux label of the files of a container with these options, empty if
	// it is not known; nil without SELinux.
	FileLabel func(*v1.SELinuxOptions) string
	// InUse is called when the result of VolumesInUse has changed, Registered when a driver has
	// registered. They must not block, and may be nil.
	InUse, Registered func()
}

// Plugin implements volumes of CSI drivers. It is the pluginwatch.Handler of plugins of the type CSIPlugin, a
// volume.Type for inline volumes and a volume.PersistentType. Its methods are safe for concurrent use.
//
// Size: it implements three interfaces, and staging, publishing, expansion and attach limits of a volume
// share the locks of volumes and the registered drivers.
type Plugin struct {
	cfg    Config
	places places
	sweep  chan struct{} // capacity 1; triggers a search for staged volumes that no pod uses

	// users tracks which directories use attachable volumes: the directories in pods' directories, and those
	// of staged volumes. The status of the node reports these volumes as in use.
	users volume.UseTracker

	// changed is notified when the node, the drivers or the attachments have changed.
	changed broadcast.Broadcast

	mu      sync.Mutex // guards the following fields
	drivers map[string]*driver
	// published maps the directories of volumes that this process has published to the volumes. staged
	// is the set of volumes that this process has staged.
	published map[string]key
	staged    map[key]bool
	// expansions has an entry for each volume in published.
	expansions map[key]expansion
	locks      map[key]*volumeLock

	// attachTimeout is the timeout for attaching a volume.
	attachTimeout time.Duration
	csiNode       sync.Mutex // serializes changes of the CSINode
}

// volumeLock is the lock of a volume, during calls of the driver about it. waiting is the number of
// goroutines that hold the lock or wait for it.
type volumeLock struct {
	sync.Mutex
	waiting int // guarded by Plugin.mu
}

// New creates a Plugin. Attachable volumes that earlier kubelets have published or staged are reported as in
// use from the beginning. A damaged data file is only logged.
func New(cfg Config) (*Plugin, error) {
	p := &Plugin{
		cfg: cfg, places: places{cfg.Root}, sweep: make(chan struct{}, 1), drivers: map[string]*driver{},
		published: map[string]key{}, expansions: map[key]expansion{}, staged: map[key]bool{}, locks: map[key]*volumeLock{}, attachTimeout: defaultAttachTimeout,
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
		// One damaged volume must not keep the node from running pods.
		cfg.Log.Error("file with the settings of a mounted CSI volume is damaged, so the kubelet cannot unmount the volume and its pod does not terminate: unmount it manually and remove the file", "err", err)
	}
	for _, s := range staged {
		if s.Attachment != "" {
			p.users.Use(s.key().unique(), p.places.staged(s.key()))
		}
	}
	return p, nil
}

// retryFirst and retryMax are the first and the longest delay before unstaging a volume is tried again, as in
// upstream.
const (
	retryFirst = 500 * time.Millisecond
	retryMax   = 2*time.Minute + 2*time.Second
)

// Run creates the CSINode and unstages volumes that no pod uses, until ctx is done. It retries failures with
// a back-off, and immediately when a driver registers. When it returns, the connections to drivers are
// closed.
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
		p.ensureCSINode(ctx)
	})
	retry := backoff.Backoff{First: retryFirst, Max: retryMax}
	for {
		var again <-chan time.Time
		if err := p.unstageUnused(ctx); err != nil && ctx.Err() == nil {
			wait := retry.Next()
			p.cfg.Log.Warn("unstaging unused CSI volumes failed; they remain mounted on the node and are not detached from it until a retry succeeds", "err", err, "retryIn", wait)
			again = time.After(wait)
		} else {
			retry.Reset()
		}
		select {
		case <-ctx.Done():
			return nil
		case <-p.sweep:
		case <-again:
		}
	}
}

// Register connects to a driver that has registered on the node, queries its capabilities, and, if there is an
// API server, adds it to the CSINode. If it returns an error, the driver is not used, and the error is reported
// to the driver. A driver of the same name is replaced.
func (p *Plugin) Register(ctx context.Context, plugin pluginwatch.Plugin) error {
	if err := checkPlugin(plugin); err != nil {
		return err
	}
	d, err := dial(plugin, p.cfg.Metrics)
	if err != nil {
		return err
	}
	err = d.queryInfo(ctx)
	if err == nil {
		err = p.registerDriver(ctx, d)
	}
	if err != nil {
		d.conn.Close()
		return err
	}
	// The driver stays registered after the registration call has returned.
	follow, stop := context.WithCancel(context.WithoutCancel(ctx))
	d.stop, d.watchDone = stop, make(chan struct{})
	go func() {
		defer close(d.watchDone)
		if p.cfg.Kube != nil {
			p.updateLimitPeriodically(follow, d)
		}
	}()
	p.mu.Lock()
	old := p.drivers[plugin.Name]
	p.drivers[plugin.Name] = d
	p.changed.Send()
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

// sweepSoon triggers Run to search for staged volumes that no pod uses. It does not block.
func (p *Plugin) sweepSoon() {
	select {
	case p.sweep <- struct{}{}:
	default:
	}
}

// Deregister disconnects from a driver whose socket was removed, and removes the driver from the CSINode. It
// does nothing if another instance of the driver has registered since.
func (p *Plugin) Deregister(plugin pluginwatch.Plugin) {
	p.mu.Lock()
	d := p.drivers[plugin.Name]
	if d == nil || d.plugin.Socket != plugin.Socket {
		// Another instance of the driver has replaced it.
		p.mu.Unlock()
		return
	}
	delete(p.drivers, plugin.Name)
	p.mu.Unlock()
	d.close()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := p.unregisterDriver(ctx, plugin.Name); err != nil {
		p.cfg.Log.Warn("removing CSI driver from the CSINode failed; the scheduler may assign pods that need the driver to this node, where they wait until the driver registers again; no retry", "driver", plugin.Name, "err", err)
	}
}

// Observe must be called when the Node object has changed, because the setup of volumes waits until the Node
// shows them as attached.
func (p *Plugin) Observe() {
	p.changed.Send()
}

// await returns nil when ok returns true, or ctx's error. It calls ok first immediately, and then after every
// change of the Node, of attachments and of the registered drivers.
func (p *Plugin) await(ctx context.Context, ok func() bool) error {
	for {
		changed := p.changed.Next()
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

// driver returns the registered driver of that name. If there is none, it waits at most wait for the driver
// to register, and then returns an error.
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

// lock locks the volume k, so that only one goroutine at a time calls the driver about it. The caller must
// call unlock.
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

// VolumesInUse returns the volumes that must not be detached from this node, because pods use them or they are
// still staged, sorted. The kubelet reports them in volumesInUse of the Node status.
func (p *Plugin) VolumesInUse() []v1.UniqueVolumeName { return p.users.InUse() }

// driverObject returns the CSIDriver object of a driver, or nil if there is none or no API server.
func (p *Plugin) driverObject(ctx context.Context, name string) (*storagev1.CSIDriver, error) {
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

// defaultAttachTimeout is the timeout for attaching a volume, as in upstream.
const defaultAttachTimeout = 2*time.Minute + 3*time.Second

// attachment waits until the volume k is attached to this node, and returns the publish context of its
// VolumeAttachment, which the driver requires. Before that it records dir, the pod's directory, as a user, so
// that the Node status reports the volume as in use and the volume is not detached immediately. It returns
// errNoAttachRequired if the CSIDriver changes during the wait so that it does not require attachment, and
// volume.ErrAttachLimit if the wait timed out because the node has reached the driver's maximum number of
// volumes.
func (p *Plugin) attachment(ctx context.Context, k key, dir string) (map[string]string, error) {
	name := k.unique()
	p.users.Use(name, dir)
	wait, cancel := context.WithTimeout(ctx, p.attachTimeout)
	defer cancel()
	there := func() bool { return volume.Attached(p.cfg.Node(), name) }
	if !there() {
		follow, stop := context.WithCancelCause(wait)
		var following sync.WaitGroup
		following.Go(func() {
			p.watchDriverObject(follow, k.driver, func(obj *storagev1.CSIDriver) {
				if obj != nil && obj.Spec.AttachRequired != nil && !*obj.Spec.AttachRequired {
					stop(errNoAttachRequired)
				}
			})
		})
		err := p.await(follow, there)
		if cause := context.Cause(follow); err != nil && errors.Is(cause, errNoAttachRequired) {
			err = cause
		}
		stop(nil)
		following.Wait()
		if errors.Is(err, context.DeadlineExceeded) {
			full, why := p.limitReached(ctx, k)
			if why != nil {
				p.cfg.Log.Debug("CSI volume was not attached in time, and checking whether the attach limit is the cause failed; reporting a timeout in an event of the pod", "volume", k.unique(), "err", why)
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

// errNoAttachRequired is returned by attachment when the CSIDriver has changed so that it does not require
// attachment.
var errNoAttachRequired = errors.New("the driver does not require attachment")

// watchRetryDelay is the delay before a watch of a CSIDriver that was closed or failed is restarted.
const watchRetryDelay = time.Second

// watchDriverObject watches the CSIDriver object of that name until ctx is done. It calls seen with the
// current object and after each change, and with nil after its deletion.
func (p *Plugin) watchDriverObject(ctx context.Context, name string, seen func(*storagev1.CSIDriver)) {
	for ctx.Err() == nil {
		w, err := p.cfg.Kube.StorageV1().CSIDrivers().Watch(ctx, metav1.SingleObject(metav1.ObjectMeta{Name: name}))
		if err != nil {
			p.cfg.Log.Debug("watching CSIDriver failed, using its last known settings until a retry succeeds, retrying in a second", "driver", name, "err", err)
		} else {
			handleDriverEvents(ctx, w, seen)
			w.Stop()
		}
		lifecycle.Pause(ctx, watchRetryDelay)
	}
}

// handleDriverEvents calls seen for each event of the watch w of one CSIDriver, until the watch is closed or ctx is
// done. For a deletion, seen gets nil.
func handleDriverEvents(ctx context.Context, w watch.Interface, seen func(*storagev1.CSIDriver)) {
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

// secret returns the data of the Secret that ref refers to, or nil if ref is nil.
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

// unstageUnused calls the drivers to unstage volumes that no pod uses. Such volumes remain if a kubelet was
// killed or an earlier attempt has failed. Volumes whose driver is not registered are skipped. It returns the
// errors of all volumes; the other volumes are unstaged nevertheless.
func (p *Plugin) unstageUnused(ctx context.Context) error {
	staged, err := p.places.allStaged()
	errs := []error{err}
	for _, s := range staged {
		d, err := p.driver(ctx, s.Driver, 0)
		if err != nil {
			continue // retried when it registers
		}
		unlock := p.lock(s.key())
		err = p.unstage(ctx, d, s.key(), "")
		unlock()
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// isNotExist reports whether err means that a file does not exist.
func isNotExist(err error) bool { return errors.Is(err, fs.ErrNotExist) }
