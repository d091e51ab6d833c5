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

// What etcd may answer to an operation; all are wrapped together with etcd's
// own error.
var (
	// ErrTooLarge: the transaction exceeds etcd's request limit.
	ErrTooLarge = errors.New("request is too large")
	// ErrNoSpace: etcd's quota is used up; it takes no writes until it has
	// been compacted, defragmented and disarmed.
	ErrNoSpace = errors.New("database space exceeded")
	// ErrUnavailable: etcd did not answer in time, has no leader or cannot
	// be reached. A write that failed so may or may not have happened.
	ErrUnavailable = errors.New("etcd is unavailable")
	// ErrCorrupt: a stored value cannot be decrypted or decoded.
	ErrCorrupt = errors.New("corrupt object in storage")
	// ErrStopped: the store has ended, or the collection was dropped.
	ErrStopped = errors.New("store has stopped")
)

// UnsettledError is of a write of which nobody knows whether it has happened,
// because etcd's answer never came; it wraps ErrUnavailable. To try it again
// could tell it as refused although it has happened.
type UnsettledError struct {
	// Err is etcd's own.
	Err error
}

// Error as the interface.
func (e *UnsettledError) Error() string { return e.Err.Error() }

// Unwrap is for package errors.
func (e *UnsettledError) Unwrap() []error { return []error{ErrUnavailable, e.Err} }

// unsettled is etcdError for the answer to a transaction that had until the end of ctx.
func unsettled(ctx context.Context, err error) error {
	if known := etcdError(err); !errors.Is(known, ErrUnavailable) {
		return known
	}
	// An etcd in this process has words of its own for that end.
	if end := ctx.Err(); end != nil && !errors.Is(err, end) {
		err = fmt.Errorf("%w: %w", err, end)
	}
	return &UnsettledError{err}
}

// CorruptError is of a stored value that cannot be read; it wraps ErrCorrupt.
type CorruptError struct {
	// Key of the value in etcd, with the prefix of all keys.
	Key string
	// Path is Key without that prefix, with its slash.
	Path string
	// Encrypted: it could not be decrypted. Else what was decrypted could not
	// be decoded.
	Encrypted bool
	Revision  int64
	Err       error
}

// Error as the interface.
func (e *CorruptError) Error() string {
	doing := "decoding"
	if e.Encrypted {
		doing = "decrypting"
	}
	return fmt.Sprintf("%v: %s %s: %v", ErrCorrupt, doing, e.Key, e.Err)
}

// Unwrap is for package errors.
func (e *CorruptError) Unwrap() []error { return []error{ErrCorrupt, e.Err} }

// etcdError gives an error of the etcd client one of this package's meanings.
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
		// gRPC's own limit on messages.
		return fmt.Errorf("%w: %w", ErrTooLarge, err)
	}
	return err
}
