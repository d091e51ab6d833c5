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

	"hyperkube/components/kubelet/volume"
)

const freeWithin = 5 * time.Second

// TearDown implements volume.TearDowner: the disk is unmounted and, unless another pod
// uses it, taken from the kernel; with the last disk of a target the session ends. A
// disk that something else on the machine has mounted is left, and so is the pod's
// place: it would lose what is not written yet.
func (p *Plugin) TearDown(ctx context.Context, r volume.TearDownRequest) error {
	d, err := readDisk(r.Dir)
	if err != nil && !missing(err) {
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
	if err := volume.Forget(r.Dir, dataFile, mountPoint); err != nil {
		return err
	}
	p.users.Leave(r.Dir)
	return nil
}

// release takes back what no use but that at leaving needs.
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
	if err := unix.Rmdir(global); err != nil && !missing(err) {
		return fmt.Errorf("removing the volume's mount point: %w", err)
	}
	return nil
}

// detach takes a disk from the kernel, and ends the sessions that no other disk needs.
func (p *Plugin) detach(ctx context.Context, d *disk, others []use) error {
	all, err := p.kernel.sessions(d.Target, d.Interface)
	if err != nil {
		return err
	}
	var names []string
	for _, portal := range d.Portals {
		if s := through(all, portal); s != nil {
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
		s := through(all, portal)
		if needed || s != nil && p.busy(s) {
			continue
		}
		if err := logout(ctx, d, portal, s != nil); err != nil {
			return err
		}
	}
	if d.Initiator == "" || slices.ContainsFunc(others, func(u use) bool { return u.Interface == d.Interface }) {
		return nil
	}
	return ended(iscsiadm(ctx, "-m", "iface", "-I", d.Interface, "-o", "delete"))
}

// remove has the kernel forget the devices of one disk.
func (p *Plugin) remove(ctx context.Context, names []string) error {
	var whole []string
	for _, n := range names {
		if m := p.kernel.multipath(n); m != "" && !slices.Contains(whole, m) {
			whole = append(whole, m)
		}
	}
	for _, m := range whole {
		path := filepath.Join(p.cfg.Dev, m)
		if err := p.free(ctx, path); err != nil {
			return err
		}
		if out, err := volume.RunTool(ctx, "multipath", "-f", path); err != nil {
			return fmt.Errorf("iscsi: failed to flush multipath device %s: %s: %w", path, out, err)
		}
	}
	for _, n := range names {
		if err := p.free(ctx, filepath.Join(p.cfg.Dev, n)); err != nil {
			return err
		}
		if err := p.kernel.forget(n); err != nil {
			return err
		}
	}
	return nil
}

// free returns when nobody has a device mounted or made part of another.
func (p *Plugin) free(ctx context.Context, path string) error {
	state, err := p.await(ctx, p.freeWithin, func() string {
		if held(path) {
			return ""
		}
		return "free"
	})
	if err == nil && state == "" {
		err = fmt.Errorf("iscsi: device %s is still in use on this machine", path)
	}
	return err
}

// held tells whether a device is mounted, wherever, or part of another one.
func held(path string) bool {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_EXCL|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err == nil {
		unix.Close(fd)
	}
	return errors.Is(err, unix.EBUSY)
}

// busy tells whether somebody else uses disks of a session, which is not ended then.
func (p *Plugin) busy(s *session) bool {
	return slices.ContainsFunc(s.devices("*"), func(n string) bool {
		return p.kernel.multipath(n) != "" || held(filepath.Join(p.cfg.Dev, n))
	})
}

// logout ends the session through a portal, if there is one, and has open-iscsi forget
// the portal: what it remembers outlasts a reboot.
func logout(ctx context.Context, d *disk, portal string, session bool) error {
	node := []string{"-m", "node", "-p", portal, "-T", d.Target, "-I", d.Interface}
	if session {
		if err := ended(iscsiadm(ctx, append(slices.Clone(node), "--logout")...)); err != nil {
			return err
		}
	}
	return ended(iscsiadm(ctx, append(node, "-o", "delete")...))
}

// ended is the error of a call that ends something, which may have ended already: without
// the program there is nothing.
func ended(out string, err error) error {
	if err != nil && !exits(err, exitNoSession, exitNoObjects) && !errors.Is(err, exec.ErrNotFound) {
		return fmt.Errorf("iscsi: failed to detach disk: %s: %w", out, err)
	}
	return nil
}
