package up

import (
	"context"
	"crypto/tls"
	"log/slog"
	"net"
	"strconv"
	"sync"

	"hyperkube/internal/debugserver"
	"hyperkube/internal/layout"
	"hyperkube/internal/lifecycle"
)

// telling serves what controllers and scheduler tell of themselves where they do so
// as processes of their own: health to all, metrics to those whom the API server lets.
func (c *clusterRun) telling(p *parts) lifecycle.Func {
	conf := func(port int) debugserver.Config {
		return debugserver.Config{
			Addr:        net.JoinHostPort("", strconv.Itoa(port)),
			Certificate: func() (*tls.Certificate, error) { return c.serving.Load(), nil },
			ClientCA:    c.pki.CA.Pool(), Reviews: p.admin.Kube,
		}
	}
	confs := []debugserver.Config{p.controllers.Server(conf(layout.PortControllerManager)), p.scheduler.Server(conf(layout.PortScheduler))}
	return func(ctx context.Context) error {
		tell(ctx, c.log, confs...)
		return nil
	}
}

// tell serves until ctx ends. A port that somebody else has is done without: nothing
// but who looks at metrics needs it.
func tell(ctx context.Context, log *slog.Logger, confs ...debugserver.Config) {
	var serving sync.WaitGroup
	for _, conf := range confs {
		serving.Go(func() {
			s, err := debugserver.New(conf)
			if err == nil {
				err = s.Run(ctx)
			}
			if err != nil {
				log.Warn("a component's metrics are not served", "component", conf.Component, "address", conf.Addr, "err", err)
			}
		})
	}
	serving.Wait()
	<-ctx.Done()
}
