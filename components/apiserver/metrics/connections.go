package metrics

import (
	"bytes"
	"io"
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"
)

// connections has the metrics of connections: of those that come, and of those to
// kubelets for logs.
type connections struct {
	handshakes   prometheus.Counter
	logs         *prometheus.CounterVec
	distrustLogs prometheus.Counter
}

func newConnections() *connections {
	return &connections{
		handshakes: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "apiserver_tls_handshake_errors_total", Help: "[ALPHA] Number of requests dropped with 'TLS handshake error from' error",
		}),
		logs: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "kube_apiserver_pod_logs_insecure_backend_total",
			Help: "[ALPHA] Total number of requests for pods/logs sliced by usage type: enforce_tls, skip_tls_allowed, skip_tls_denied",
		}, []string{"usage"}),
		distrustLogs: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "kube_apiserver_pod_logs_backend_tls_failure_total", Help: "[ALPHA] Total number of requests for pods/logs that failed due to kubelet server TLS verification",
		}),
	}
}

func (c *connections) collectors() []prometheus.Collector {
	return []prometheus.Collector{c.handshakes, c.logs, c.distrustLogs}
}

// Logs counts a request for a container's log, for which the kubelet's certificate
// is not looked at when insecure.
func (m *Metrics) Logs(insecure bool) {
	if m == nil {
		return
	}
	usage := "enforce_tls"
	if insecure {
		usage = "skip_tls_allowed"
	}
	m.connections.logs.WithLabelValues(usage).Inc()
}

// LogsDistrusted counts a log that was not read, for the kubelet's certificate was
// not to be trusted.
func (m *Metrics) LogsDistrusted() {
	if m != nil {
		m.connections.distrustLogs.Inc()
	}
}

// Handshakes counts the TLS handshakes that failed among what a server of net/http
// writes to its log, and hands everything on to log. That text is all that net/http
// tells of them.
func (m *Metrics) Handshakes(log *slog.Logger) io.Writer {
	return &handshakes{m.connections.handshakes, slog.NewLogLogger(log.Handler(), slog.LevelDebug).Writer()}
}

type handshakes struct {
	failed prometheus.Counter
	next   io.Writer
}

// Write as io.Writer, with one line.
func (h *handshakes) Write(line []byte) (int, error) {
	if bytes.Contains(line, []byte("http: TLS handshake error")) {
		h.failed.Inc()
	}
	return h.next.Write(line)
}
