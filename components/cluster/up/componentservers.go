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

// componentServers returns a function that serves the health and metrics endpoints of the controller manager and the
// scheduler on the ports that these use as separate processes, until its context is done. Health is public; metrics
// need authorization by the API server. It does not serve a component whose server the configuration file disables.
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

// componentServer returns the configuration of a component's server on --bind-address and port. The server
// authenticates and authorizes requests with TokenReviews and SubjectAccessReviews of the client reviews.
func (c *clusterRun) componentServer(port int, reviews kubernetes.Interface) debugserver.Config {
	return debugserver.Config{
		Addr:        netip.AddrPortFrom(c.bindAddress, uint16(port)).String(),
		Certificate: func() (*tls.Certificate, error) { return c.servingCert.Load(), nil },
		ClientCA:    c.pki.CA.Pool(), Reviews: reviews,
	}
}

// serveComponents serves until ctx is done. If a server fails, for example because its port is in use, it only logs the
// error, because the components work without their metrics and health checks.
func serveComponents(ctx context.Context, log *slog.Logger, confs ...debugserver.Config) {
	var serving sync.WaitGroup
	for _, conf := range confs {
		serving.Go(func() {
			s, err := debugserver.New(conf)
			if err == nil {
				err = s.Run(ctx)
			}
			if err != nil {
				log.Warn("serving health and metrics of component failed; they are not available until the next start of the cluster, the component itself works", "component", conf.Component, "address", conf.Addr, "err", err)
			}
		})
	}
	serving.Wait()
	<-ctx.Done()
}
