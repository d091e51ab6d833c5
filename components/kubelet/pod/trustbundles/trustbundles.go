// Package trustbundles provides the ClusterTrustBundles of projected volumes.
package trustbundles

import (
	"context"
	"errors"
	"sync"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"hyperkube/components/kubelet/pod/objectcache"
	"hyperkube/internal/client"
)

// Watcher watches the ClusterTrustBundles of the cluster. It starts the watch when the first pod uses one,
// because on most nodes no pod does. Its methods are safe for concurrent use.
type Watcher struct {
	kube kubernetes.Interface // may be nil
	// changed is called after a bundle has changed.
	changed func()

	mu       sync.Mutex // guards the following fields
	informer cache.SharedIndexInformer
	stop     context.CancelFunc
	done     chan struct{}
	closed   bool
}

// New returns a Watcher that watches nothing yet. kube may be nil; then Bundles returns an error. changed is
// called after a bundle was added, has changed or was deleted; it must not block.
func New(kube kubernetes.Interface, changed func()) *Watcher {
	return &Watcher{kube: kube, changed: changed}
}

// Bundles returns all ClusterTrustBundles. The first call starts the watch. It waits up to ten seconds until
// they are synced and then returns an error, as it does without an API server and, if no watch was started,
// after Close. It implements volume.TrustBundles.
func (t *Watcher) Bundles(ctx context.Context) ([]*certificatesv1.ClusterTrustBundle, error) {
	if t.kube == nil {
		return nil, objectcache.ErrNoAPI
	}
	informer, err := t.start()
	if err != nil {
		return nil, err
	}
	short, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if !cache.WaitFor(short, "", informer.HasSyncedChecker()) {
		return nil, errors.New("ClusterTrustBundles have not been read yet")
	}
	var out []*certificatesv1.ClusterTrustBundle
	for _, obj := range informer.GetStore().List() {
		if b, ok := obj.(*certificatesv1.ClusterTrustBundle); ok {
			out = append(out, b)
		}
	}
	return out, nil
}

// start returns the informer, and starts it on the first call. It returns an error after Close.
func (t *Watcher) start() (cache.SharedIndexInformer, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return nil, errors.New("the kubelet is stopping")
	}
	if t.informer != nil {
		return t.informer, nil
	}
	informer := client.NewInformer(t.kube, &certificatesv1.ClusterTrustBundle{}, t.kube.CertificatesV1().ClusterTrustBundles(), fields.Everything())
	handler := cache.ResourceEventHandlerDetailedFuncs{
		AddFunc: func(_ any, initial bool) {
			if !initial {
				t.changed()
			}
		},
		UpdateFunc: func(any, any) { t.changed() },
		DeleteFunc: func(any) { t.changed() },
	}
	if _, err := informer.AddEventHandler(handler); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	t.informer, t.stop, t.done = informer, cancel, make(chan struct{})
	go func() {
		defer close(t.done)
		informer.RunWithContext(ctx)
	}()
	return informer, nil
}

// Close stops the watch and returns when it has stopped. Bundles then returns an error if no watch was
// started before.
func (t *Watcher) Close() {
	t.mu.Lock()
	t.closed = true
	stop, done := t.stop, t.done
	t.mu.Unlock()
	if stop != nil {
		stop()
		<-done
	}
}

// Uses reports whether a pod has a projected volume with ClusterTrustBundles.
func Uses(pod *v1.Pod) bool {
	for i := range pod.Spec.Volumes {
		if p := pod.Spec.Volumes[i].Projected; p != nil {
			for j := range p.Sources {
				if p.Sources[j].ClusterTrustBundle != nil {
					return true
				}
			}
		}
	}
	return false
}
