package masters

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
	"hyperkube/internal/client"
	"hyperkube/internal/lifecycle"
)

// incumbent is the API server that runs while manifests are written. If its manifest is
// another then, it makes way for one that has to be waited for: asked too soon, it is
// still the old one that answers, and goes away in the midst of what follows.
type incumbent struct {
	manifest string
	before   []byte
	// watch ends with the server; nil: none runs.
	watch watch.Interface
	stop  context.CancelFunc
}

// askBound is how long an API server has to take a watch.
const askBound = 10 * time.Second

// incumbent looks for the API server of this machine. Its Stop is for the caller.
func (m *master) incumbent(ctx context.Context) *incumbent {
	i := &incumbent{manifest: filepath.Join(m.layout.StaticPods(), "kube-apiserver.yaml")}
	var err error
	if i.before, err = os.ReadFile(i.manifest); err != nil {
		return i // there never was one
	}
	config, err := m.super()
	if err != nil {
		return i
	}
	config.Timeout = 0
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		return i
	}
	asking, cancel := context.WithCancel(ctx)
	i.stop = cancel
	tooLong := time.AfterFunc(askBound, cancel)
	bound := int64(2 * progress.WaitBound / time.Second)
	// Whatever lives as long as the server does.
	i.watch, err = kube.CoreV1().Namespaces().Watch(asking, metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector("metadata.name", metav1.NamespaceSystem).String(), TimeoutSeconds: &bound,
	})
	if !tooLong.Stop() || err != nil {
		i.watch = nil // it answers nobody, and is waited for by who asks it next
	}
	return i
}

// Stop ends the looking.
func (i *incumbent) Stop() {
	if i.stop != nil {
		i.stop()
	}
}

// leave blocks until the server has made way, if its manifest has become another.
func (i *incumbent) leave(ctx context.Context, p progress.Patience) error {
	now, err := os.ReadFile(i.manifest)
	if err != nil || i.watch == nil || bytes.Equal(now, i.before) {
		return err
	}
	return p.Wait(ctx, "the API server to make way for that of its new manifest", nil, func(ctx context.Context) error {
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

// againAfter is the pause before a request is repeated that failed in passing.
const againAfter = 300 * time.Millisecond

// persist runs do, whose steps can be repeated, again while it fails for the API server
// or etcd are just being started again.
func (m *master) persist(ctx context.Context, clients *client.Clients, do func(ctx context.Context) error) error {
	bounded, cancel := context.WithTimeout(ctx, progress.WaitBound)
	defer cancel()
	for {
		err := do(ctx)
		if err == nil || !inPassing(err) {
			return err
		}
		if !lifecycle.Pause(bounded, againAfter) {
			return err
		}
		if err := m.waitAnswer(ctx, clients); err != nil {
			return err
		}
	}
}

// inPassing tells whether a request failed for something that ends by itself.
func inPassing(err error) bool {
	return utilnet.IsConnectionRefused(err) || utilnet.IsConnectionReset(err) || utilnet.IsProbableEOF(err) ||
		apierrors.IsServerTimeout(err) || apierrors.IsTimeout(err) || apierrors.IsServiceUnavailable(err)
}
