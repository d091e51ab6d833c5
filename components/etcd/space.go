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

// When the only member of a cluster sees to the size of its database.
const (
	// spaceInterval between looks; a look reads a few numbers.
	spaceInterval = 30 * time.Second
	// A database file never shrinks by itself. It is written anew, which
	// holds everybody up for some 10 ms a MB, when less than half of it is in
	// use and it is not small.
	worthDefragment = 128 << 20
	// An alarm of no space ends when no more than this of the quota is used.
	calmPercent = 90
	// Where that was not reached, and what is in use does not look like it either, the
	// file is not written anew again for so long.
	futilePause = 10 * time.Minute
)

// space keeps the database of the only member of a cluster from using up its
// quota for ever. Nobody else is there who would: etcd leaves it to people, and
// takes no writes from when the quota is used up until they have come.
type space struct {
	server *etcdserver.EtcdServer
	log    *slog.Logger
	// worth is worthDefragment.
	worth int64

	// futile is when the database was last written anew because its quota was used up
	// and that made too little space, zero: it was not; it had revision then.
	futile   time.Time
	revision int64
}

// run looks every interval until ctx ends.
func (s *space) run(ctx context.Context, interval time.Duration) {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
		if err := s.look(ctx); err != nil && ctx.Err() == nil {
			s.log.Error("cannot make space in the database", "error", err)
		}
	}
}

// look makes space if it is needed, and ends the alarm once there is some.
func (s *space) look(ctx context.Context) error {
	if len(s.server.Cluster().Members()) > 1 {
		return nil // others have come: who is written anew holds all of them up
	}
	db := s.server.Backend()
	full := s.full()
	if full {
		// What is forgotten early costs those their places who watch from
		// before; without it nobody can write anything but deletions.
		revision := s.server.KV().Rev()
		s.log.Warn("the database has used up its quota; forgetting what was", "size", db.Size(), "quota", s.server.Cfg.QuotaBackendBytes, "revision", revision)
		_, err := s.server.Compact(ctx, &etcdserverpb.CompactionRequest{Revision: revision, Physical: true})
		if err != nil && !errors.Is(err, mvcc.ErrCompacted) {
			return fmt.Errorf("compacting: %w", err)
		}
		if s.isFutile(revision) {
			return nil
		}
	}
	if size := db.Size(); full || size >= s.worth && db.SizeInUse() < size/2 {
		began := time.Now()
		if err := s.server.Defragment(); err != nil {
			return fmt.Errorf("defragmenting: %w", err)
		}
		s.log.Info("wrote the database anew", "before", size, "after", db.Size(), "took", time.Since(began))
	}
	s.futile = time.Time{}
	if !full {
		return nil
	}
	if db.Size() > s.calm() {
		s.futile, s.revision = time.Now(), s.server.KV().Rev()
		return nil
	}
	_, err := s.server.Alarm(ctx, &etcdserverpb.AlarmRequest{
		MemberID: uint64(s.server.MemberID()), Action: etcdserverpb.AlarmRequest_DEACTIVATE, Alarm: etcdserverpb.AlarmType_NOSPACE,
	})
	if err != nil {
		return fmt.Errorf("ending the alarm: %w", err)
	}
	s.log.Info("the database has space again", "size", db.Size())
	return nil
}

// calm is up to which size the alarm ends.
func (s *space) calm() int64 { return s.server.Cfg.QuotaBackendBytes / 100 * calmPercent }

// isFutile tells whether to write the database anew would only hold everybody up: it
// was of no use before, and too little has been deleted since. How much is in use is
// told a little late, so that this alone is not believed for ever.
func (s *space) isFutile(revision int64) bool {
	switch {
	case s.futile.IsZero():
		return false
	case revision == s.revision:
		return true
	}
	return s.server.Backend().SizeInUse() > s.calm() && time.Since(s.futile) < futilePause
}

// full tells whether there is an alarm of no space.
func (s *space) full() bool {
	for _, alarm := range s.server.Alarms() {
		if alarm.GetAlarm() == etcdserverpb.AlarmType_NOSPACE {
			return true
		}
	}
	return false
}
