package top

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"hyperkube/internal/serving/metricshistory"
)

// formatCPU returns a number of cores, such as 250m or 1.50, or - if it is unknown.
func formatCPU(cores float32) string {
	switch v := float64(cores); {
	case math.IsNaN(v):
		return "-"
	case v < 0.9995:
		return fmt.Sprintf("%.0fm", v*1000)
	default:
		return fmt.Sprintf("%.2f", v)
	}
}

// formatBytes returns a size in bytes with a binary unit, such as 12Mi, or - if it is unknown.
func formatBytes(bytes float32) string {
	v := float64(bytes)
	if math.IsNaN(v) {
		return "-"
	}
	for _, unit := range []string{"", "Ki", "Mi", "Gi"} {
		if v < 1000 {
			return number(v) + unit
		}
		v /= 1024
	}
	return number(v) + "Ti"
}

// number returns v with at most three digits.
func number(v float64) string {
	if v < 9.95 && v != math.Trunc(v) {
		return strconv.FormatFloat(v, 'f', 1, 64)
	}
	return strconv.FormatFloat(v, 'f', 0, 64)
}

// formatRate returns a number of bytes per second.
func formatRate(bytes float32) string {
	if bytes != bytes { // NaN
		return "-"
	}
	return formatBytes(bytes) + "/s"
}

// formatCount returns a number of things, or - if it is unknown.
func formatCount(n float32) string {
	if n != n { // NaN
		return "-"
	}
	return number(float64(n))
}

// formatSeconds returns a duration, such as 3.2ms, or - if it is unknown.
func formatSeconds(seconds float32) string {
	if seconds != seconds { // NaN
		return "-"
	}
	if seconds < 1 {
		return number(float64(seconds)*1000) + "ms"
	}
	return number(float64(seconds)) + "s"
}

// formatPercent returns used as a percentage of capacity, or - if one of them is unknown.
func formatPercent(used, capacity float32) string {
	if share := float64(used / capacity); !math.IsNaN(share) && !math.IsInf(share, 0) {
		return fmt.Sprintf("%.0f%%", share*100)
	}
	return "-"
}

// glyphs are the characters of charts.
type glyphs struct {
	// levels are the characters of a sparkline from low to high. full and empty are those of a bar.
	levels      []rune
	full, empty rune
}

// newGlyphs returns block characters, or ASCII characters for terminals without UTF-8.
func newGlyphs(utf8 bool) glyphs {
	if utf8 {
		return glyphs{[]rune("▁▂▃▄▅▆▇█"), '█', '·'}
	}
	return glyphs{[]rune("_.-=+*%#"), '#', '.'}
}

// bar returns a bar of width characters that is filled to the share, which is limited to 0 to 1.
func (g glyphs) bar(share float32, width int) string {
	if share != share { // NaN
		return strings.Repeat(" ", width)
	}
	filled := int(math.Round(float64(min(max(share, 0), 1)) * float64(width)))
	return strings.Repeat(string(g.full), filled) + strings.Repeat(string(g.empty), width-filled)
}

// sparkline returns a chart of width characters of the newest values. most is the value of the highest level; if it is 0, it is
// the maximum of the values. Unknown values are spaces. More values than characters are combined to their maximum.
func (g glyphs) sparkline(values metricshistory.Values, width int, most float32) string {
	values = shrink(values, width)
	if most == 0 {
		for _, v := range values {
			if v > most {
				most = v
			}
		}
	}
	out := []rune(strings.Repeat(" ", width-len(values)))
	for _, v := range values {
		switch {
		case v != v: // NaN
			out = append(out, ' ')
		case !(v > 0) || !(most > 0):
			out = append(out, g.levels[0])
		default:
			level := int(math.Ceil(float64(v/most)*float64(len(g.levels)))) - 1
			out = append(out, g.levels[min(max(level, 0), len(g.levels)-1)])
		}
	}
	return string(out)
}

// shrink combines values to at most width values, each of which is the maximum of values that follow each other.
func shrink(values metricshistory.Values, width int) metricshistory.Values {
	if len(values) <= width || width <= 0 {
		return values[:min(len(values), max(width, 0))]
	}
	out := make(metricshistory.Values, width)
	for i := range out {
		part := values[i*len(values)/width : (i+1)*len(values)/width]
		out[i] = part[0]
		for _, v := range part[1:] {
			if !(out[i] >= v) && v == v {
				out[i] = v
			}
		}
	}
	return out
}
