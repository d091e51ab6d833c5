package store

import (
	"context"
	"errors"
	"fmt"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// ErrTooLarge and the other errors report why etcd or the store cannot execute a request. If etcd caused the error,
// etcd's error is wrapped too.
var (
	// ErrTooLarge means that the transaction exceeds etcd's request size limit.
	ErrTooLarge = errors.New("request is too large")
	// ErrNoSpace means that etcd's storage quota is exceeded. etcd rejects writes until it has been
	// compacted and defragmented and its alarm has been disarmed.
	ErrNoSpace = errors.New("database space exceeded")
	// ErrUnavailable means that etcd did not respond in time, has no leader or cannot be reached. A
	// failed write may or may not have happened.
	ErrUnavailable = errors.New("etcd is unavailable")
	// ErrCorrupt means that a stored value cannot be decrypted or decoded.
	ErrCorrupt = errors.New("corrupt object in storage")
	// ErrStopped means that the store has stopped or the collection was dropped.
	ErrStopped = errors.New("store has stopped")
)

// UnsettledError is the error of a write whose outcome is unknown, because etcd did not respond. It
// wraps ErrUnavailable. A retry could fail with a conflict although the write has happened.
type UnsettledError struct {
	// Err is etcd's error.
	Err error
}

// Error returns the text of etcd's error.
func (e *UnsettledError) Error() string { return e.Err.Error() }

// Unwrap returns ErrUnavailable and the error of etcd, for errors.Is and errors.As.
func (e *UnsettledError) Unwrap() []error { return []error{ErrUnavailable, e.Err} }

// unsettled converts the error of a transaction that was sent with the context ctx. If etcd did not respond in time
// or was not reachable, it returns an UnsettledError, because the transaction may have been executed. Other errors
// are converted as by etcdError.
func unsettled(ctx context.Context, err error) error {
	if known := etcdError(err); !errors.Is(known, ErrUnavailable) {
		return known
	}
	// The embedded etcd returns a different error when ctx is done.
	if end := ctx.Err(); end != nil && !errors.Is(err, end) {
		err = fmt.Errorf("%w: %w", err, end)
	}
	return &UnsettledError{err}
}

// CorruptError is the error of a stored value that cannot be decrypted, decoded or converted to the requested API
// version. It wraps ErrCorrupt.
type CorruptError struct {
	// Key is the full etcd key.
	Key string
	// Path is Key without the store's prefix, but with a leading slash.
	Path string
	// Encrypted is set if decryption failed. Otherwise decoding or the conversion failed.
	Encrypted bool
	Revision  int64
	Err       error
}

// Error returns a text with the key and whether decryption or decoding failed.
func (e *CorruptError) Error() string {
	doing := "decoding"
	if e.Encrypted {
		doing = "decrypting"
	}
	return fmt.Sprintf("%v: %s %s: %v", ErrCorrupt, doing, e.Key, e.Err)
}

// Unwrap returns ErrCorrupt and the cause, for errors.Is and errors.As.
func (e *CorruptError) Unwrap() []error { return []error{ErrCorrupt, e.Err} }

// etcdError wraps an error of the etcd client with the error of this package that has the same
// meaning. It returns nil for nil, and errors without a counterpart unchanged.
func etcdError(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, rpctypes.ErrCompacted):
		return fmt.Errorf("%w: %w", ErrTooOld, err)
	case errors.Is(err, rpctypes.ErrFutureRev):
		return fmt.Errorf("%w: %w", ErrTooNew, err)
	case errors.Is(err, rpctypes.ErrRequestTooLarge), errors.Is(err, rpctypes.ErrTooManyOps):
		return fmt.Errorf("%w: %w", ErrTooLarge, err)
	case errors.Is(err, rpctypes.ErrNoSpace):
		return fmt.Errorf("%w: %w", ErrNoSpace, err)
	case errors.Is(err, context.Canceled):
		return err
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, clientv3.ErrNoAvailableEndpoints):
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	code := status.Code(err)
	if etcd, ok := errors.AsType[rpctypes.EtcdError](err); ok {
		code = etcd.Code()
	}
	switch code {
	case codes.Unavailable, codes.DeadlineExceeded:
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	case codes.ResourceExhausted:
		// The message size limit of gRPC.
		return fmt.Errorf("%w: %w", ErrTooLarge, err)
	}
	return err
}
