package pluginwatch

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// maxSocketAddress is the maximum length of a unix socket address in bytes.
const maxSocketAddress = 107

// Dial returns a connection to the socket of a plugin, an absolute path. The connection is opened when it is
// first used. The path may exceed the kernel's limit of socket addresses, which happens with long root directories.
func Dial(socket string, more ...grpc.DialOption) (*grpc.ClientConn, error) {
	return grpc.NewClient("unix://"+socket, append([]grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return dial(ctx, socket) }),
	}, more...)...)
}

// dial connects to a socket. A path that is too long for a socket address is replaced by one through a
// descriptor of its directory.
func dial(ctx context.Context, socket string) (net.Conn, error) {
	if len(socket) > maxSocketAddress {
		dir, err := os.Open(filepath.Dir(socket))
		if err != nil {
			return nil, fmt.Errorf("connecting to plugin: %w", err)
		}
		defer dir.Close()
		socket = fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), filepath.Base(socket))
	}
	var d net.Dialer
	return d.DialContext(ctx, "unix", socket)
}
