package iscsi

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"hyperkube/components/kubelet/pod/volume"
)

// defaultFreeTimeout is how long the teardown of a disk waits for its unmounted device to become free.
const defaultFreeTimeout = 5 * time.Second

// TearDown unmounts the disk for a terminated pod and, unless another pod uses the disk, removes it from the
// kernel. With the last disk of a target it also closes the iSCSI session. If another program on the machine
// has mounted the disk too, TearDown unmounts it for the pod and then fails: the disk and the pod's directory
// remain, because unwritten data would be lost. Without a data file, only the directory is removed; a damaged
// one is an error.
func (p *Plugin) TearDown(ctx context.Context, r volume.TearDownRequest) error {
	d, err := readDisk(r.Dir)
	if err != nil && !isNotExist(err) {
		return err
	}
	at := filepath.Join(r.Dir, mountPoint)
	if err == nil {
		unlock, err := p.lock(ctx, d.Target)
		if err != nil {
			return err
		}
		defer unlock()
		if err := volume.Unmount(at); err != nil {
			return err
		}
		if err := p.release(ctx, d, r.Dir); err != nil {
			return fmt.Errorf("UnmountDevice failed for volume %q : %w", d.Volume, err)
		}
	}
	if err := volume.RemoveData(r.Dir, dataFile, mountPoint); err != nil {
		return err
	}
	p.users.Release(r.Dir)
	return nil
}

// release unmounts and detaches the disk d unless a pod uses it. leaving is the directory of the terminating
// pod, which does not count. The caller must hold the target's lock.
func (p *Plugin) release(ctx context.Context, d *disk, leaving string) error {
	others, err := p.uses()
	if err != nil {
		return err
	}
	others = slices.DeleteFunc(others, func(u use) bool { return u.dir == leaving })
	if slices.ContainsFunc(others, func(u use) bool { return u.key() == d.key() }) {
		return nil
	}
	global := p.global(d)
	if err := volume.Unmount(global); err != nil {
		return err
	}
	if err := p.detach(ctx, d, others); err != nil {
		return err
	}
	if err := unix.Rmdir(global); err != nil && !isNotExist(err) {
		return fmt.Errorf("removing the volume's mount point: %w", err)
	}
	return nil
}

// detach removes a disk from the kernel, closes the sessions that neither a disk of others nor another program
// uses, and deletes the interface of the disk's initiator name unless a disk of others uses it. others are the
// remaining uses of disks on this node.
func (p *Plugin) detach(ctx context.Context, d *disk, others []use) error {
	all, err := p.kernel.sessions(d.Target, d.Interface)
	if err != nil {
		return err
	}
	var names []string
	for _, portal := range d.Portals {
		if s := sessionWithPortal(all, portal); s != nil {
			names = append(names, s.devices(fmt.Sprint(d.LUN))...)
		}
	}
	slices.Sort(names)
	if err := p.remove(ctx, slices.Compact(names)); err != nil {
		return err
	}
	for _, portal := range d.Portals {
		needed := slices.ContainsFunc(others, func(u use) bool {
			return u.Target == d.Target && u.Interface == d.Interface && slices.Contains(u.Portals, portal)
		})
		s := sessionWithPortal(all, portal)
		if needed || s != nil && p.sessionInUse(s) {
			continue
		}
		if err := logout(ctx, d, portal, s != nil); err != nil {
			return err
		}
	}
	if d.Initiator == "" || slices.ContainsFunc(others, func(u use) bool { return u.Interface == d.Interface }) {
		return nil
	}
	return ignoreNotFound(iscsiadm(ctx, "-m", "iface", "-I", d.Interface, "-o", "delete"))
}

// remove removes the devices of one disk, and its multipath device, from the kernel. names are the devices,
// one for each session. It returns an error if a device does not become free.
func (p *Plugin) remove(ctx context.Context, names []string) error {
	var whole []string
	for _, n := range names {
		if m := p.kernel.multipath(n); m != "" && !slices.Contains(whole, m) {
			whole = append(whole, m)
		}
	}
	for _, m := range whole {
		path := filepath.Join(p.cfg.Dev, m)
		if err := p.awaitFree(ctx, path); err != nil {
			return err
		}
		if out, err := volume.RunTool(ctx, "multipath", "-f", path); err != nil {
			return fmt.Errorf("iscsi: failed to flush multipath device %s: %s: %w", path, out, err)
		}
	}
	for _, n := range names {
		if err := p.awaitFree(ctx, filepath.Join(p.cfg.Dev, n)); err != nil {
			return err
		}
		if err := p.kernel.removeDevice(n); err != nil {
			return err
		}
	}
	return nil
}

// awaitFree waits until the device at path is neither mounted nor part of another device. It returns an error
// after freeTimeout.
func (p *Plugin) awaitFree(ctx context.Context, path string) error {
	state, err := p.poll(ctx, p.freeTimeout, func() string {
		if inUse(path) {
			return ""
		}
		return "free"
	})
	if err == nil && state == "" {
		err = fmt.Errorf("iscsi: device %s is still in use on this machine", path)
	}
	return err
}

// inUse reports whether a device is mounted in any mount namespace or is part of another device. A device that
// cannot be opened for another reason is not in use.
func inUse(path string) bool {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_EXCL|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err == nil {
		unix.Close(fd)
	}
	return errors.Is(err, unix.EBUSY)
}

// sessionInUse reports whether any disk of a session is mounted or part of another device, for example by
// another program, so that the session must not be closed.
func (p *Plugin) sessionInUse(s *session) bool {
	return slices.ContainsFunc(s.devices("*"), func(n string) bool {
		return p.kernel.multipath(n) != "" || inUse(filepath.Join(p.cfg.Dev, n))
	})
}

// logout deletes open-iscsi's record of the portal, which would persist across reboots. If session is true,
// it first closes the session through the portal.
func logout(ctx context.Context, d *disk, portal string, session bool) error {
	node := []string{"-m", "node", "-p", portal, "-T", d.Target, "-I", d.Interface}
	if session {
		if err := ignoreNotFound(iscsiadm(ctx, append(slices.Clone(node), "--logout")...)); err != nil {
			return err
		}
	}
	return ignoreNotFound(iscsiadm(ctx, append(node, "-o", "delete")...))
}

// ignoreNotFound returns the error of a logout or deletion by iscsiadm, with the program's output out, for the
// pod's events. It returns nil if err is nil, if the object does not exist, or if the program is not installed.
func ignoreNotFound(out string, err error) error {
	if err != nil && !exitedWith(err, exitNoSession, exitNoObjects) && !errors.Is(err, exec.ErrNotFound) {
		return fmt.Errorf("iscsi: failed to detach disk: %s: %w", out, err)
	}
	return nil
}
