package progress

import (
	"errors"
	"io/fs"
	"log/slog"
	"net"
	"os"
)

// NotifySystemd sends a state change such as "READY=1" to systemd, see sd_notify(3), or to the process that waits for
// the start of this OpenRC service. It does nothing if this process is no such service, and if the socket does not
// exist, because no process waits for the OpenRC service.
func NotifySystemd(state string) {
	address := os.Getenv("NOTIFY_SOCKET")
	if address == "" {
		return
	}
	conn, err := net.Dial("unixgram", address)
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	if err != nil {
		slog.Warn("sending state of this service to systemd failed; no retry: systemctl shows an outdated state, and waits for the start of the service if READY=1 was lost; systemd may restart the service if several WATCHDOG=1 were lost", "state", state, "err", err)
		return
	}
	defer conn.Close()
	if _, err := conn.Write([]byte(state)); err != nil {
		slog.Warn("sending state of this service to systemd failed; no retry: systemctl shows an outdated state, and waits for the start of the service if READY=1 was lost; systemd may restart the service if several WATCHDOG=1 were lost", "state", state, "err", err)
	}
}
