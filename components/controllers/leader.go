package controllers

import (
	"context"

	"hyperkube/components/controllers/internal/control"
	"hyperkube/internal/leader"
)

// lead runs the controllers while it holds the lease.
func (m *Manager) lead(ctx context.Context) error {
	recording, cancel := context.WithCancel(context.WithoutCancel(ctx))
	recorder := control.NewRecorder(m.cfg.Clients.Kube, leaseName)
	wait := recorder.Start(recording)
	err := leader.Run(ctx, m.cfg.Election.Defaulted(leaseName), m.cfg.Clients.Kube, recorder, m.run)
	cancel()
	wait()
	return err
}

// leaseName is that of the component, too.
const leaseName = "kube-controller-manager"
