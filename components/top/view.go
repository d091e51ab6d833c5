package top

import (
	"cmp"
	"math"
	"slices"
	"strings"

	"hyperkube/internal/serving/metricshistory"
)

// Orders of rows.
const (
	byCPU    = "cpu"
	byMemory = "memory"
	byName   = "name"
)

// view is what the screen shows. It changes only by the functions that handle keys and data.
type view struct {
	// resource is that of the rows: nodes or pods.
	resource string
	// namespace limits pods; empty means all namespaces.
	namespace string
	order     string
	// detail is the object whose metrics are shown instead of the rows; nil shows the rows.
	detail *object
	// help shows the keys instead of the rows.
	help bool
	// prompt is the namespace that the user is typing, or nil.
	prompt *string
	// selected is the index of the selected row, and offset that of the first one on the screen.
	selected, offset int

	items []metricshistory.History
	// controlPlane is the history of the first control plane, for the header of the nodes. It may be nil.
	controlPlane *metricshistory.History
	// problem is the error of the last request, or empty.
	problem string
	// loaded reports whether a response has been received.
	loaded bool
}

// object identifies an object.
type object struct{ resource, namespace, name string }

// current reports whether h has been sampled at one of the last two steps, so that the object probably still exists.
func current(h *metricshistory.History) bool {
	for _, s := range h.Series {
		for _, v := range s.Values[max(len(s.Values)-2, 0):] {
			if v == v { // not NaN
				return true
			}
		}
	}
	return false
}

// recent returns the newest known sample of a metric in the last two steps, because the sample of the current step may not exist
// yet.
func recent(h *metricshistory.History, metric string) float32 {
	values := h.Series[metric].Values
	if v := values.Last(); v == v || len(values) < 2 {
		return v
	}
	return values[len(values)-2]
}

// setItems replaces the data. The selection stays on the same object if it still exists.
func (v *view) setItems(items []metricshistory.History) {
	selected := v.selection()
	v.items = slices.DeleteFunc(slices.Clone(items), func(h metricshistory.History) bool { return !current(&h) && v.detail == nil })
	v.loaded = true
	v.sort()
	if selected != nil {
		if i := slices.IndexFunc(v.items, func(h metricshistory.History) bool {
			return h.Namespace == selected.namespace && h.Name == selected.name
		}); i >= 0 {
			v.selected = i
		}
	}
	v.selected = min(max(v.selected, 0), max(len(v.items)-1, 0))
}

// selection returns the object in the selected row, or nil if there is none.
func (v *view) selection() *object {
	if v.detail != nil || v.selected >= len(v.items) {
		return nil
	}
	h := &v.items[v.selected]
	return &object{v.resource, h.Namespace, h.Name}
}

// sort orders the rows: by the highest usage, or by namespace and name.
func (v *view) sort() {
	metric := map[string]string{byCPU: metricshistory.CPU, byMemory: metricshistory.Memory}[v.order]
	slices.SortStableFunc(v.items, func(a, b metricshistory.History) int {
		byValue := 0
		if metric != "" {
			byValue = compareUnknownLast(recent(&b, metric), recent(&a, metric))
		}
		return cmp.Or(byValue, strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
	})
}

// compareUnknownLast compares two samples. NaN is less than all others.
func compareUnknownLast(a, b float32) int {
	known := func(v float32) float64 {
		if v != v { // NaN
			return math.Inf(-1)
		}
		return float64(v)
	}
	return cmp.Compare(known(a), known(b))
}

// clear removes the data when the view changes to other objects.
func (v *view) clear() {
	v.items, v.controlPlane, v.problem, v.loaded, v.selected, v.offset = nil, nil, "", false, 0, 0
}

// result is what a key causes besides a change of the view.
type result int

const (
	// redraw means that only the screen changes.
	redraw result = iota
	// reload means that other data is needed.
	reload
	// quit ends the program.
	quit
)

// press changes the view for a key. page is the number of rows on the screen.
func (v *view) press(k string, page int) result {
	if k == "ctrl+c" {
		return quit
	}
	if v.prompt != nil {
		return v.typed(k)
	}
	if v.help {
		v.help = false
		return redraw
	}
	switch k {
	case "q":
		return quit
	case "?", "h":
		v.help = true
	case "esc", "backspace", "left":
		if v.detail != nil {
			v.detail = nil
			v.clear()
			return reload
		}
	case "enter", "right":
		if o := v.selection(); o != nil {
			v.detail = o
			v.clear()
			return reload
		}
	case "p":
		return v.show(metricshistory.Pods)
	case "N":
		return v.show(metricshistory.Nodes)
	case "n":
		text := v.namespace
		v.prompt = &text
	case "s":
		orders := []string{byCPU, byMemory, byName}
		v.order = orders[(slices.Index(orders, v.order)+1)%len(orders)]
		v.sort()
	default:
		v.move(k, page)
	}
	return redraw
}

// show changes to the rows of a resource.
func (v *view) show(resource string) result {
	v.resource, v.detail = resource, nil
	v.clear()
	return reload
}

// move changes the selected row for a key; other keys do nothing.
func (v *view) move(k string, page int) {
	step := map[string]int{"up": -1, "k": -1, "down": 1, "j": 1, "pageup": -page, "pagedown": page, "home": -len(v.items), "g": -len(v.items), "end": len(v.items), "G": len(v.items)}[k]
	v.selected = min(max(v.selected+step, 0), max(len(v.items)-1, 0))
}

// typed handles a key while the user types a namespace. Enter shows the pods of the namespace; without one, of all namespaces.
func (v *view) typed(k string) result {
	switch {
	case k == "esc":
		v.prompt = nil
	case k == "enter":
		v.namespace, v.prompt = *v.prompt, nil
		return v.show(metricshistory.Pods)
	case k == "backspace":
		*v.prompt = (*v.prompt)[:max(len(*v.prompt)-1, 0)]
	case len(k) == 1 && (k == "-" || k >= "a" && k <= "z" || k >= "0" && k <= "9"):
		*v.prompt += k
	}
	return redraw
}
