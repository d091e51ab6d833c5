// Package iscsi makes disks of iSCSI targets volumes of pods, by the host's
// open-iscsi: it logs in to targets, mounts their disks, and takes both back when
// the last pod has ended. All that it must know for that is in files.
package iscsi

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"strings"

	v1 "k8s.io/api/core/v1"
)

// disk is one disk of a target as a pod asks for it, and what is kept of it while
// the pod has it.
type disk struct {
	// Volume is the name of the persistent volume, or of the pod's.
	Volume string `json:"volume"`
	// Portal is the first portal as the API has it.
	Portal string `json:"targetPortal"`
	// Portals are all, each with its port.
	Portals []string `json:"portals"`
	Target  string   `json:"iqn"`
	LUN     int32    `json:"lun"`
	// Configured is the interface that the host has, Interface the one that is used:
	// another if the volume has an initiator's name of its own.
	Configured string `json:"configuredInterface"`
	Interface  string `json:"interface"`
	Initiator  string `json:"initiatorName,omitempty"`
}

// defaultPort of iSCSI (RFC 7143, section 4.2.7.1).
const defaultPort = ":3260"

// defaultInterface is the one that open-iscsi always has.
const defaultInterface = "default"

// source is what the two types of the API have in common.
type source struct {
	v1.ISCSIVolumeSource
	// namespace is that of the secret, empty for the pod's.
	namespace string
}

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

// newDisk is the disk that a volume asks for.
func newDisk(volume string, s *v1.ISCSIVolumeSource) (*disk, error) {
	d := &disk{Volume: volume, Portal: s.TargetPortal, Target: s.IQN, LUN: s.Lun, Configured: s.ISCSIInterface}
	for _, p := range append([]string{s.TargetPortal}, s.Portals...) {
		if p == "" {
			return nil, errors.New("iscsi: the volume has a portal without a name")
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

// withPort is a portal with its port. An IPv6 address has brackets.
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

// key names what is mounted once on this node, however many pods use it.
type key struct {
	portal, target, face string
	lun                  int32
}

func (d *disk) key() key { return key{d.Portals[0], d.Target, d.Interface, d.LUN} }

// folder is the name of the folder where the disk is mounted.
func (k key) folder() string {
	return fmt.Sprintf("%x", sha256.Sum256(fmt.Appendf(nil, "%s %s %s %d", k.portal, k.target, k.face, k.lun)))
}

// unique is how the node's status speaks of the disk.
func (d *disk) unique() v1.UniqueVolumeName {
	return v1.UniqueVolumeName(fmt.Sprintf("kubernetes.io/iscsi/%s:%s:%d", d.Portal, d.Target, d.LUN))
}
