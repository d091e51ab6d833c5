// Package podsource receives the pods of the node from the API server and from manifests of static pods, and
// passes them to the pod workers.
package podsource

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"hyperkube/components/kubelet/pod/pods"
	"hyperkube/components/kubelet/pod/staticpod"
	"hyperkube/internal/client"
)

// Registry tracks the pods that the workers run. Its methods must be safe for concurrent use.
type Registry interface {
	// Remove records that a pod was removed from its source.
	Remove(uid types.UID)
	// Done returns a channel that is closed when a pod has terminated and everything of it is removed, or nil
	// if there is no such pod.
	Done(uid types.UID) <-chan struct{}
	// RestartRemoved requests that the exited containers of a pod that is being removed are kept, because the
	// pod will be set again. The caller must set the pod when the returned channel is closed. It returns nil
	// if the pod is not being removed, so that it can be set immediately.
	RestartRemoved(uid types.UID) <-chan struct{}
}

// Workers run pods. Its methods must be safe for concurrent use.
type Workers interface {
	// Set adds or updates a pod. It blocks until the pod is admitted or ctx is done.
	Set(ctx context.Context, pod *v1.Pod)
}

// Node is notified of the Node object of this node: Observe after it was created or has changed, and Deleted
// after its deletion.
type Node interface {
	Observe(node *v1.Node)
	Deleted()
}

// Credentials is a cache of credentials of pods, such as tokens.
type Credentials interface {
	// Forget removes the credentials of a pod.
	Forget(pod types.UID)
}

// Config is the configuration of Sources. All fields are required unless their comment says otherwise.
type Config struct {
	NodeName string
	// Kube is nil if there is no API server. Then there are only static pods.
	Kube kubernetes.Interface
	// PodInformer and NodeInformer are run by the caller. If one is nil, Sources runs its own.
	PodInformer, NodeInformer cache.SharedInformer
	Registry                  Registry
	Workers                   Workers
	Node                      Node
	// Mirrors are the mirror pods of static pods. It is nil if there is no API server.
	Mirrors *staticpod.Mirrors
	// Credentials forget the pods that are removed.
	Credentials []Credentials
	// ManifestDir and ManifestURL are the sources of static pods; each may be empty. ManifestURL is fetched
	// every CheckInterval with Header.
	ManifestDir, ManifestURL string
	Header                   http.Header
	CheckInterval            time.Duration
	// Duplicate is called for a static pod that is ignored because another one has the same name.
	Duplicate func(*v1.Pod)
	// Synced is set when all sources have delivered their pods.
	Synced *Sync
	Log    *slog.Logger
}

// Sync records whether all sources have delivered their pods. Until then, a pod that is not known may still
// be delivered, so parts of the kubelet must not treat it as deleted. Its methods are safe for concurrent
// use.
type Sync struct{ done chan struct{} }

// NewSync returns a Sync that is not complete.
func NewSync() *Sync { return &Sync{done: make(chan struct{})} }

// Known reports whether all sources have delivered their pods.
func (s *Sync) Known() bool {
	select {
	case <-s.done:
		return true
	default:
		return false
	}
}

// Done returns a channel that is closed when all sources have delivered their pods.
func (s *Sync) Done() <-chan struct{} { return s.done }

// Sources receives the pods of the node from the API server, a directory and a URL.
type Sources struct{ cfg Config }

// New returns Sources. It starts nothing.
func New(cfg Config) *Sources { return &Sources{cfg: cfg} }

// Run passes the pods of all sources to the workers until ctx is done. When all sources have delivered their
// pods, it completes cfg.Synced. It returns an error if a watch cannot be started. It must be called only
// once.
func (s *Sources) Run(ctx context.Context) error {
	var wait sync.WaitGroup
	defer wait.Wait()
	static := s.staticPods(ctx, wait.Go)
	var listed cache.DoneChecker
	if s.cfg.Kube != nil {
		informer := s.cfg.PodInformer
		if informer == nil {
			own := client.NewInformer(s.cfg.Kube, &v1.Pod{}, s.cfg.Kube.CoreV1().Pods(""), fields.OneTermEqualSelector("spec.nodeName", s.cfg.NodeName))
			_ = own.SetWatchErrorHandlerWithContext(client.StartErrors()) // fails only after the start
			informer = own
			wait.Go(func() { own.RunWithContext(ctx) })
		}
		reg, err := informer.AddEventHandler(s.podHandler(ctx))
		if err != nil {
			return fmt.Errorf("watching pods: %w", err)
		}
		defer func() { _ = informer.RemoveEventHandler(reg) }()
		nodes := s.cfg.NodeInformer
		if nodes == nil {
			own := client.NewInformer(s.cfg.Kube, &v1.Node{}, s.cfg.Kube.CoreV1().Nodes(), fields.OneTermEqualSelector(metav1.ObjectNameField, s.cfg.NodeName))
			_ = own.SetWatchErrorHandlerWithContext(client.StartErrors()) // fails only after the start
			nodes = own
			wait.Go(func() { own.RunWithContext(ctx) })
		}
		nodeReg, err := nodes.AddEventHandler(s.nodeHandler())
		if err != nil {
			return fmt.Errorf("watching the node: %w", err)
		}
		defer func() { _ = nodes.RemoveEventHandler(nodeReg) }()
		listed = reg.HasSyncedChecker()
	}
	if listed != nil && !cache.WaitFor(ctx, "", listed) {
		return nil
	}
	select {
	case <-static:
		close(s.cfg.Synced.done)
	case <-ctx.Done():
	}
	<-ctx.Done()
	return nil
}

// podHandler returns the handler for pods of the API: those of this node are passed to the workers, mirror
// pods to Mirrors. When ctx is done, the admission of pods does not wait any more.
func (s *Sources) podHandler(ctx context.Context) cache.ResourceEventHandler {
	set := func(obj any) {
		pod, ok := obj.(*v1.Pod)
		switch {
		case !ok || pod.Spec.NodeName != s.cfg.NodeName:
		case pods.IsMirror(pod):
			s.cfg.Mirrors.Observe(pod, false)
		default:
			s.cfg.Workers.Set(ctx, pod)
		}
	}
	gone := func(obj any) {
		if last, ok := obj.(cache.DeletedFinalStateUnknown); ok {
			obj = last.Obj
		}
		pod, ok := obj.(*v1.Pod)
		switch {
		case !ok || pod.Spec.NodeName != s.cfg.NodeName:
		case pods.IsMirror(pod):
			s.cfg.Mirrors.Observe(pod, true)
		default:
			s.removed(pod.UID)
		}
	}
	return cache.ResourceEventHandlerFuncs{
		AddFunc: set,
		UpdateFunc: func(old, obj any) {
			before, okOld := old.(*v1.Pod)
			after, ok := obj.(*v1.Pod)
			if okOld && ok && before.UID != after.UID {
				// The pod was deleted and recreated while the watch was interrupted.
				gone(old)
			}
			set(obj)
		},
		DeleteFunc: gone,
	}
}

// removed removes a pod, which its source does not have any more, from the registry and the credential
// caches.
func (s *Sources) removed(uid types.UID) {
	s.cfg.Registry.Remove(uid)
	for _, c := range s.cfg.Credentials {
		c.Forget(uid)
	}
}

// nodeHandler returns the handler that passes changes of this node's Node object to cfg.Node.
func (s *Sources) nodeHandler() cache.ResourceEventHandler {
	seen := func(obj any) {
		if node, ok := obj.(*v1.Node); ok && node.Name == s.cfg.NodeName {
			s.cfg.Node.Observe(node)
		}
	}
	return cache.ResourceEventHandlerFuncs{
		AddFunc:    seen,
		UpdateFunc: func(_, obj any) { seen(obj) },
		DeleteFunc: func(obj any) {
			if gone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
				obj = gone.Obj
			}
			if node, ok := obj.(*v1.Node); ok && node.Name == s.cfg.NodeName {
				s.cfg.Node.Deleted()
			}
		},
	}
}
