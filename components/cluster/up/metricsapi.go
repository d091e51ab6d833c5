package up

import (
	"crypto/tls"
	"net/http"
	"sync/atomic"
	"time"

	"hyperkube/components/apiserver/aggregation"
	"hyperkube/components/apiserver/compose"
	"hyperkube/components/controllers"
	"hyperkube/components/etcd"
	"hyperkube/components/metrics"
	"hyperkube/internal/client"
	"hyperkube/internal/credentials/pki"
)

// metricsAPI is the handler of the metrics API (metrics.k8s.io) and of its history in the API server. The actual server of these
// APIs reads informers, which need the API server, so it is set later. Until then, requests get the response 503.
type metricsAPI struct {
	handler atomic.Pointer[metrics.InProcess]
	// history is on while the API of the history is served.
	history metrics.Switch
}

// ServeHTTP implements http.Handler. It responds with 503 until the metrics API has started.
func (m *metricsAPI) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	if h := m.handler.Load(); h != nil {
		h.ServeHTTP(w, req)
		return
	}
	http.Error(w, "the metrics API is starting", http.StatusServiceUnavailable)
}

// apis returns the APIs in the form in which the API server serves the APIs of its process.
func (m *metricsAPI) apis() []aggregation.LocalAPI {
	return []aggregation.LocalAPI{
		{GroupVersion: metrics.GroupVersion(), Resources: metrics.Resources(), Handler: m},
		{GroupVersion: metrics.HistoryGroupVersion(), Resources: metrics.HistoryResources(), Handler: m, Served: m.history.Set},
	}
}

// controlPlane is the control plane of this process. It implements metrics.ControlPlane.
type controlPlane struct {
	api         *compose.Server
	etcd        *etcd.Server
	controllers *controllers.Manager
}

// Requests implements metrics.ControlPlane.
func (p controlPlane) Requests() (all, failed int64, seconds float64) {
	t := p.api.Totals()
	return t.Requests, t.Errors, t.Took.Seconds()
}

// DatabaseSize implements metrics.ControlPlane.
func (p controlPlane) DatabaseSize() (int64, error) { return p.etcd.DatabaseSize() }

// QueueDepth implements metrics.ControlPlane.
func (p controlPlane) QueueDepth() float64 { return p.controllers.QueueDepth() }

// newMetrics returns the server of the metrics API and sets it as the handler of usage. The server connects to kubelets
// with the API server's client certificate, and reads its files again when they change.
func (c *clusterRun) newMetrics(shared *client.Clients, usage *metricsAPI, control metrics.ControlPlane) (*metrics.InProcess, error) {
	pair := c.pki.APIServerKubeletClient
	files := &pki.Files{Context: "reading the client certificate for kubelets", CertFile: pair.CertFile, KeyFile: pair.KeyFile}
	s, err := metrics.NewInProcess(metrics.InProcessConfig{
		Informers: shared.Informers,
		Kubelets: &http.Transport{
			TLSClientConfig: &tls.Config{
				RootCAs: c.pki.CA.Pool(), MinVersion: tls.VersionTLS12,
				GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return files.Certificate() },
			},
			IdleConnTimeout: time.Minute,
		},
		History:      &usage.history,
		ControlPlane: control, NodeName: c.cluster.NodeName,
		Log: c.log.With("component", "metrics"),
	})
	if err != nil {
		return nil, err
	}
	usage.handler.Store(s)
	return s, nil
}
