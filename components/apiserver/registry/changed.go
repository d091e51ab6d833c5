package registry

// publish makes t the current table of served resources and notifies the callers of Changed. The
// caller holds mu.
func (r *Registry) publish(t *table) {
	r.table.Store(t)
	r.changed.Send()
}

// Changed returns a channel that is closed when resources are next added, replaced or removed.
// Discovery and OpenAPI then build their documents again.
func (r *Registry) Changed() <-chan struct{} { return r.changed.Next() }
