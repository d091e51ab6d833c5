// Package iscsi implements volumes on disks of iSCSI targets with the host's open-iscsi: it logs in
// to targets, mounts their disks, and undoes both when the last pod has terminated. The state that
// this requires is saved in files.
package iscsi

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"strings"

	v1 "k8s.io/api/core/v1"
)

// disk is an iSCSI disk (LUN of a target) and how to reach it. It is saved as JSON in the pod's directory of
// the volume while the pod uses it, for the teardown.
type disk struct {
	// Volume is the name of the PersistentVolume or, for an inline volume, that of the pod's
	// volume.
	Volume string `json:"volume"`
	// Portal is the first portal as specified in the API.
	Portal string `json:"targetPortal"`
	// Portals are all portals, with ports.
	Portals []string `json:"portals"`
	Target  string   `json:"iqn"`
	LUN     int32    `json:"lun"`
	// Configured is the configured iSCSI interface, Interface the one in use. They differ if the
	// volume specifies an initiator name.
	Configured string `json:"configuredInterface"`
	Interface  string `json:"interface"`
	Initiator  string `json:"initiatorName,omitempty"`
}

// defaultPort is the default port of iSCSI (RFC 7143, section 4.2.7.1).
const defaultPort = ":3260"

// defaultInterface is the interface that open-iscsi always provides.
const defaultInterface = "default"

// source is the specification of an iSCSI volume, which inline volumes and PersistentVolumes have in common.
type source struct {
	v1.ISCSIVolumeSource
	// namespace is that of the CHAP Secret; empty means that of the pod.
	namespace string
}

// ofPersistent converts the iSCSI source of a PersistentVolume to the form that it has in common with inline
// volumes.
func ofPersistent(s *v1.ISCSIPersistentVolumeSource) source {
	out := source{ISCSIVolumeSource: v1.ISCSIVolumeSource{
		TargetPortal: s.TargetPortal, IQN: s.IQN, Lun: s.Lun, ISCSIInterface: s.ISCSIInterface, FSType: s.FSType, ReadOnly: s.ReadOnly,
		Portals: s.Portals, DiscoveryCHAPAuth: s.DiscoveryCHAPAuth, SessionCHAPAuth: s.SessionCHAPAuth, InitiatorName: s.InitiatorName,
	}}
	if s.SecretRef != nil {
		out.SecretRef, out.namespace = &v1.LocalObjectReference{Name: s.SecretRef.Name}, s.SecretRef.Namespace
	}
	return out
}

// newDisk returns the disk that a volume specifies. volume is the name of the volume. If it has an initiator
// name, the disk gets an iSCSI interface of that volume only. An empty portal is an error.
func newDisk(volume string, s *v1.ISCSIVolumeSource) (*disk, error) {
	d := &disk{Volume: volume, Portal: s.TargetPortal, Target: s.IQN, LUN: s.Lun, Configured: s.ISCSIInterface}
	for _, p := range append([]string{s.TargetPortal}, s.Portals...) {
		if p == "" {
			return nil, errors.New("iscsi: the volume has an empty portal")
		}
		d.Portals = append(d.Portals, withPort(p))
	}
	if d.Configured == "" {
		d.Configured = defaultInterface
	}
	d.Interface = d.Configured
	if s.InitiatorName != nil && *s.InitiatorName != "" {
		d.Initiator, d.Interface = *s.InitiatorName, d.Portals[0]+":"+volume
	}
	return d, nil
}

// withPort returns a portal with the default port appended if it has no port. An IPv6 address in
// portal must be in brackets.
func withPort(portal string) string {
	_, after, ok := strings.Cut(portal, "]")
	if !ok {
		after = portal
	}
	if strings.Contains(after, ":") {
		return portal
	}
	return portal + defaultPort
}

// key identifies a disk that is mounted once on this node for all pods that use it.
type key struct {
	portal, target, iface string
	lun                   int32
}

// key returns what identifies the disk on this node: its first portal, target, interface and LUN.
func (d *disk) key() key { return key{d.Portals[0], d.Target, d.Interface, d.LUN} }

// dirName returns the name of the directory where the disk is mounted for all pods.
func (k key) dirName() string {
	return fmt.Sprintf("%x", sha256.Sum256(fmt.Appendf(nil, "%s %s %s %d", k.portal, k.target, k.iface, k.lun)))
}

// unique returns the disk's name in volumesInUse and volumesAttached of the Node status.
func (d *disk) unique() v1.UniqueVolumeName {
	return v1.UniqueVolumeName(fmt.Sprintf("kubernetes.io/iscsi/%s:%s:%d", d.Portal, d.Target, d.LUN))
}
