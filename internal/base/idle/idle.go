// Package idle returns unused memory to the operating system when a process is idle.
//
// The Go runtime keeps memory that it once needed: after a start or a burst of requests, half of
// the heap is garbage that is not collected before the same amount has been allocated again, which
// takes hours in an idle process. Also, most of the resident pages of the executable were only used
// by initializers. Released file pages are loaded again by page faults when they are needed.
package idle

import (
	"context"
	"os"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

const (
	// checkInterval is the interval at which Run checks whether memory can be released. A check takes 20
	// microseconds of CPU time.
	checkInterval = 10 * time.Second
	// minGain is the minimum number of bytes that releasing memory, by a garbage collection, must free. A
	// collection takes about a millisecond per megabyte of live memory.
	minGain = 4 << 20
	// minGainRatio is the minimum ratio of freed bytes to the bytes allocated per interval. If the ratio
	// is lower, the process would soon use the memory again.
	minGainRatio = 4
)

// Run releases unused memory of this process until ctx is done. One call per process is enough. It
// does not change the garbage collection target percentage if $GOGC is set.
func Run(ctx context.Context) {
	_, set := os.LookupEnv("GOGC")
	pace := defaultPercent
	ticker := time.NewTicker(checkInterval)
	defer ticker.Stop()
	w := metricsReader{}
	before := w.read()
	// needed is the number of mapped file bytes that the idle process uses.
	var needed uint64
	released := false
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		now := w.read()
		if released {
			needed = now.mapped
		}
		if p := gcPercent(now.live); p != pace && !set {
			pace = p
			debug.SetGCPercent(pace)
		}
		if released = before.shouldRelease(now, needed); released {
			debug.FreeOSMemory()
			release()
			now = w.read()
		}
		before = now
	}
}

// defaultPercent and lowPercent are garbage collection target percentages (GOGC) for small and large processes.
// Most of the live heap of a large process is the stored bytes of objects, which contain no pointers and are not
// scanned, so a lower percentage is affordable.
const (
	defaultPercent = 100
	lowPercent     = 50
	// lowLive and highLive are the live heap sizes in bytes at which defaultPercent and lowPercent
	// apply. Between them the percentage changes in steps.
	lowLive, highLive = 32 << 20, 128 << 20
	step              = 5
)

// gcPercent returns the value for debug.SetGCPercent for a live heap size in bytes.
func gcPercent(live uint64) int {
	switch {
	case live <= lowLive:
		return defaultPercent
	case live >= highLive:
		return lowPercent
	}
	steps := uint64((defaultPercent-lowPercent)/step) * (live - lowLive) / (highLive - lowLive)
	return defaultPercent - step*int(steps)
}

// state contains memory statistics of this process at one time, in bytes.
type state struct {
	// allocated is the total since the process started.
	allocated uint64
	// live is the size of live objects at the last collection. objects includes garbage. free is
	// memory that is reserved for future objects.
	live, objects, free uint64
	// mapped is the size of resident file mappings, nearly all of it the executable.
	mapped uint64
}

// shouldRelease reports whether the process is idle and releasing memory is worthwhile: it would
// free at least minGain bytes, and much more than the process has allocated between s and later,
// which are one check interval apart. needed is the number of file bytes that will be mapped again.
func (s state) shouldRelease(later state, needed uint64) bool {
	gain := later.free
	if later.objects > later.live {
		gain += later.objects - later.live
	}
	if later.mapped > needed {
		gain += later.mapped - needed
	}
	return gain >= minGain && gain > minGainRatio*(later.allocated-s.allocated)
}

// metricsReader reads the memory statistics. It reuses the buffer of one reading for the next.
type metricsReader struct{ samples [4]metrics.Sample }

// read returns the current statistics. Those that the Go runtime or the kernel does not report are zero.
func (w *metricsReader) read() state {
	for i, name := range [...]string{
		"/gc/heap/allocs:bytes", "/gc/heap/live:bytes", "/memory/classes/heap/objects:bytes", "/memory/classes/heap/free:bytes",
	} {
		w.samples[i].Name = name
	}
	metrics.Read(w.samples[:])
	value := func(i int) uint64 {
		if w.samples[i].Value.Kind() != metrics.KindUint64 {
			return 0
		}
		return w.samples[i].Value.Uint64()
	}
	return state{allocated: value(0), live: value(1), objects: value(2), free: value(3), mapped: mapped()}
}
