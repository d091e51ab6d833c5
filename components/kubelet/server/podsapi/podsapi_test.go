package podsapi

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	api "k8s.io/kubelet/pkg/apis/pods/v1alpha1"
)

type counts struct {
	mu   sync.Mutex
	seen map[string]int
}

func (c *counts) PodsAPIRequest(method, version, code string) {
	c.add(method + " " + version + " " + code)
}
func (c *counts) PodsAPIEventDropped() { c.add("lost") }

func (c *counts) add(what string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.seen[what]++
}

func (c *counts) of(what string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.seen[what]
}

func made(uid string, phase v1.PodPhase) *v1.Pod {
	return &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p-" + uid, Namespace: "ns", UID: types.UID(uid)}, Status: v1.PodStatus{Phase: phase}}
}

// service starts a server for the pods that list returns, on a socket in a temporary directory.
func service(t *testing.T, known *atomic.Bool, list func() []*v1.Pod) (*Server, api.PodsClient, *counts) {
	t.Helper()
	dir, err := os.MkdirTemp("", "pods")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	count := &counts{seen: map[string]int{}}
	s, err := New(Config{Pods: list, Known: known.Load, Count: count, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx, dir) }()
	conn, err := grpc.NewClient("unix:"+filepath.Join(dir, Socket), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = conn.Close()
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return s, api.NewPodsClient(conn), count
}

func describe(t *testing.T, data []byte) string {
	t.Helper()
	var pod v1.Pod
	if err := pod.Unmarshal(data); err != nil {
		t.Fatal(err)
	}
	return string(pod.UID) + " " + string(pod.Status.Phase)
}

func TestAsk(t *testing.T) {
	var known atomic.Bool
	_, c, count := service(t, &known, func() []*v1.Pod { return []*v1.Pod{made("b", v1.PodRunning), made("a", "")} })
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	wait := grpc.WaitForReady(true)
	if _, err := c.ListPods(ctx, &api.ListPodsRequest{}, wait); status.Code(err) != codes.FailedPrecondition || status.Convert(err).Message() != "Kubelet is initializing" {
		t.Errorf("before the pods are known: %v", err)
	}
	known.Store(true)
	list, err := c.ListPods(ctx, &api.ListPodsRequest{})
	if err != nil || len(list.Pods) != 2 || describe(t, list.Pods[0]) != "a Pending" || describe(t, list.Pods[1]) != "b Running" {
		t.Errorf("%v, %v", list, err)
	}
	one, err := c.GetPod(ctx, &api.GetPodRequest{PodUID: "b"})
	if err != nil || describe(t, one.Pod) != "b Running" {
		t.Errorf("%v, %v", one, err)
	}
	if _, err := c.GetPod(ctx, &api.GetPodRequest{PodUID: "c"}); status.Code(err) != codes.NotFound || status.Convert(err).Message() != "pod with UID c not found" {
		t.Errorf("unknown pod: %v", err)
	}
	for _, what := range []string{"ListPods v1alpha1 FailedPrecondition", "ListPods v1alpha1 OK", "GetPod v1alpha1 OK", "GetPod v1alpha1 NotFound"} {
		if count.of(what) != 1 {
			t.Errorf("%s: %d", what, count.of(what))
		}
	}
}

func TestWatch(t *testing.T) {
	var known atomic.Bool
	known.Store(true)
	s, c, count := service(t, &known, func() []*v1.Pod { return []*v1.Pod{made("a", v1.PodPending)} })
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	stream, err := c.WatchPods(ctx, &api.WatchPodsRequest{}, grpc.WaitForReady(true))
	if err != nil {
		t.Fatal(err)
	}
	want := func(kind api.EventType, what string) {
		t.Helper()
		e, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		if e.Pod != nil {
			got = describe(t, e.Pod)
		}
		if e.Type != kind || got != what {
			t.Errorf("%v %q, not %v %q", e.Type, got, kind, what)
		}
	}
	want(api.EventType_ADDED, "a Pending")
	want(api.EventType_INITIAL_SYNC_COMPLETE, "")
	s.Updated(made("a", ""), &v1.PodStatus{Phase: v1.PodRunning})
	s.Updated(made("b", ""), &v1.PodStatus{Phase: v1.PodPending})
	s.Removed(made("never", ""))
	s.Removed(made("a", v1.PodRunning))
	want(api.EventType_MODIFIED, "a Running")
	want(api.EventType_ADDED, "b Pending")
	want(api.EventType_DELETED, "a ")

	// The watch of a client that does not read is closed with an error. Large pods fill the buffers
	// of the connection before the client has read them.
	big := made("b", "")
	big.Annotations = map[string]string{"big": fmt.Sprintf("%0100000d", 0)}
	for i := 0; count.of("lost") == 0; i++ {
		if i > 100000 {
			t.Fatal("no client was disconnected")
		}
		s.Updated(big, &v1.PodStatus{Phase: v1.PodRunning})
	}
	for err = nil; err == nil; {
		_, err = stream.Recv()
	}
	if status.Code(err) != codes.ResourceExhausted || status.Convert(err).Message() != "watch client channel closed" {
		t.Errorf("slow client: %v", err)
	}
	s.Updated(big, &v1.PodStatus{}) // no clients: nothing is sent
}
