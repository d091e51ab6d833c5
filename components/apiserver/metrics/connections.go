package metrics

import (
	"bytes"
	"io"
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"
)

// connections counts failed TLS handshakes of clients, and connections to kubelets for the logs of
// containers.
type connections struct {
	handshakes   prometheus.Counter
	logs         *prometheus.CounterVec
	distrustLogs prometheus.Counter
}

// newConnections creates the metrics of TLS handshakes and of connections to kubelets. New registers them.
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

// collectors returns all metrics of connections, which New registers.
func (c *connections) collectors() []prometheus.Collector {
	return []prometheus.Collector{c.handshakes, c.logs, c.distrustLogs}
}

// Logs counts a request for a container's log. insecure means that the client requested not to verify the kubelet's
// certificate. It does nothing if m is nil.
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

// LogsDistrusted counts a request for a container's log that failed because the kubelet's
// certificate was not trusted. It does nothing if m is nil.
func (m *Metrics) LogsDistrusted() {
	if m != nil {
		m.connections.distrustLogs.Inc()
	}
}

// Handshakes returns a writer for the error log of a net/http server. It counts failed TLS
// handshakes and forwards all lines to log at debug level. net/http reports such failures in no
// other way.
func (m *Metrics) Handshakes(log *slog.Logger) io.Writer {
	return &handshakes{m.connections.handshakes, slog.NewLogLogger(log.Handler(), slog.LevelDebug).Writer()}
}

// handshakes is the writer that Handshakes returns.
type handshakes struct {
	failed prometheus.Counter
	next   io.Writer
}

// Write implements io.Writer. line is one message of net/http, which it counts if it reports a
// failed TLS handshake.
func (h *handshakes) Write(line []byte) (int, error) {
	if bytes.Contains(line, []byte("http: TLS handshake error")) {
		h.failed.Inc()
	}
	return h.next.Write(line)
}
