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

// session is an iSCSI session of the host with a target, as sysfs presents it.
type session struct {
	// dir is the directory of the session, below that of its SCSI host.
	dir string
	// host is the name of the SCSI host, such as host3.
	host string
	// portals are the current and the configured portals of its connections.
	portals []string
}

// sysfs reads and changes the kernel's state of iSCSI sessions and disks. root is the mount point of sysfs,
// normally /sys.
type sysfs struct{ root string }

// sessions returns the host's sessions with a target on the iSCSI interface face.
func (k sysfs) sessions(target, face string) ([]session, error) {
	links, err := filepath.Glob(filepath.Join(k.root, "class", "iscsi_session", "session*"))
	if err != nil {
		return nil, fmt.Errorf("iscsi: looking for sessions: %w", err)
	}
	var out []session
	for _, link := range links {
		if readAttribute(link, "targetname") != target || readAttribute(link, "ifacename") != face {
			continue
		}
		dir, err := filepath.EvalSymlinks(filepath.Join(link, "device"))
		if errors.Is(err, fs.ErrNotExist) {
			continue // the session was just closed
		}
		if err != nil {
			return nil, fmt.Errorf("iscsi: reading a session: %w", err)
		}
		s := session{dir: dir, host: filepath.Base(filepath.Dir(dir))}
		connections, err := filepath.Glob(filepath.Join(dir, "connection*", "iscsi_connection", "connection*"))
		if err != nil {
			return nil, fmt.Errorf("iscsi: looking for connections: %w", err)
		}
		for _, c := range connections {
			s.portals = append(s.portals,
				net.JoinHostPort(readAttribute(c, "address"), readAttribute(c, "port")),
				net.JoinHostPort(readAttribute(c, "persistent_address"), readAttribute(c, "persistent_port")))
		}
		out = append(out, s)
	}
	return out, nil
}

// sessionWithPortal returns the session of all that has a connection through the portal, or nil.
func sessionWithPortal(all []session, portal string) *session {
	for i := range all {
		if slices.Contains(all[i].portals, portal) {
			return &all[i]
		}
	}
	return nil
}

// readAttribute returns the value of the sysfs attribute name in dir, or "" if it cannot be read.
func readAttribute(dir, name string) string {
	raw, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(raw))
}

// writeAttribute writes value to the sysfs attribute at path, which must exist.
func writeAttribute(path, value string) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = f.WriteString(value)
	return err
}

// scan makes the kernel look for the disk with that LUN in a session. It does not scan for other disks of the
// target, because the kernel would not notice their removal from the target.
func (k sysfs) scan(s *session, lun int32) error {
	if err := writeAttribute(filepath.Join(k.root, "class", "scsi_host", s.host, "scan"), fmt.Sprintf("0 0 %d", lun)); err != nil {
		return fmt.Errorf("iscsi: scanning for LUN %d: %w", lun, err)
	}
	return nil
}

// device returns the name of the session's disk with that LUN, such as sdb, or "" if the kernel has not
// created it yet.
func (s *session) device(lun int32) string {
	list := s.devices(fmt.Sprint(lun))
	if len(list) == 0 {
		return ""
	}
	return list[0]
}

// devices returns the names of the session's disks whose LUN is lun, a number, or of all of its disks if lun is
// "*".
func (s *session) devices(lun string) []string {
	found, err := filepath.Glob(filepath.Join(s.dir, "target*", "*:*:*:"+lun, "block", "*"))
	if err != nil {
		return nil // our patterns are valid
	}
	for i := range found {
		found[i] = filepath.Base(found[i])
	}
	return found
}

// multipath returns the name of the multipath device that contains device, such as dm-3, or "" if there is
// none.
func (k sysfs) multipath(device string) string {
	slaves, err := filepath.Glob(filepath.Join(k.root, "block", "dm-*", "slaves", device))
	if err != nil {
		return ""
	}
	for _, s := range slaves {
		dm := filepath.Dir(filepath.Dir(s))
		// Other device-mapper devices, for example LVM volumes, are content of the disk.
		if strings.HasPrefix(readAttribute(dm, "dm/uuid"), "mpath-") {
			return filepath.Base(dm)
		}
	}
	return ""
}

// removeDevice makes the kernel remove the disk of that name. A disk that does not exist is no error.
func (k sysfs) removeDevice(device string) error {
	err := writeAttribute(filepath.Join(k.root, "block", device, "device", "delete"), "1")
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("iscsi: removing device %s: %w", device, err)
	}
	return nil
}
