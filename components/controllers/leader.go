package controllers

import (
	"context"

	"hyperkube/components/controllers/internal/control"
	"hyperkube/internal/client/leaderelection"
)

// lead runs the controllers while it holds the lease.
func (m *Manager) lead(ctx context.Context) error {
	recording, cancel := context.WithCancel(context.WithoutCancel(ctx))
	recorder := control.NewRecorder(m.cfg.Clients.Kube, component)
	wait := recorder.Start(recording)
	election := m.cfg.Election.WithDefaults(component)
	m.leaders.SetLeader(election.Name, false)
	err := leaderelection.Run(ctx, election, m.cfg.Clients.Kube, recorder, func(ctx context.Context) error {
		m.leaders.SetLeader(election.Name, true)
		defer m.leaders.SetLeader(election.Name, false)
		return m.run(ctx)
	})
	cancel()
	wait()
	return err
}

// component is the name of this component, of its lease, and in its user agent.
const component = "kube-controller-manager"
