package announce

import (
	"fmt"
	"sync"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// linkWatch watches the links and addresses of this network namespace.
type linkWatch struct {
	socket  *nl.NetlinkSocket
	reading sync.WaitGroup
	// ended is closed when the kernel has ended the watch, for example because too many changes were reported at the
	// same time.
	ended chan struct{}
}

// watchLinks calls changed when a link gets or loses a global address, and when a link for which relevant returns true
// changes. Other changes are frequent on a node on which pods start and stop. Both functions are called by another
// goroutine. The caller must call close.
func watchLinks(relevant func(index int) bool, changed func()) (*linkWatch, error) {
	socket, err := nl.Subscribe(unix.NETLINK_ROUTE, unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR)
	if err != nil {
		return nil, fmt.Errorf("subscribing to changes of links: %w", err)
	}
	w := &linkWatch{socket: socket, ended: make(chan struct{})}
	w.reading.Go(func() {
		defer close(w.ended)
		for {
			messages, _, err := socket.Receive()
			if err != nil {
				return
			}
			for _, m := range messages {
				switch m.Header.Type {
				case unix.RTM_NEWLINK, unix.RTM_DELLINK:
					if len(m.Data) >= unix.SizeofIfInfomsg && relevant(int(nl.DeserializeIfInfomsg(m.Data).Index)) {
						changed()
					}
				case unix.RTM_NEWADDR, unix.RTM_DELADDR:
					if len(m.Data) >= unix.SizeofIfAddrmsg && nl.DeserializeIfAddrmsg(m.Data).Scope == unix.RT_SCOPE_UNIVERSE {
						changed()
					}
				}
			}
		}
	})
	return w, nil
}

// hasEnded reports whether the kernel has ended the watch.
func (w *linkWatch) hasEnded() bool {
	select {
	case <-w.ended:
		return true
	default:
		return false
	}
}

// close ends the watch.
func (w *linkWatch) close() {
	w.socket.Close()
	w.reading.Wait()
}
