package batch

import (
	"errors"
	"strings"

	"github.com/robfig/cron/v3"
)

// parseSchedule reads a schedule without a time zone, by what the CronJob controller reads
// it with: what is accepted here must mean something there.
// See https://kubernetes.io/docs/concepts/workloads/controllers/cron-jobs/#schedule-syntax
func parseSchedule(s string) (cron.Schedule, error) {
	// The library takes a time zone before the fields, and panics when it stands alone.
	if strings.Contains(s, "TZ=") {
		return nil, errors.New("a schedule has no time zone of its own")
	}
	return cron.ParseStandard(s)
}
