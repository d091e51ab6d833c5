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

	"hyperkube/components/kubelet/volume"
)

// pluginName is the folder's name below a pod's volumes.
const pluginName = "kubernetes.io~iscsi"

// Config of a Plugin.
type Config struct {
	// Root is the kubelet's root directory.
	Root string
	// Secret gets a Secret; its errors are the API's.
	Secret func(ctx context.Context, namespace, name string) (*v1.Secret, error)
	Log    *slog.Logger
	// Node returns the Node as the API has it, nil while it is not known; nil without
	// an API: then nobody else gives disks to nodes.
	Node func() *v1.Node
	// InUse is called, and must not block, when what InUse returns has changed; may be
	// nil.
	InUse func()
	// Sys and Dev are where the kernel tells of disks, /sys and /dev if empty.
	Sys, Dev string
}

// Plugin uses disks of targets. Its methods are safe for several goroutines. It is
// a volume.Type for inline volumes, a volume.PersistentType whose volumes can be
// devices, and a volume.TearDowner.
type Plugin struct {
	cfg    Config
	kernel kernel
	// deviceWithin is how long a device may take to be there.
	deviceWithin time.Duration
	// freeWithin is how long a device that was unmounted may be held: the kernel lets
	// go of what ended containers had mounted a little later.
	freeWithin time.Duration

	// users of disks, by the pods' own places; the node's status tells of them.
	users volume.Users

	mu sync.Mutex // guards what follows
	// targets are locked while one logs in or out; a lock has capacity 1.
	targets map[string]chan struct{}
	// changed is closed, and another made, when the Node has changed.
	changed chan struct{}
}

// New makes a Plugin. What earlier kubelets left is in use at once.
func New(cfg Config) *Plugin {
	if cfg.Sys == "" {
		cfg.Sys = "/sys"
	}
	if cfg.Dev == "" {
		cfg.Dev = "/dev"
	}
	p := &Plugin{
		cfg: cfg, kernel: kernel{cfg.Sys}, deviceWithin: deviceWithin, freeWithin: freeWithin,
		targets: map[string]chan struct{}{}, changed: make(chan struct{}),
	}
	p.users.Changed = cfg.InUse
	uses, err := p.uses()
	if err != nil {
		// One volume must not keep the node from running pods.
		cfg.Log.Error("what is known of a volume is damaged: unmount it by hand and remove the file", "error", err)
	}
	for _, u := range uses {
		p.users.Use(u.unique(), u.dir)
	}
	return p
}

// Name implements volume.Type and volume.PersistentType.
func (*Plugin) Name() string { return pluginName }

// Is implements volume.Type.
func (*Plugin) Is(v *v1.Volume) bool { return v.ISCSI != nil }

// IsPersistent implements volume.PersistentType.
func (*Plugin) IsPersistent(pv *v1.PersistentVolume) bool { return pv.Spec.ISCSI != nil }

// job is a disk to be made usable for a pod.
type job struct {
	source
	name     string
	pod      *v1.Pod
	dir      string
	block    bool
	readOnly bool
	options  []string
}

// SetUp implements volume.Type.
func (p *Plugin) SetUp(ctx context.Context, r volume.Request) (volume.Result, error) {
	return p.setUp(ctx, &job{source: source{ISCSIVolumeSource: *r.Volume.ISCSI}, name: r.Volume.Name, pod: r.Pod, dir: r.Dir, readOnly: r.Volume.ISCSI.ReadOnly})
}

// SetUpPersistent implements volume.PersistentType.
func (p *Plugin) SetUpPersistent(ctx context.Context, r volume.PersistentRequest) (volume.Result, error) {
	return p.setUp(ctx, persistent(r, false))
}

// SetUpBlock implements volume.BlockType.
func (p *Plugin) SetUpBlock(ctx context.Context, r volume.PersistentRequest) (volume.Result, error) {
	return p.setUp(ctx, persistent(r, true))
}

func persistent(r volume.PersistentRequest, block bool) *job {
	src := ofPersistent(r.PV.Spec.ISCSI)
	return &job{source: src, name: r.PV.Name, pod: r.Pod, dir: r.Dir, block: block, readOnly: r.ReadOnly || src.ReadOnly, options: r.PV.Spec.MountOptions}
}

// failure names the step that failed as upstream's events do.
func (j *job) failure(step string, err error) (volume.Result, error) {
	kind := "MountVolume."
	if j.block {
		kind = "MapVolume."
	}
	return volume.Result{}, &volume.Failure{Operation: kind + step, Volume: j.name, Err: err}
}

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
	// By it the pod's end is heard of.
	if err := os.MkdirAll(j.dir, 0o750); err != nil {
		return volume.Result{}, fmt.Errorf("making the volume's directory: %w", err)
	}
	p.users.Use(d.unique(), j.dir)
	if err := p.given(ctx, d); err != nil {
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
	if err := volume.Keep(j.dir, dataFile, d); err != nil {
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

// givenWithin bounds the wait for a disk to be given to the node, as upstream does.
const givenWithin = 2*time.Minute + 3*time.Second

// given waits until the controller has given a disk to this node: it gives a persistent
// volume that only one node may have to one alone.
func (p *Plugin) given(ctx context.Context, d *disk) error {
	if p.cfg.Node == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, givenWithin)
	defer cancel()
	for {
		p.mu.Lock()
		changed := p.changed
		p.mu.Unlock()
		if volume.Given(p.cfg.Node(), d.unique()) {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Observe says that the Node has changed.
func (p *Plugin) Observe() {
	p.mu.Lock()
	defer p.mu.Unlock()
	close(p.changed)
	p.changed = make(chan struct{})
}

// mount mounts a device, for all pods once, and that for the pod.
func (p *Plugin) mount(ctx context.Context, j *job, d *disk, device, at string) error {
	global := p.global(d)
	for _, dir := range []string{global, at} {
		if err := os.MkdirAll(dir, 0o750); err != nil {
			return fmt.Errorf("making a place for the volume: %w", err)
		}
	}
	if err := volume.MountDevice(ctx, device, global, j.FSType, j.options, j.readOnly); err != nil {
		return err
	}
	// What is mounted for the pod is ready: whoever is killed before does this again.
	if s := j.pod.Spec.SecurityContext; s != nil && s.FSGroup != nil && !j.readOnly {
		if err := volume.GiveTo(j.pod, global, *s.FSGroup, nil); err != nil {
			return err
		}
	}
	if err := unix.Mount(global, at, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("mounting %s at %s: %w", global, at, err)
	}
	return nil
}

// global is where a disk is mounted for all pods.
func (p *Plugin) global(d *disk) string {
	return filepath.Join(p.cfg.Root, "plugins", "kubernetes.io", "iscsi", d.key().folder())
}

// secret returns what the pod's volume refers to for CHAP.
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

// lock makes the caller the only one who works on a target's disks until unlock is
// called.
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

// VolumesInUse returns the disks that must not be given to other nodes, sorted.
func (p *Plugin) VolumesInUse() []v1.UniqueVolumeName { return p.users.InUse() }

// missing tells whether err is that there is no such file.
func missing(err error) bool { return errors.Is(err, os.ErrNotExist) }
