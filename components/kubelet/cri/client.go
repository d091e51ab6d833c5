// Package cri is the kubelet's client of a container runtime that serves CRI v1 over a unix socket.
// It defines the labels by which the kubelet identifies containers after a restart, and converts
// the runtime's status to the types of podstate.
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

// maxMessage is the maximum size of a CRI message in bytes. A list of all containers of a full node
// exceeds gRPC's default of 4 MiB.
const maxMessage = 16 << 20

// Client is a connection to a container runtime and its image service. Its methods are safe for concurrent
// use. Tests set Runtime and Images to a fake.
type Client struct {
	Runtime runtimeapi.RuntimeServiceClient
	Images  runtimeapi.ImageServiceClient

	// Metrics counts calls. It is nil in tests that set Runtime and Images.
	Metrics *Metrics

	timeout         time.Duration    // timeout of Dial
	conn, imageConn *grpc.ClientConn // imageConn is the connection of the image service, or nil if it is the runtime's
}

// Dial returns a client of the runtime at endpoint, a socket path with or without "unix://". It
// does not wait until the runtime is available; calls with WaitForReady do. within is the timeout
// of a call, which is extended for some calls; zero means no timeout.
func Dial(endpoint string, within time.Duration, more ...grpc.DialOption) (*Client, error) {
	return dial(endpoint, within, NewMetrics(), more...)
}

// dial returns a client of the runtime at endpoint, as Dial does. It does not wait for the connection, which is
// opened again whenever it is lost. metrics counts the client's calls and records their durations.
func dial(endpoint string, within time.Duration, metrics *Metrics, more ...grpc.DialOption) (*Client, error) {
	path := strings.TrimPrefix(endpoint, "unix://")
	if !filepath.IsAbs(path) {
		return nil, fmt.Errorf("container runtime endpoint %q: must be unix:// and an absolute path", endpoint)
	}
	conn, err := grpc.NewClient("unix://"+path, append(more,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage), grpc.MaxCallSendMsgSize(maxMessage)),
		// The runtime is on this machine, so a short back-off is cheap and detects a restart
		// quickly.
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 20 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second},
			MinConnectTimeout: time.Second,
		}),
		grpc.WithIdleTimeout(0),
		grpc.WithChainUnaryInterceptor(metrics.intercept, deadlines(within).intercept),
		grpc.WithNoProxy(),
	)...)
	if err != nil {
		return nil, fmt.Errorf("dialing container runtime: %w", err)
	}
	return &Client{
		Metrics: metrics,
		Runtime: runtimeapi.NewRuntimeServiceClient(conn),
		Images:  runtimeapi.NewImageServiceClient(conn),
		timeout: within,
		conn:    conn,
	}, nil
}

// UseImageEndpoint makes c use the image service at the socket endpoint instead of the runtime's. It must be
// called before c is used.
func (c *Client) UseImageEndpoint(endpoint string) error {
	other, err := dial(endpoint, c.timeout, c.Metrics)
	if err != nil {
		return err
	}
	c.Images, c.imageConn = other.Images, other.conn
	return nil
}

// Close closes the connections. Calls in progress fail.
func (c *Client) Close() error {
	var errs []error
	for _, conn := range []*grpc.ClientConn{c.conn, c.imageConn} {
		if conn != nil {
			errs = append(errs, conn.Close())
		}
	}
	return errors.Join(errs...)
}

// WaitForReady returns the call option that makes a call wait until the runtime is available, instead of
// failing immediately.
func WaitForReady() grpc.CallOption { return grpc.WaitForReady(true) }
