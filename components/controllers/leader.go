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
	election := m.cfg.Election.Defaulted(leaseName)
	m.leaders.Lead(election.Name, false)
	err := leader.Run(ctx, election, m.cfg.Clients.Kube, recorder, func(ctx context.Context) error {
		m.leaders.Lead(election.Name, true)
		defer m.leaders.Lead(election.Name, false)
		return m.run(ctx)
	})
	cancel()
	wait()
	return err
}

// leaseName is that of the component, too.
const leaseName = "kube-controller-manager"
