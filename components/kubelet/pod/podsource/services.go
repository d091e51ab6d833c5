package podsource

import (
	"context"
	"errors"
	"time"

	"k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"hyperkube/internal/client"
)

// Services lists the Services of the cluster, whose addresses become environment variables of containers. Its
// methods are safe for concurrent use.
type Services struct {
	informer cache.SharedInformer // nil without an API server
	run      func(context.Context)
}

// NewServices returns Services that uses informer, which the caller must run. If informer is nil, Run runs an
// own one. Without an API server kube is nil, and there are no Services.
func NewServices(kube kubernetes.Interface, informer cache.SharedInformer) *Services {
	switch {
	case kube == nil:
		return &Services{}
	case informer != nil:
		return &Services{informer: informer}
	}
	own := client.NewInformer(kube, &v1.Service{}, kube.CoreV1().Services(""), fields.Everything())
	_ = own.SetWatchErrorHandlerWithContext(client.StartErrors()) // fails only after the start
	return &Services{informer: own, run: own.RunWithContext}
}

// Run watches the Services until ctx is done. It returns immediately if the caller of NewServices runs the informer,
// or without an API server.
func (s *Services) Run(ctx context.Context) error {
	if s.run != nil {
		s.run(ctx)
	}
	return nil
}

// List returns all Services. With wait, it waits up to ten seconds until the informer has synced, and returns an
// error after that. Without wait, it returns the Services that are already known. Without an API server there are
// none.
func (s *Services) List(ctx context.Context, wait bool) ([]*v1.Service, error) {
	if s.informer == nil {
		return nil, nil
	}
	if wait && !s.informer.HasSynced() {
		ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
		defer cancel()
		if !cache.WaitFor(ctx, "", s.informer.HasSyncedChecker()) {
			return nil, errors.New("services have not yet been read at least once, cannot construct envvars")
		}
	}
	list := s.informer.GetStore().List()
	out := make([]*v1.Service, 0, len(list))
	for _, obj := range list {
		if s, ok := obj.(*v1.Service); ok {
			out = append(out, s)
		}
	}
	return out, nil
}
