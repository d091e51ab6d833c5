package up

import (
	"context"
	"crypto/tls"
	"log/slog"
	"net/netip"
	"sync"

	"k8s.io/client-go/kubernetes"

	"hyperkube/internal/base/lifecycle"
	"hyperkube/internal/host/layout"
	"hyperkube/internal/serving/debugserver"
)

// componentServers returns a function that serves the health and metrics endpoints of the controller manager
// and the scheduler on the ports that these use as separate processes. Health is public; metrics
// need authorization by the API server.
func (c *clusterRun) componentServers(p *parts) lifecycle.Func {
	controllers, scheduler := c.componentServer(layout.PortControllerManager, p.admin.Kube), c.componentServer(layout.PortScheduler, p.admin.Kube)
	var confs []debugserver.Config
	if flags := c.settings.Components.Controllers; flags == nil || flags.ApplyServing(&controllers) {
		confs = append(confs, p.controllers.Server(controllers))
	}
	if flags := c.settings.Components.Scheduler; flags == nil || flags.ApplyServing(&scheduler) {
		confs = append(confs, p.scheduler.Server(scheduler))
	}
	return func(ctx context.Context) error {
		serveComponents(ctx, c.log, confs...)
		return nil
	}
}

// componentServer returns the configuration of a component's server on port. The server
// authenticates and authorizes requests with reviews.
func (c *clusterRun) componentServer(port int, reviews kubernetes.Interface) debugserver.Config {
	return debugserver.Config{
		Addr:        netip.AddrPortFrom(c.bindAddress, uint16(port)).String(),
		Certificate: func() (*tls.Certificate, error) { return c.servingCert.Load(), nil },
		ClientCA:    c.pki.CA.Pool(), Reviews: reviews,
	}
}

// serveComponents serves until ctx is done. A port that is in use is only logged, because only metrics and
// health checks need it.
func serveComponents(ctx context.Context, log *slog.Logger, confs ...debugserver.Config) {
	var serving sync.WaitGroup
	for _, conf := range confs {
		serving.Go(func() {
			s, err := debugserver.New(conf)
			if err == nil {
				err = s.Run(ctx)
			}
			if err != nil {
				log.Warn("serving metrics and debug endpoints of component failed", "component", conf.Component, "address", conf.Addr, "err", err)
			}
		})
	}
	serving.Wait()
	<-ctx.Done()
}
