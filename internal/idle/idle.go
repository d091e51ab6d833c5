// Package idle gives memory back to the machine when a process has nothing to
// do. Go keeps what it once needed: after a start or a burst of requests half of
// a process is garbage that nobody will collect before as much again has been
// allocated, which at rest takes hours, and of the program's own pages most
// were only looked at by initialisers. What is given back comes again by page
// faults when it is needed.
package idle

import (
	"context"
	"os"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

const (
	// every is how often a process is looked at: 20 microseconds of CPU.
	every = 10 * time.Second
	// worthwhile is how many bytes a collection has to promise. It takes about
	// a millisecond a megabyte of what is kept.
	worthwhile = 4 << 20
	// restful: what is gained must be more than is allocated in so many times
	// every, for else it would soon be back.
	restful = 4
)

// Keep looks after this process until ctx ends. One a process is enough. It
// leaves the pace of collections alone where $GOGC sets that.
func Keep(ctx context.Context) {
	_, set := os.LookupEnv("GOGC")
	pace := unhurried
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	w := watch{}
	before := w.read()
	// needed is what of the program's file this process looks at while it rests.
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
		if p := paceFor(now.live); p != pace && !set {
			pace = p
			debug.SetGCPercent(pace)
		}
		if released = before.resting(now, needed); released {
			debug.FreeOSMemory()
			release()
			now = w.read()
		}
		before = now
	}
}

// Paces of collections: how many percent of what is live may be garbage. What a
// large process keeps is for the most part the stored bytes of objects, which
// collections do not read, so that it can be thrifty.
const (
	unhurried = 100
	thrifty   = 50
	// small and large are how many bytes are live where these paces apply;
	// between them it goes in steps.
	small, large = 32 << 20, 128 << 20
	step         = 5
)

// paceFor is a value for debug.SetGCPercent.
func paceFor(live uint64) int {
	switch {
	case live <= small:
		return unhurried
	case live >= large:
		return thrifty
	}
	steps := uint64((unhurried-thrifty)/step) * (live - small) / (large - small)
	return unhurried - step*int(steps)
}

// state is what Go tells of its heap, in bytes.
type state struct {
	// allocated since the process began.
	allocated uint64
	// live at the last collection; objects, with garbage; free, which is kept
	// for objects to come.
	live, objects, free uint64
	// mapped of files, nearly all of it the program's.
	mapped uint64
}

// resting tells whether giving memory back is worth while, from a state and
// that of one period later. Needed is how much of files will be mapped again.
func (s state) resting(later state, needed uint64) bool {
	gain := later.free
	if later.objects > later.live {
		gain += later.objects - later.live
	}
	if later.mapped > needed {
		gain += later.mapped - needed
	}
	return gain >= worthwhile && gain > restful*(later.allocated-s.allocated)
}

// watch reads states.
type watch struct{ samples [4]metrics.Sample }

func (w *watch) read() state {
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
