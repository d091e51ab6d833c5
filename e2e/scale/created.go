package main

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// created measures an API server alone after client activity: n pods were created one by one, their status was patched,
// and lists were read.
func (b *bench) created(ctx context.Context, n int) (err error) {
	s, err := newServers(ctx, b.binary)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	first := samplePod()
	// These pods are smaller, about 1 KB.
	first.Spec.NodeName = ""
	c := &first.Spec.Containers[0]
	c.Env, c.EnvFrom = c.Env[:2], nil
	if err := makeSample(ctx, s.kube, first); err != nil {
		return err
	}
	m := measure{bench: b, servers: s, pods: n}
	fmt.Printf("%d pods created one by one, API server alone\n", n)
	busy := func(what string, n int, do func(ctx context.Context, i int) error) error {
		before := cpuOf(s.api.Process.Pid)
		group, ctx := errgroup.WithContext(ctx)
		var next atomic.Int64
		for range 16 {
			group.Go(func() error {
				for {
					i := int(next.Add(1))
					if i > n {
						return nil
					}
					if err := do(ctx, i); err != nil {
						return err
					}
				}
			})
		}
		if err := group.Wait(); err != nil {
			return err
		}
		u, err := usageOf(s.api.Process.Pid)
		if err != nil {
			return err
		}
		m.printLine(what, "server CPU %.3f ms each, %v", (u.cpu-before).Seconds()*1e3/float64(n), u)
		return nil
	}
	pods := s.kube.CoreV1().Pods(namespace)
	name := func(i int) string { return fmt.Sprintf("made-%06d", i) }
	for _, step := range []struct {
		what string
		n    int
		do   func(ctx context.Context, i int) error
	}{
		{"created", n, func(ctx context.Context, i int) error {
			pod := &corev1.Pod{ObjectMeta: first.ObjectMeta, Spec: first.Spec}
			pod.Name = name(i)
			_, err := pods.Create(ctx, pod, metav1.CreateOptions{})
			return err
		}},
		{"status patched", n, func(ctx context.Context, i int) error {
			_, err := pods.Patch(ctx, name(i), types.StrategicMergePatchType, []byte(`{"status":{"message":"patched"}}`), metav1.PatchOptions{}, "status")
			return err
		}},
		{"lists of 500", 200, func(ctx context.Context, _ int) error {
			return s.kube.CoreV1().RESTClient().Get().Namespace(namespace).Resource("pods").Param("limit", "500").Do(ctx).Error()
		}},
	} {
		if err := busy(step.what, step.n, step.do); err != nil {
			return fmt.Errorf("%s: %w", step.what, err)
		}
	}
	stored, err := s.store.Get(ctx, "/registry/pods/"+namespace+"/"+name(1))
	if err != nil {
		return err
	}
	if len(stored.Kvs) == 1 {
		m.encoded = n * len(stored.Kvs[0].Value)
	}
	if err := m.memory("memory right after", settle); err != nil {
		return err
	}
	return m.atRest(ctx)
}
