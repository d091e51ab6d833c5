//go:build linux

package main

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"runtime/pprof"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"hyperkube/components/gateway/dataplane"
	"hyperkube/components/gateway/model"
)

// gatewayPorts is what the process of the gateway serves.
type gatewayPorts struct {
	Plain, TLS       int32
	Backend          string // HOST:PORT
	Certificate, Key string // file names
}

// serveGateway runs the data plane of the gateway with the defaults of `hyperkube gateway` until ctx is done. It writes
// a CPU profile if profile is the name of a file.
func serveGateway(ctx context.Context, file, profile string) (err error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	var ports gatewayPorts
	if err := json.Unmarshal(data, &ports); err != nil {
		return err
	}
	certificate, err := tls.LoadX509KeyPair(ports.Certificate, ports.Key)
	if err != nil {
		return err
	}
	if profile != "" {
		out, err := os.Create(profile)
		if err != nil {
			return err
		}
		if err := pprof.StartCPUProfile(out); err != nil {
			return errors.Join(err, out.Close())
		}
		defer func() {
			pprof.StopCPUProfile()
			err = errors.Join(err, out.Close())
		}()
	}
	plane, err := dataplane.New(dataplane.Config{
		Limits: dataplane.Limits{HeaderBytes: 64 << 10, HeaderTimeout: 10 * time.Second, IdleTimeout: 3 * time.Minute, Connections: 16384},
		Host:   "127.0.0.1", Metrics: prometheus.NewRegistry(), DrainTimeout: time.Second, Log: slog.Default(),
	})
	if err != nil {
		return err
	}
	defer plane.Stop()
	backend := &model.Backend{Key: model.BackendKey{Namespace: "default", Service: "backend", Port: 80}}
	plane.SetEndpoints(backend, []model.Endpoint{{Address: ports.Backend}})
	routes := []model.AttachedRoute{{Hostnames: []string{""}, Route: &model.Route{Name: "HTTPRoute/default/bench", Rules: []*model.Rule{{
		Matches: []model.Match{{PathKind: model.PathPrefix}}, Backends: []model.WeightedBackend{{Backend: backend, Weight: 1}},
	}}}}}
	plain, secure := model.PortID{Frontend: "bench", Number: 80}, model.PortID{Frontend: "bench", Number: 443}
	for _, err := range plane.Apply(&model.Config{Ports: map[model.PortID]*model.Port{
		plain: {Listeners: []*model.Listener{{Name: "http", Kind: model.HTTP, Routes: routes}}},
		secure: {Listeners: []*model.Listener{{Name: "https", Kind: model.HTTPS, Routes: routes,
			TLS: &model.ServerTLS{Certificates: []*tls.Certificate{&certificate}}}}},
	}}, map[model.BackendKey]*model.Backend{backend.Key: backend}, map[model.PortID]int32{plain: ports.Plain, secure: ports.TLS}) {
		return err
	}
	<-ctx.Done()
	return nil
}
