package kubelet

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"hyperkube/components/kubelet/pod/pods"
	"hyperkube/internal/client"
)

// runPods watches the sources of pods.
func (k *Kubelet) runPods(ctx context.Context) error {
	var wait sync.WaitGroup
	defer wait.Wait()
	start := wait.Go
	if err := k.getRuntimeInfo(ctx); err != nil {
		return err
	}
	// The cgroup driver is known now.
	if err := k.prepareCgroups(); err != nil {
		k.nodeEvent(v1.EventTypeWarning, "KubeletSetupFailed", err.Error())
		return err
	}
	if k.cfg.Cgroups.System != "" {
		start(func() {
			if err := k.moveSystemProcesses(ctx); err != nil {
				k.log.Warn("moving system processes into their cgroup failed", "err", err)
			}
		})
	}
	if k.cpus != nil {
		k.cpuSetUpdater.updateAll(ctx)
	}
	start(func() { _ = k.manager.Run(ctx) })
	static := k.staticPods(ctx, start)
	if k.kube == nil {
		select {
		case <-static:
			k.sourcesKnown.Store(true)
			if err := k.manager.TerminateOrphans(ctx); err != nil && ctx.Err() == nil {
				k.log.Warn("terminating orphaned pods failed", "err", err)
			}
		case <-ctx.Done():
		}
		<-ctx.Done()
		return nil
	}
	informer := k.deps.Informers.Pods
	if informer == nil {
		own := client.NewInformer(k.kube, &v1.Pod{}, k.kube.CoreV1().Pods(""), fields.OneTermEqualSelector("spec.nodeName", k.cfg.NodeName))
		informer = own
		start(func() { own.RunWithContext(ctx) })
	}
	reg, err := informer.AddEventHandler(k.podHandler(ctx))
	if err != nil {
		return fmt.Errorf("watching pods: %w", err)
	}
	defer func() { _ = informer.RemoveEventHandler(reg) }()
	nodes := k.deps.Informers.Nodes
	if nodes == nil {
		own := client.NewInformer(k.kube, &v1.Node{}, k.kube.CoreV1().Nodes(), fields.OneTermEqualSelector(metav1.ObjectNameField, k.cfg.NodeName))
		nodes = own
		start(func() { own.RunWithContext(ctx) })
	}
	nodeReg, err := nodes.AddEventHandler(k.nodeHandler())
	if err != nil {
		return fmt.Errorf("watching the node: %w", err)
	}
	defer func() { _ = nodes.RemoveEventHandler(nodeReg) }()
	k.services(ctx, start)
	if !cache.WaitFor(ctx, "", reg.HasSyncedChecker()) {
		return nil
	}
	select {
	case <-static:
	case <-ctx.Done():
		return nil
	}
	k.sourcesKnown.Store(true)
	start(func() { _ = k.mirrors.Run(ctx) })
	if err := k.manager.TerminateOrphans(ctx); err != nil && ctx.Err() == nil {
		k.log.Warn("terminating orphaned pods failed", "err", err)
	}
	k.reconcileClaims(ctx)
	<-ctx.Done()
	return nil
}

// podHandler handles pods of the API. Their admission does not wait any more when ctx is done.
func (k *Kubelet) podHandler(ctx context.Context) cache.ResourceEventHandler {
	set := func(obj any) {
		pod, ok := obj.(*v1.Pod)
		switch {
		case !ok || pod.Spec.NodeName != k.cfg.NodeName:
		case pods.IsMirror(pod):
			k.mirrors.Observe(pod, false)
		default:
			k.manager.Set(ctx, pod)
		}
	}
	gone := func(obj any) {
		if last, ok := obj.(cache.DeletedFinalStateUnknown); ok {
			obj = last.Obj
		}
		pod, ok := obj.(*v1.Pod)
		switch {
		case !ok || pod.Spec.NodeName != k.cfg.NodeName:
		case pods.IsMirror(pod):
			k.mirrors.Observe(pod, true)
		default:
			k.removed(pod.UID)
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

func (k *Kubelet) removed(uid types.UID) {
	k.pods.Remove(uid)
	k.tokens.Forget(uid)
	k.podCerts.Forget(uid)
}

func (k *Kubelet) nodeHandler() cache.ResourceEventHandler {
	seen := func(obj any) {
		if node, ok := obj.(*v1.Node); ok && node.Name == k.cfg.NodeName {
			k.nodeStatus.Observe(node)
		}
	}
	return cache.ResourceEventHandlerFuncs{
		AddFunc:    seen,
		UpdateFunc: func(_, obj any) { seen(obj) },
		DeleteFunc: func(obj any) {
			if gone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
				obj = gone.Obj
			}
			if node, ok := obj.(*v1.Node); ok && node.Name == k.cfg.NodeName {
				k.nodeStatus.Deleted()
			}
		},
	}
}

// services starts the informer of services, which are needed for environment variables.
func (k *Kubelet) services(ctx context.Context, start func(func())) {
	informer := k.deps.Informers.Services
	if informer == nil {
		own := client.NewInformer(k.kube, &v1.Service{}, k.kube.CoreV1().Services(""), fields.Everything())
		informer = own
		start(func() { own.RunWithContext(ctx) })
	}
	k.serviceInformer.Store(&informer)
}

// listServices returns all services. With wait it waits until they are synced.
func (k *Kubelet) listServices(ctx context.Context, wait bool) ([]*v1.Service, error) {
	unknown := errors.New("services have not yet been read at least once, cannot construct envvars")
	p := k.serviceInformer.Load()
	if p == nil {
		if k.kube == nil || !wait {
			return nil, nil
		}
		return nil, unknown
	}
	informer := *p
	if wait && !informer.HasSynced() {
		ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
		defer cancel()
		if !cache.WaitFor(ctx, "", informer.HasSyncedChecker()) {
			return nil, unknown
		}
	}
	list := informer.GetStore().List()
	out := make([]*v1.Service, 0, len(list))
	for _, obj := range list {
		if s, ok := obj.(*v1.Service); ok {
			out = append(out, s)
		}
	}
	return out, nil
}
