package podnet

import (
	"errors"
	"fmt"
	"sync"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// goneGroup is the group (ip-link(8)) that links are put into which are to be
// deleted: the kernel deletes all links of a group at once.
const goneGroup = 0x686b676f

// remover deletes links. Each deletion makes the kernel wait for quiet states
// of all CPUs, tens of milliseconds on a busy machine, during which its caller
// waits and its netlink socket serves nobody else. So it has a socket of its
// own, and whatever is asked for during one deletion is deleted together by the
// next. Its methods are safe for several goroutines.
type remover struct {
	netlink *netlink.Handle

	mu     sync.Mutex // guards what follows
	next   *removal   // collects what the next deletion is for; nil when nobody waits
	active bool       // a deletion is under way
}

// removal is one deletion of several links.
type removal struct {
	links []int // indexes
	done  chan struct{}
	err   error // valid once done is closed
}

func newRemover() (*remover, error) {
	handle, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("opening netlink: %w", err)
	}
	return &remover{netlink: handle}, nil
}

// remove deletes links by their indexes and returns when they are gone. What is
// gone already is no error.
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
	// The first to come works for all, until nobody is left.
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

// delete deletes links, together if that can be done.
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

// deleteTogether deletes links at once. It fails if the kernel does not take one
// of them, or if somebody else's link that cannot be deleted is in the group.
func (r *remover) deleteTogether(links []int) error {
	for _, index := range links {
		if err := r.netlink.LinkSetGroup(link(index), goneGroup); err != nil && !errors.Is(err, unix.ENODEV) {
			return err
		}
	}
	req := nl.NewNetlinkRequest(unix.RTM_DELLINK, unix.NLM_F_ACK)
	req.AddData(nl.NewIfInfomsg(unix.AF_UNSPEC))
	req.AddData(nl.NewRtAttr(unix.IFLA_GROUP, nl.Uint32Attr(goneGroup)))
	_, err := req.Execute(unix.NETLINK_ROUTE, 0)
	if errors.Is(err, unix.ENODEV) {
		return nil // all of them are gone
	}
	return err
}

func link(index int) netlink.Link {
	return &netlink.GenericLink{LinkAttrs: netlink.LinkAttrs{Index: index}}
}
