package volume

import (
	"path/filepath"

	"hyperkube/internal/host/hostjournal"
)

// PrepareRoot makes the kubelet's root directory a shared mount, because containers such as CSI drivers mount
// volumes below it that the host and other containers must see. It first records the mounts in the host
// journal, which may be nil, so that they can be reverted.
func PrepareRoot(root string, journal *hostjournal.Journal) error {
	sharing, err := PlanSharedMount(root)
	if err != nil {
		return err
	}
	changes := []hostjournal.Change{{Kind: hostjournal.Mount, Name: filepath.Join(root, "pods")}, {Kind: hostjournal.Mount, Name: filepath.Join(root, "plugins")}}
	if sharing.Bind {
		changes = append(changes, hostjournal.Change{Kind: hostjournal.Mount, Name: root})
	}
	if err := journal.Record(changes...); err != nil {
		return err
	}
	return sharing.Apply()
}
