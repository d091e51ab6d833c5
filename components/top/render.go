package top

import (
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"hyperkube/internal/serving/metricshistory"
)

// style is how text is shown on a terminal.
type style struct {
	glyphs glyphs
	// color enables colors. Without it, only the selected row has an attribute.
	color bool
}

// Attributes of text: parameters of the control sequence SGR.
const (
	bold    = "1"
	inverse = "7"
	red     = "31"
	green   = "32"
	yellow  = "33"
	cyan    = "36"
)

// paint returns text with an attribute. Colors are omitted if they are disabled.
func (s style) paint(text, attribute string) string {
	if !s.color && attribute != inverse {
		return text
	}
	return "\x1b[" + attribute + "m" + text + "\x1b[0m"
}

// level returns the color for a share of a capacity.
func level(share float32) string {
	switch {
	case share >= 0.9:
		return red
	case share >= 0.7:
		return yellow
	}
	return green
}

// column is a column of the rows. right aligns it to the right.
type column struct {
	title string
	width int
	right bool
	// cell returns the text without attributes; color returns its color, or "" for none. color may be nil.
	cell  func(h *metricshistory.History) string
	color func(h *metricshistory.History) string
}

// metricColumn returns a column with the newest sample of a metric.
func metricColumn(title string, width int, metric string, format func(float32) string) column {
	return column{title: title, width: width, right: true, cell: func(h *metricshistory.History) string { return format(recent(h, metric)) }}
}

// shareColumn returns a column with a bar of the usage of a node's capacity.
func shareColumn(g glyphs, width int, used string, capacity func(h *metricshistory.History) float32) column {
	share := func(h *metricshistory.History) float32 { return recent(h, used) / capacity(h) }
	return column{
		width: width,
		cell:  func(h *metricshistory.History) string { return g.bar(share(h), width) },
		color: func(h *metricshistory.History) string { return level(share(h)) },
	}
}

// nodeCapacity returns a function that returns the allocatable amount of a resource of a node, or 0 if it is unknown.
func nodeCapacity(metric string) func(h *metricshistory.History) float32 {
	return func(h *metricshistory.History) float32 { return float32(h.Capacity[metric]) }
}

// columns returns the columns of the view for a screen of that width.
func (v *view) columns(s style, width int) []column {
	const bar = 8
	name := column{title: "NAME", cell: func(h *metricshistory.History) string { return h.Name }}
	longest, spaces := len("NAME"), len("NAMESPACE")
	for i := range v.items {
		longest, spaces = max(longest, len(v.items[i].Name)), max(spaces, len(v.items[i].Namespace))
	}
	var columns []column
	filesystem := func(h *metricshistory.History) float32 { return recent(h, metricshistory.FilesystemCapacity) }
	if v.resource == metricshistory.Nodes {
		columns = []column{
			name,
			metricColumn("CPU", 6, metricshistory.CPU, formatCPU), shareColumn(s.glyphs, bar, metricshistory.CPU, nodeCapacity(metricshistory.CPU)),
			metricColumn("MEMORY", 7, metricshistory.Memory, formatBytes), shareColumn(s.glyphs, bar, metricshistory.Memory, nodeCapacity(metricshistory.Memory)),
			metricColumn("DISK", 6, metricshistory.FilesystemUsed, formatBytes), shareColumn(s.glyphs, bar, metricshistory.FilesystemUsed, filesystem),
			metricColumn("RECEIVE", 8, metricshistory.NetworkReceive, formatRate), metricColumn("SEND", 8, metricshistory.NetworkTransmit, formatRate),
		}
	} else {
		columns = []column{
			name,
			metricColumn("CPU", 6, metricshistory.CPU, formatCPU), metricColumn("MEMORY", 7, metricshistory.Memory, formatBytes),
			metricColumn("RECEIVE", 8, metricshistory.NetworkReceive, formatRate), metricColumn("SEND", 8, metricshistory.NetworkTransmit, formatRate),
			metricColumn("RESTARTS", 8, metricshistory.Restarts, formatCount),
		}
		if v.namespace == "" {
			columns = append([]column{{title: "NAMESPACE", width: min(spaces, 20), cell: func(h *metricshistory.History) string { return h.Namespace }}}, columns...)
		}
	}
	used := 0
	for i := range columns {
		used += columns[i].width + 1
	}
	at := 0
	if columns[0].title != "NAME" {
		at = 1
	}
	columns[at].width = min(longest, max(width-used, 12))
	// The rest is for charts of the CPU and memory usage.
	if rest := width - used - columns[at].width; rest >= 12 {
		chart := (rest - 2) / 2
		for _, c := range []struct {
			title, metric string
			capacity      func(*metricshistory.History) float32
		}{{"CPU", metricshistory.CPU, nodeCapacity(metricshistory.CPU)}, {"MEMORY", metricshistory.Memory, nodeCapacity(metricshistory.Memory)}} {
			columns = append(columns, column{
				title: c.title, width: min(chart, 40),
				cell: func(h *metricshistory.History) string {
					return s.glyphs.sparkline(h.Series[c.metric].Values, min(chart, 40), c.capacity(h))
				},
				color: func(*metricshistory.History) string { return cyan },
			})
		}
	}
	// Columns that do not fit are omitted.
	used = -1
	for i := range columns {
		if used += columns[i].width + 1; used > width && i > 0 {
			return columns[:i]
		}
	}
	return columns
}

// fit returns text with exactly width characters.
func fit(text string, width int, right bool) string {
	n := utf8.RuneCountInString(text)
	if n > width {
		return string([]rune(text)[:max(width, 0)])
	}
	if right {
		return strings.Repeat(" ", width-n) + text
	}
	return text + strings.Repeat(" ", width-n)
}

// render returns the lines of the screen. No line is wider than width, and there are at most height lines.
func (v *view) render(s style, width, height int, now time.Time) []string {
	lines := []string{s.paint(fit(v.title(now), width, false), bold)}
	switch {
	case v.help:
		lines = append(lines, helpLines()...)
	case v.detail != nil:
		lines = append(lines, v.detailLines(s, width)...)
	default:
		lines = append(lines, v.tableLines(s, width, height-len(lines)-1)...)
	}
	lines = lines[:min(len(lines), max(height-1, 1))]
	return append(lines, v.footer(s, width))
}

// title returns the first line.
func (v *view) title(now time.Time) string {
	what := v.resource
	switch {
	case v.detail != nil:
		what = strings.TrimSuffix(v.detail.resource, "s") + " " + strings.TrimPrefix(v.detail.namespace+"/", "/") + v.detail.name
	case v.resource == metricshistory.Pods && v.namespace == "":
		what += " of all namespaces"
	case v.resource == metricshistory.Pods:
		what += " of namespace " + v.namespace
	}
	return now.Format(time.TimeOnly) + "  " + what + v.controlPlaneText()
}

// controlPlaneText returns the load of the control plane for the title of nodes, or "" if it is unknown.
func (v *view) controlPlaneText() string {
	if v.controlPlane == nil || v.resource != metricshistory.Nodes || v.detail != nil {
		return ""
	}
	c := v.controlPlane
	return fmt.Sprintf("  API: %s requests/s, %s  etcd: %s  control plane: %s CPU, %s",
		formatCount(recent(c, metricshistory.Requests)), formatSeconds(recent(c, metricshistory.Latency)), formatBytes(recent(c, metricshistory.DatabaseSize)),
		formatCPU(recent(c, metricshistory.CPU)), formatBytes(recent(c, metricshistory.Memory)))
}

// footer returns the last line: the prompt, an error or the keys.
func (v *view) footer(s style, width int) string {
	switch {
	case v.prompt != nil:
		return fit("Namespace (empty for all): "+*v.prompt+"_", width, false)
	case v.problem != "":
		return s.paint(fit(v.problem, width, false), red)
	case v.detail != nil:
		return fit("q quit  esc back  p pods  N nodes  ? help", width, false)
	}
	return fit("q quit  enter details  p pods  N nodes  n namespace  s sort: "+v.order+"  ? help", width, false)
}

// tableLines returns the header and the rows that fit in that number of lines. It changes offset so that the selected row is
// visible.
func (v *view) tableLines(s style, width, lines int) []string {
	columns := v.columns(s, width)
	row := func(cell func(c *column) (text, color string)) string {
		var out strings.Builder
		for i := range columns {
			c := &columns[i]
			text, color := cell(c)
			text = fit(text, c.width, c.right)
			if color != "" {
				text = s.paint(text, color)
			}
			out.WriteString(text)
			if i < len(columns)-1 {
				out.WriteByte(' ')
			}
		}
		return out.String()
	}
	out := []string{s.paint(row(func(c *column) (string, string) { return c.title, "" }), cyan)}
	if len(v.items) == 0 {
		if v.loaded {
			return append(out, "no samples yet")
		}
		return append(out, "loading")
	}
	visible := max(lines-1, 1)
	v.offset = min(max(v.offset, v.selected-visible+1), v.selected)
	v.offset = max(min(v.offset, len(v.items)-visible), 0)
	for i := v.offset; i < min(v.offset+visible, len(v.items)); i++ {
		h := &v.items[i]
		if i == v.selected {
			out = append(out, s.paint(row(func(c *column) (string, string) { return c.cell(h), "" }), inverse))
			continue
		}
		out = append(out, row(func(c *column) (string, string) {
			if c.color == nil {
				return c.cell(h), ""
			}
			return c.cell(h), c.color(h)
		}))
	}
	return out
}

// charted is a metric in the details of an object.
type charted struct {
	title, metric string
	format        func(float32) string
}

// charts returns the metrics in the details of an object of a resource.
func charts(resource string) []charted {
	list := []charted{
		{"CPU", metricshistory.CPU, formatCPU}, {"Memory", metricshistory.Memory, formatBytes},
		{"Received", metricshistory.NetworkReceive, formatRate}, {"Sent", metricshistory.NetworkTransmit, formatRate},
	}
	if resource == metricshistory.Nodes {
		return append(list, charted{"Disk", metricshistory.FilesystemUsed, formatBytes})
	}
	return append(list, charted{"Restarts", metricshistory.Restarts, formatCount})
}

// detailLines returns the charts of an object: each metric over the last hour, with the newest value and the maximum.
func (v *view) detailLines(s style, width int) []string {
	if len(v.items) == 0 {
		return []string{"", "loading"}
	}
	h := &v.items[0]
	out := []string{""}
	for _, c := range charts(v.detail.resource) {
		values := h.Series[c.metric].Values
		peak := float32(0)
		for _, value := range values {
			peak = max(peak, zeroIfUnknown(value))
		}
		out = append(out,
			fmt.Sprintf("%-9s %9s now  %9s maximum", c.title, c.format(recent(h, c.metric)), c.format(peak)),
			s.paint(s.glyphs.sparkline(values, min(width, len(values)), 0), cyan), "")
	}
	return append(out, fmt.Sprintf("%s to now, a sample every %d seconds", h.Start.Local().Format(time.TimeOnly), h.StepSeconds))
}

// zeroIfUnknown returns v, or 0 if v is NaN.
func zeroIfUnknown(v float32) float32 {
	if v != v { // NaN
		return 0
	}
	return v
}

// helpLines returns the description of the keys.
func helpLines() []string {
	return []string{
		"",
		"up, k / down, j       select the row above or below",
		"page up / page down   move by a screen",
		"g, home / G, end      first or last row",
		"enter                 details of the selected row: charts of the last hour",
		"esc                   back to the rows",
		"p                     pods",
		"N                     nodes",
		"n                     select a namespace",
		"s                     sort by CPU, memory or name",
		"q, ctrl+c             quit",
		"",
		"Bars show the share of the capacity of the node; charts show the last ten minutes.",
	}
}
