package iscsi

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"hyperkube/components/kubelet/pod/volume"
	"hyperkube/internal/base/broadcast"
)

// pluginName is the name of the directory of iSCSI volumes in a pod's volumes directory.
const pluginName = "kubernetes.io~iscsi"

// Config is the configuration of a Plugin.
type Config struct {
	// Root is the kubelet's root directory.
	Root string
	// Secret returns a Secret. Errors are those of the API.
	Secret func(ctx context.Context, namespace, name string) (*v1.Secret, error)
	Log    *slog.Logger
	// Node returns the Node object of the API, or nil while it is not known. The field is nil
	// without an API: then no controller attaches disks to nodes.
	Node func() *v1.Node
	// InUse is called when the result of VolumesInUse has changed. It must not block, and may be
	// nil.
	InUse func()
	// Sys and Dev are the directories of sysfs and of devices; empty means /sys and /dev.
	Sys, Dev string
}

// Plugin implements volumes on disks of iSCSI targets. It is a volume.Type for inline volumes, a
// volume.PersistentType that supports block devices, and a volume.TearDowner. Its methods are safe for
// concurrent use.
type Plugin struct {
	cfg    Config
	kernel sysfs
	// deviceTimeout is the timeout for a device to appear.
	deviceTimeout time.Duration
	// freeTimeout is the timeout for an unmounted device to become free: the kernel releases mounts
	// of exited containers with a delay.
	freeTimeout time.Duration

	// users tracks which pods' directories use disks. The status of the node reports these disks as in use.
	users volume.UseTracker

	// changed is notified when the Node has changed.
	changed broadcast.Broadcast

	mu sync.Mutex // guards targets
	// targets are locks of capacity 1, held during logins to and logouts from a target.
	targets map[string]chan struct{}
}

// New creates a Plugin. Disks that pods of an earlier kubelet use are reported as in use from the beginning. A
// damaged data file is only logged.
func New(cfg Config) *Plugin {
	if cfg.Sys == "" {
		cfg.Sys = "/sys"
	}
	if cfg.Dev == "" {
		cfg.Dev = "/dev"
	}
	p := &Plugin{
		cfg: cfg, kernel: sysfs{cfg.Sys}, deviceTimeout: defaultDeviceTimeout, freeTimeout: defaultFreeTimeout,
		targets: map[string]chan struct{}{},
	}
	p.users.Changed = cfg.InUse
	uses, err := p.uses()
	if err != nil {
		// One damaged volume must not keep the node from running pods.
		cfg.Log.Error("file with the settings of a mounted iSCSI volume is damaged, so the kubelet cannot unmount the volume and its pod does not terminate: unmount it manually and remove the file", "err", err)
	}
	for _, u := range uses {
		p.users.Use(u.unique(), u.dir)
	}
	return p
}

// Name returns the name of the directory of iSCSI volumes in a pod's volumes directory.
func (*Plugin) Name() string { return pluginName }

// Is reports whether v is an inline iSCSI volume.
func (*Plugin) Is(v *v1.Volume) bool { return v.ISCSI != nil }

// IsPersistent reports whether pv is an iSCSI volume.
func (*Plugin) IsPersistent(pv *v1.PersistentVolume) bool { return pv.Spec.ISCSI != nil }

// job is an iSCSI volume to set up for a pod. name is the name of the volume, dir the pod's directory for it,
// and options are the mount options.
type job struct {
	source
	name     string
	pod      *v1.Pod
	dir      string
	block    bool
	readOnly bool
	options  []string
}

// SetUp attaches and mounts the disk of an inline volume.
func (p *Plugin) SetUp(ctx context.Context, r volume.Request) (volume.Result, error) {
	return p.setUp(ctx, &job{source: source{ISCSIVolumeSource: *r.Volume.ISCSI}, name: r.Volume.Name, pod: r.Pod, dir: r.Dir, readOnly: r.Volume.ISCSI.ReadOnly})
}

// SetUpPersistent attaches and mounts the disk of a PersistentVolume with a file system.
func (p *Plugin) SetUpPersistent(ctx context.Context, r volume.PersistentRequest) (volume.Result, error) {
	return p.setUp(ctx, persistent(r, false))
}

// SetUpBlock attaches the disk of a PersistentVolume and returns its device.
func (p *Plugin) SetUpBlock(ctx context.Context, r volume.PersistentRequest) (volume.Result, error) {
	return p.setUp(ctx, persistent(r, true))
}

// persistent returns the job of a PersistentVolume. block is true for volumeMode Block.
func persistent(r volume.PersistentRequest, block bool) *job {
	src := ofPersistent(r.PV.Spec.ISCSI)
	return &job{source: src, name: r.PV.Name, pod: r.Pod, dir: r.Dir, block: block, readOnly: r.ReadOnly || src.ReadOnly, options: r.PV.Spec.MountOptions}
}

// failure returns no Result and a Failure, for the pod's events, of a step such as "MountDevice".
func (j *job) failure(step string, err error) (volume.Result, error) {
	kind := "MountVolume."
	if j.block {
		kind = "MapVolume."
	}
	return volume.Result{}, &volume.Failure{Operation: kind + step, Volume: j.name, Err: err}
}

// setUp waits until the attach-detach controller has attached the disk to this node, logs in to the target, and
// mounts the disk unless it is a block volume. If the disk is already mounted for the pod, it does nothing. The
// data for the teardown is saved before the login.
func (p *Plugin) setUp(ctx context.Context, j *job) (volume.Result, error) {
	d, err := newDisk(j.name, &j.ISCSIVolumeSource)
	if err != nil {
		return j.failure("WaitForAttach", err)
	}
	at := filepath.Join(j.dir, mountPoint)
	result := volume.Result{Path: at, ReadOnly: j.readOnly, Persistent: true, Relabel: !j.readOnly}
	if !j.block {
		if mounted, err := mountinfo.Mounted(at); err == nil && mounted {
			return result, nil
		}
	}
	// The directory triggers TearDown when the pod terminates.
	if err := os.MkdirAll(j.dir, 0o750); err != nil {
		return volume.Result{}, fmt.Errorf("creating the volume's directory: %w", err)
	}
	p.users.Use(d.unique(), j.dir)
	if err := p.awaitAttached(ctx, d); err != nil {
		return volume.Result{}, err
	}
	unlock, err := p.lock(ctx, d.Target)
	if err != nil {
		return volume.Result{}, err
	}
	defer unlock()
	c := chap{discovery: j.DiscoveryCHAPAuth, session: j.SessionCHAPAuth}
	if c.secret, err = p.secret(ctx, j); err != nil {
		return j.failure("WaitForAttach", err)
	}
	if err := volume.SaveData(j.dir, dataFile, d); err != nil {
		return j.failure("WaitForAttach", err)
	}
	device, err := p.attach(ctx, d, c)
	if err != nil {
		return j.failure("WaitForAttach", err)
	}
	if j.block {
		return volume.Result{Device: device, ReadOnly: j.readOnly, Persistent: true}, nil
	}
	if err := p.mount(ctx, j, d, device, at); err != nil {
		return j.failure("MountDevice", err)
	}
	return result, nil
}

// attachTimeout is the timeout for the controller to attach a disk to the node, as in upstream.
const attachTimeout = 2*time.Minute + 3*time.Second

// awaitAttached waits until the attach-detach controller has attached the disk to this node, because the
// controller attaches a volume that only one node may use to one node at a time. It returns ctx's error or a
// timeout. Without an API server it does not wait.
func (p *Plugin) awaitAttached(ctx context.Context, d *disk) error {
	if p.cfg.Node == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, attachTimeout)
	defer cancel()
	for {
		changed := p.changed.Next()
		if volume.Attached(p.cfg.Node(), d.unique()) {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Observe must be called when the Node object has changed, because the setup of volumes waits until the Node
// shows them as attached.
func (p *Plugin) Observe() {
	p.changed.Send()
}

// mount mounts the device once for all pods of the node, formats it if it is empty, changes its group to the
// pod's fsGroup, and bind-mounts it at the pod's path at. A read-only volume is neither formatted nor changed.
func (p *Plugin) mount(ctx context.Context, j *job, d *disk, device, at string) error {
	global := p.global(d)
	for _, dir := range []string{global, at} {
		if err := os.MkdirAll(dir, 0o750); err != nil {
			return fmt.Errorf("creating a mount point for the volume: %w", err)
		}
	}
	if err := volume.MountDevice(ctx, device, global, j.FSType, j.options, j.readOnly); err != nil {
		return err
	}
	// The group is set before the mount for the pod, so that a kubelet killed in between sets it
	// again.
	if s := j.pod.Spec.SecurityContext; s != nil && s.FSGroup != nil && !j.readOnly {
		if err := volume.ChangeGroup(j.pod, global, *s.FSGroup, nil); err != nil {
			return err
		}
	}
	if err := unix.Mount(global, at, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("mounting %s at %s: %w", global, at, err)
	}
	return nil
}

// global returns the path where a disk is mounted once for all pods of the node that use it.
func (p *Plugin) global(d *disk) string {
	return filepath.Join(p.cfg.Root, "plugins", "kubernetes.io", "iscsi", d.key().dirName())
}

// secret returns the data of the Secret with the CHAP credentials of the volume, or nil if the volume does
// not use CHAP or has no Secret.
func (p *Plugin) secret(ctx context.Context, j *job) (map[string]string, error) {
	if !j.DiscoveryCHAPAuth && !j.SessionCHAPAuth || j.SecretRef == nil || j.SecretRef.Name == "" {
		return nil, nil
	}
	namespace := j.namespace
	if namespace == "" {
		namespace = j.pod.Namespace
	}
	s, err := p.cfg.Secret(ctx, namespace, j.SecretRef.Name)
	if err != nil {
		return nil, fmt.Errorf("couldn't get secret %s/%s error: %w", namespace, j.SecretRef.Name, err)
	}
	out := make(map[string]string, len(s.Data))
	for k, v := range s.Data {
		out[k] = string(v)
	}
	return out, nil
}

// lock locks a target, so that only one goroutine at a time logs in to the target or logs out. The caller
// must call unlock. The error is that of ctx.
func (p *Plugin) lock(ctx context.Context, target string) (unlock func(), err error) {
	p.mu.Lock()
	l := p.targets[target]
	if l == nil {
		l = make(chan struct{}, 1)
		p.targets[target] = l
	}
	p.mu.Unlock()
	select {
	case l <- struct{}{}:
		return func() { <-l }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// VolumesInUse returns the disks that pods of this node use, sorted. The attach-detach controller must not
// attach them to other nodes.
func (p *Plugin) VolumesInUse() []v1.UniqueVolumeName { return p.users.InUse() }

// isNotExist reports whether err means that a file or directory does not exist. The teardown of a volume then
// continues.
func isNotExist(err error) bool { return errors.Is(err, os.ErrNotExist) }
