package podnet

import (
	"fmt"

	"github.com/vishvananda/netlink"
)

// What a bounded link may do at once and hold back. A burst is at least one
// packet as large as the kernel makes them for itself.
const (
	leastBurst = 64 << 10 // bytes
	burstTime  = 100      // as much as flows in a hundredth of a second
	delayTime  = 40       // packets wait for a fortieth of a second at most
)

// limit bounds what leaves by a link to rate bits a second.
func limit(h *netlink.Handle, link netlink.Link, rate uint64) error {
	bytes := max(rate/8, 1)
	burst := max(bytes/burstTime, leastBurst)
	const most = 1 << 30
	tbf := &netlink.Tbf{
		QdiscAttrs: netlink.QdiscAttrs{LinkIndex: link.Attrs().Index, Handle: netlink.MakeHandle(1, 0), Parent: netlink.HANDLE_ROOT},
		Rate:       bytes, Buffer: netlink.Xmittime(bytes, uint32(min(burst, most))),
		Limit: uint32(min(bytes/delayTime+burst, most)),
	}
	if err := h.QdiscReplace(tbf); err != nil {
		return fmt.Errorf("bounding the bandwidth of %s: %w", link.Attrs().Name, err)
	}
	return nil
}
