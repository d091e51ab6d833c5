package volume

import (
	"path/filepath"

	"hyperkube/internal/host/hostjournal"
)

// PrepareRoot makes the kubelet's root directory a shared mount, because containers such as CSI drivers
// mount below it. It first records the mounts in the journal, which may be nil.
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
