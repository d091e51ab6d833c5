//go:build cgo

package runtime

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// TestLogged checks that a request for a missing object returns an error but is not logged.
func TestLogged(t *testing.T) {
	var log bytes.Buffer
	intercept := logErrors(slog.New(slog.NewTextHandler(&log, nil)))
	for _, c := range []struct {
		err    error
		code   codes.Code
		logged bool
	}{
		{fmt.Errorf("looking: %w", errNotFound), codes.NotFound, false},
		{status.Error(codes.NotFound, "gone"), codes.NotFound, false},
		{errors.New("the disk is full"), codes.Unknown, true},
	} {
		log.Reset()
		_, err := intercept(t.Context(), nil, &grpc.UnaryServerInfo{FullMethod: "/runtime.v1.RuntimeService/ContainerStatus"},
			func(context.Context, any) (any, error) { return nil, c.err })
		if status.Code(err) != c.code || log.Len() > 0 != c.logged {
			t.Errorf("%v: code %v, log %q", c.err, status.Code(err), log.String())
		}
	}
}
