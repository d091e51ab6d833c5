package policy

import (
	"context"
	"log/slog"
	"net/netip"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
)

// apiPod returns a pod of node n as stored in the API.
func apiPod(uid types.UID, ips ...string) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: string(uid), UID: uid, Labels: map[string]string{"app": string(uid)}}}
	p.Spec.NodeName = "n"
	for _, ip := range ips {
		p.Status.PodIPs = append(p.Status.PodIPs, corev1.PodIP{IP: ip})
	}
	return p
}

func newEnforcer(t *testing.T, objects ...*networkingv1.NetworkPolicy) *Enforcer {
	t.Helper()
	kube := fake.NewClientset()
	for _, p := range objects {
		if _, err := kube.NetworkingV1().NetworkPolicies(p.Namespace).Create(t.Context(), p, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	factory := informers.NewSharedInformerFactory(kube, 0)
	e, err := New(Config{NodeName: "n", Bridge: "b", Informers: factory, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	factory.StartWithContext(t.Context())
	return e
}

// TestExpect checks that a pod waits for its rules, which include addresses that are not in the API
// yet, only if a policy selects it.
func TestExpect(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	e := newEnforcer(t, &networkingv1.NetworkPolicy{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "all-of-a"},
		Spec:       networkingv1.NetworkPolicySpec{PodSelector: metav1.LabelSelector{MatchLabels: map[string]string{"app": "a"}}},
	})
	if err := e.Expect(ctx, apiPod("b"), []string{"192.0.2.2"}); err != nil || len(e.expected) > 0 {
		t.Errorf("a pod that no policy selects: %v, %v", err, e.expected)
	}
	done := make(chan error, 1)
	go func() { done <- e.Expect(ctx, apiPod("a"), []string{"192.0.2.1"}) }()
	// Emulates Run: the pods of the API, and the rules written for them.
	for {
		select {
		case <-e.dirty:
		case <-ctx.Done():
			t.Fatal("no sync was triggered")
		}
		state := &State{Pods: e.withExpected([]*corev1.Pod{apiPod("a"), apiPod("other", "192.0.2.9")})}
		if !slices.ContainsFunc(state.Pods, func(p *Pod) bool { return p.Name == "a" }) {
			continue // triggered by the policy, not by Expect
		}
		select {
		case err := <-done:
			t.Fatalf("it did not wait: %v", err)
		default:
		}
		e.recordWritten(state)
		break
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	// A second call, as for the next container, returns immediately.
	if err := e.Expect(ctx, apiPod("a"), []string{"192.0.2.1"}); err != nil {
		t.Error(err)
	}
	short, end := context.WithCancel(ctx)
	end()
	if err := e.Expect(short, apiPod("a"), []string{"192.0.2.3"}); err == nil {
		t.Error("another address has no rules yet")
	}
}

// TestWith checks that an expected address is used until the API has the same address or Forget is
// called.
func TestWith(t *testing.T) {
	e := newEnforcer(t)
	e.expected["a"] = expectation{pod: apiPod("a"), ips: []netip.Addr{netip.MustParseAddr("192.0.2.2")}}
	e.expected["unseen"] = expectation{pod: apiPod("unseen"), ips: []netip.Addr{netip.MustParseAddr("192.0.2.3")}}
	addresses := func(list []*Pod) map[types.UID]string {
		out := map[types.UID]string{}
		for _, p := range list {
			out[p.UID] += p.ip(false).String()
		}
		return out
	}
	// The API still has the address of the previous sandbox.
	got := addresses(e.withExpected([]*corev1.Pod{apiPod("a", "192.0.2.1")}))
	if got["a"] != "192.0.2.2" || got["unseen"] != "192.0.2.3" {
		t.Errorf("%v", got)
	}
	got = addresses(e.withExpected([]*corev1.Pod{apiPod("a", "192.0.2.2")}))
	if got["a"] != "192.0.2.2" || len(e.expected) != 1 {
		t.Errorf("%v, still expected %v", got, e.expected)
	}
	e.Forget("unseen")
	if got := addresses(e.withExpected(nil)); len(got) > 0 {
		t.Errorf("%v", got)
	}
}
