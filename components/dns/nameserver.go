package dns

import (
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"

	"github.com/miekg/dns"
)

// nameServer is an upstream name server.
type nameServer struct {
	addr netip.AddrPort
	// tls means DNS over TLS (RFC 7858) instead of UDP and TCP. serverName is the name in the certificate of the name
	// server; if it is empty, the certificate must contain the address.
	tls        bool
	serverName string
}

// Ports of name servers without and with TLS.
const (
	portDNS    = 53
	portDNSTLS = 853
)

// tlsScheme is the prefix of the address of a name server with DNS over TLS.
const tlsScheme = "tls://"

// parseNameServer parses the address of a name server: an IP address with an optional port, such as 192.0.2.1,
// 192.0.2.1:5353 or [2001:db8::1]:5353. The prefix tls:// means DNS over TLS; then "#" and the name in the certificate may
// follow, as in tls://192.0.2.1#dns.example.
func parseNameServer(text string) (nameServer, error) {
	rest, isTLS := strings.CutPrefix(text, tlsScheme)
	s := nameServer{tls: isTLS}
	port := uint16(portDNS)
	if isTLS {
		port = portDNSTLS
		rest, s.serverName, _ = strings.Cut(rest, "#")
		if _, ok := dns.IsDomainName(s.serverName); !ok && s.serverName != "" {
			return s, fmt.Errorf("%q: %q is not the name of a server", text, s.serverName)
		}
	}
	if addr, err := netip.ParseAddr(strings.Trim(rest, "[]")); err == nil {
		s.addr = netip.AddrPortFrom(addr, port)
		return s, nil
	}
	var err error
	if s.addr, err = netip.ParseAddrPort(rest); err != nil {
		return s, fmt.Errorf("%q is not an IP address or an IP address with port, with an optional prefix %s", text, tlsScheme)
	}
	return s, nil
}

// parseNameServers parses a list of addresses of name servers.
func parseNameServers(texts []string) ([]nameServer, error) {
	var out []nameServer
	for _, text := range texts {
		s, err := parseNameServer(text)
		if err != nil {
			return nil, err
		}
		out = append(out, s)
	}
	return out, nil
}

// String returns the address with its port, in the format of parseNameServer.
func (s nameServer) String() string {
	text := net.JoinHostPort(s.addr.Addr().String(), strconv.Itoa(int(s.addr.Port())))
	if !s.tls {
		return text
	}
	if s.serverName != "" {
		text += "#" + s.serverName
	}
	return tlsScheme + text
}
