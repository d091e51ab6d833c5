package controllers

import (
	"context"

	"hyperkube/components/controllers/internal/control"
	"hyperkube/internal/client/leaderelection"
)

// lead waits until it holds the lease, and then runs the controllers until ctx is done or the lease is lost. In the
// latter case it returns an error.
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

// component is the name of this component. It is also the name of its lease and part of its user agent.
const component = "kube-controller-manager"
