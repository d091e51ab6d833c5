// Package batch describes the kinds of batch/v1, one file a kind. The schedules
// of CronJobs are in schedule.go, for their controller too.
package batch

import "hyperkube/internal/api"

const (
	group   = "batch"
	version = "v1"
)

// Resources are all kinds of the group.
func Resources() []*api.Resource {
	return []*api.Resource{
		cronJob().Resource(),
		job().Resource(),
	}
}
