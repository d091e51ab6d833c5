package e2e

import (
	"context"
	"fmt"

	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	podsapi "k8s.io/kubelet/pkg/apis/pods/v1alpha1"
)

// watchedPods watches the node's pods through the kubelet's socket on conn while do changes them.
// It returns when the expected event arrives. The socket must return running pods like the API
// server.
func (n *aloneNode) watchedPods(conn *grpc.ClientConn, running *corev1.Pod, do func(), event podsapi.EventType, name string) {
	n.t.Helper()
	ctx, cancel := context.WithCancel(n.ctx)
	defer cancel()
	client := podsapi.NewPodsClient(conn)
	resp, err := client.GetPod(ctx, &podsapi.GetPodRequest{PodUID: string(running.UID)})
	if err != nil {
		n.t.Fatal(err)
	}
	if got := n.decoded(resp.Pod); got.Name != running.Name || got.Status.Phase != corev1.PodRunning || got.Status.PodIP != running.Status.PodIP {
		n.t.Errorf("the kubelet reports %s/%s: %+v", got.Namespace, got.Name, got.Status)
	}
	watch, err := client.WatchPods(ctx, &podsapi.WatchPodsRequest{})
	if err != nil {
		n.t.Fatal(err)
	}
	var seen []string
	for synced := false; ; {
		e, err := watch.Recv()
		if err != nil {
			n.t.Fatalf("%v, after %q", err, seen)
		}
		if e.Type == podsapi.EventType_INITIAL_SYNC_COMPLETE {
			synced = true
			do()
			continue
		}
		pod := n.decoded(e.Pod)
		seen = append(seen, fmt.Sprint(e.Type, " ", pod.Name))
		if synced && e.Type == event && pod.Name == name {
			return
		}
	}
}

// decoded decodes a pod from the kubelet's socket.
func (n *aloneNode) decoded(data []byte) *corev1.Pod {
	n.t.Helper()
	pod := &corev1.Pod{}
	if err := pod.Unmarshal(data); err != nil {
		n.t.Fatal(err)
	}
	return pod
}
