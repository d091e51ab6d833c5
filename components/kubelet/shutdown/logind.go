package shutdown

import (
	"context"
	"fmt"
	"io"
	"os"
	"syscall"
	"time"

	"hyperkube/internal/dbus"
)

// Names on the bus.
const (
	loginName    = "org.freedesktop.login1"
	loginPath    = "/org/freedesktop/login1"
	loginManager = loginName + ".Manager"

	prepare = "PrepareForShutdown"
)

// Logind is who tells of the machine's shutdown and lets it wait.
//
// https://systemd.io/INHIBITOR_LOCKS/
type Logind interface {
	// Delay is how long logind lets a shutdown wait at most.
	Delay(ctx context.Context) (time.Duration, error)
	// Reload makes logind read its configuration again.
	Reload(ctx context.Context) error
	// Inhibit makes a shutdown wait until the lock is closed.
	Inhibit(ctx context.Context) (io.Closer, error)
	// Events tells true when a shutdown begins and false when it is called off.
	// It is closed when the connection ends.
	Events(ctx context.Context) (<-chan bool, error)
	io.Closer
}

// Connect connects with the machine's logind.
func Connect(ctx context.Context) (Logind, error) {
	conn, err := dbus.Dial(ctx, dbus.SystemBus())
	if err != nil {
		return nil, fmt.Errorf("connecting with the system bus: %w", err)
	}
	return &logind{conn: conn}, nil
}

// logind is the one on the bus.
type logind struct{ conn *dbus.Conn }

func (l *logind) Close() error { return l.conn.Close() }

// call calls a method of logind that returns one value.
func (l *logind) call(ctx context.Context, face, member string, args ...any) (any, error) {
	out, err := l.conn.Call(ctx, dbus.Call{Destination: loginName, Path: loginPath, Interface: face, Member: member, Args: args})
	if err == nil && len(out) != 1 {
		err = fmt.Errorf("unexpected answer %v", out)
	}
	if err != nil {
		return nil, err
	}
	return out[0], nil
}

func (l *logind) Delay(ctx context.Context) (time.Duration, error) {
	out, err := l.call(ctx, "org.freedesktop.DBus.Properties", "Get", loginManager, "InhibitDelayMaxUSec")
	n, ok := out.(uint64)
	if err == nil && !ok {
		err = fmt.Errorf("unexpected answer %v", out)
	}
	if err != nil {
		return 0, fmt.Errorf("asking logind for its longest delay: %w", err)
	}
	return time.Duration(n) * time.Microsecond, nil
}

func (l *logind) Reload(ctx context.Context) error {
	_, err := l.conn.Call(ctx, dbus.Call{
		Destination: "org.freedesktop.systemd1", Path: "/org/freedesktop/systemd1", Interface: "org.freedesktop.systemd1.Manager",
		Member: "KillUnit", Args: []any{"systemd-logind.service", "all", int32(syscall.SIGHUP)},
	})
	if err != nil {
		return fmt.Errorf("making logind read its configuration: %w", err)
	}
	return nil
}

func (l *logind) Inhibit(ctx context.Context) (io.Closer, error) {
	out, err := l.call(ctx, loginManager, "Inhibit", "shutdown", "kubelet", "Kubelet needs time to handle node shutdown", "delay")
	lock, ok := out.(*os.File)
	if err == nil && !ok {
		err = fmt.Errorf("unexpected answer %v", out)
	}
	if err != nil {
		return nil, fmt.Errorf("taking logind's lock: %w", err)
	}
	return lock, nil
}

func (l *logind) Events(ctx context.Context) (<-chan bool, error) {
	if err := l.conn.Match(ctx, "type='signal',path='"+loginPath+"',interface='"+loginManager+"',member='"+prepare+"'"); err != nil {
		return nil, fmt.Errorf("following logind: %w", err)
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
