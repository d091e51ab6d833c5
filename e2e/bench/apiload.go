package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// The load: the numbers of workers, connections, pods in the namespace, and watchers of one object.
const (
	apiWorkers     = 16
	apiConnections = 4
	apiPods        = 1000
	apiWatchers    = 50
	apiNamespace   = "bench"
)

// operation is an operation to measure. The workers call do repeatedly. budget is the CPU time of
// the API server in milliseconds.
type operation struct {
	name   string
	budget float64
	do     func(ctx context.Context, worker int) error
	// each is the number of items per call of do; zero means one.
	each int
	// alone is true if there is only one worker.
	alone bool
}

// fanOut is the name of the operation with watchers.
const fanOut = "watch-event"

// choose sets the operations to measure from a comma-separated list; empty: all.
func (a *apiBench) choose(names string) error {
	if names == "" {
		return nil
	}
	known := []string{fanOut}
	for _, op := range a.operations(nil, nil) {
		known = append(known, op.name)
	}
	slices.Sort(known)
	a.only = strings.Split(names, ",")
	for _, name := range a.only {
		if !slices.Contains(known, name) {
			return fmt.Errorf("unknown operation %q: valid are %s", name, strings.Join(known, ", "))
		}
	}
	return nil
}

// measure measures all operations, or those in only, and prints the table, the memory of the API server and the
// duration of deleting all pods.
func (a *apiBench) measure(ctx context.Context) error {
	proto, err := a.clients("application/vnd.kubernetes.protobuf")
	if err != nil {
		return err
	}
	plain, err := a.clients("application/json")
	if err != nil {
		return err
	}
	if err := a.fill(ctx, proto); err != nil {
		return err
	}
	fmt.Printf("API server alone, %d workers over %d connections, CPU of its process:\n", apiWorkers, apiConnections)
	fmt.Printf("%-28s %10s %10s %10s %10s %10s\n", "operation", "op/s", "median ms", "CPU ms", "least", "budget")
	fan, err := a.watchers(ctx, proto)
	if err != nil {
		return err
	}
	for _, op := range append(a.operations(proto, plain), fan) {
		if len(a.only) > 0 && !slices.Contains(a.only, op.name) {
			continue
		}
		if err := a.one(ctx, op); err != nil {
			return fmt.Errorf("%s: %w", op.name, err)
		}
	}
	fmt.Printf("anonymous memory of the API server: %d MiB\n", a.memory())
	if err := errors.Join(a.record(ctx, "heap?gc=1", "heap"), a.record(ctx, "allocs", "allocs")); err != nil {
		return err
	}
	pods := proto[0].CoreV1().Pods(apiNamespace)
	first, err := pods.List(ctx, metav1.ListOptions{Limit: 1})
	if err != nil {
		return err
	}
	many := int64(len(first.Items))
	if first.RemainingItemCount != nil {
		many += *first.RemainingItemCount
	}
	began := time.Now()
	now := int64(0)
	if err := pods.DeleteCollection(ctx, metav1.DeleteOptions{GracePeriodSeconds: &now}, metav1.ListOptions{}); err != nil {
		return err
	}
	fmt.Printf("delete of the collection of %d pods: %v\n", many, time.Since(began).Round(10*time.Millisecond))
	return nil
}

// clients returns apiConnections clients with separate connections. media is the media type of requests and responses.
func (a *apiBench) clients(media string) ([]kubernetes.Interface, error) {
	var out []kubernetes.Interface
	for range apiConnections {
		c := rest.CopyConfig(a.config)
		c.ContentType, c.AcceptContentTypes = media, media
		// A proxy function prevents client-go from sharing one transport.
		c.Proxy = http.ProxyFromEnvironment
		kube, err := kubernetes.NewForConfig(c)
		if err != nil {
			return nil, err
		}
		out = append(out, kube)
	}
	return out, nil
}

// apiPod returns a pod for the load. No scheduler binds it.
func apiPod(name string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Labels: map[string]string{"app": "bench", "tier": "web"},
			Annotations: map[string]string{"example.com/note": strings.Repeat("a", 200)},
		},
		Spec: corev1.PodSpec{SchedulerName: "none", Containers: []corev1.Container{{
			Name: "c", Image: "registry.k8s.io/pause:3.10",
			Env:   []corev1.EnvVar{{Name: "A", Value: "b"}, {Name: "C", Value: "d"}},
			Ports: []corev1.ContainerPort{{ContainerPort: 80}},
		}}},
	}
}

// fill creates the namespace, a ServiceAccount, the ConfigMap for the watchers, and apiPods pods.
func (a *apiBench) fill(ctx context.Context, clients []kubernetes.Interface) error {
	core := clients[0].CoreV1()
	if _, err := core.Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: apiNamespace}}, metav1.CreateOptions{}); err != nil {
		return err
	}
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}
	if _, err := core.ServiceAccounts(apiNamespace).Create(ctx, account, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		return err
	}
	fan := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "fan"}, Data: map[string]string{"pad": strings.Repeat("x", 1000)}}
	if _, err := core.ConfigMaps(apiNamespace).Create(ctx, fan, metav1.CreateOptions{}); err != nil {
		return err
	}
	var wg sync.WaitGroup
	failed := make([]error, apiWorkers)
	for w := range apiWorkers {
		wg.Go(func() {
			for i := w; i < apiPods && failed[w] == nil; i += apiWorkers {
				_, failed[w] = clients[w%len(clients)].CoreV1().Pods(apiNamespace).Create(ctx, apiPod(fmt.Sprintf("pod-%d", i)), metav1.CreateOptions{})
			}
		})
	}
	wg.Wait()
	return errors.Join(failed...)
}

// operations returns the operations to measure, except the one with watchers. proto are clients that use protobuf,
// plain clients that use JSON.
func (a *apiBench) operations(proto, plain []kubernetes.Interface) []operation {
	of := func(clients []kubernetes.Interface, w int) kubernetes.Interface { return clients[w%len(clients)] }
	list := func(clients []kubernetes.Interface, limit string) func(context.Context, int) error {
		return func(ctx context.Context, w int) error {
			_, err := of(clients, w).CoreV1().RESTClient().Get().Namespace(apiNamespace).Resource("pods").Param("limit", limit).DoRaw(ctx)
			return err
		}
	}
	var n atomic.Int64
	apply := func(ctx context.Context, w int, resource, name, body string) error {
		return of(proto, w).CoreV1().RESTClient().Patch(types.ApplyPatchType).Namespace(apiNamespace).Resource(resource).Name(name).
			Param("fieldManager", "bench").Body([]byte(body)).Do(ctx).Error()
	}
	return []operation{
		{name: "get-pod", budget: 0.08, do: func(ctx context.Context, w int) error {
			_, err := of(proto, w).CoreV1().Pods(apiNamespace).Get(ctx, fmt.Sprintf("pod-%d", w), metav1.GetOptions{})
			return err
		}},
		{name: "list-pods", budget: 1.2, do: list(proto, "0")},
		// The response with all pods has 1.66 MB. The budget is for a list of 1 MB.
		{name: "list-1mb", budget: 1.2, do: list(proto, "602")},
		{name: "list-pods-json", budget: 4, do: list(plain, "0")},
		{name: "create-pod", budget: 0.25, do: func(ctx context.Context, w int) error {
			_, err := of(proto, w).CoreV1().Pods(apiNamespace).Create(ctx, apiPod(fmt.Sprintf("more-%d", n.Add(1))), metav1.CreateOptions{})
			return err
		}},
		{name: "patch-status", budget: 0.5, do: func(ctx context.Context, w int) error {
			_, err := of(proto, w).CoreV1().Pods(apiNamespace).Patch(ctx, fmt.Sprintf("pod-%d", w), types.StrategicMergePatchType,
				fmt.Appendf(nil, `{"status":{"message":"m%d"}}`, n.Add(1)), metav1.PatchOptions{}, "status")
			return err
		}},
		{name: "apply-configmap", budget: 0.3, do: func(ctx context.Context, w int) error {
			return apply(ctx, w, "configmaps", fmt.Sprintf("cm-%d", w),
				fmt.Sprintf(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"cm-%d"},"data":{"k":"%d"}}`, w, n.Add(1)))
		}},
		{name: "apply-pod", budget: 0.9, do: func(ctx context.Context, w int) error {
			return apply(ctx, w, "pods", fmt.Sprintf("applied-%d", w), fmt.Sprintf(`{"apiVersion":"v1","kind":"Pod",
"metadata":{"name":"applied-%d","labels":{"app":"bench","tier":"web"},"annotations":{"example.com/note":"%d"}},
"spec":{"schedulerName":"none","containers":[{"name":"c","image":"registry.k8s.io/pause:3.10",
"env":[{"name":"A","value":"b"},{"name":"C","value":"d"}],"ports":[{"containerPort":80}]}]}}`, w, n.Add(1)))
		}},
	}
}

// watchers starts watches of one object, and returns the operation that updates it and waits until
// all watchers have received the event.
func (a *apiBench) watchers(ctx context.Context, clients []kubernetes.Interface) (operation, error) {
	var received sync.WaitGroup
	for i := range apiWatchers {
		w, err := clients[i%len(clients)].CoreV1().ConfigMaps(apiNamespace).Watch(ctx, metav1.ListOptions{
			FieldSelector: "metadata.name=fan", SendInitialEvents: new(bool), ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan,
		})
		if err != nil {
			return operation{}, err
		}
		go func() {
			for e := range w.ResultChan() {
				if e.Type == watch.Modified {
					received.Done()
				}
			}
		}()
	}
	fan, err := clients[0].CoreV1().ConfigMaps(apiNamespace).Get(ctx, "fan", metav1.GetOptions{})
	if err != nil {
		return operation{}, err
	}
	fan.ResourceVersion = "" // update unconditionally
	n := 0
	return operation{name: fanOut, budget: 0.020, each: apiWatchers, alone: true, do: func(ctx context.Context, _ int) error {
		n++
		fan.Data["i"] = strconv.Itoa(n)
		received.Add(apiWatchers)
		if _, err := clients[0].CoreV1().ConfigMaps(apiNamespace).Update(ctx, fan, metav1.UpdateOptions{}); err != nil {
			return err
		}
		received.Wait()
		return nil
	}}, nil
}

// one measures an operation and prints its row: calls per second, the median duration of a call, the median and minimum
// CPU time of the API server per call, and the budget. A warm-up precedes the measurement.
func (a *apiBench) one(ctx context.Context, op operation) error {
	workers, each := apiWorkers, max(1, op.each)
	if op.alone {
		workers = 1
	}
	if _, _, err := a.load(ctx, op, workers, a.slice/4); err != nil { // warm-up
		return err
	}
	profiled := a.profile(ctx, op.name)
	var costs, latencies []time.Duration
	var calls int
	began := time.Now()
	for range a.rounds {
		before := a.used()
		n, latency, err := a.load(ctx, op, workers, a.slice)
		if err != nil {
			return err
		}
		calls += n
		costs = append(costs, (a.used()-before)/time.Duration(n*each))
		latencies = append(latencies, latency)
	}
	took := time.Since(began)
	slices.Sort(costs)
	slices.Sort(latencies)
	ms := func(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e6 }
	fmt.Printf("%-28s %10.0f %10.2f %10.4f %10.4f %10.3f\n", op.name, float64(calls*each)/took.Seconds(), ms(latencies[a.rounds/2]),
		ms(costs[a.rounds/2]), ms(costs[0]), op.budget)
	return profiled()
}

// load runs an operation with workers for a duration. It returns the number of calls and their median duration. A
// worker stops at its first error.
func (a *apiBench) load(ctx context.Context, op operation, workers int, length time.Duration) (int, time.Duration, error) {
	took := make([][]time.Duration, workers)
	failed := make([]error, workers)
	end := time.Now().Add(length)
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			for failed[w] == nil && time.Now().Before(end) {
				began := time.Now()
				failed[w] = op.do(ctx, w)
				took[w] = append(took[w], time.Since(began))
			}
		})
	}
	wg.Wait()
	all := slices.Concat(took...)
	slices.Sort(all)
	return len(all), all[len(all)/2], errors.Join(failed...)
}
