package iscsi

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// session is a session with a target, as the kernel tells of it.
type session struct {
	// dir is the session's own, below that of its SCSI host.
	dir string
	// host is the name of the SCSI host, such as host3.
	host string
	// portals of its connections: as they are now, and as they were asked for.
	portals []string
}

// kernel reads and writes what the kernel tells of disks; root is /sys.
type kernel struct{ root string }

// sessions are those with a target over an interface.
func (k kernel) sessions(target, face string) ([]session, error) {
	links, err := filepath.Glob(filepath.Join(k.root, "class", "iscsi_session", "session*"))
	if err != nil {
		return nil, fmt.Errorf("iscsi: looking for sessions: %w", err)
	}
	var out []session
	for _, link := range links {
		if text(link, "targetname") != target || text(link, "ifacename") != face {
			continue
		}
		dir, err := filepath.EvalSymlinks(filepath.Join(link, "device"))
		if errors.Is(err, fs.ErrNotExist) {
			continue // it has just ended
		}
		if err != nil {
			return nil, fmt.Errorf("iscsi: looking at a session: %w", err)
		}
		s := session{dir: dir, host: filepath.Base(filepath.Dir(dir))}
		connections, err := filepath.Glob(filepath.Join(dir, "connection*", "iscsi_connection", "connection*"))
		if err != nil {
			return nil, fmt.Errorf("iscsi: looking for connections: %w", err)
		}
		for _, c := range connections {
			s.portals = append(s.portals,
				net.JoinHostPort(text(c, "address"), text(c, "port")),
				net.JoinHostPort(text(c, "persistent_address"), text(c, "persistent_port")))
		}
		out = append(out, s)
	}
	return out, nil
}

// through returns the session that goes through a portal, nil if there is none.
func through(all []session, portal string) *session {
	for i := range all {
		if slices.Contains(all[i].portals, portal) {
			return &all[i]
		}
	}
	return nil
}

// text is an attribute, empty if there is none.
func text(dir, name string) string {
	raw, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(raw))
}

// set writes an attribute.
func set(path, value string) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = f.WriteString(value)
	return err
}

// scan has the kernel look for one disk. Others of the target stay unknown to it: what
// the target takes away later would be missed.
func (k kernel) scan(s *session, lun int32) error {
	if err := set(filepath.Join(k.root, "class", "scsi_host", s.host, "scan"), fmt.Sprintf("0 0 %d", lun)); err != nil {
		return fmt.Errorf("iscsi: looking for LUN %d: %w", lun, err)
	}
	return nil
}

// device is the name of a session's disk, such as sdb; empty while there is none.
func (s *session) device(lun int32) string {
	list := s.devices(fmt.Sprint(lun))
	if len(list) == 0 {
		return ""
	}
	return list[0]
}

// devices are the names of a session's disks whose LUN matches a pattern.
func (s *session) devices(lun string) []string {
	found, err := filepath.Glob(filepath.Join(s.dir, "target*", "*:*:*:"+lun, "block", "*"))
	if err != nil {
		return nil // a pattern of ours is none that is wrong
	}
	for i := range found {
		found[i] = filepath.Base(found[i])
	}
	return found
}

// multipath is the device that is made of several ways to one disk, such as dm-3, of
// which a device is one; empty if there is none.
func (k kernel) multipath(device string) string {
	slaves, err := filepath.Glob(filepath.Join(k.root, "block", "dm-*", "slaves", device))
	if err != nil {
		return ""
	}
	for _, s := range slaves {
		dm := filepath.Dir(filepath.Dir(s))
		// Others are made of the disk's content, by LVM for example.
		if strings.HasPrefix(text(dm, "dm/uuid"), "mpath-") {
			return filepath.Base(dm)
		}
	}
	return ""
}

// forget has the kernel forget a disk.
func (k kernel) forget(device string) error {
	err := set(filepath.Join(k.root, "block", device, "device", "delete"), "1")
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("iscsi: removing device %s: %w", device, err)
	}
	return nil
}
