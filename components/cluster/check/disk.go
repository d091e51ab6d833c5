package check

import (
	"context"
	"path/filepath"

	kubeletconfig "hyperkube/components/kubelet/config"
)

// diskChecks returns the checks of file systems. The free space of the data directory is one of the requirementChecks.
func diskChecks() []check {
	return []check{{"disk-inodes", checkInodes}, {"disk-eviction", checkEviction}, {"disk-read-only", checkReadOnly}}
}

// minFreePercent is the percentage of free inodes below which the kubelet evicts pods by default.
const minFreePercent = 5

// checkInodes checks that files can be created in the directories of the cluster.
func checkInodes(_ context.Context, m *Machine, o *outcome) {
	for _, dir := range []string{m.Layout.Data, m.Layout.Run} {
		at := m.nearest(dir)
		disk, err := m.Probes.Disk(at)
		if err != nil || disk.Inodes == 0 {
			continue
		}
		const fix = "delete files; `du --inodes -xd2 / | sort -n` lists the directories with the most files"
		switch {
		case disk.FreeInodes == 0:
			o.errorf(fix, "the file system of %s has no free inodes, so no file can be created", at)
		case disk.FreeInodes < disk.Inodes/100*minFreePercent:
			o.warnf(fix, "the file system of %s has only %d free inodes, so the kubelet evicts pods", at, disk.FreeInodes)
		}
	}
}

// checkEviction checks that the kubelet does not evict pods because a file system of the node is nearly full.
func checkEviction(_ context.Context, m *Machine, o *outcome) {
	seen := map[Disk]bool{}
	for _, dir := range []string{m.Layout.Data, m.Layout.Kubelet, m.Layout.PodLogs} {
		at := m.nearest(dir)
		disk, err := m.Probes.Disk(at)
		if err != nil || seen[disk] {
			continue
		}
		seen[disk] = true
		if disk.Size > 0 && disk.Free < uint64(kubeletconfig.MinFreeFullDisk(int64(disk.Size))) {
			o.warnf("delete files; `du -xhd2 "+at+" | sort -h` lists the largest directories", "the file system of %s has only %d of %d MiB free, so the kubelet evicts pods", at, disk.Free>>20, disk.Size>>20)
		}
	}
}

// checkReadOnly checks that the directories of the cluster other than the data directory are writable.
func checkReadOnly(_ context.Context, m *Machine, o *outcome) {
	for _, d := range []struct {
		path, effect string
		report       func(fix, format string, args ...any)
	}{
		{m.Layout.Run, "hyperkube cannot start", o.errorf},
		{m.Layout.Kubelet, "the kubelet cannot start pods", o.errorf},
		{m.Layout.PodLogs, "pods have no logs", o.errorf},
		{filepath.Join(m.Layout.Etc, "pki"), "`hyperkube init`, `hyperkube join` and `hyperkube up --service` fail, and certificates of control plane nodes are not renewed", o.etcReport(m)},
	} {
		at := m.nearest(d.path)
		if disk, err := m.Probes.Disk(at); err == nil && disk.ReadOnly {
			d.report("run `mount -o remount,rw` with the mount point that `findmnt -T "+at+"` prints", "%s is mounted read-only, so %s", at, d.effect)
		}
	}
}

// etcReport returns how to report that the configuration directory is read-only: clusters of `up` work without it.
func (o *outcome) etcReport(m *Machine) func(fix, format string, args ...any) {
	if m.Cluster.Joined {
		return o.errorf
	}
	return o.warnf
}
