// Package batch defines the kinds of batch/v1, one file per kind. schedule.go parses the schedules
// of CronJobs.
package batch

import "hyperkube/internal/api"

const (
	group   = "batch"
	version = "v1"
)

// Resources returns the definitions of the resources of the API group batch, in all served versions. Package catalog
// collects those of all groups for the API server.
func Resources() []*api.Resource {
	return []*api.Resource{
		cronJob().Resource(),
		job().Resource(),
	}
}
