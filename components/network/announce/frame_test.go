package announce

import (
	"bytes"
	"encoding/binary"
	"net"
	"net/netip"
	"testing"
)

var (
	ownMAC   = net.HardwareAddr{2, 0, 0, 0, 0, 1}
	otherMAC = net.HardwareAddr{2, 0, 0, 0, 0, 2}
)

// solicitation returns a frame in which the machine other asks for target.
func solicitation(source, target netip.Addr) []byte {
	frame := advertisement(ownMAC, otherMAC, target, solicitedNode(target), 0)
	ip, icmp := frame[ethernetSize:], frame[ethernetSize+ipv6Size:]
	copy(ip[8:], source.AsSlice())
	icmp[0], icmp[24] = neighborSolicitation, optionSource
	binary.BigEndian.PutUint16(icmp[2:], 0)
	binary.BigEndian.PutUint16(icmp[2:], checksum(source, solicitedNode(target), icmp))
	return frame
}

// TestFrames parses questions, their answers and announcements.
func TestFrames(t *testing.T) {
	for _, c := range []struct{ name, target, sender string }{
		{"ARP", "192.0.2.10", "192.0.2.2"},
		{"ARP probe", "192.0.2.10", "0.0.0.0"},
		{"NDP", "2001:db8::10", "2001:db8::2"},
		{"NDP, duplicate address detection", "2001:db8::10", "::"},
	} {
		target, sender := netip.MustParseAddr(c.target), netip.MustParseAddr(c.sender)
		question := solicitation
		if target.Is4() {
			question = func(source, target netip.Addr) []byte {
				return arpFrame(arpRequest, broadcast, otherMAC, source, make(net.HardwareAddr, 6), target)
			}
		}
		m, ok := parseFrame(question(sender, target))
		if !ok || m.target != target || m.sender != sender || !bytes.Equal(m.from, otherMAC) {
			t.Errorf("%s: %+v, %v", c.name, m, ok)
			continue
		}
		if claims := target.Is4() && !sender.IsUnspecified(); m.claimed.IsValid() != claims || claims && m.claimed != sender {
			t.Errorf("%s: claims %s", c.name, m.claimed)
		}
		reply := answer(m, ownMAC)
		to := otherMAC
		if target.Is6() && sender.IsUnspecified() {
			to = allNodesMAC
		}
		if !bytes.Equal(reply[:6], to) || !bytes.Equal(reply[6:12], ownMAC) {
			t.Errorf("%s: the answer is % x", c.name, reply)
		}
		for _, frame := range append(claimFrames(target, ownMAC), reply) {
			if m, ok := parseFrame(frame); !ok || m.claimed != target || m.target.IsValid() || !bytes.Equal(m.mac, ownMAC) {
				t.Errorf("%s: % x is %+v, %v", c.name, frame, m, ok)
			}
		}
	}
}

// FuzzParseFrame checks that invalid frames do not cause a panic, and that answers to valid ones are valid.
func FuzzParseFrame(f *testing.F) {
	four, six := netip.MustParseAddr("192.0.2.10"), netip.MustParseAddr("2001:db8::10")
	f.Add(arpFrame(arpRequest, broadcast, otherMAC, netip.MustParseAddr("192.0.2.2"), ownMAC, four))
	f.Add(solicitation(netip.MustParseAddr("2001:db8::2"), six))
	for _, a := range []netip.Addr{four, six} {
		for _, frame := range claimFrames(a, ownMAC) {
			f.Add(frame)
			f.Add(frame[:len(frame)-9])
		}
	}
	f.Fuzz(func(t *testing.T, frame []byte) {
		m, ok := parseFrame(frame)
		if !ok || !m.target.IsValid() {
			return
		}
		if reply, ok := parseFrame(answer(m, ownMAC)); !ok || reply.claimed != m.target {
			t.Errorf("% x is answered with %+v, %v", frame, reply, ok)
		}
	})
}
