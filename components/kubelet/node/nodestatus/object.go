package nodestatus

import (
	"sync"

	v1 "k8s.io/api/core/v1"

	"hyperkube/internal/client"
)

// Object caches the latest Node of the API, and forwards requests to update its status. It is separate from
// the Manager, which updates it, and is created before the parts of the kubelet that read the Node or
// contribute to its status: the Manager depends on these parts. Its methods are safe for concurrent use.
type Object struct {
	// trigger has an element while an update of the status is requested.
	trigger chan struct{}

	mu   sync.Mutex // guards node
	node *v1.Node   // nil before it is known
}

// NewObject returns an Object whose Node is not known yet.
func NewObject() *Object { return &Object{trigger: make(chan struct{}, 1)} }

// Node returns the latest Node from the API, or nil before it is known. It must not be modified.
func (o *Object) Node() *v1.Node {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.node
}

// Changed makes the Manager compute the status of the Node again immediately. It does not block.
func (o *Object) Changed() {
	select {
	case o.trigger <- struct{}{}:
	default:
	}
}

// set stores the Node, or nil if it is not known any more.
func (o *Object) set(node *v1.Node) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.node = node
}

// replace stores the Node if it is newer than the stored one, or has another UID because the Node was deleted and
// created again. It reports whether it has stored the Node.
func (o *Object) replace(node *v1.Node) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.node != nil && o.node.UID == node.UID && !client.Newer(node.ResourceVersion, o.node.ResourceVersion) {
		return false
	}
	o.node = node
	return true
}
