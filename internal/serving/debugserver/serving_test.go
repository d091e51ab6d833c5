package debugserver

import (
	"context"
	"errors"
	"net"
	"strconv"
	"syscall"
	"testing"

	"github.com/spf13/pflag"

	"hyperkube/internal/testing/testport"
)

// TestRunWith checks that work and the server stop together, and that RunWith returns the cause.
func TestRunWith(t *testing.T) {
	taken, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	broken := errors.New("broken")
	fails := func(context.Context) error { return broken }
	lasts := func(ctx context.Context) error { <-ctx.Done(); return nil }
	for name, tc := range map[string]struct {
		port int
		work func(context.Context) error
		want error
	}{
		"error of work without a port": {0, fails, broken},
		"work ends":                    {testport.Port(t), func(context.Context) error { return nil }, nil},
		"work fails":                   {testport.Port(t), fails, broken},
		"port is in use":               {taken.Addr().(*net.TCPAddr).Port, lasts, syscall.EADDRINUSE},
	} {
		t.Run(name, func(t *testing.T) {
			var s SecurePortFlags
			f := pflag.NewFlagSet("", pflag.ContinueOnError)
			s.AddFlags(f, 0)
			if err := f.Parse([]string{"--bind-address=127.0.0.1", "--secure-port=" + strconv.Itoa(tc.port)}); err != nil {
				t.Fatal(err)
			}
			if err := s.RunWith(t.Context(), Config{Component: "test"}, tc.work); !errors.Is(err, tc.want) {
				t.Errorf("Beside: %v, want %v", err, tc.want)
			}
		})
	}
}
