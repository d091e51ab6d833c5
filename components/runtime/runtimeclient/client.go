// Package runtimeclient calls a container runtime: CRI for any, and image
// import for ours. It is light: nothing of the runtime itself comes with it.
package runtimeclient

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"hyperkube/components/runtime/importpb"
)

// Client is a connection to a runtime. Its methods are safe for several
// goroutines.
type Client struct {
	runtimeapi.RuntimeServiceClient
	runtimeapi.ImageServiceClient
	conn *grpc.ClientConn
}

// Dial prepares a connection to the socket, a path or a unix:// URL. It is
// made at the first call, and again when it breaks.
func Dial(socket string) (*Client, error) {
	target := "unix://" + strings.TrimPrefix(socket, "unix://")
	conn, err := grpc.NewClient(target, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(16<<20), grpc.MaxCallSendMsgSize(16<<20)))
	if err != nil {
		return nil, fmt.Errorf("connecting to the container runtime at %s: %w", socket, err)
	}
	return &Client{
		RuntimeServiceClient: runtimeapi.NewRuntimeServiceClient(conn),
		ImageServiceClient:   runtimeapi.NewImageServiceClient(conn),
		conn:                 conn,
	}, nil
}

// Close ends the connection.
func (c *Client) Close() error { return c.conn.Close() }

// Import imports images from an archive of docker's or OCI's form and returns
// their names.
func (c *Client) Import(ctx context.Context, archive io.Reader) ([]string, error) {
	return importpb.Import(ctx, c.conn, archive)
}

// ImportFile imports images from an archive in a file.
func (c *Client) ImportFile(ctx context.Context, file string) ([]string, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, fmt.Errorf("opening the image archive: %w", err)
	}
	defer f.Close()
	return c.Import(ctx, f)
}

// Upgrade makes our runtime execute another program in its place, as after a
// new version of this one was installed: argv[0] is the main program's path,
// then "runtime" and the runtime's flags. It returns when the new one serves.
func (c *Client) Upgrade(ctx context.Context, argv []string) error {
	if err := importpb.Upgrade(ctx, c.conn, argv); err != nil {
		return err
	}
	// The old one ends our connection when it goes, and not before it has
	// stopped listening: waiting for the next one is waiting for the new one.
	state := c.conn.GetState()
	for state == connectivity.Ready {
		if !c.conn.WaitForStateChange(ctx, state) {
			return fmt.Errorf("waiting for the new container runtime: %w", ctx.Err())
		}
		state = c.conn.GetState()
	}
	if _, err := c.Version(ctx, &runtimeapi.VersionRequest{}, grpc.WaitForReady(true)); err != nil {
		return fmt.Errorf("waiting for the new container runtime: %w", err)
	}
	return nil
}
