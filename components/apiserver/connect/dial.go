package connect

import (
	"context"
	"net"
	"net/netip"
	"syscall"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// DialFunc opens a connection, as net.Dialer.DialContext does.
type DialFunc func(ctx context.Context, network, address string) (net.Conn, error)

// dialProxyable opens a connection, but only to addresses that proxyable allows. It checks each address after it has
// resolved the name and immediately before it connects, so the name cannot resolve to another address in between.
func dialProxyable(ctx context.Context, network, address string) (net.Conn, error) {
	d := net.Dialer{Timeout: 30 * time.Second, KeepAlive: 30 * time.Second, Control: func(_, address string, _ syscall.RawConn) error {
		at, err := netip.ParseAddrPort(address)
		if err != nil {
			return err
		}
		return proxyable(at.Addr())
	}}
	return d.DialContext(ctx, network, address)
}

// proxyable returns an error unless addr is a global unicast address. Users choose the addresses of nodes, pods and
// endpoints; a loopback or link-local address would give them access to services that trust the API server's machine.
//
// https://pkg.go.dev/k8s.io/kubernetes/pkg/proxy/util#IsProxyableIP
func proxyable(addr netip.Addr) error {
	if !addr.Unmap().IsGlobalUnicast() {
		return apierrors.NewBadRequest("address not allowed")
	}
	return nil
}
