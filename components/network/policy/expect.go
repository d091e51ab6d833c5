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

// knownWithin is how long a pod waits for the policies to be known: without the API
// server nobody knows them, and pods run nevertheless.
const knownWithin = 5 * time.Second

// expectation is a pod of this node and the addresses that it has, which the API does
// not know yet.
type expectation struct {
	pod *corev1.Pod
	ips []netip.Addr // in order of netip.Addr.Compare
}

// Expect returns once the rules of a pod of this node, which is not changed, hold for
// its addresses: at once if no policy selects it. What begins to run in the pod before
// that, and before the API tells of its addresses, is bound by no policy, and what it
// connects with stays connected. Forget must be called when nothing of the pod runs any more.
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
	known, cancel := context.WithTimeout(ctx, knownWithin)
	defer cancel()
	if !cache.WaitFor(known, "", e.synced) {
		if ctx.Err() == nil {
			e.cfg.Log.Warn("a pod starts without network policies, for they are not known", "pod", pod.Namespace+"/"+pod.Name)
		}
		return ctx.Err()
	}
	for e.selected(pod) {
		e.mu.Lock()
		holds := slices.Equal(e.holding[pod.UID], have.ips)
		if !holds {
			e.expected[pod.UID] = have
		}
		written := e.written
		e.mu.Unlock()
		if holds {
			return nil
		}
		e.touch(nil)
		select {
		case <-written:
		case <-ctx.Done():
			return fmt.Errorf("network policies are not in force: %w", ctx.Err())
		}
	}
	return nil
}

// Forget says that a pod of Expect is gone.
func (e *Enforcer) Forget(pod types.UID) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.expected, pod)
}

// selected tells whether any policy is about a pod.
func (e *Enforcer) selected(pod *corev1.Pod) bool {
	return slices.ContainsFunc(e.policies.GetStore().List(), func(obj any) bool {
		p, ok := obj.(*networkingv1.NetworkPolicy)
		return ok && p.Namespace == pod.Namespace && selector(&p.Spec.PodSelector).Matches(labels.Set(pod.Labels))
	})
}

// with are the pods that the API tells of, and those of this node whose addresses it
// does not know yet.
func (e *Enforcer) with(told []*corev1.Pod) []*Pod {
	e.mu.Lock()
	defer e.mu.Unlock()
	var out []*Pod
	seen := map[types.UID]bool{}
	for _, pod := range told {
		seen[pod.UID] = true
		p := podOf(pod, e.cfg.NodeName)
		if x, ok := e.expected[pod.UID]; ok {
			if p != nil && slices.Equal(sorted(p.IPs), x.ips) {
				delete(e.expected, pod.UID)
			} else {
				p = podOf(x.of(pod), e.cfg.NodeName)
			}
		}
		if p != nil {
			out = append(out, p)
		}
	}
	for uid, x := range e.expected {
		if p := podOf(x.of(x.pod), e.cfg.NodeName); p != nil && !seen[uid] {
			out = append(out, p)
		}
	}
	return out
}

// of is a pod as it is with the addresses that are expected.
func (x expectation) of(pod *corev1.Pod) *corev1.Pod {
	out := *pod
	out.Status.PodIPs = nil
	for _, ip := range x.ips {
		out.Status.PodIPs = append(out.Status.PodIPs, corev1.PodIP{IP: ip.String()})
	}
	return &out
}

// hold takes note that the rules that follow from s are written.
func (e *Enforcer) hold(s *State) {
	holding := map[types.UID][]netip.Addr{}
	for _, p := range s.Pods {
		if p.Local {
			holding[p.UID] = sorted(p.IPs)
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.holding = holding
	close(e.written)
	e.written = make(chan struct{})
}

func sorted(ips []netip.Addr) []netip.Addr {
	return slices.SortedFunc(slices.Values(ips), netip.Addr.Compare)
}
