// Package metricshistory defines the API history.metrics.hyperkube.io/v1alpha1: the resource usage of nodes, pods and
// volumes, and the load of the control plane, over the last hour or day. The metrics add-on serves it.
package metricshistory

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Names of the API in URLs and objects.
const (
	Group   = "history.metrics.hyperkube.io"
	Version = "v1alpha1"

	// RangeParameter is the query parameter with the time that a response covers until now, as a Go duration. It is
	// DefaultRange if it is missing. Responses of up to HourRange contain samples every HourStep, longer ones every DayStep.
	RangeParameter = "range"
)

// Resolutions and lengths of the two series that the add-on stores for each object.
const (
	HourStep, HourRange = 15 * time.Second, time.Hour
	DayStep, DayRange   = 5 * time.Minute, 24 * time.Hour
	DefaultRange        = HourRange
)

// Resources of the API. The resources except ControlPlanes have the names of the core API's.
const (
	Nodes         = "nodes"
	Pods          = "pods"
	Volumes       = "persistentvolumeclaims"
	ControlPlanes = "controlplanes"
)

// Metrics are the keys of History.Series. Rates are averages between two samples.
const (
	// CPU is the CPU usage in cores. Memory is the working set in bytes. They exist for nodes and pods; for control planes
	// they are those of the process.
	CPU    = "cpu"
	Memory = "memory"
	// NetworkReceive and NetworkTransmit are the traffic of a node or pod in bytes per second, on its default interface.
	NetworkReceive  = "networkReceive"
	NetworkTransmit = "networkTransmit"
	// Restarts is the number of restarts of all containers of a pod since its creation.
	Restarts = "restarts"
	// FilesystemUsed and FilesystemCapacity describe the file system of a node with the data of pods, in bytes.
	FilesystemUsed     = "filesystemUsed"
	FilesystemCapacity = "filesystemCapacity"
	// VolumeUsed and VolumeCapacity describe the volume of a claim, in bytes.
	VolumeUsed     = "used"
	VolumeCapacity = "capacity"
	// Requests and Errors are the completed requests of an API server per second, without watches and other long-running ones, and
	// those of them with a status of 500 or above. Latency is their mean duration in seconds.
	Requests = "requests"
	Errors   = "errors"
	Latency  = "latency"
	// DatabaseSize is the size of the database of etcd in bytes.
	DatabaseSize = "databaseSize"
	// QueueDepth is the number of keys that wait in the work queues of the controllers.
	QueueDepth = "queueDepth"
	// Goroutines is the number of goroutines of a control plane process.
	Goroutines = "goroutines"
)

// GroupVersion returns the group and version of the API.
func GroupVersion() schema.GroupVersion { return schema.GroupVersion{Group: Group, Version: Version} }

// History is the history of the metrics of one object. Its kind is NodeHistory, PodHistory, PersistentVolumeClaimHistory or
// ControlPlaneHistory.
type History struct {
	metav1.TypeMeta `json:",inline"`
	// ObjectMeta has the name and namespace of the object, which may have been deleted since.
	metav1.ObjectMeta `json:"metadata"`
	// Start is the time of the first sample of each series. Start and Step are multiples of seconds.
	Start metav1.Time `json:"start"`
	// StepSeconds is the time between two samples.
	StepSeconds int `json:"stepSeconds"`
	// Capacity has the allocatable CPU of a node in cores and its allocatable memory in bytes, by the keys CPU and Memory.
	Capacity map[string]float64 `json:"capacity,omitempty"`
	// Series are the metrics by name. All series of an object have the same length.
	Series map[string]Series `json:"series"`
}

// Series is one metric of an object.
type Series struct {
	// Values are the samples, from old to new. At a step of five minutes, a sample is the mean of the samples in these minutes.
	Values Values `json:"values"`
	// Max is the maximum of the samples in each step. It is missing at a step of 15 seconds.
	Max Values `json:"max,omitempty"`
}

// List is a list of histories. Its kind is that of its items with the suffix List.
type List struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`
	Items           []History `json:"items"`
}

// Resource describes a resource of the API.
type Resource struct {
	Name, Kind string
	Namespaced bool
}

// Resources returns the resources of the API.
func Resources() []Resource {
	return []Resource{
		{Nodes, "NodeHistory", false},
		{Pods, "PodHistory", true},
		{Volumes, "PersistentVolumeClaimHistory", true},
		{ControlPlanes, "ControlPlaneHistory", false},
	}
}
