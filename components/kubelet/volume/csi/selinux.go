package csi

import (
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/utils/ptr"
)

// chooseLabel is mountLabel for a volume that can be mounted so now.
func (p *Plugin) chooseLabel(obj *storagev1.CSIDriver, j *job) (string, error) {
	label, err := p.mountLabel(obj, j)
	if err == nil && p.cfg.FileLabel != nil {
		err = p.checkLabel(j, label)
	}
	return label, err
}

// mountLabel is the SELinux label that a volume is to be mounted with, empty for
// none: then its files are relabelled one by one. A driver must say that it
// can do that, and the pod must say which level it has, for one that the runtime
// chooses is not known yet.
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

// checkLabel refuses a label while the volume is there with another: a file system
// is mounted with one. It goes on when the others have ended.
func (p *Plugin) checkLabel(j *job, label string) error {
	conflict := func(other string) error {
		return fmt.Errorf("conflicting SELinux labels of volume %s: %q and %q", j.spec, other, label)
	}
	// What is known of other volumes may be damaged; that is told elsewhere.
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

// withLabel adds a label to the options of a mount.
func withLabel(options []string, label string) []string {
	if label == "" {
		return options
	}
	return append(slices.Clone(options), fmt.Sprintf("context=%q", label))
}
