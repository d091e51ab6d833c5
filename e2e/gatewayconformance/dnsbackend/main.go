// Dnsbackend is a DNS server for the conformance suite of the Gateway API. It stands in for
// the CoreDNS of the suite's manifests, and answers queries for the address of foo.bar.com over UDP and TCP.
package main

import (
	"fmt"
	"net"
	"os"

	"github.com/miekg/dns"
)

func main() {
	failed := make(chan error)
	for _, network := range []string{"udp", "tcp"} {
		go func() { failed <- dns.ListenAndServe(":53", network, dns.HandlerFunc(answer)) }()
	}
	fmt.Fprintln(os.Stderr, <-failed)
	os.Exit(1)
}

// answer answers a query for an address.
func answer(w dns.ResponseWriter, q *dns.Msg) {
	m := new(dns.Msg).SetReply(q)
	if len(q.Question) == 1 && q.Question[0].Name == "foo.bar.com." && q.Question[0].Qtype == dns.TypeA {
		m.Answer = []dns.RR{&dns.A{Hdr: dns.RR_Header{Name: "foo.bar.com.", Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 60}, A: net.IPv4(192, 168, 1, 1)}}
	}
	_ = w.WriteMsg(m) // the client repeats its query
}
