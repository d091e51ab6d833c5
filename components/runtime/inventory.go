//go:build cgo

package runtime

import (
	"context"
	"fmt"
	"strings"
	"sync"

	"google.golang.org/protobuf/proto"
)

// inventory contains all sandboxes and containers that this process manages, by ID, and reserves the names of new
// ones, so that a repeated CRI request does not create a second one. It is safe for concurrent use.
type inventory struct {
	mu         sync.Mutex // guards the fields below
	sandboxes  map[string]*sandboxState
	containers map[string]*containerState
	// names are the reserved names of sandboxes and containers, so that a repeated request does not
	// create a second one.
	names map[string]string
	// creations contains the creations in progress, by name.
	creations map[string]*creation
}

func newInventory() *inventory {
	return &inventory{sandboxes: map[string]*sandboxState{}, containers: map[string]*containerState{}, names: map[string]string{}, creations: map[string]*creation{}}
}

// findSandbox returns the sandbox with an ID, which may be abbreviated to an unambiguous prefix. It returns errNotFound
// if there is none.
func (inv *inventory) findSandbox(id string) (*sandboxState, error) {
	inv.mu.Lock()
	defer inv.mu.Unlock()
	return find("sandbox", inv.sandboxes, id)
}

// findContainer returns the container with an ID, which may be abbreviated to an unambiguous prefix. It returns
// errNotFound if there is none, and another error if the prefix is ambiguous.
func (inv *inventory) findContainer(id string) (*containerState, error) {
	inv.mu.Lock()
	defer inv.mu.Unlock()
	return find("container", inv.containers, id)
}

// hasSandbox reports whether a sandbox with this complete ID exists.
func (inv *inventory) hasSandbox(id string) bool {
	inv.mu.Lock()
	defer inv.mu.Unlock()
	return inv.sandboxes[id] != nil
}

// hasContainer reports whether a container with this complete ID exists.
func (inv *inventory) hasContainer(id string) bool {
	inv.mu.Lock()
	defer inv.mu.Unlock()
	return inv.containers[id] != nil
}

// allSandboxes returns all sandboxes, in no particular order.
func (inv *inventory) allSandboxes() []*sandboxState {
	inv.mu.Lock()
	defer inv.mu.Unlock()
	all := make([]*sandboxState, 0, len(inv.sandboxes))
	for _, s := range inv.sandboxes {
		all = append(all, s)
	}
	return all
}

// allContainers returns all containers, in no particular order.
func (inv *inventory) allContainers() []*containerState {
	inv.mu.Lock()
	defer inv.mu.Unlock()
	all := make([]*containerState, 0, len(inv.containers))
	for _, c := range inv.containers {
		all = append(all, c)
	}
	return all
}

// containersOf returns the containers of a sandbox.
func (inv *inventory) containersOf(sandboxID string) []*containerState {
	inv.mu.Lock()
	defer inv.mu.Unlock()
	var list []*containerState
	for _, c := range inv.containers {
		if c.sandbox == sandboxID {
			list = append(list, c)
		}
	}
	return list
}

// layerUsed returns a function that reports whether a container uses an image layer now, for images.Store.Collect. The
// function does not reflect containers that are added or removed later.
func (inv *inventory) layerUsed() func(string) bool {
	used := map[string]bool{}
	for _, c := range inv.allContainers() {
		for _, layer := range c.get().Layers {
			used[layer] = true
		}
	}
	return func(layer string) bool { return used[layer] }
}

// addSandbox adds a sandbox after its creation has succeeded. name is the name that reserve has reserved for it. Calls
// of reserve that wait for the creation then return its ID.
func (inv *inventory) addSandbox(s *sandboxState, name string) {
	inv.mu.Lock()
	defer inv.mu.Unlock()
	inv.sandboxes[s.id] = s
	inv.markCreated("sandbox", name)
}

// addContainer adds a container after its creation has succeeded. name is the name that reserve has reserved for it. If
// the sandbox s was removed in the meantime, addContainer does not add the container and returns false; the caller must
// then remove it.
func (inv *inventory) addContainer(c *containerState, s *sandboxState, name string) bool {
	inv.mu.Lock()
	defer inv.mu.Unlock()
	if inv.sandboxes[s.id] != s {
		return false
	}
	inv.containers[c.id] = c
	inv.markCreated("container", name)
	return true
}

// adoptSandbox adds a sandbox that a previous runtime process has created, and reserves its name.
func (inv *inventory) adoptSandbox(s *sandboxState) {
	inv.mu.Lock()
	defer inv.mu.Unlock()
	inv.sandboxes[s.id] = s
	inv.names["sandbox"+sandboxName(s.get().config.GetMetadata())] = s.id
}

// adoptContainer adds a container that a previous runtime process has created, and reserves its name. Its sandbox must
// have been added before.
func (inv *inventory) adoptContainer(c *containerState) {
	inv.mu.Lock()
	defer inv.mu.Unlock()
	inv.containers[c.id] = c
	pod := inv.sandboxes[c.sandbox].get().config
	inv.names["container"+containerName(c.get().config.GetMetadata(), pod.GetMetadata())] = c.id
}

// forgetSandbox deletes a sandbox from the inventory and releases its name. known reports whether the sandbox was
// present. If a container was created in the sandbox in the meantime, forgetSandbox returns that container as left and
// keeps the sandbox: the caller must remove the container and call again, because otherwise no request would ever
// remove it.
func (inv *inventory) forgetSandbox(s *sandboxState) (left *containerState, known bool) {
	inv.mu.Lock()
	defer inv.mu.Unlock()
	for _, c := range inv.containers {
		if c.sandbox == s.id {
			return c, true
		}
	}
	_, known = inv.sandboxes[s.id]
	delete(inv.sandboxes, s.id)
	delete(inv.names, "sandbox"+sandboxName(s.get().config.GetMetadata()))
	return nil, known
}

// forgetContainer deletes a container from the inventory and releases its name. s is its sandbox, or nil if the sandbox
// was removed; the name is then not released.
func (inv *inventory) forgetContainer(c *containerState, s *sandboxState) {
	inv.mu.Lock()
	defer inv.mu.Unlock()
	delete(inv.containers, c.id)
	if s != nil {
		delete(inv.names, "container"+containerName(c.get().config.GetMetadata(), s.get().config.GetMetadata()))
	}
}

// creation is a request that creates a sandbox or container and has not completed yet.
type creation struct {
	// request is a copy of the original request, because creation modifies the request.
	request proto.Message
	// done is closed when the creation has succeeded or failed.
	done chan struct{}
	// succeeded reports whether it succeeded. It may be read after done is closed.
	succeeded bool
}

// reserve reserves the name of a new sandbox or container, so that a repeated request does not create a second one.
// kind is "sandbox" or "container", id the ID of the new object, and request its CRI request. If the result is empty,
// the name is reserved: the caller must create the object and call addSandbox or addContainer, or release if the
// creation fails. If an identical request is in progress, because its client has disconnected and repeats it, reserve
// waits and returns the ID of the object that the other request has created. It returns an error if the name belongs to
// an existing object or a different request, or if ctx is done.
func (inv *inventory) reserve(ctx context.Context, kind, name, id string, request proto.Message) (made string, err error) {
	for {
		inv.mu.Lock()
		owner, taken := inv.names[kind+name]
		m := inv.creations[kind+name]
		if !taken {
			inv.names[kind+name] = id
			inv.creations[kind+name] = &creation{request: proto.Clone(request), done: make(chan struct{})}
		}
		inv.mu.Unlock()
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

// markCreated completes the creation that reserve has started for a name, and wakes identical requests that wait for
// it. The caller must hold mu.
func (inv *inventory) markCreated(kind, name string) {
	if m := inv.creations[kind+name]; m != nil {
		m.succeeded = true
		close(m.done)
		delete(inv.creations, kind+name)
	}
}

// release releases a name that reserve has reserved, after the creation has failed. One of the identical requests that
// wait for it then creates the object.
func (inv *inventory) release(kind, name string) {
	inv.mu.Lock()
	defer inv.mu.Unlock()
	delete(inv.names, kind+name)
	if m := inv.creations[kind+name]; m != nil {
		close(m.done)
		delete(inv.creations, kind+name)
	}
}

// find returns the object in all with this ID, or with an ID of which id is an unambiguous prefix. what is the
// kind of object in error messages. It returns errNotFound if there is none, and another error if several IDs
// have the prefix. The caller must hold the lock that guards all.
func find[S any](what string, all map[string]*S, id string) (*S, error) {
	if s := all[id]; s != nil {
		return s, nil
	}
	var found *S
	for full, s := range all {
		if id != "" && strings.HasPrefix(full, id) {
			if found != nil {
				return nil, fmt.Errorf("%s id %q is ambiguous", what, id)
			}
			found = s
		}
	}
	if found == nil {
		return nil, fmt.Errorf("an error occurred when try to find %s %q: %w", what, id, errNotFound)
	}
	return found, nil
}
