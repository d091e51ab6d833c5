package dns

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/miekg/dns"
)

// idleTimeout is how long a connection to a name server with TLS stays open after its last query.
const idleTimeout = 10 * time.Second

// tlsClient sends queries to name servers over TLS. It keeps connections for later queries, because the handshake takes
// several round trips. A connection has one query at a time. It is safe for concurrent use.
type tlsClient struct {
	timeout time.Duration
	// roots are the certificate authorities of the name servers. Nil means those of the system.
	roots *x509.CertPool

	mu     sync.Mutex // guards the fields below
	closed bool
	idle   map[nameServer][]*idleConnection
}

// idleConnection is a connection without a query. expiry closes it.
type idleConnection struct {
	conn   *dns.Conn
	expiry *time.Timer
}

// newTLSClient returns a client that verifies certificates with roots, or with those of the system if roots is nil. timeout
// limits the handshake and each query.
func newTLSClient(timeout time.Duration, roots *x509.CertPool) *tlsClient {
	return &tlsClient{timeout: timeout, roots: roots, idle: map[nameServer][]*idleConnection{}}
}

// exchange sends a query to a name server and returns its answer. A name server may close an idle connection at any time, so
// after an error of such a connection it sends the query again over a new one.
func (c *tlsClient) exchange(ctx context.Context, query *dns.Msg, to nameServer) (*dns.Msg, error) {
	for {
		conn, reused := c.take(to)
		if !reused {
			var err error
			if conn, err = c.dial(ctx, to); err != nil {
				return nil, err
			}
		}
		client := dns.Client{Timeout: c.timeout}
		answer, _, err := client.ExchangeWithConnContext(ctx, query, conn)
		if err == nil {
			c.keep(to, conn)
			return answer, nil
		}
		conn.Close()
		if !reused || ctx.Err() != nil {
			return nil, err
		}
	}
}

// dial opens a connection to a name server and verifies its certificate.
func (c *tlsClient) dial(ctx context.Context, to nameServer) (*dns.Conn, error) {
	name := to.serverName
	if name == "" {
		name = to.addr.Addr().String()
	}
	client := dns.Client{Net: "tcp-tls", Timeout: c.timeout, TLSConfig: &tls.Config{ServerName: name, RootCAs: c.roots, MinVersion: tls.VersionTLS12}}
	conn, err := client.DialContext(ctx, to.addr.String())
	if err != nil {
		if unknown := (x509.UnknownAuthorityError{}); errors.As(err, &unknown) {
			err = fmt.Errorf("%w: add the certificate authority to the key %s of the ConfigMap kube-dns", err, keyCA)
		}
		return nil, err
	}
	return conn, nil
}

// take removes an idle connection to a name server and returns it, or returns false if there is none.
func (c *tlsClient) take(to nameServer) (*dns.Conn, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	list := c.idle[to]
	if len(list) == 0 {
		return nil, false
	}
	last := list[len(list)-1]
	c.idle[to] = list[:len(list)-1]
	last.expiry.Stop() // an expiry that runs already does not find the connection anymore
	return last.conn, true
}

// keep keeps a connection for later queries, until it is idle for idleTimeout. After close it closes the connection.
func (c *tlsClient) keep(to nameServer, conn *dns.Conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		conn.Close()
		return
	}
	entry := &idleConnection{conn: conn}
	entry.expiry = time.AfterFunc(idleTimeout, func() { c.expire(to, entry) })
	c.idle[to] = append(c.idle[to], entry)
}

// expire closes an idle connection, unless it is in use again.
func (c *tlsClient) expire(to nameServer, entry *idleConnection) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, e := range c.idle[to] {
		if e == entry {
			c.idle[to] = append(c.idle[to][:i], c.idle[to][i+1:]...)
			e.conn.Close()
			break
		}
	}
	if len(c.idle[to]) == 0 {
		delete(c.idle, to)
	}
}

// close closes all idle connections, and those in use after their query.
func (c *tlsClient) close() {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	for to, list := range c.idle {
		for _, e := range list {
			e.expiry.Stop()
			e.conn.Close()
		}
		delete(c.idle, to)
	}
}
