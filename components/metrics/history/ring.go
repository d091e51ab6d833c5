package history

import (
	"math"
	"time"

	"hyperkube/internal/serving/metricshistory"
)

// Numbers of samples in the rings, and of fine steps in a coarse step.
const (
	fineLength   = int64(metricshistory.HourRange / metricshistory.HourStep)
	coarseLength = int64(metricshistory.DayRange / metricshistory.DayStep)
	fineInCoarse = int64(metricshistory.DayStep / metricshistory.HourStep)
)

// fineStep returns the number of the fine step that contains t, counted from 1970.
func fineStep(t time.Time) int64 { return t.UnixNano() / int64(metricshistory.HourStep) }

// rings are the samples of all metrics of one object: those of the last hour, and the mean and maximum of every five
// minutes of the last day. A ring has a cell per step, at the number of the step modulo its length.
type rings struct {
	// metrics is the number of metrics.
	metrics int
	// data are the fine rings of all metrics, then the rings of the means, of the maxima, and then the sums and the numbers of
	// the samples in the current coarse step.
	data []float32
	// first and last are the fine steps of the first and the last sample, or 0 if there is none.
	first, last int64
}

// ringsLength returns the number of float32 values of an object with that number of metrics.
func ringsLength(metrics int) int {
	return metrics * (int(fineLength) + 2*int(coarseLength) + 2)
}

// reset makes r empty, so that another object can use its memory.
func (r *rings) reset(metrics int) {
	if r.metrics != metrics {
		r.metrics, r.data = metrics, make([]float32, ringsLength(metrics))
	}
	nan := float32(math.NaN())
	for i := range r.data {
		r.data[i] = nan
	}
	r.first, r.last = 0, 0
}

// Parts of data. They are slices of it, one for each kind of ring of the metric m.
func (r *rings) fine(m int) []float32   { return r.part(m, 0, fineLength) }
func (r *rings) mean(m int) []float32   { return r.part(m, fineLength, coarseLength) }
func (r *rings) peak(m int) []float32   { return r.part(m, fineLength+coarseLength, coarseLength) }
func (r *rings) totals(m int) []float32 { return r.part(m, fineLength+2*coarseLength, 2) }

// part returns length values of each metric's part of data, which begins with begin values of the metric m.
func (r *rings) part(m int, begin, length int64) []float32 {
	from := int64(m)*(fineLength+2*coarseLength+2) + begin
	return r.data[from : from+length]
}

// add stores the samples of all metrics at a fine step. NaN is an unknown sample. A step that is not later than the last one
// is ignored: the clock was set back, or the object was already sampled.
func (r *rings) add(step int64, samples []float32) {
	if step <= r.last {
		return
	}
	nan := float32(math.NaN())
	if r.first == 0 {
		r.first = step
	} else {
		// Cells of steps without a sample have values of an hour or a day ago.
		for skipped := max(r.last+1, step-fineLength); skipped < step; skipped++ {
			for m := range r.metrics {
				r.fine(m)[skipped%fineLength] = nan
			}
		}
	}
	coarse, lastCoarse := step/fineInCoarse, r.last/fineInCoarse
	if coarse != lastCoarse {
		for m := range r.metrics {
			if r.last != 0 {
				for skipped := max(lastCoarse+1, coarse-coarseLength+1); skipped <= coarse; skipped++ {
					r.mean(m)[skipped%coarseLength], r.peak(m)[skipped%coarseLength] = nan, nan
				}
			}
			r.totals(m)[0], r.totals(m)[1] = 0, 0
		}
	}
	for m, sample := range samples {
		r.fine(m)[step%fineLength] = sample
		if sample != sample { // NaN
			continue
		}
		totals, mean, peak := r.totals(m), r.mean(m), r.peak(m)
		totals[0] += sample
		totals[1]++
		cell := coarse % coarseLength
		mean[cell] = totals[0] / totals[1]
		if !(peak[cell] >= sample) { // also if it is NaN
			peak[cell] = sample
		}
	}
	r.last = step
}

// window is a part of the rings: the steps from begin to before end, of the coarse or the fine ring.
type window struct {
	begin, end int64
	coarse     bool
}

// newWindow returns the window with the last length until the fine step now, including it.
func newWindow(now int64, length time.Duration) window {
	if length <= metricshistory.HourRange {
		n := int64((length + metricshistory.HourStep - 1) / metricshistory.HourStep)
		return window{begin: now + 1 - min(n, fineLength), end: now + 1}
	}
	n := int64((length + metricshistory.DayStep - 1) / metricshistory.DayStep)
	now /= fineInCoarse
	return window{begin: now + 1 - min(n, coarseLength), end: now + 1, coarse: true}
}

// clip returns the part of w that begins with the first sample of r, so that the response for a new object is small. It is
// empty if r has no sample in w.
func (w window) clip(r *rings) window {
	first, last := r.first, r.last
	if w.coarse {
		first, last = first/fineInCoarse, last/fineInCoarse
	}
	if r.last == 0 || last < w.begin {
		w.begin = w.end
	}
	w.begin = max(w.begin, first)
	return w
}

// step returns the duration of a step.
func (w window) step() time.Duration {
	if w.coarse {
		return metricshistory.DayStep
	}
	return metricshistory.HourStep
}

// start returns the time at which the first step begins.
func (w window) start() time.Time { return time.Unix(0, w.begin*int64(w.step())) }

// series returns the samples of the metric m in the window w. Steps after the last sample are unknown.
func (r *rings) series(m int, w window) metricshistory.Series {
	if !w.coarse {
		return metricshistory.Series{Values: cut(r.fine(m), w, r.last)}
	}
	last := r.last / fineInCoarse
	return metricshistory.Series{Values: cut(r.mean(m), w, last), Max: cut(r.peak(m), w, last)}
}

// cut returns the cells of ring for the steps in w. Those after last are NaN.
func cut(ring []float32, w window, last int64) metricshistory.Values {
	out := make(metricshistory.Values, 0, max(w.end-w.begin, 0))
	for step := w.begin; step < w.end; step++ {
		if step > last {
			out = append(out, float32(math.NaN()))
			continue
		}
		out = append(out, ring[step%int64(len(ring))])
	}
	return out
}
