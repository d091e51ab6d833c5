//go:build cgo

package runtime

import (
	"context"
	"fmt"

	"google.golang.org/protobuf/proto"
)

// creation is a sandbox or container that is being created.
type creation struct {
	// request is a copy of the original request, because creation modifies the request.
	request proto.Message
	// done is closed when the creation has succeeded or failed.
	done chan struct{}
	// succeeded reports whether it succeeded. It may be read after done is closed.
	succeeded bool
}

// reserve reserves a name for an ID until release. If an identical request is already in progress
// (its client may have disconnected), reserve waits and returns the ID that it creates. If the name
// belongs to an existing object or to a different request, it returns an error.
func (r *Runtime) reserve(ctx context.Context, kind, name, id string, request proto.Message) (made string, err error) {
	for {
		r.mu.Lock()
		owner, taken := r.names[kind+name]
		m := r.creations[kind+name]
		if !taken {
			r.names[kind+name] = id
			r.creations[kind+name] = &creation{request: proto.Clone(request), done: make(chan struct{})}
		}
		r.mu.Unlock()
		if !taken {
			return "", nil
		}
		if m == nil || !proto.Equal(m.request, request) {
			return "", fmt.Errorf("failed to reserve %s name %q: name %q is reserved for %q", kind, name, name, owner)
		}
		select {
		case <-m.done:
		case <-ctx.Done():
			return "", ctx.Err()
		}
		if m.succeeded {
			return owner, nil
		}
	}
}

// markCreated marks the creation under a name as successful. The caller must hold mu.
func (r *Runtime) markCreated(kind, name string) {
	if m := r.creations[kind+name]; m != nil {
		m.succeeded = true
		close(m.done)
		delete(r.creations, kind+name)
	}
}

// release releases a name after the creation has failed.
func (r *Runtime) release(kind, name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.names, kind+name)
	if m := r.creations[kind+name]; m != nil {
		close(m.done)
		delete(r.creations, kind+name)
	}
}
