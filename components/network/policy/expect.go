package policy

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
)

// syncTimeout is how long the start of a pod waits for the policy informers to sync. Then the pod
// starts without policies, because pods must be able to start without the API server.
const syncTimeout = 5 * time.Second

// expectation is a pod of this node that is starting, with addresses that the API server does not
// have yet.
type expectation struct {
	pod *corev1.Pod
	ips []netip.Addr // sorted by netip.Addr.Compare
}

// Expect returns when the policy rules of a local pod are in force for its addresses ips, or
// immediately if no policy selects the pod. The container runtime calls it before it starts the
// pod's processes. Otherwise the processes would be unrestricted until the API server reports the
// addresses, and connections opened in that time would stay open. Expect also returns nil if the policies
// are unknown after syncTimeout. It does not modify pod. Call Forget when all processes of the pod have terminated.
func (e *Enforcer) Expect(ctx context.Context, pod *corev1.Pod, ips []string) error {
	if pod.Spec.HostNetwork {
		return nil
	}
	have := expectation{pod: pod}
	for _, text := range ips {
		if ip, err := netip.ParseAddr(text); err == nil {
			have.ips = append(have.ips, ip.Unmap())
		}
	}
	slices.SortFunc(have.ips, netip.Addr.Compare)
	known, cancel := context.WithTimeout(ctx, syncTimeout)
	defer cancel()
	if !cache.WaitFor(known, "", e.synced...) {
		if ctx.Err() == nil {
			e.cfg.Log.Warn("network policies are not known because the API server does not respond; pod starts without policies, they are enforced as soon as the API server responds", "pod", pod.Namespace+"/"+pod.Name)
		}
		return ctx.Err()
	}
	for e.selected(pod) {
		e.mu.Lock()
		enforced := slices.Equal(e.enforced[pod.UID], have.ips)
		if !enforced {
			e.expected[pod.UID] = have
		}
		written := e.written.Next()
		e.mu.Unlock()
		if enforced {
			return nil
		}
		e.triggerSync(nil)
		select {
		case <-written:
		case <-ctx.Done():
			return fmt.Errorf("network policies are not in force: %w", ctx.Err())
		}
	}
	return nil
}

// Forget removes a pod that was passed to Expect, because its processes have terminated.
func (e *Enforcer) Forget(pod types.UID) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.expected, pod)
}

// selected reports whether any policy selects a pod. With a ClusterNetworkPolicy it returns true, because the labels of the
// namespace may not be known yet.
func (e *Enforcer) selected(pod *corev1.Pod) bool {
	return len(e.cluster.list()) > 0 || slices.ContainsFunc(e.policies.GetStore().List(), func(obj any) bool {
		p, ok := obj.(*networkingv1.NetworkPolicy)
		return ok && p.Namespace == pod.Namespace && selector(&p.Spec.PodSelector).Matches(labels.Set(pod.Labels))
	})
}

// withExpected returns known, the pods in the informer's cache, and adds the addresses of starting
// pods of this node that are not in the API yet. It also forgets expectations that the API has
// fulfilled.
func (e *Enforcer) withExpected(known []*corev1.Pod) []*Pod {
	e.mu.Lock()
	defer e.mu.Unlock()
	var out []*Pod
	seen := map[types.UID]bool{}
	for _, pod := range known {
		seen[pod.UID] = true
		p := podOf(pod, e.cfg.NodeName)
		if x, ok := e.expected[pod.UID]; ok {
			if p != nil && slices.Equal(sorted(p.IPs), x.ips) {
				delete(e.expected, pod.UID)
			} else {
				p = podOf(x.withAddresses(pod), e.cfg.NodeName)
			}
		}
		if p != nil {
			out = append(out, p)
		}
	}
	for uid, x := range e.expected {
		if p := podOf(x.withAddresses(x.pod), e.cfg.NodeName); p != nil && !seen[uid] {
			out = append(out, p)
		}
	}
	return out
}

// withAddresses returns a copy of pod with the expected addresses.
func (x expectation) withAddresses(pod *corev1.Pod) *corev1.Pod {
	out := *pod
	out.Status.PodIPs = nil
	for _, ip := range x.ips {
		out.Status.PodIPs = append(out.Status.PodIPs, corev1.PodIP{IP: ip.String()})
	}
	return &out
}

// recordWritten records that the rules for the pods of s are in force, and wakes the calls of
// Expect.
func (e *Enforcer) recordWritten(s *State) {
	holding := map[types.UID][]netip.Addr{}
	for _, p := range s.Pods {
		if p.Local {
			holding[p.UID] = sorted(p.IPs)
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.enforced = holding
	e.written.Send()
}

func sorted(ips []netip.Addr) []netip.Addr {
	return slices.SortedFunc(slices.Values(ips), netip.Addr.Compare)
}
