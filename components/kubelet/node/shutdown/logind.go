package shutdown

import (
	"context"
	"fmt"
	"io"
	"os"
	"syscall"
	"time"

	"hyperkube/internal/host/dbus"
)

// loginName, loginPath and loginManager are the D-Bus name, object and interface of logind, and prepare is the
// signal that logind sends before a shutdown of the machine.
const (
	loginName    = "org.freedesktop.login1"
	loginPath    = "/org/freedesktop/login1"
	loginManager = loginName + ".Manager"

	prepare = "PrepareForShutdown"
)

// Logind reports the machine's shutdown and can delay it.
//
// https://systemd.io/INHIBITOR_LOCKS/
type Logind interface {
	// Delay returns the maximum time by which logind delays a shutdown.
	Delay(ctx context.Context) (time.Duration, error)
	// Reload makes logind read its configuration files again.
	Reload(ctx context.Context) error
	// Inhibit delays a shutdown until the returned lock is closed.
	Inhibit(ctx context.Context) (io.Closer, error)
	// Events returns a channel that receives true when a shutdown begins and false when it is
	// canceled. It is closed when the connection is closed.
	Events(ctx context.Context) (<-chan bool, error)
	io.Closer
}

// Connect connects to the system bus, over which logind is called. It returns an error if the bus is not available. Only
// the first call shows whether logind runs. The caller must close the connection.
func Connect(ctx context.Context) (Logind, error) {
	conn, err := dbus.Dial(ctx, dbus.SystemBus())
	if err != nil {
		return nil, fmt.Errorf("connecting to the system bus: %w", err)
	}
	return &logind{conn: conn}, nil
}

// logind implements Logind by calling logind over D-Bus.
type logind struct{ conn *dbus.Conn }

// Close closes the connection to the system bus.
func (l *logind) Close() error { return l.conn.Close() }

// call calls a D-Bus method of logind and returns the single value of its response; any other number of values is
// an error. face is the D-Bus interface and member the name of the method.
func (l *logind) call(ctx context.Context, face, member string, args ...any) (any, error) {
	out, err := l.conn.Call(ctx, dbus.Call{Destination: loginName, Path: loginPath, Interface: face, Member: member, Args: args})
	if err == nil && len(out) != 1 {
		err = fmt.Errorf("unexpected response %v", out)
	}
	if err != nil {
		return nil, err
	}
	return out[0], nil
}

// Delay returns logind's setting InhibitDelayMaxSec.
func (l *logind) Delay(ctx context.Context) (time.Duration, error) {
	out, err := l.call(ctx, "org.freedesktop.DBus.Properties", "Get", loginManager, "InhibitDelayMaxUSec")
	n, ok := out.(uint64)
	if err == nil && !ok {
		err = fmt.Errorf("unexpected response %v", out)
	}
	if err != nil {
		return 0, fmt.Errorf("getting the maximum inhibit delay of logind: %w", err)
	}
	return time.Duration(n) * time.Microsecond, nil
}

// Reload makes logind read its configuration files again, by requesting systemd to send it SIGHUP.
func (l *logind) Reload(ctx context.Context) error {
	_, err := l.conn.Call(ctx, dbus.Call{
		Destination: "org.freedesktop.systemd1", Path: "/org/freedesktop/systemd1", Interface: "org.freedesktop.systemd1.Manager",
		Member: "KillUnit", Args: []any{"systemd-logind.service", "all", int32(syscall.SIGHUP)},
	})
	if err != nil {
		return fmt.Errorf("reloading the configuration of logind: %w", err)
	}
	return nil
}

// Inhibit takes an inhibitor lock of logind with the mode "delay": logind delays a shutdown of the machine until
// the lock is closed or its maximum delay has passed.
func (l *logind) Inhibit(ctx context.Context) (io.Closer, error) {
	out, err := l.call(ctx, loginManager, "Inhibit", "shutdown", "kubelet", "Kubelet needs time to handle node shutdown", "delay")
	lock, ok := out.(*os.File)
	if err == nil && !ok {
		err = fmt.Errorf("unexpected response %v", out)
	}
	if err != nil {
		return nil, fmt.Errorf("taking the inhibitor lock of logind: %w", err)
	}
	return lock, nil
}

// Events returns a channel that receives true when a shutdown of the machine begins and false when it was canceled,
// from logind's signal PrepareForShutdown. The channel is closed when the connection fails or ctx is done.
func (l *logind) Events(ctx context.Context) (<-chan bool, error) {
	if err := l.conn.Match(ctx, "type='signal',path='"+loginPath+"',interface='"+loginManager+"',member='"+prepare+"'"); err != nil {
		return nil, fmt.Errorf("subscribing to signals of logind: %w", err)
	}
	out := make(chan bool)
	go func() {
		defer close(out)
		for s := range l.conn.Signals() {
			if s.Interface != loginManager || s.Member != prepare || len(s.Body) != 1 {
				continue
			}
			begins, ok := s.Body[0].(bool)
			if !ok {
				continue
			}
			select {
			case out <- begins:
			case <-ctx.Done():
				return
			}
		}
	}()
	return out, nil
}
