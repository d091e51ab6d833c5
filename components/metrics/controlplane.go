package metrics

import (
	"math"
	"os"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"hyperkube/components/metrics/history"
	"hyperkube/internal/serving/metricshistory"
)

// ControlPlane is a control plane that runs in this process. Its methods are safe for concurrent use, and cheap, because they are
// called every 15 seconds.
type ControlPlane interface {
	// Requests returns the numbers of requests that the API server has completed since its start, without long-running ones: all
	// of them, and those with a status of 500 or above. seconds is the sum of their durations.
	Requests() (all, failed int64, seconds float64)
	// DatabaseSize returns the size of the database of etcd in bytes.
	DatabaseSize() (int64, error)
	// QueueDepth returns the number of keys in the work queues of the controllers.
	QueueDepth() float64
}

// recordControlPlane stores the load of the control plane as a sample of the time now. It does nothing if there is none in
// this process.
func (r *recorder) recordControlPlane(now time.Time) {
	if r.controlPlane == nil {
		return
	}
	all, failed, seconds := r.controlPlane.Requests()
	database := math.NaN()
	if size, err := r.controlPlane.DatabaseSize(); err == nil { // the sample is unknown otherwise
		database = float64(size)
	}
	r.store.Record(now, history.Key{Resource: metricshistory.ControlPlanes, Name: r.nodeName}, now, []float64{
		processTime(), residentMemory(), float64(runtime.NumGoroutine()), float64(failed), float64(all), seconds, database, r.controlPlane.QueueDepth(),
	})
}

// processTime returns the CPU time of this process in seconds, or NaN if it is unknown.
func processTime() float64 {
	var use syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &use) != nil {
		return math.NaN()
	}
	return float64(use.Utime.Nano()+use.Stime.Nano()) / 1e9
}

// residentMemory returns the resident memory of this process in bytes, or NaN if it is unknown.
func residentMemory() float64 {
	raw, err := os.ReadFile("/proc/self/statm")
	fields := strings.Fields(string(raw))
	if err != nil || len(fields) < 2 {
		return math.NaN()
	}
	pages, err := strconv.ParseFloat(fields[1], 64)
	if err != nil {
		return math.NaN()
	}
	return pages * float64(os.Getpagesize())
}
