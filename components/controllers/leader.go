package controllers

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"hyperkube/components/controllers/internal/control"
)

// Election tunes leader election. Zero values are upstream's defaults.
type Election struct {
	// LeaseDuration is how long others wait for a silent leader; 15 s.
	LeaseDuration time.Duration
	// RenewDeadline is when a leader that cannot renew gives up; 10 s.
	RenewDeadline time.Duration
	// RetryPeriod is the time between tries; 2 s.
	RetryPeriod time.Duration
	// Namespace and Name of the Lease; kube-system and
	// kube-controller-manager.
	Namespace, Name string
}

func (e Election) defaulted() Election {
	if e.LeaseDuration == 0 {
		e.LeaseDuration = 15 * time.Second
	}
	if e.RenewDeadline == 0 {
		e.RenewDeadline = 10 * time.Second
	}
	if e.RetryPeriod == 0 {
		e.RetryPeriod = 2 * time.Second
	}
	if e.Namespace == "" {
		e.Namespace = "kube-system"
	}
	if e.Name == "" {
		e.Name = "kube-controller-manager"
	}
	return e
}

// lead runs the controllers while it holds the lease.
func (m *Manager) lead(ctx context.Context) error {
	host, err := os.Hostname()
	if err != nil {
		return fmt.Errorf("leader election: %w", err)
	}
	e := m.cfg.Election.defaulted()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	recorder := control.NewRecorder(m.cfg.Clients.Kube, "kube-controller-manager")
	wait := recorder.Start(ctx)
	lock, err := resourcelock.New(resourcelock.LeasesResourceLock, e.Namespace, e.Name, nil, m.cfg.Clients.Kube.CoordinationV1(),
		resourcelock.ResourceLockConfig{Identity: host + "_" + string(uuid.NewUUID()), EventRecorder: recorder})
	if err != nil {
		cancel()
		wait()
		return fmt.Errorf("leader election: %w", err)
	}
	var runErr error
	begun, led := make(chan struct{}), make(chan struct{})
	lost := false
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock:            lock,
		LeaseDuration:   e.LeaseDuration,
		RenewDeadline:   e.RenewDeadline,
		RetryPeriod:     e.RetryPeriod,
		ReleaseOnCancel: true,
		Name:            "kube-controller-manager",
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(ctx context.Context) {
				close(begun)
				defer close(led)
				runErr = m.run(ctx)
				cancel()
			},
			OnStoppedLeading: func() { lost = ctx.Err() == nil },
		},
	})
	if err != nil {
		cancel()
		wait()
		return fmt.Errorf("leader election: %w", err)
	}
	elector.Run(ctx)
	cancel()
	select {
	case <-begun:
		<-led
	default:
	}
	wait()
	if runErr == nil && lost {
		return errors.New("leader election lost")
	}
	return runErr
}
