// Package cri is the kubelet's way to a container runtime: CRI v1 over a unix
// socket, whoever serves it. It holds the connection, the labels by which
// containers are found again after a restart, and the reading of what the
// runtime says into podstate's terms.
package cri

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// maxMessage is the size of the largest CRI message in bytes; lists of
// containers of a full node need more than gRPC's 4 MiB.
const maxMessage = 16 << 20

// Client is a connection to a runtime. Its methods are safe for several
// goroutines. Tests fill Runtime and Images with a fake.
type Client struct {
	Runtime runtimeapi.RuntimeServiceClient
	Images  runtimeapi.ImageServiceClient

	// Metrics counts the calls; nil in tests that fill the clients themselves.
	Metrics *Metrics

	within      time.Duration    // of Dial
	conn, other *grpc.ClientConn // other: of images, if not the same; may be nil
}

// Dial makes a client of the runtime at endpoint, a socket's path with or
// without "unix://". It does not wait for the runtime to be there: calls made
// with WaitForReady do. A call takes within at most, but for some that have longer;
// zero: as long as the runtime does.
func Dial(endpoint string, within time.Duration, more ...grpc.DialOption) (*Client, error) {
	return dial(endpoint, within, NewMetrics(), more...)
}

func dial(endpoint string, within time.Duration, metrics *Metrics, more ...grpc.DialOption) (*Client, error) {
	path := strings.TrimPrefix(endpoint, "unix://")
	if !filepath.IsAbs(path) {
		return nil, fmt.Errorf("container runtime endpoint %q: want unix:// and an absolute path", endpoint)
	}
	conn, err := grpc.NewClient("unix://"+path, append(more,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage), grpc.MaxCallSendMsgSize(maxMessage)),
		// The runtime is on this machine: a short pause finds it soon after
		// it has restarted, and costs nothing.
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 20 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second},
			MinConnectTimeout: time.Second,
		}),
		grpc.WithIdleTimeout(0),
		grpc.WithChainUnaryInterceptor(metrics.intercept, bounded(within).intercept),
		grpc.WithNoProxy(),
	)...)
	if err != nil {
		return nil, fmt.Errorf("dialling the container runtime: %w", err)
	}
	return &Client{
		Metrics: metrics,
		Runtime: runtimeapi.NewRuntimeServiceClient(conn),
		Images:  runtimeapi.NewImageServiceClient(conn),
		within:  within,
		conn:    conn,
	}, nil
}

// ImagesOf makes c take images from another socket than the runtime's.
func (c *Client) ImagesOf(endpoint string) error {
	other, err := dial(endpoint, c.within, c.Metrics)
	if err != nil {
		return err
	}
	c.Images, c.other = other.Images, other.conn
	return nil
}

// Close ends the connections.
func (c *Client) Close() error {
	var errs []error
	for _, conn := range []*grpc.ClientConn{c.conn, c.other} {
		if conn != nil {
			errs = append(errs, conn.Close())
		}
	}
	return errors.Join(errs...)
}

// Wait makes a call wait for the runtime to be there.
func Wait() grpc.CallOption { return grpc.WaitForReady(true) }
