package controlplane

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"

	"hyperkube/components/cluster/progress"
	"hyperkube/internal/base/lifecycle"
	"hyperkube/internal/client"
)

// apiServerWatch detects when the API server of this machine stops, while a command writes manifests. If its manifest
// changes, the kubelet replaces it. Until then the old API server still answers; a client that connects too early
// would lose its connection in the middle of the following steps.
type apiServerWatch struct {
	manifest    string
	oldManifest []byte
	// watch ends when the server stops. It is nil if no server runs.
	watch watch.Interface
	stop  context.CancelFunc
}

// watchTimeout is how long to wait until the API server starts a watch.
const watchTimeout = 10 * time.Second

// watchAPIServer starts to watch the API server of this machine, before its manifest is written. The result does
// nothing if no API server runs or if it does not answer. The caller must call Stop.
func (m *controlPlaneNode) watchAPIServer(ctx context.Context) *apiServerWatch {
	i := &apiServerWatch{manifest: filepath.Join(m.layout.StaticPods(), "kube-apiserver.yaml")}
	var err error
	if i.oldManifest, err = os.ReadFile(i.manifest); err != nil {
		return i // this machine has no API server yet
	}
	config, err := m.setup().adminConfig()
	if err != nil {
		return i
	}
	config.Timeout = 0
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		return i
	}
	watchCtx, cancel := context.WithCancel(ctx)
	i.stop = cancel
	timeout := time.AfterFunc(watchTimeout, cancel)
	bound := int64(2 * progress.DefaultTimeout / time.Second)
	// The connection of any watch lasts as long as the server runs.
	i.watch, err = kube.CoreV1().Namespaces().Watch(watchCtx, metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector("metadata.name", metav1.NamespaceSystem).String(), TimeoutSeconds: &bound,
	})
	if !timeout.Stop() || err != nil {
		i.watch = nil // the server does not respond; later requests wait for the new one
	}
	return i
}

// Stop stops the watch and closes its connection.
func (i *apiServerWatch) Stop() {
	if i.stop != nil {
		i.stop()
	}
}

// waitStopped blocks until the API server that ran when the watch began has stopped. It returns immediately if no API
// server ran or its manifest has not changed. p limits the wait and reports it to the user.
func (i *apiServerWatch) waitStopped(ctx context.Context, p progress.Waiter) error {
	now, err := os.ReadFile(i.manifest)
	if err != nil || i.watch == nil || bytes.Equal(now, i.oldManifest) {
		return err
	}
	return p.Wait(ctx, "the API server to restart with its new manifest", nil, func(ctx context.Context) error {
		for {
			select {
			case _, open := <-i.watch.ResultChan():
				if !open {
					return nil
				}
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
	})
}

// retryInterval is the pause before a request is retried after a transient error.
const retryInterval = 300 * time.Millisecond

// retryTransient calls do, which configures the cluster, until it succeeds or fails with an error that is not
// transient. Before each retry it waits until the API server is ready. Requests fail temporarily while the API server
// or etcd restarts, so the steps of do must be idempotent. It returns the last error after progress.DefaultTimeout.
func (m *controlPlaneNode) retryTransient(ctx context.Context, clients *client.Clients, do func(ctx context.Context) error) error {
	bounded, cancel := context.WithTimeout(ctx, progress.DefaultTimeout)
	defer cancel()
	for {
		err := do(ctx)
		if err == nil || !isTransient(err) {
			return err
		}
		if !lifecycle.Pause(bounded, retryInterval) {
			return err
		}
		if err := m.setup().waitForAPIServer(ctx, clients); err != nil {
			return err
		}
	}
}

// isTransient reports whether a request failed with an error that a retry may resolve: a lost connection, a timeout, or
// an API server that is not ready.
func isTransient(err error) bool {
	return utilnet.IsConnectionRefused(err) || utilnet.IsConnectionReset(err) || utilnet.IsProbableEOF(err) ||
		apierrors.IsServerTimeout(err) || apierrors.IsTimeout(err) || apierrors.IsServiceUnavailable(err)
}
