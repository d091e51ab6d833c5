package staticpod

import (
	"context"
	"log/slog"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"hyperkube/components/kubelet/pod/pods"
	"hyperkube/internal/base/backoff"
)

// Mirrors creates and deletes the mirror pods of this node: for each static pod, a pod object in the API that
// shows the static pod and has its status. Its methods are safe for concurrent use.
type Mirrors struct {
	Kube kubernetes.Interface
	// Node returns the Node that owns the mirror pods, or nil while it is not known.
	Node func() *v1.Node
	// Changed is called with the UID of a static pod whose mirror pod has changed.
	Changed func(uid types.UID)
	Log     *slog.Logger

	// mu guards static and mirror.
	mu     sync.Mutex
	static map[string]*v1.Pod // by namespace/name
	mirror map[string]*v1.Pod
	kick   chan struct{}
}

// NewMirrors returns Mirrors without static pods. node returns the Node that owns the mirror pods, or nil while it
// is not known. changed is called with the UID of a static pod when its mirror pod has appeared or changed, so that
// its status is written to the mirror pod.
func NewMirrors(kube kubernetes.Interface, node func() *v1.Node, changed func(types.UID), log *slog.Logger) *Mirrors {
	return &Mirrors{
		Kube: kube, Node: node, Changed: changed, Log: log,
		static: map[string]*v1.Pod{}, mirror: map[string]*v1.Pod{}, kick: make(chan struct{}, 1),
	}
}

// key returns "namespace/name" of a pod, by which a static pod and its mirror pod are matched.
func key(p *v1.Pod) string { return p.Namespace + "/" + p.Name }

// wake makes Run compare the mirror pods with the static pods. It does not block.
func (m *Mirrors) wake() {
	select {
	case m.kick <- struct{}{}:
	default:
	}
}

// Set adds or updates a static pod. Run then creates its mirror pod, or replaces one of an earlier version of
// the static pod.
func (m *Mirrors) Set(p *v1.Pod) {
	m.mu.Lock()
	m.static[key(p)] = p
	m.mu.Unlock()
	m.wake()
}

// Remove removes the static pod with that UID. Run then deletes its mirror pod.
func (m *Mirrors) Remove(uid types.UID) {
	m.mu.Lock()
	for k, p := range m.static {
		if p.UID == uid {
			delete(m.static, k)
		}
	}
	m.mu.Unlock()
	m.wake()
}

// Observe must be called for each mirror pod of this node that the API has, after each change and, with gone,
// after its deletion.
func (m *Mirrors) Observe(p *v1.Pod, gone bool) {
	m.mu.Lock()
	k := key(p)
	if have := m.mirror[k]; gone {
		if have != nil && have.UID == p.UID {
			delete(m.mirror, k)
		}
	} else {
		m.mirror[k] = p
	}
	var changed types.UID
	if s := m.static[k]; s != nil {
		changed = s.UID
	}
	m.mu.Unlock()
	if changed != "" {
		m.Changed(changed)
	}
	m.wake()
}

// Of returns the mirror pod of a static pod. It returns nil if there is none, if it is being deleted, or if
// it belongs to an earlier version of the static pod.
func (m *Mirrors) Of(p *v1.Pod) *v1.Pod {
	m.mu.Lock()
	defer m.mu.Unlock()
	have := m.mirror[key(p)]
	if have == nil || have.DeletionTimestamp != nil || have.Annotations[v1.MirrorPodAnnotationKey] != string(p.UID) {
		return nil
	}
	return have
}

// Run creates and deletes mirror pods until ctx is done. Failures are retried with a back-off. It must be
// started after Observe was called for all mirror pods, because existing ones would be created again.
func (m *Mirrors) Run(ctx context.Context) error {
	retry := backoff.Backoff{First: 100 * time.Millisecond, Max: 10 * time.Second}
	for {
		next := time.Hour
		if !m.sync(ctx) {
			next = retry.Next()
		} else {
			retry.Reset()
		}
		timer := time.NewTimer(next)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-m.kick:
		case <-timer.C:
		}
		timer.Stop()
	}
}

// sync deletes mirror pods without a static pod or of an earlier version, and creates missing ones. It
// returns false if that must be retried.
func (m *Mirrors) sync(ctx context.Context) bool {
	m.mu.Lock()
	var remove, make_ []*v1.Pod
	for k, have := range m.mirror {
		want := m.static[k]
		if want == nil || have.DeletionTimestamp != nil || have.Annotations[v1.MirrorPodAnnotationKey] != string(want.UID) {
			remove = append(remove, have)
		}
	}
	for k, want := range m.static {
		if m.mirror[k] == nil {
			make_ = append(make_, want)
		}
	}
	m.mu.Unlock()
	ok := true
	zero := int64(0)
	for _, p := range remove {
		uid := p.UID
		err := m.Kube.CoreV1().Pods(p.Namespace).Delete(ctx, p.Name, metav1.DeleteOptions{
			GracePeriodSeconds: &zero, Preconditions: &metav1.Preconditions{UID: &uid},
		})
		if err != nil && !apierrors.IsNotFound(err) {
			m.Log.Warn("deleting outdated mirror pod failed; the API shows a removed static pod or its previous version until a retry succeeds, retrying with back-off", "pod", key(p), "err", err)
			ok = false
		}
		if apierrors.IsNotFound(err) {
			m.Observe(p, true)
		}
	}
	node := m.Node()
	if node == nil && len(make_) > 0 {
		return false
	}
	for _, p := range make_ {
		made, err := m.Kube.CoreV1().Pods(p.Namespace).Create(ctx, mirrorOf(p, node), metav1.CreateOptions{})
		switch {
		case err == nil:
			m.Observe(made, false)
		case apierrors.IsAlreadyExists(err):
			// The watch reports which pod exists.
			ok = false
		default:
			m.Log.Warn("creating mirror pod failed; the static pod runs but is not visible in the API until a retry succeeds, retrying with back-off", "pod", key(p), "err", err)
			ok = false
		}
	}
	return ok
}

// mirrorOf returns the mirror pod to create for a static pod. The Node owns it, so that it is deleted with
// the Node.
func mirrorOf(p *v1.Pod, node *v1.Node) *v1.Pod {
	out := p.DeepCopy()
	out.UID, out.ResourceVersion = "", ""
	out.Annotations[v1.MirrorPodAnnotationKey] = out.Annotations[pods.AnnotationHash]
	yes := true
	out.OwnerReferences = []metav1.OwnerReference{{
		APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID, Controller: &yes,
	}}
	return out
}
