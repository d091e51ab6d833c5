package podnet

import (
	"fmt"

	"github.com/vishvananda/netlink"
)

// Parameters of the token bucket filter of a link with limited bandwidth. The burst must allow at
// least one packet of the maximum size that the kernel creates internally.
const (
	minBurst  = 64 << 10 // bytes
	burstTime = 100      // the burst is the traffic of 1/100 second
	delayTime = 40       // packets are queued for at most 1/40 second
)

// limit limits the bandwidth of packets that are sent on link to rate bits per second.
func limit(h *netlink.Handle, link netlink.Link, rate uint64) error {
	bytes := max(rate/8, 1)
	burst := max(bytes/burstTime, minBurst)
	const most = 1 << 30
	tbf := &netlink.Tbf{
		QdiscAttrs: netlink.QdiscAttrs{LinkIndex: link.Attrs().Index, Handle: netlink.MakeHandle(1, 0), Parent: netlink.HANDLE_ROOT},
		Rate:       bytes, Buffer: netlink.Xmittime(bytes, uint32(min(burst, most))),
		Limit: uint32(min(bytes/delayTime+burst, most)),
	}
	if err := h.QdiscReplace(tbf); err != nil {
		return fmt.Errorf("limiting bandwidth of %s: %w", link.Attrs().Name, err)
	}
	return nil
}
