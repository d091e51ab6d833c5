package progress

import (
	"log/slog"
	"net"
	"os"
)

// NotifySystemd tells systemd of a change of state, when it started this
// process and waits for that (sd_notify(3)).
func NotifySystemd(state string) {
	address := os.Getenv("NOTIFY_SOCKET")
	if address == "" {
		return
	}
	conn, err := net.Dial("unixgram", address)
	if err != nil {
		slog.Warn("telling systemd failed", "err", err)
		return
	}
	defer conn.Close()
	if _, err := conn.Write([]byte(state)); err != nil {
		slog.Warn("telling systemd failed", "err", err)
	}
}
