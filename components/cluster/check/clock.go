package check

import (
	"context"
	"io/fs"
	"time"

	"hyperkube/components/cluster/clusterconfig"
)

// clockChecks returns the checks of the clock.
func clockChecks() []check { return []check{{"clock", checkClock}, {"clock-sync", checkSync}} }

// setClock is the fix for a wrong clock.
const setClock = "set the clock with `timedatectl set-ntp true`, or with `date -s` and the correct time, then repeat `hyperkube check`"

// maxAge is how long after its release the program may be used before a later time counts as wrong. No release is
// supported for so long.
const maxAge = 6 * 365 * 24 * time.Hour

// firstRelease is before the build of every version of this program that can run this check.
var firstRelease = time.Date(2026, time.January, 1, 0, 0, 0, 0, time.UTC)

// checkClock compares the clock with the release of this program and with the files of the cluster. Certificates are
// not valid while the clock is wrong.
func checkClock(_ context.Context, m *Machine, o *outcome) {
	released := firstRelease
	if m.Released.After(released) {
		released = m.Released
	}
	const format = "2006-01-02 15:04"
	now := m.Now.UTC().Format(format)
	// A day covers all time zones.
	if m.Now.Before(released.Add(-24 * time.Hour)) {
		o.errorf(setClock, "the clock shows %s, which is before the release of this program, so all certificates are invalid", now)
		return
	}
	if m.Now.After(released.Add(maxAge)) {
		o.errorf(setClock+"; if the time is correct, install a newer version of hyperkube", "the clock shows %s, which is %d years after the release of this program, so new certificates are invalid when the clock is corrected", now, int(m.Now.Sub(released)/(365*24*time.Hour)))
		return
	}
	info, err := fs.Stat(m.Files, rel(clusterconfig.File(m.Layout)))
	if err == nil && info.ModTime().After(m.Now.Add(24*time.Hour)) {
		o.errorf(setClock, "the clock shows %s, but this cluster was created on %s, so its certificates are not valid yet", now, info.ModTime().UTC().Format(format))
	}
}

// checkSync checks that the clock is synchronized in a cluster of several machines.
func checkSync(_ context.Context, m *Machine, o *outcome) {
	if !m.Cluster.Joined {
		o.skip("the cluster has one machine, whose clock need not agree with others")
		return
	}
	synced, err := m.Probes.ClockSynced()
	if err != nil {
		o.skip(err.Error())
	} else if !synced {
		fix := "run `timedatectl set-ntp true`; if it fails, install chrony or systemd-timesyncd"
		if m.hasOpenRC() {
			fix = "install chrony, and run `rc-service chronyd start; rc-update add chronyd`"
		}
		o.warnf(fix, "the clock is not synchronized, so leases and certificates fail when it differs from those of the other machines")
	}
}
