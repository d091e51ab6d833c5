package progress

import (
	"log/slog"
	"net"
	"os"
)

// NotifySystemd sends a state change such as "READY=1" to systemd, see sd_notify(3). It does nothing
// if this process is not a systemd service of type notify.
func NotifySystemd(state string) {
	address := os.Getenv("NOTIFY_SOCKET")
	if address == "" {
		return
	}
	conn, err := net.Dial("unixgram", address)
	if err != nil {
		slog.Warn("sending state of this service to systemd failed; no retry: systemctl shows an outdated state, and waits for the start of the service if READY=1 was lost; systemd may restart the service if several WATCHDOG=1 were lost", "state", state, "err", err)
		return
	}
	defer conn.Close()
	if _, err := conn.Write([]byte(state)); err != nil {
		slog.Warn("sending state of this service to systemd failed; no retry: systemctl shows an outdated state, and waits for the start of the service if READY=1 was lost; systemd may restart the service if several WATCHDOG=1 were lost", "state", state, "err", err)
	}
}
