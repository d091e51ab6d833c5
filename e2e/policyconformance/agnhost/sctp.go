package main

import (
	"encoding/binary"
	"errors"
	"hash/crc32"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
	"strings"
	"time"
)

// The first chunks of an SCTP association (RFC 9260, section 3.3), which a client and a server exchange. Their packets
// are sent over raw sockets, so the kernel does not need SCTP. Packet filters and connection tracking treat them as SCTP.
const (
	sctpProtocol = "ip4:132"
	chunkInit    = 1
	chunkInitAck = 2
)

// sctpPacket is a packet with one chunk, INIT or INIT ACK.
type sctpPacket struct {
	source, destination uint16
	verification        uint32 // tag that the receiver chose
	chunk               byte
	tag                 uint32 // tag that the sender chose
}

func (p sctpPacket) encode() []byte {
	b := make([]byte, 32)
	binary.BigEndian.PutUint16(b[0:], p.source)
	binary.BigEndian.PutUint16(b[2:], p.destination)
	binary.BigEndian.PutUint32(b[4:], p.verification)
	b[12] = p.chunk
	binary.BigEndian.PutUint16(b[14:], 20) // length of the chunk
	binary.BigEndian.PutUint32(b[16:], p.tag)
	binary.BigEndian.PutUint32(b[20:], 65536) // receiver window
	binary.BigEndian.PutUint16(b[24:], 1)     // outbound streams
	binary.BigEndian.PutUint16(b[26:], 1)     // inbound streams
	binary.BigEndian.PutUint32(b[28:], p.tag) // initial sequence number
	binary.LittleEndian.PutUint32(b[8:], crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)))
	return b
}

func decodeSCTP(b []byte) (sctpPacket, bool) {
	if len(b) < 20 {
		return sctpPacket{}, false
	}
	return sctpPacket{
		source: binary.BigEndian.Uint16(b[0:]), destination: binary.BigEndian.Uint16(b[2:]),
		verification: binary.BigEndian.Uint32(b[4:]), chunk: b[12], tag: binary.BigEndian.Uint32(b[16:]),
	}, true
}

// connectSCTP sends INIT to an address and waits for INIT ACK.
func connectSCTP(address string, timeout time.Duration) error {
	host, portText, err := net.SplitHostPort(address)
	if err != nil {
		return err
	}
	port, err := strconv.ParseUint(portText, 10, 16)
	if err != nil {
		return err
	}
	server, err := net.ResolveIPAddr("ip4", host)
	if err != nil {
		return err
	}
	conn, err := net.ListenPacket(sctpProtocol, "0.0.0.0")
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(timeout)); err != nil {
		return err
	}
	first := sctpPacket{source: uint16(32768 + rand.IntN(28000)), destination: uint16(port), chunk: chunkInit, tag: rand.Uint32() | 1}
	if _, err := conn.WriteTo(first.encode(), server); err != nil {
		return err
	}
	b := make([]byte, 2048)
	for {
		n, _, err := conn.ReadFrom(b)
		if err != nil {
			return err
		}
		if p, ok := decodeSCTP(b[:n]); ok && p.chunk == chunkInitAck && p.destination == first.source && p.verification == first.tag {
			return nil
		}
	}
}

// serveSCTP answers INIT with INIT ACK on the ports that the variables SERVE_SCTP_PORT_… of the environment name.
func serveSCTP() error {
	ports := map[uint16]bool{}
	for _, variable := range os.Environ() {
		name, _, _ := strings.Cut(variable, "=")
		if text, ok := strings.CutPrefix(name, "SERVE_SCTP_PORT_"); ok {
			port, err := strconv.ParseUint(text, 10, 16)
			if err != nil {
				return err
			}
			ports[uint16(port)] = true
		}
	}
	if len(ports) == 0 {
		return errors.New("porter needs a variable SERVE_SCTP_PORT_… in its environment")
	}
	conn, err := net.ListenPacket(sctpProtocol, "0.0.0.0")
	if err != nil {
		return err
	}
	b := make([]byte, 2048)
	for {
		n, client, err := conn.ReadFrom(b)
		if err != nil {
			return err
		}
		p, ok := decodeSCTP(b[:n])
		if !ok || p.chunk != chunkInit || !ports[p.destination] {
			continue
		}
		answer := sctpPacket{source: p.destination, destination: p.source, verification: p.tag, chunk: chunkInitAck, tag: rand.Uint32() | 1}
		_, _ = conn.WriteTo(answer.encode(), client) // the client repeats its request
	}
}
