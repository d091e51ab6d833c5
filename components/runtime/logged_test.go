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

// TestLogged: who asks for what is not there is told so, and the log is not.
func TestLogged(t *testing.T) {
	var log bytes.Buffer
	r := &Runtime{log: slog.New(slog.NewTextHandler(&log, nil))}
	for _, c := range []struct {
		err  error
		code codes.Code
		told bool
	}{
		{fmt.Errorf("looking: %w", errNotFound), codes.NotFound, false},
		{status.Error(codes.NotFound, "gone"), codes.NotFound, false},
		{errors.New("the disk is full"), codes.Unknown, true},
	} {
		log.Reset()
		_, err := r.logged(t.Context(), nil, &grpc.UnaryServerInfo{FullMethod: "/runtime.v1.RuntimeService/ContainerStatus"},
			func(context.Context, any) (any, error) { return nil, c.err })
		if status.Code(err) != c.code || log.Len() > 0 != c.told {
			t.Errorf("%v: code %v, log %q", c.err, status.Code(err), log.String())
		}
	}
}
