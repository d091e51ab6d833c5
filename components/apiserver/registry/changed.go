package registry

// publish makes t the current table.
func (r *Registry) publish(t *table) {
	r.table.Store(t)
	r.changed.Send()
}

// Changed returns a channel that is closed at the next change of the served resources.
func (r *Registry) Changed() <-chan struct{} { return r.changed.Next() }
