package up

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"

	"hyperkube/components/cluster/progress"
)

func TestWaitNodeReady(t *testing.T) {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}, Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{
		{Type: corev1.NodeReady, Status: corev1.ConditionFalse, Message: "no network yet"},
	}}}
	kube := fake.NewClientset(node)
	factory := informers.NewSharedInformerFactory(kube, 0)
	informer := factory.Core().V1().Nodes().Informer()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	factory.StartWithContext(ctx)
	factory.WaitForCacheSyncWithContext(ctx)
	short, stop := context.WithCancelCause(ctx)
	stop(progress.ErrTimeout)
	if err := waitNodeReady(short, informer, "n"); !errors.Is(err, progress.ErrTimeout) {
		t.Errorf("waiting for a node that is not ready: %v", err)
	}
	if got := describeNode(ctx, kube, "n"); got != "no network yet" {
		t.Errorf("described as %q", got)
	}
	done := make(chan error, 1)
	go func() { done <- waitNodeReady(ctx, informer, "n") }()
	ready := node.DeepCopy()
	ready.Status.Conditions[0].Status = corev1.ConditionTrue
	if _, err := kube.CoreV1().Nodes().UpdateStatus(ctx, ready, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestDescribeDNS(t *testing.T) {
	meta := metav1.ObjectMeta{Namespace: "kube-system", Name: "dns-1", Labels: map[string]string{"k8s-app": "kube-dns"}}
	event := func(name, reason string, at int64) *corev1.Event {
		return &corev1.Event{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: name}, LastTimestamp: metav1.Unix(at, 0),
			InvolvedObject: corev1.ObjectReference{Name: "dns-1"}, Reason: reason, Message: "said"}
	}
	kube := fake.NewClientset(&corev1.Pod{ObjectMeta: meta, Status: corev1.PodStatus{
		Phase: corev1.PodPending, ContainerStatuses: []corev1.ContainerStatus{{Name: "dns",
			State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ErrImagePull", Message: "no route"}}}},
	}}, event("b", "Failed", 20), event("a", "Pulling", 10))
	w := &dnsWait{kube: kube}
	got := w.describe(t.Context())
	for _, want := range []string{"dns-1 is Pending", "ErrImagePull no route", "last event: Failed: said"} {
		if !strings.Contains(got, want) {
			t.Errorf("%q does not contain %q", got, want)
		}
	}
	full := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}, Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{
		{Type: corev1.NodeMemoryPressure, Status: corev1.ConditionFalse}, {Type: corev1.NodeDiskPressure, Status: corev1.ConditionTrue}}}}
	got = (&dnsWait{kube: fake.NewClientset(&corev1.Pod{ObjectMeta: meta}, full)}).describe(t.Context())
	if !strings.Contains(got, "node n has DiskPressure, so no pod starts there: free disk space") || strings.Contains(got, "MemoryPressure") {
		t.Errorf("with disk pressure: %q", got)
	}
	if got := (&dnsWait{kube: fake.NewClientset()}).describe(t.Context()); got != "there is no DNS pod yet" {
		t.Errorf("without pods: %q", got)
	}
	result := "nothing"
	w.lastResult.Store(&result)
	if got := w.describe(t.Context()); got != result {
		t.Errorf("after a query: %q", got)
	}
}

// TestLostQueries queries a server that receives only the seventh query, like cluster DNS before
// kube-proxy has written its rules.
func TestLostQueries(t *testing.T) {
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var queries atomic.Int32
	server := &dns.Server{PacketConn: conn, Handler: dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) {
		if queries.Add(1) > 6 {
			_ = w.WriteMsg(new(dns.Msg).SetReply(q))
		}
	})}
	served := make(chan error, 1)
	go func() { served <- server.ActivateAndServe() }()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	if err := (&dnsWait{server: conn.LocalAddr().String(), domain: "cluster.local"}).queryUntilAnswered(ctx); err != nil {
		t.Error(err)
	}
	if err := server.Shutdown(); err != nil {
		t.Error(err)
	}
	if err := <-served; err != nil {
		t.Error(err)
	}
}
