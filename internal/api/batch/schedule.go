package batch

import (
	"errors"
	"strings"

	"github.com/robfig/cron/v3"
)

// parseSchedule parses a CronJob's schedule and returns an error if it is invalid or contains a
// time zone. It uses the same parser as the CronJob controller, so that the controller can handle
// all accepted schedules.
//
// https://kubernetes.io/docs/concepts/workloads/controllers/cron-jobs/#schedule-syntax
func parseSchedule(s string) (cron.Schedule, error) {
	// The library accepts a time zone before the fields, and panics if there is nothing after it.
	if strings.Contains(s, "TZ=") {
		return nil, errors.New("schedule must not contain a time zone")
	}
	return cron.ParseStandard(s)
}
