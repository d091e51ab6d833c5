// Package batch defines the kinds of batch/v1, one file per kind. schedule.go parses the schedules
// of CronJobs.
package batch

import "hyperkube/internal/api"

const (
	group   = "batch"
	version = "v1"
)

// Resources returns all resources of the group.
func Resources() []*api.Resource {
	return []*api.Resource{
		cronJob().Resource(),
		job().Resource(),
	}
}
