package dataplane

import (
	"errors"
	"net"
	"net/netip"
	"sync"
	"time"

	"hyperkube/components/gateway/model"
)

const (
	// udpIdle ends a session without datagrams in either direction, if no other idle time is configured.
	udpIdle = time.Minute
	// maxSessions is the number of simultaneous clients of a UDP port. Datagrams of others are dropped.
	maxSessions = 4096
	maxDatagram = 64 << 10
)

// udpServer forwards the datagrams of a UDP port. All datagrams of a client go to the same endpoint, as long as the client
// is not idle.
type udpServer struct {
	plane *Plane
	id    model.PortID
	conn  *net.UDPConn

	mu       sync.Mutex // guards sessions
	sessions map[netip.AddrPort]*net.UDPConn
}

// newUDPServer opens a UDP port.
func newUDPServer(p *Plane, id model.PortID, number int32) (*udpServer, error) {
	address, err := net.ResolveUDPAddr("udp", p.listenAddress(number))
	if err != nil {
		return nil, err
	}
	conn, err := net.ListenUDP("udp", address)
	if err != nil {
		return nil, err
	}
	return &udpServer{plane: p, id: id, conn: conn, sessions: map[netip.AddrPort]*net.UDPConn{}}, nil
}

// serve forwards datagrams until the connection is closed.
func (s *udpServer) serve() {
	var replies sync.WaitGroup
	defer replies.Wait()
	defer s.closeSessions()
	buffer := make([]byte, maxDatagram)
	for {
		n, client, err := s.conn.ReadFromUDPAddrPort(buffer)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			continue // the error of an earlier reply
		}
		session := s.session(client, &replies)
		if session != nil {
			_, _ = session.Write(buffer[:n]) // datagrams may be lost
		}
	}
}

// session returns the connection to the endpoint of a client, or nil if there is no endpoint or too many clients.
func (s *udpServer) session(client netip.AddrPort, replies *sync.WaitGroup) *net.UDPConn {
	s.mu.Lock()
	defer s.mu.Unlock()
	if conn := s.sessions[client]; conn != nil {
		return conn
	}
	if len(s.sessions) >= maxSessions {
		return nil
	}
	f := s.plane.forwardOf(s.id)
	if f == nil {
		return nil
	}
	t := f.targets.pick()
	if t == nil || t.pool == nil {
		return nil
	}
	e := t.pool.pick()
	if e == nil {
		return nil
	}
	address, err := net.ResolveUDPAddr("udp", e.address)
	if err != nil {
		return nil
	}
	conn, err := net.DialUDP("udp", nil, address)
	if err != nil {
		return nil
	}
	s.sessions[client] = conn
	replies.Go(func() { s.reply(client, conn) })
	return conn
}

// reply sends the datagrams of an endpoint to the client, until the session is idle or closed.
func (s *udpServer) reply(client netip.AddrPort, conn *net.UDPConn) {
	defer func() {
		s.mu.Lock()
		delete(s.sessions, client)
		s.mu.Unlock()
		conn.Close()
	}()
	timeout := s.plane.cfg.Limits.IdleTimeout
	if timeout <= 0 {
		timeout = udpIdle
	}
	buffer := make([]byte, maxDatagram)
	for {
		if conn.SetReadDeadline(time.Now().Add(timeout)) != nil {
			return
		}
		n, err := conn.Read(buffer)
		if err != nil {
			return
		}
		if _, err := s.conn.WriteToUDPAddrPort(buffer[:n], client); err != nil {
			return
		}
	}
}

// closeSessions closes the connections of all sessions.
func (s *udpServer) closeSessions() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, conn := range s.sessions {
		conn.Close()
	}
}
