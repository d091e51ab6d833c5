package controllers

import (
	"context"

	"hyperkube/components/controllers/internal/control"
	"hyperkube/internal/leader"
)

// lead runs the controllers while it holds the lease.
func (m *Manager) lead(ctx context.Context) error {
	recording, cancel := context.WithCancel(context.WithoutCancel(ctx))
	recorder := control.NewRecorder(m.cfg.Clients.Kube, component)
	wait := recorder.Start(recording)
	election := m.cfg.Election.Defaulted(component)
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

// component is the name of this component, of its lease and of who asks the API for it.
const component = "kube-controller-manager"
