package shutdown

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
	"time"

	"github.com/godbus/dbus/v5"
)

// Names on the bus.
const (
	loginName    = "org.freedesktop.login1"
	loginPath    = dbus.ObjectPath("/org/freedesktop/login1")
	loginManager = loginName + ".Manager"

	systemdName    = "org.freedesktop.systemd1"
	systemdPath    = dbus.ObjectPath("/org/freedesktop/systemd1")
	systemdManager = systemdName + ".Manager"
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
	conn, err := dbus.ConnectSystemBus(dbus.WithContext(ctx))
	if err != nil {
		return nil, fmt.Errorf("connecting with the system bus: %w", err)
	}
	return &logind{conn: conn}, nil
}

// logind is the one on the bus.
type logind struct{ conn *dbus.Conn }

func (l *logind) Close() error { return l.conn.Close() }

func (l *logind) Delay(ctx context.Context) (time.Duration, error) {
	var value dbus.Variant
	call := l.conn.Object(loginName, loginPath).CallWithContext(ctx, "org.freedesktop.DBus.Properties.Get", 0, loginManager, "InhibitDelayMaxUSec")
	if err := call.Store(&value); err != nil {
		return 0, fmt.Errorf("asking logind for its longest delay: %w", err)
	}
	n, ok := value.Value().(uint64)
	if !ok {
		return 0, fmt.Errorf("asking logind for its longest delay: unexpected %v", value)
	}
	return time.Duration(n) * time.Microsecond, nil
}

func (l *logind) Reload(ctx context.Context) error {
	call := l.conn.Object(systemdName, systemdPath).CallWithContext(ctx, systemdManager+".KillUnit", 0, "systemd-logind.service", "all", int32(syscall.SIGHUP))
	if call.Err != nil {
		return fmt.Errorf("making logind read its configuration: %w", call.Err)
	}
	return nil
}

func (l *logind) Inhibit(ctx context.Context) (io.Closer, error) {
	var fd dbus.UnixFD
	call := l.conn.Object(loginName, loginPath).CallWithContext(ctx, loginManager+".Inhibit", 0,
		"shutdown", "kubelet", "Kubelet needs time to handle node shutdown", "delay")
	if err := call.Store(&fd); err != nil {
		return nil, fmt.Errorf("taking logind's lock: %w", err)
	}
	lock := os.NewFile(uintptr(fd), "inhibitor")
	if lock == nil {
		return nil, errors.New("taking logind's lock: no descriptor")
	}
	return lock, nil
}

func (l *logind) Events(ctx context.Context) (<-chan bool, error) {
	err := l.conn.AddMatchSignalContext(ctx, dbus.WithMatchObjectPath(loginPath), dbus.WithMatchInterface(loginManager), dbus.WithMatchMember("PrepareForShutdown"))
	if err != nil {
		return nil, fmt.Errorf("following logind: %w", err)
	}
	// The library loses signals for which there is no room.
	signals := make(chan *dbus.Signal, 16)
	l.conn.Signal(signals)
	out := make(chan bool)
	go func() {
		defer close(out)
		for {
			select {
			case <-ctx.Done():
				return
			case s, ok := <-signals:
				if !ok {
					return
				}
				if s.Name != loginManager+".PrepareForShutdown" || len(s.Body) != 1 {
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
		}
	}()
	return out, nil
}
