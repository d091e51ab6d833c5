package job

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
)

// indexes is a set of completion indexes. It is a list of sorted closed intervals that are disjoint and not adjacent.
type indexes []interval

// interval is a closed range of completion indexes.
type interval struct{ first, last int }

// parseIndexes parses a set in the format of the API, such as "1,3-5,7". Invalid parts, and indexes that are not below
// limit, are ignored.
func parseIndexes(s string, limit int) indexes {
	var out indexes
	for part := range strings.SplitSeq(s, ",") {
		a, b, isRange := strings.Cut(part, "-")
		first, err := strconv.Atoi(a)
		if err != nil || first < 0 || first >= limit {
			continue
		}
		last := first
		if isRange {
			if last, err = strconv.Atoi(b); err != nil || last < first {
				continue
			}
			last = min(last, limit-1)
		}
		for i := first; i <= last; i++ {
			// This is rare, and the number of iterations is limited by the Job's size.
			if n := len(out); n > 0 && out[n-1].last == i-1 {
				out[n-1].last = i
				continue
			}
			out = out.with(i)
		}
	}
	return out
}

// has reports whether the set contains i.
func (x indexes) has(i int) bool {
	k, found := slices.BinarySearchFunc(x, i, func(v interval, i int) int { return v.last - i })
	return found || k < len(x) && x[k].first <= i
}

// with returns the set of indexes x with i added. It may modify x.
func (x indexes) with(i int) indexes {
	if x.has(i) {
		return x
	}
	k, _ := slices.BinarySearchFunc(x, i, func(v interval, i int) int { return v.last - i })
	left, right := k > 0 && x[k-1].last == i-1, k < len(x) && x[k].first == i+1
	switch {
	case left && right:
		x[k-1].last = x[k].last
		return slices.Delete(x, k, k+1)
	case left:
		x[k-1].last = i
	case right:
		x[k].first = i
	default:
		return slices.Insert(x, k, interval{i, i})
	}
	return x
}

// total returns the number of indexes in the set.
func (x indexes) total() (n int) {
	for _, v := range x {
		n += v.last - v.first + 1
	}
	return n
}

// String formats the set as in the API: three or more consecutive indexes are a range.
func (x indexes) String() string {
	var b strings.Builder
	for _, v := range x {
		if b.Len() > 0 {
			b.WriteByte(',')
		}
		switch v.last - v.first {
		case 0:
			fmt.Fprintf(&b, "%d", v.first)
		case 1:
			fmt.Fprintf(&b, "%d,%d", v.first, v.last)
		default:
			fmt.Fprintf(&b, "%d-%d", v.first, v.last)
		}
	}
	return b.String()
}

// isIndexed reports whether the completion mode of a Job is Indexed.
func isIndexed(j *batchv1.Job) bool {
	return j.Spec.CompletionMode != nil && *j.Spec.CompletionMode == batchv1.IndexedCompletion
}

// indexOf returns the completion index of a pod, or false if it has none.
func indexOf(p *corev1.Pod) (int, bool) {
	n, err := strconv.Atoi(p.Annotations[batchv1.JobCompletionIndexAnnotation])
	return n, err == nil && n >= 0
}

// failuresOf returns how often the index of a pod had failed before the pod was created, according to its annotation.
func failuresOf(p *corev1.Pod) int32 { return countIn(p, batchv1.JobIndexFailureCountAnnotation) }

// ignoredOf returns how often the index of a pod had failed before the pod was created, with failures that the pod
// failure policy ignores, according to its annotation.
func ignoredOf(p *corev1.Pod) int32 { return countIn(p, batchv1.JobIndexIgnoredFailureCountAnnotation) }

// countIn returns the number in an annotation, or 0 if it is missing or invalid.
func countIn(p *corev1.Pod, annotation string) int32 {
	n, err := strconv.ParseInt(p.Annotations[annotation], 10, 32)
	if err != nil || n < 0 {
		return 0
	}
	return int32(n)
}
