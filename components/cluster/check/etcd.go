package check

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"
)

// etcdChecks returns the checks of the etcd member on this machine.
func etcdChecks() []check {
	return []check{{"etcd-data", checkEtcdData}, {"etcd-health", checkEtcdHealth}, {"etcd-disk", checkEtcdDisk}}
}

// EtcdData describes the data directory of an etcd member.
type EtcdData struct {
	// Version is the version of etcd that the cluster had, MAJOR.MINOR; "" if unknown. Supported is the version of etcd in
	// this program.
	Version, Supported string
	// Damage is why etcd cannot use the data. It names the remedy.
	Damage error
}

// EtcdStatus describes a running etcd member and its cluster.
type EtcdStatus struct {
	// HasLeader is false if the member knows no leader.
	HasLeader bool
	// Latency is how long a consistent read took.
	Latency time.Duration
	// Alarms are the names of active alarms, such as NOSPACE.
	Alarms []string
	// Unreachable are the names of other members that did not answer, and Members the number of all voting members.
	Unreachable []string
	Members     int
	// Size and Quota are the size of the database and its limit in bytes. Quota may be 0 if it is unknown.
	Size, Quota int64
}

// ErrInUse is the error of Probes.EtcdData while a process uses the data.
var ErrInUse = errors.New("the data is in use")

// checkEtcdData checks that etcd can start with the data on disk. It does not apply while etcd runs.
func checkEtcdData(_ context.Context, m *Machine, o *outcome) {
	if !m.Cluster.hasControlPlane() || m.Cluster.running() || !m.exists(m.Layout.Etcd()) {
		o.skip("etcd runs, or the machine has no data of etcd")
		return
	}
	data, err := m.Probes.EtcdData()
	switch {
	case errors.Is(err, ErrInUse):
		o.skip(err.Error())
	case err != nil:
		o.errorf("see the errors of the disk with `dmesg`", "the data of etcd in %s cannot be read: %v", m.Layout.Etcd(), err)
	case data.Damage != nil:
		o.errorf("restore a backup with `hyperkube snapshot restore FILE`; of a member of several, run `hyperkube reset` and join again", "etcd cannot start with the data in %s: %v", m.Layout.Etcd(), data.Damage)
	case newer(data.Version, data.Supported):
		o.errorf("install the version of hyperkube that last ran this cluster, or restore a backup of an earlier version with `hyperkube snapshot restore FILE`",
			"the data in %s was written by etcd %s, which is newer than etcd %s of this program, so etcd does not start", m.Layout.Etcd(), data.Version, data.Supported)
	}
}

// newer reports whether the version a, MAJOR.MINOR, is newer than b. It returns false if one of them is unknown.
func newer(a, b string) bool {
	var aMajor, aMinor, bMajor, bMinor int
	if n, _ := fmt.Sscanf(a, "%d.%d", &aMajor, &aMinor); n != 2 {
		return false
	}
	if n, _ := fmt.Sscanf(b, "%d.%d", &bMajor, &bMinor); n != 2 {
		return false
	}
	return aMajor > bMajor || aMajor == bMajor && aMinor > bMinor
}

// slowRead is the latency of a consistent read of etcd above which requests to the API server are slow.
const slowRead = 500 * time.Millisecond

// checkEtcdHealth checks the running member and its cluster. It does not apply to a machine without a member, or
// while the cluster does not run.
func checkEtcdHealth(ctx context.Context, m *Machine, o *outcome) {
	if !m.Cluster.hasControlPlane() || !m.Cluster.running() {
		o.skip("the machine runs no etcd")
		return
	}
	s, err := m.Probes.Etcd(ctx)
	if err != nil {
		o.errorf("see why in the log: `hyperkube status` prints the command that shows it", "etcd does not answer, so the API server cannot read or write: %v", err)
		return
	}
	if !s.HasLeader {
		o.errorf("start the other control plane nodes; if more than half of them are lost, restore a backup with `hyperkube snapshot restore FILE`", "etcd has no leader, because too few of its %d members run", s.Members)
	}
	for _, name := range s.Unreachable {
		o.warnf("start the machine, or remove the member with `hyperkube etcdctl member remove ID`", "the etcd member %s does not answer, so the cluster tolerates fewer failures", name)
	}
	for _, alarm := range s.Alarms {
		if alarm == "NOSPACE" {
			o.errorf("delete objects that are not needed, for example with `hyperkube kubectl delete events -A --all`; the space is then freed automatically within a minute", "the etcd database is full (%d MiB), so all writes fail", s.Size>>20)
		} else {
			o.errorf("restore this member: remove it from the cluster, run `hyperkube reset` and join again, or restore a backup with `hyperkube snapshot restore FILE`", "etcd has the alarm %s, which means that its data differs from that of other members", alarm)
		}
	}
	if s.Latency > slowRead {
		o.warnf("find the cause with `hyperkube check --verbose` and `top`: a slow disk or an overloaded CPU", "a read of etcd took %s, so requests to the API server are slow", s.Latency.Round(time.Millisecond))
	}
	if s.Quota > 0 && s.Size > s.Quota/10*9 {
		o.warnf("delete objects that are not needed, for example with `hyperkube kubectl delete events -A --all`", "the etcd database has %d of at most %d MiB; writes fail at the limit", s.Size>>20, s.Quota>>20)
	}
}

// slowSync is the duration of fdatasync above which etcd logs warnings and may lose its leadership.
const slowSync = 200 * time.Millisecond

// checkEtcdDisk measures how fast the disk of etcd stores data permanently, and warns if it is slow. It does not
// apply to machines of a cluster that run no etcd.
func checkEtcdDisk(ctx context.Context, m *Machine, o *outcome) {
	if m.Cluster.Exists && !m.Cluster.hasControlPlane() {
		o.skip("the machine runs no etcd")
		return
	}
	dir := m.nearest(filepath.Dir(m.Layout.Etcd()))
	if disk, err := m.Probes.Disk(dir); err != nil || disk.ReadOnly || disk.Free == 0 {
		o.skip("the disk is read-only or full")
		return
	}
	took, err := m.Probes.Sync(ctx, dir)
	switch {
	case err != nil:
		o.errorf("see the errors of the disk with `dmesg`", "the disk of %s does not store data: %v", dir, err)
	case took > slowSync:
		o.warnf("move "+dir+" to a faster disk, or stop what writes to this one; `iostat -x 1` shows the load", "storing a few bytes on the disk of %s took up to %s, so every change of an object takes at least as long", dir, took.Round(time.Millisecond))
	}
}
