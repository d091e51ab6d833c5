//go:build cgo

package runtime

import (
	"context"
	"fmt"

	"google.golang.org/protobuf/proto"
)

// making is a sandbox or a container that is being made.
type making struct {
	// asked is the request for it as it came: making it changes the request.
	asked proto.Message
	// done is closed when it is there, or when it has failed.
	done chan struct{}
	// made tells which, and may be read once done is closed.
	made bool
}

// reserve takes a name for an id, until release. Who asks for the same as a call that is
// under way, whose caller may be gone, gets what that one makes: its id is returned instead.
// What was made before, or is wanted otherwise, is an error.
func (r *Runtime) reserve(ctx context.Context, kind, name, id string, asked proto.Message) (made string, err error) {
	for {
		r.mu.Lock()
		owner, taken := r.names[kind+name]
		m := r.making[kind+name]
		if !taken {
			r.names[kind+name] = id
			r.making[kind+name] = &making{asked: proto.Clone(asked), done: make(chan struct{})}
		}
		r.mu.Unlock()
		if !taken {
			return "", nil
		}
		if m == nil || !proto.Equal(m.asked, asked) {
			return "", fmt.Errorf("failed to reserve %s name %q: name %q is reserved for %q", kind, name, name, owner)
		}
		select {
		case <-m.done:
		case <-ctx.Done():
			return "", ctx.Err()
		}
		if m.made {
			return owner, nil
		}
	}
}

// made says that what a name was taken for is there. The caller holds mu.
func (r *Runtime) made(kind, name string) {
	if m := r.making[kind+name]; m != nil {
		m.made = true
		close(m.done)
		delete(r.making, kind+name)
	}
}

// release gives a name up that was taken for what could not be made.
func (r *Runtime) release(kind, name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.names, kind+name)
	if m := r.making[kind+name]; m != nil {
		close(m.done)
		delete(r.making, kind+name)
	}
}
