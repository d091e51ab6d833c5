// Package runtimeclient is a client for container runtimes: CRI for any runtime, and image import
// and upgrade for the built-in one. It does not import the runtime itself.
package runtimeclient

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"hyperkube/components/runtime/importpb"
)

// Client calls the container runtime at a socket. Its methods are safe for concurrent use.
type Client struct {
	runtimeapi.RuntimeServiceClient
	runtimeapi.ImageServiceClient
	conn *grpc.ClientConn
}

// Dial returns a client for the runtime at socket, a path or unix:// URL. It does not connect; the client connects on
// the first call and reconnects after errors. The caller must call Close.
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

// Close closes the connection.
func (c *Client) Close() error { return c.conn.Close() }

// Import imports the images in a docker or OCI archive into the built-in runtime and returns their names. Other
// runtimes return an error.
func (c *Client) Import(ctx context.Context, archive io.Reader) ([]string, error) {
	return importpb.Import(ctx, c.conn, archive)
}

// Pull pulls an image and returns its ID. report receives how many bytes of the total have been downloaded; other
// runtimes than the built-in one report nothing.
func (c *Client) Pull(ctx context.Context, ref string, report func(done, total int64)) (id string, err error) {
	id, err = importpb.Pull(ctx, c.conn, ref, report)
	if status.Code(err) != codes.Unimplemented {
		return id, err
	}
	pulled, err := c.PullImage(ctx, &runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: ref}})
	return pulled.GetImageRef(), err
}

// ImportFile is Import with an archive file.
func (c *Client) ImportFile(ctx context.Context, file string) ([]string, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, fmt.Errorf("opening the image archive: %w", err)
	}
	defer f.Close()
	return c.Import(ctx, f)
}

// Upgrade replaces the running built-in runtime by another version of the program, for example after a new version was
// installed. Containers keep running. argv[0] is the path of the main program, followed by "runtime" and its flags.
// Upgrade returns when the new program serves CRI, or with an error when ctx is done.
func (c *Client) Upgrade(ctx context.Context, argv []string) error {
	if err := importpb.Upgrade(ctx, c.conn, argv); err != nil {
		return err
	}
	// The old program closes the connection after it has stopped listening, so the next connection
	// is to the new program.
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
