package csi

import (
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/utils/ptr"
)

// chooseLabel returns the SELinux label to mount the volume with, as mountLabel does. On a host with SELinux it
// also returns an error if the volume is currently mounted with another label.
func (p *Plugin) chooseLabel(obj *storagev1.CSIDriver, j *job) (string, error) {
	label, err := p.mountLabel(obj, j)
	if err == nil && p.cfg.FileLabel != nil {
		err = p.checkLabel(j, label)
	}
	return label, err
}

// mountLabel returns the SELinux label that a volume is mounted with, or "" if the runtime relabels the files
// one by one instead or the host has no SELinux. A mount label requires a PersistentVolume with a file system,
// a driver that supports it, and a pod that sets the SELinux level, because a level that the runtime chooses is
// not known yet, and does not set the policy Recursive. It returns an error if containers of the pod require
// different labels.
//
// https://kep.k8s.io/1710
func (p *Plugin) mountLabel(obj *storagev1.CSIDriver, j *job) (string, error) {
	if p.cfg.FileLabel == nil || j.inline || j.block || obj == nil || !ptr.Deref(obj.Spec.SELinuxMount, false) {
		return "", nil
	}
	sc := j.pod.Spec.SecurityContext
	if sc != nil && sc.SELinuxChangePolicy != nil && *sc.SELinuxChangePolicy == v1.SELinuxChangePolicyRecursive {
		return "", nil
	}
	var found []string
	look := func(mounts []v1.VolumeMount, own *v1.SecurityContext) {
		var options *v1.SELinuxOptions
		if sc != nil {
			options = sc.SELinuxOptions
		}
		if own != nil && own.SELinuxOptions != nil {
			options = own.SELinuxOptions
		}
		if options == nil || !slices.ContainsFunc(mounts, func(m v1.VolumeMount) bool { return m.Name == j.volume }) {
			return
		}
		if label := p.cfg.FileLabel(options); !slices.Contains(found, label) {
			found = append(found, label)
		}
	}
	for _, c := range slices.Concat(j.pod.Spec.InitContainers, j.pod.Spec.Containers) {
		look(c.VolumeMounts, c.SecurityContext)
	}
	switch len(found) {
	case 0:
		return "", nil
	case 1:
		return found[0], nil
	}
	return "", fmt.Errorf("multiple SELinux labels found: %s", strings.Join(found, ","))
}

// checkLabel returns an error while the volume is mounted with a label other than label, because a file system
// has only one mount label. A retry succeeds when the pods with the other label have terminated. If none of
// them remains but the volume is still staged, checkLabel triggers its unstaging.
func (p *Plugin) checkLabel(j *job, label string) error {
	conflict := func(other string) error {
		return fmt.Errorf("conflicting SELinux labels of volume %s: %q and %q", j.spec, other, label)
	}
	// Data of other volumes may be damaged; that is reported elsewhere.
	uses, _ := p.places.uses()
	for _, u := range uses {
		if u.key() == j.k && u.dir != j.dir && u.Label != label {
			return conflict(u.Label)
		}
	}
	if staged, err := readData(p.places.staged(j.k)); err == nil && staged.Label != label {
		p.sweepSoon()
		return conflict(staged.Label)
	}
	return nil
}

// withLabel returns the mount options with the SELinux label added, unless it is "".
func withLabel(options []string, label string) []string {
	if label == "" {
		return options
	}
	return append(slices.Clone(options), fmt.Sprintf("context=%q", label))
}
