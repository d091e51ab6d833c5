package rest

import (
	"slices"
	"strings"

	"hyperkube/internal/api"
	"hyperkube/internal/base/tracing"
)

// traceDispatch calls dispatch within a span of the verb, such as "Create", if the request is traced.
func (c router) traceDispatch() error {
	outer := c.ctx
	verb := c.info.Verb
	traced, end := tracing.StartChild(outer, strings.ToUpper(verb[:1])+verb[1:])
	c.ctx = traced
	err := c.dispatch()
	c.ctx = outer
	end(err)
	return err
}

// recordTrace records the trace of the request in obj, which replaces old or, if old is nil, is created. It does nothing
// for objects that no component turns into running pods, and for updates that leave the desired state as it is.
func (c committer) recordTrace(obj, old api.Object) {
	if !c.cfg.RecordTraces || old != nil && obj.GetGeneration() == old.GetGeneration() {
		return
	}
	switch c.res.Group {
	case "apps", "batch":
	case "":
		if !slices.Contains([]string{"pods", "replicationcontrollers"}, c.res.Plural) {
			return
		}
	default:
		return
	}
	tracing.Record(c.ctx, obj)
}
