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

// longestAddress is how many bytes a unix socket's address may have.
const longestAddress = 107

// Dial returns a connection to a plugin's socket, an absolute path, that is made
// when it is first used. The path may be longer than an address of the kernel's,
// which folders of further nodes and roots of users easily are.
func Dial(socket string, more ...grpc.DialOption) (*grpc.ClientConn, error) {
	return grpc.NewClient("unix://"+socket, append([]grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return dial(ctx, socket) }),
	}, more...)...)
}

func dial(ctx context.Context, socket string) (net.Conn, error) {
	if len(socket) > longestAddress {
		dir, err := os.Open(filepath.Dir(socket))
		if err != nil {
			return nil, fmt.Errorf("connecting to a plugin: %w", err)
		}
		defer dir.Close()
		socket = fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), filepath.Base(socket))
	}
	var d net.Dialer
	return d.DialContext(ctx, "unix", socket)
}
