package podnet

import (
	"errors"
	"fmt"
	"sync"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// deletionGroup is the link group (ip-link(8)) of links that are about to be deleted. The kernel can
// delete all links of a group in one operation.
const deletionGroup = 0x686b676f

// remover deletes the links of pods. Each deletion waits for a grace period of all CPUs in the
// kernel, tens of milliseconds on a busy machine, during which the netlink socket cannot be used.
// Therefore remover has a dedicated socket, and all links that are requested during one deletion
// are deleted together by the next one. Its methods are safe for concurrent use.
type remover struct {
	netlink *netlink.Handle

	mu     sync.Mutex // guards the fields below
	next   *removal   // collects links for the next deletion; nil if there are none
	active bool       // a deletion is in progress
}

// removal is one deletion of the links of one or more pods, for which the callers of remove wait.
type removal struct {
	links []int // indexes
	done  chan struct{}
	err   error // valid after done is closed
}

func newRemover() (*remover, error) {
	handle, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("opening netlink: %w", err)
	}
	return &remover{netlink: handle}, nil
}

// remove deletes links by index and returns when they are deleted, with the errors of all links
// that were deleted together. It is not an error if a link does not exist.
func (r *remover) remove(links ...int) error {
	if len(links) == 0 {
		return nil
	}
	r.mu.Lock()
	if r.next == nil {
		r.next = &removal{done: make(chan struct{})}
	}
	mine := r.next
	mine.links = append(mine.links, links...)
	if r.active {
		r.mu.Unlock()
		<-mine.done
		return mine.err
	}
	// The first caller deletes the links of all callers until none are left.
	r.active = true
	for r.next != nil {
		now := r.next
		r.next = nil
		r.mu.Unlock()
		now.err = r.delete(now.links)
		close(now.done)
		r.mu.Lock()
	}
	r.active = false
	r.mu.Unlock()
	return mine.err
}

// delete deletes links, in one operation if possible, and otherwise one by one.
func (r *remover) delete(links []int) error {
	if len(links) > 1 && r.deleteTogether(links) == nil {
		return nil
	}
	var errs []error
	for _, index := range links {
		if err := r.netlink.LinkDel(link(index)); err != nil && !errors.Is(err, unix.ENODEV) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// deleteTogether deletes links in one operation. It fails if the kernel does not support this for
// one of them, or if another program has added a link to the group that cannot be deleted.
func (r *remover) deleteTogether(links []int) error {
	for _, index := range links {
		if err := r.netlink.LinkSetGroup(link(index), deletionGroup); err != nil && !errors.Is(err, unix.ENODEV) {
			return err
		}
	}
	req := nl.NewNetlinkRequest(unix.RTM_DELLINK, unix.NLM_F_ACK)
	req.AddData(nl.NewIfInfomsg(unix.AF_UNSPEC))
	req.AddData(nl.NewRtAttr(unix.IFLA_GROUP, nl.Uint32Attr(deletionGroup)))
	_, err := req.Execute(unix.NETLINK_ROUTE, 0)
	if errors.Is(err, unix.ENODEV) {
		return nil // none of them exists anymore
	}
	return err
}

func link(index int) netlink.Link {
	return &netlink.GenericLink{LinkAttrs: netlink.LinkAttrs{Index: index}}
}
