package etcd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/server/v3/etcdserver"
	"go.etcd.io/etcd/server/v3/storage/mvcc"
)

// spaceInterval and the other constants determine when spaceManager compacts and defragments the database of a
// single member.
const (
	// spaceInterval is the interval at which the size of the database is checked. A check reads a few numbers.
	spaceInterval = 30 * time.Second
	// minDefragmentSize is the minimum size for a defragmentation. A database file never shrinks by
	// itself. It is defragmented, which blocks all requests for about 10 ms per MB, if it has at
	// least this size and less than half of it is in use.
	minDefragmentSize = 128 << 20
	// disarmPercent is the percentage of the quota below which the NOSPACE alarm is disarmed.
	disarmPercent = 90
	// defragmentRetryInterval is the pause between defragmentations if the last one did not free enough space
	// and the size in use is still above the limit.
	defragmentRetryInterval = 10 * time.Minute
)

// spaceManager compacts and defragments the database of a single member before it exhausts its quota. etcd
// leaves that to an operator and rejects writes when the quota is exhausted.
type spaceManager struct {
	server *etcdserver.EtcdServer
	log    *slog.Logger
	// minSize is minDefragmentSize, except in tests.
	minSize int64

	// ineffectiveSince is the time of the last defragmentation that did not free enough space, or zero.
	// revision is the store revision at that time.
	ineffectiveSince time.Time
	revision         int64
}

// run calls check at each interval until ctx is cancelled. A failure is logged and repeated at the
// next interval.
func (s *spaceManager) run(ctx context.Context, interval time.Duration) {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
		if err := s.check(ctx); err != nil && ctx.Err() == nil {
			s.log.Error("freeing space in the etcd database failed; etcd rejects writes when the database has reached its quota, retrying in 30 seconds: if this persists, check the disk", "err", err)
		}
	}
}

// check defragments the database file if it is large and less than half of it is in use. If the quota is exhausted
// (the NOSPACE alarm is active), it first compacts the complete history, then defragments, and disarms the alarm when
// the database is below disarmPercent of the quota. It does nothing if the cluster has several members, and does not
// defragment if that would not help (see wouldNotHelp).
func (s *spaceManager) check(ctx context.Context) error {
	if len(s.server.Cluster().Members()) > 1 {
		return nil // a defragmentation would block the other members too
	}
	db := s.server.Backend()
	full := s.alarmActive()
	if full {
		// An early compaction breaks watches of older revisions, but without it etcd rejects all
		// writes except deletions.
		revision := s.server.KV().Rev()
		s.log.Warn("etcd database has reached its quota, so etcd rejects writes; compacting the history now and every 30 seconds until there is space, which breaks watches of older revisions", "size", db.Size(), "quota", s.server.Cfg.QuotaBackendBytes, "revision", revision)
		_, err := s.server.Compact(ctx, &etcdserverpb.CompactionRequest{Revision: revision, Physical: true})
		if err != nil && !errors.Is(err, mvcc.ErrCompacted) {
			return fmt.Errorf("compacting: %w", err)
		}
		if s.wouldNotHelp(revision) {
			return nil
		}
	}
	if size := db.Size(); full || size >= s.minSize && db.SizeInUse() < size/2 {
		began := time.Now()
		if err := s.server.Defragment(); err != nil {
			return fmt.Errorf("defragmenting: %w", err)
		}
		s.log.Info("etcd database defragmented to return unused space to the file system; requests to etcd waited meanwhile", "sizeBefore", size, "size", db.Size(), "took", time.Since(began))
	}
	s.ineffectiveSince = time.Time{}
	if !full {
		return nil
	}
	if db.Size() > s.disarmSize() {
		s.ineffectiveSince, s.revision = time.Now(), s.server.KV().Rev()
		return nil
	}
	_, err := s.server.Alarm(ctx, &etcdserverpb.AlarmRequest{
		MemberID: uint64(s.server.MemberID()), Action: etcdserverpb.AlarmRequest_DEACTIVATE, Alarm: etcdserverpb.AlarmType_NOSPACE,
	})
	if err != nil {
		return fmt.Errorf("disarming the NOSPACE alarm: %w", err)
	}
	s.log.Info("etcd database has space again and NOSPACE alarm is disarmed, etcd accepts writes", "size", db.Size())
	return nil
}

// disarmSize returns the size of the database file, in bytes, up to which the NOSPACE alarm is disarmed.
func (s *spaceManager) disarmSize() int64 {
	return s.server.Cfg.QuotaBackendBytes / 100 * disarmPercent
}

// wouldNotHelp reports whether a defragmentation at the store revision would block requests without freeing enough
// space. That is so if the previous one did not, and nothing was written since, or, for defragmentRetryInterval, too
// much of the database is still in use. The size in use is updated with a delay, so it is not relied on for longer.
func (s *spaceManager) wouldNotHelp(revision int64) bool {
	switch {
	case s.ineffectiveSince.IsZero():
		return false
	case revision == s.revision:
		return true
	}
	return s.server.Backend().SizeInUse() > s.disarmSize() && time.Since(s.ineffectiveSince) < defragmentRetryInterval
}

// alarmActive reports whether the NOSPACE alarm is active, which means that etcd rejects writes.
func (s *spaceManager) alarmActive() bool {
	for _, alarm := range s.server.Alarms() {
		if alarm.GetAlarm() == etcdserverpb.AlarmType_NOSPACE {
			return true
		}
	}
	return false
}
