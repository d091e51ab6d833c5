//go:build race

package rawconn

import "net"

// Conn returns c: the race detector takes what one end reads for what happened
// after the other's write, and sees both by the ordinary calls.
func (p *Pace) Conn(c net.Conn) net.Conn {
	p.use()
	return c
}
