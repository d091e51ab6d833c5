package rest

import (
	"hyperkube/internal/api"
	"hyperkube/internal/base/tracing"
)

// traceDispatch calls dispatch within a span of the verb, such as "Create", if the request is traced and has a verb.
func (c router) traceDispatch() error {
	name := spanName(c.info.Verb)
	if name == "" {
		return c.dispatch()
	}
	outer := c.ctx
	traced, end := tracing.StartChild(outer, name)
	c.ctx = traced
	err := c.dispatch()
	c.ctx = outer
	end(err)
	return err
}

// spanName returns the name of the span of a verb, as in upstream. It is empty for verbs that are not traced: watches, and
// methods that no resource supports.
func spanName(verb string) string {
	switch verb {
	case "get":
		return "Get"
	case "list":
		return "List"
	case "create":
		return "Create"
	case "update":
		return "Update"
	case "patch":
		return "Patch"
	case "delete":
		return "Delete"
	case "deletecollection":
		return "Delete collection"
	}
	return ""
}

// recordTrace records the trace of the request in obj, which replaces old or, if old is nil, is created. It does nothing
// for objects that no component turns into running pods. An update that leaves the desired state as it is keeps the trace,
// which users must not change: it decides what other components export.
func (c committer) recordTrace(obj, old api.Object) {
	if !c.cfg.RecordTraces || !leadsToPods(c.res.Group, c.res.Plural) {
		return
	}
	if old != nil && obj.GetGeneration() == old.GetGeneration() {
		tracing.Preserve(obj, old)
		return
	}
	tracing.Record(c.ctx, obj)
}

// leadsToPods reports whether a resource is that of pods, or of workloads for which controllers create pods.
func leadsToPods(group, plural string) bool {
	switch group {
	case "apps", "batch":
		return true
	case "":
		return plural == "pods" || plural == "replicationcontrollers"
	}
	return false
}
