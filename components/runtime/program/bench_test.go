//go:build cgo

package main

import (
	"context"
	"fmt"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// BenchmarkContainer tells how long creating, starting, running a command in
// and removing a container take, each as seen by who calls.
func BenchmarkContainer(b *testing.B) {
	n := newNode(b).imported()
	ctx := context.Background()
	pod := n.run(n.pod("bench"))
	var times [4]time.Duration
	i := 0
	for b.Loop() {
		i++
		begin := time.Now()
		lap := func(k int) {
			times[k] += time.Since(begin)
			begin = time.Now()
		}
		id, err := n.create(pod, shell(fmt.Sprint("c", i), "exec sleep 1000"))
		if err != nil {
			b.Fatal(err)
		}
		lap(0)
		if _, err := n.StartContainer(ctx, &runtimeapi.StartContainerRequest{ContainerId: id}); err != nil {
			b.Fatal(err)
		}
		lap(1)
		if _, err := n.exec(id, 10, "true"); err != nil {
			b.Fatal(err)
		}
		lap(2)
		if _, err := n.RemoveContainer(ctx, &runtimeapi.RemoveContainerRequest{ContainerId: id}); err != nil {
			b.Fatal(err)
		}
		lap(3)
	}
	for k, name := range []string{"create-ms", "start-ms", "exec-ms", "remove-ms"} {
		b.ReportMetric(float64(times[k].Microseconds())/1000/float64(i), name)
	}
	b.ReportMetric(0, "ns/op")
}
