package announce

import (
	"bytes"
	"encoding/binary"
	"net"
	"net/netip"
)

// Sizes of the headers of frames, in bytes.
const (
	ethernetSize = 14
	arpSize      = 28
	ipv6Size     = 40
	// advertisementSize is the size of a neighbor advertisement with the option for the link-layer address.
	advertisementSize = 32
)

// Values of the fields of frames.
const (
	typeARP  = 0x0806
	typeIPv6 = 0x86dd

	arpRequest = 1
	arpReply   = 2

	protocolICMPv6 = 58
	// neighborSolicitation and neighborAdvertisement are types of ICMPv6 messages.
	neighborSolicitation  = 135
	neighborAdvertisement = 136
	// optionSource and optionTarget are the options with the link-layer address of the sender of a solicitation, and
	// of the target of an advertisement.
	optionSource = 1
	optionTarget = 2
	// hopLimit is the hop limit of all NDP packets, which shows that no router has forwarded them.
	hopLimit = 255

	flagSolicited = 0x40000000
	flagOverride  = 0x20000000
)

// broadcast is the hardware address of all machines on a link. allNodesMAC and allNodes are those of all IPv6
// machines.
var (
	broadcast   = net.HardwareAddr{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
	allNodesMAC = net.HardwareAddr{0x33, 0x33, 0, 0, 0, 1}
	allNodes    = netip.MustParseAddr("ff02::1")
)

// message is what a received frame contains: a question which machine has an address, or the claim of a machine to
// have it. An ARP request may be both.
type message struct {
	// target is the address that is asked for; the zero Addr if nothing is asked.
	target netip.Addr
	// claimed is the address that the machine claims to have; the zero Addr if there is none. mac is the hardware
	// address that it claims for it.
	claimed netip.Addr
	mac     net.HardwareAddr
	// from and sender are the hardware address and the IP address to which an answer is sent. sender is unspecified
	// if the machine has no address yet, as during duplicate address detection.
	from   net.HardwareAddr
	sender netip.Addr
}

// parseFrame returns the message in an Ethernet frame. It returns false if the frame is not a complete and valid ARP or
// NDP message.
func parseFrame(frame []byte) (message, bool) {
	if len(frame) < ethernetSize {
		return message{}, false
	}
	from, body := net.HardwareAddr(bytes.Clone(frame[6:12])), frame[ethernetSize:]
	switch binary.BigEndian.Uint16(frame[12:]) {
	case typeARP:
		return parseARP(from, body)
	case typeIPv6:
		return parseNDP(from, body)
	}
	return message{}, false
}

// parseARP returns the message in an ARP packet from a machine. RFC 826.
func parseARP(from net.HardwareAddr, p []byte) (message, bool) {
	// Hardware type Ethernet, protocol IPv4, and the lengths of their addresses.
	if len(p) < arpSize || !bytes.Equal(p[:6], []byte{0, 1, 8, 0, 6, 4}) {
		return message{}, false
	}
	m := message{from: from, sender: netip.AddrFrom4([4]byte(p[14:18])), mac: bytes.Clone(p[8:14])}
	if !m.sender.IsUnspecified() { // otherwise, the machine checks whether the target is in use
		m.claimed = m.sender
	}
	switch target := netip.AddrFrom4([4]byte(p[24:28])); binary.BigEndian.Uint16(p[6:]) {
	case arpRequest:
		if target != m.sender { // otherwise, the machine announces its address
			m.target = target
		}
	case arpReply:
	default:
		return message{}, false
	}
	return m, m.target.IsValid() || m.claimed.IsValid()
}

// parseNDP returns the message in an IPv6 packet from a machine. RFC 4861, sections 4.3, 4.4 and 7.1.
func parseNDP(from net.HardwareAddr, p []byte) (message, bool) {
	if len(p) < ipv6Size+24 || p[6] != protocolICMPv6 || p[7] != hopLimit {
		return message{}, false
	}
	length := int(binary.BigEndian.Uint16(p[4:]))
	if length < 24 || len(p) < ipv6Size+length {
		return message{}, false
	}
	source, icmp := netip.AddrFrom16([16]byte(p[8:24])), p[ipv6Size:ipv6Size+length]
	if checksum(source, netip.AddrFrom16([16]byte(p[24:40])), icmp) != 0 || icmp[1] != 0 {
		return message{}, false
	}
	target := netip.AddrFrom16([16]byte(icmp[8:24]))
	m := message{from: from, sender: source}
	switch icmp[0] {
	case neighborSolicitation:
		m.target = target
		if mac := option(icmp[24:], optionSource); mac != nil {
			m.from = mac
		}
	case neighborAdvertisement:
		m.claimed, m.mac = target, from
		if mac := option(icmp[24:], optionTarget); mac != nil {
			m.mac = mac
		}
	default:
		return message{}, false
	}
	return m, true
}

// option returns the link-layer address in the option kind of an NDP message, or nil if there is none.
func option(options []byte, kind byte) net.HardwareAddr {
	for len(options) >= 8 {
		size := int(options[1]) * 8
		if size == 0 || size > len(options) {
			return nil
		}
		if options[0] == kind && size == 8 {
			return bytes.Clone(options[2:8])
		}
		options = options[size:]
	}
	return nil
}

// answer returns the frame that answers m: the machine with the hardware address own has the address m.target.
func answer(m message, own net.HardwareAddr) []byte {
	if m.target.Is4() {
		return arpFrame(arpReply, m.from, own, m.target, m.mac, m.sender)
	}
	if m.sender.IsUnspecified() {
		// RFC 4861, section 7.2.4.
		return advertisement(allNodesMAC, own, m.target, allNodes, flagOverride)
	}
	return advertisement(m.from, own, m.target, m.sender, flagSolicited|flagOverride)
}

// claimFrames returns the frames that announce to all machines of a link that the machine with the hardware address own has
// an address. Some machines update their caches only by requests, some only by replies.
func claimFrames(address netip.Addr, own net.HardwareAddr) [][]byte {
	if address.Is6() {
		return [][]byte{advertisement(allNodesMAC, own, address, allNodes, flagOverride)}
	}
	return [][]byte{
		arpFrame(arpRequest, broadcast, own, address, make(net.HardwareAddr, 6), address),
		arpFrame(arpReply, broadcast, own, address, broadcast, address),
	}
}

// arpFrame returns a frame with an ARP packet, which claims that own has the address sender.
func arpFrame(operation uint16, to, own net.HardwareAddr, sender netip.Addr, targetMAC net.HardwareAddr, target netip.Addr) []byte {
	b := make([]byte, 0, ethernetSize+arpSize)
	b = append(append(b, to...), own...)
	b = binary.BigEndian.AppendUint16(b, typeARP)
	b = append(b, 0, 1, 8, 0, 6, 4)
	b = binary.BigEndian.AppendUint16(b, operation)
	b = append(append(b, own...), sender.AsSlice()...)
	return append(append(b, targetMAC...), target.AsSlice()...)
}

// advertisement returns a frame with a neighbor advertisement, which claims that own has the address target.
func advertisement(to, own net.HardwareAddr, target, destination netip.Addr, flags uint32) []byte {
	icmp := make([]byte, 4, advertisementSize)
	icmp[0] = neighborAdvertisement
	icmp = binary.BigEndian.AppendUint32(icmp, flags)
	icmp = append(icmp, target.AsSlice()...)
	icmp = append(append(icmp, optionTarget, 1), own...)
	binary.BigEndian.PutUint16(icmp[2:], checksum(target, destination, icmp))

	b := make([]byte, 0, ethernetSize+ipv6Size+advertisementSize)
	b = append(append(b, to...), own...)
	b = binary.BigEndian.AppendUint16(b, typeIPv6)
	b = append(b, 0x60, 0, 0, 0)
	b = binary.BigEndian.AppendUint16(b, uint16(len(icmp)))
	b = append(b, protocolICMPv6, hopLimit)
	b = append(append(b, target.AsSlice()...), destination.AsSlice()...)
	return append(b, icmp...)
}

// checksum returns the checksum of an ICMPv6 message: zero if the message contains the correct one. RFC 4443, section
// 2.3.
func checksum(source, destination netip.Addr, icmp []byte) uint16 {
	var sum uint32
	add := func(b []byte) {
		for ; len(b) > 1; b = b[2:] {
			sum += uint32(binary.BigEndian.Uint16(b))
		}
		if len(b) == 1 {
			sum += uint32(b[0]) << 8
		}
	}
	add(source.AsSlice())
	add(destination.AsSlice())
	sum += uint32(len(icmp)) + protocolICMPv6
	add(icmp)
	for sum > 0xffff {
		sum = sum&0xffff + sum>>16
	}
	return ^uint16(sum)
}
