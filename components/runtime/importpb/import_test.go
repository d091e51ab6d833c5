package importpb

import (
	"context"
	"errors"
	"io"
	"net"
	"path/filepath"
	"slices"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"hyperkube/internal/testing/leakcheck"
)

func TestMain(m *testing.M) { leakcheck.Main(m) }

// puller is a Server that reports the progress of a pull.
type puller struct {
	done []int64
	err  error
}

func (puller) ImportImages(context.Context, io.Reader) ([]string, error) { return nil, nil }

func (puller) Upgrade(context.Context, []string) error { return nil }

func (p puller) PullWithProgress(_ context.Context, ref string, report func(done, total int64)) (string, error) {
	for _, n := range p.done {
		report(n, 1<<40)
	}
	return "id of " + ref, p.err
}

// dial returns a connection to a server of s, or to one without the calls of this package if s is nil.
func dial(t *testing.T, s Server) *grpc.ClientConn {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "socket")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	if s != nil {
		Register(server, s)
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	t.Cleanup(func() {
		server.Stop()
		<-served
	})
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

func TestPull(t *testing.T) {
	for name, c := range map[string]struct {
		server Server
		code   codes.Code
		// want are the reported bytes. Reports within an interval are omitted, except the last one.
		want []int64
	}{
		"progress":        {puller{done: []int64{1, 1 << 40}}, codes.OK, []int64{1, 1 << 40}},
		"without reports": {puller{}, codes.OK, nil},
		"error":           {puller{done: []int64{5}, err: status.Error(codes.NotFound, "not found")}, codes.NotFound, []int64{5}},
		"old runtime":     {nil, codes.Unimplemented, nil},
	} {
		t.Run(name, func(t *testing.T) {
			var got []int64
			id, err := Pull(t.Context(), dial(t, c.server), "box", func(done, total int64) {
				if total != 1<<40 {
					t.Errorf("total %d", total)
				}
				got = append(got, done)
			})
			if status.Code(err) != c.code || err == nil && id != "id of box" {
				t.Errorf("pulled %q, %v", id, err)
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("reports %v, want %v", got, c.want)
			}
		})
	}
}

func TestPullCanceled(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	conn := dial(t, blocked{})
	_, err := Pull(ctx, conn, "box", func(int64, int64) { cancel() })
	if status.Code(err) != codes.Canceled {
		t.Errorf("canceled: %v", err)
	}
}

// blocked is a Server whose pull downloads nothing more after its first report, until it is canceled.
type blocked struct{ puller }

func (blocked) PullWithProgress(ctx context.Context, _ string, report func(done, total int64)) (string, error) {
	report(1, 2)
	<-ctx.Done()
	return "", errors.New("canceled")
}
