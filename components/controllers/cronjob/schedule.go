package cronjob

import (
	"fmt"
	"strings"
	"time"
	_ "time/tzdata" // embed the time zones, because the image contains no zoneinfo files

	"github.com/robfig/cron/v3"
	batchv1 "k8s.io/api/batch/v1"
)

// parse parses the schedule of a CronJob in its time zone. The time zone may also be part of the schedule, which older
// API servers accepted.
func parse(cj *batchv1.CronJob) (_ cron.Schedule, err error) {
	defer func() {
		// The library panics if no fields follow the time zone.
		if v := recover(); v != nil {
			err = fmt.Errorf("invalid schedule format: %v", v)
		}
	}()
	text := cj.Spec.Schedule
	if z := cj.Spec.TimeZone; z != nil && !strings.Contains(text, "TZ") {
		if _, err := time.LoadLocation(*z); err != nil {
			return nil, fmt.Errorf("time zone: %w", err)
		}
		text = "TZ=" + *z + " " + text
	}
	return cron.ParseStandard(text)
}

// lastDue returns the last scheduled time not after now for which no Job was created yet, or zero if there is none.
// missed is the number of such times; it may be an estimate if it is greater than 100. Times before the starting
// deadline do not count.
func lastDue(cj *batchv1.CronJob, sched cron.Schedule, now time.Time) (due time.Time, missed int) {
	from := cj.CreationTimestamp.Time
	if t := cj.Status.LastScheduleTime; t != nil {
		from = t.Time
	}
	if d := cj.Spec.StartingDeadlineSeconds; d != nil {
		// Times before the starting deadline are too late, so skip them.
		if earliest := now.Add(-time.Duration(*d) * time.Second); earliest.After(from) {
			from = earliest
		}
	}
	first := sched.Next(from)
	if first.IsZero() || first.After(now) {
		return time.Time{}, 0
	}
	// The times of most schedules are evenly spaced: jump close to now, then iterate. If the jump
	// passed now because the schedule is uneven, jump less far.
	t := first
	missed = 1
	if second := sched.Next(first); !second.IsZero() {
		if step := second.Sub(first); step > 0 && now.Sub(first)/step > 200 {
			missed = int(min(now.Sub(first)/step, 1<<30))
			for back := 100 * step; ; back *= 2 {
				leap := now.Add(-back)
				if !leap.After(first) {
					break
				}
				if candidate := sched.Next(leap); !candidate.After(now) {
					t = candidate
					break
				}
			}
		}
	}
	for {
		next := sched.Next(t)
		if next.IsZero() || next.After(now) {
			return t, missed
		}
		t = next
		missed++
	}
}
