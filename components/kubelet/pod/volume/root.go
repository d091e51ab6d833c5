package volume

import (
	"path/filepath"

	"hyperkube/internal/host/hostjournal"
)

// PrepareRoot makes the kubelet's root directory a shared mount, unless it is on one, because containers such
// as CSI drivers mount volumes below it that the host and other containers must see. Before that, it records in
// the host journal, which may be nil, the mounts that a removal of the node must revert: those in the
// directories pods and plugins and, if it mounts the root directory on itself, that one.
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
