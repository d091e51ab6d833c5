package announce

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"sync"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// responder answers ARP requests and neighbor solicitations for addresses on one link. It has a packet socket and a
// goroutine for each IP family of its addresses. Its methods may be called by one goroutine only.
type responder struct {
	link link
	// claimed receives the address of a message in which another machine claims one of the addresses. It is never
	// closed. Messages are dropped while it is full.
	claimed chan<- netip.Addr
	sockets map[bool]*os.File // by IPv6
	reading sync.WaitGroup
	// groups are sockets that are members of the multicast groups to which solicitations for an address are sent.
	groups map[netip.Addr]*os.File

	mu        sync.Mutex
	addresses []netip.Addr // sorted; guarded by mu
}

func newResponder(l link, claimed chan<- netip.Addr) *responder {
	return &responder{link: l, claimed: claimed, sockets: map[bool]*os.File{}, groups: map[netip.Addr]*os.File{}}
}

// set replaces the addresses for which the responder answers. They must be sorted. If it fails, the responder answers for those addresses
// for which it can.
func (r *responder) set(addresses []netip.Addr) error {
	r.mu.Lock()
	r.addresses = addresses
	r.mu.Unlock()
	var errs []error
	for _, ipv6 := range []bool{false, true} {
		needed := slices.ContainsFunc(addresses, func(a netip.Addr) bool { return a.Is6() == ipv6 })
		switch s := r.sockets[ipv6]; {
		case needed && s == nil:
			if err := r.open(ipv6); err != nil {
				errs = append(errs, err)
			}
		case !needed && s != nil:
			s.Close()
			delete(r.sockets, ipv6)
		}
	}
	for a, s := range r.groups {
		if !slices.Contains(addresses, a) {
			s.Close()
			delete(r.groups, a)
		}
	}
	for _, a := range addresses {
		if a.Is4() || r.groups[a] != nil {
			continue
		}
		s, err := joinGroup(r.link.index, a)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		r.groups[a] = s
	}
	return errors.Join(errs...)
}

// open opens the socket of an IP family and starts the goroutine that reads from it.
func (r *responder) open(ipv6 bool) error {
	s, err := openSocket(r.link.index, ipv6)
	if err != nil {
		return err
	}
	r.sockets[ipv6] = s
	r.reading.Go(func() { r.read(s) })
	return nil
}

// close closes all sockets and waits for the goroutines.
func (r *responder) close() {
	for _, s := range r.sockets {
		s.Close()
	}
	for _, s := range r.groups {
		s.Close()
	}
	r.reading.Wait()
}

// claim announces an address of the responder to all machines of the link.
func (r *responder) claim(a netip.Addr) error {
	s := r.sockets[a.Is6()]
	if s == nil {
		return fmt.Errorf("announcing %s: the socket is not open", a)
	}
	for _, frame := range claimFrames(a, r.link.mac) {
		if _, err := s.Write(frame); err != nil {
			return fmt.Errorf("announcing %s: %w", a, err)
		}
	}
	return nil
}

// read answers the messages that s receives, until s is closed.
func (r *responder) read(s *os.File) {
	buffer := make([]byte, 2048)
	for {
		n, err := s.Read(buffer)
		if errors.Is(err, os.ErrClosed) {
			return
		}
		if err != nil {
			continue // the link is down; the socket receives again when it is up
		}
		m, ok := parseFrame(buffer[:n])
		if !ok {
			continue
		}
		if m.target.IsValid() && r.has(m.target) {
			// The machine repeats the request if the answer is lost.
			_, _ = s.Write(answer(m, r.link.mac))
		}
		if m.claimed.IsValid() && r.has(m.claimed) && !bytes.Equal(m.mac, r.link.mac) {
			select {
			case r.claimed <- m.claimed:
			default: // the machine claims the address again whenever it sends packets
			}
		}
	}
}

// has reports whether the responder answers for an address.
func (r *responder) has(a netip.Addr) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, found := slices.BinarySearchFunc(r.addresses, a, netip.Addr.Compare)
	return found
}

// lastReceived is the highest type of packets that this machine receives: others are sent by it, or to another machine.
const lastReceived = unix.PACKET_MULTICAST

// Filters of the sockets. The socket of ARP receives all ARP packets, that of NDP the solicitations and advertisements.
var (
	arpFilter = []bpf.Instruction{
		bpf.LoadExtension{Num: bpf.ExtType},
		bpf.JumpIf{Cond: bpf.JumpGreaterThan, Val: lastReceived, SkipTrue: 1},
		bpf.RetConstant{Val: 2048},
		bpf.RetConstant{Val: 0},
	}
	ndpFilter = []bpf.Instruction{
		bpf.LoadExtension{Num: bpf.ExtType},
		bpf.JumpIf{Cond: bpf.JumpGreaterThan, Val: lastReceived, SkipTrue: 6},
		bpf.LoadAbsolute{Off: ethernetSize + 6, Size: 1}, // next header
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: protocolICMPv6, SkipTrue: 4},
		bpf.LoadAbsolute{Off: ethernetSize + ipv6Size, Size: 1}, // type
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: neighborSolicitation, SkipTrue: 1},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: neighborAdvertisement, SkipTrue: 1},
		bpf.RetConstant{Val: 2048},
		bpf.RetConstant{Val: 0},
	}
)

// openSocket returns a packet socket that sends and receives the ARP or NDP frames of a link. A packet socket also
// receives unicast solicitations for addresses that this machine does not have, unlike a socket of ICMPv6.
func openSocket(index int, ipv6 bool) (*os.File, error) {
	name, kind, instructions := "ARP", typeARP, arpFilter
	if ipv6 {
		name, kind, instructions = "NDP", typeIPv6, ndpFilter
	}
	raw, err := bpf.Assemble(instructions)
	if err != nil {
		return nil, fmt.Errorf("assembling the filter of %s: %w", name, err)
	}
	// Without a protocol, it receives nothing until it is bound.
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("opening a packet socket for %s: %w", name, err)
	}
	filter := make([]unix.SockFilter, len(raw))
	for i, r := range raw {
		filter[i] = unix.SockFilter{Code: r.Op, Jt: r.Jt, Jf: r.Jf, K: r.K}
	}
	err = unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]})
	if err == nil {
		err = unix.Bind(fd, &unix.SockaddrLinklayer{Ifindex: index, Protocol: networkOrder(uint16(kind))})
	}
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("binding a packet socket for %s to link %d: %w", name, index, err)
	}
	return os.NewFile(uintptr(fd), name), nil
}

// networkOrder returns n such that its bytes in memory are in network order.
func networkOrder(n uint16) uint16 {
	return binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, n))
}

// joinGroup returns a socket that is a member of the solicited-node multicast group of a on a link, so that switches
// and the link itself pass the solicitations for a to this machine. Closing the socket leaves the group.
func joinGroup(index int, a netip.Addr) (*os.File, error) {
	fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("opening a socket for the multicast group of %s: %w", a, err)
	}
	if err := unix.SetsockoptIPv6Mreq(fd, unix.IPPROTO_IPV6, unix.IPV6_JOIN_GROUP, &unix.IPv6Mreq{Multiaddr: solicitedNode(a).As16(), Interface: uint32(index)}); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("joining the multicast group of %s on link %d: %w", a, index, err)
	}
	return os.NewFile(uintptr(fd), "multicast"), nil
}

// solicitedNode returns the multicast address to which solicitations for an IPv6 address are sent. RFC 4291, section
// 2.7.1.
func solicitedNode(a netip.Addr) netip.Addr {
	from := a.As16()
	to := netip.MustParseAddr("ff02::1:ff00:0").As16()
	copy(to[13:], from[13:])
	return netip.AddrFrom16(to)
}
