package integration

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	clientrest "k8s.io/client-go/rest"

	"hyperkube/components/apiserver"
	"hyperkube/components/etcd"
	"hyperkube/internal/testing/leakcheck"
	"hyperkube/internal/testing/testport"
	"hyperkube/internal/testing/testwait"
)

var long = flag.Bool("long", false, "look for a minute for histories that do not fit")

func TestMain(m *testing.M) {
	if dir := os.Getenv("APISERVER_TEST_ETCD"); dir != "" {
		s, err := etcd.New(etcd.Config{
			DataDir: dir, ListenClientURLs: []string{os.Getenv("APISERVER_TEST_URL")}, ListenPeerURLs: []string{"http://127.0.0.1:0"},
			Log: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError})),
		})
		if err == nil {
			err = s.Run(context.Background())
		}
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	leakcheck.Main(m)
}

// asked is a request of a history. Each write has a unique value, so that a value identifies a
// version.
type asked struct {
	verb, key, value string
	// was is the value that an update expects.
	was string
}

// outcome is the result of a request: the value ("" if the object does not exist), whether the
// request succeeded, and whether the result is unknown.
type outcome struct {
	value         string
	done, unknown bool
}

// history checks that the results of each object's requests are consistent with an object that
// changes atomically at some instant during each request.
var history = porcupine.Model{
	Partition: func(all []porcupine.Operation) [][]porcupine.Operation {
		keys := map[string][]porcupine.Operation{}
		for _, op := range all {
			key := op.Input.(asked).key
			keys[key] = append(keys[key], op)
		}
		var out [][]porcupine.Operation
		for _, ops := range keys {
			out = append(out, ops)
		}
		return out
	},
	Init: func() any { return "" },
	Step: func(state, input, output any) (bool, any) {
		is, in, out := state.(string), input.(asked), output.(outcome)
		can, next := false, in.value
		switch in.verb {
		case "get":
			return out.unknown || out.value == is, is
		case "create":
			can = is == ""
		case "patch":
			can = is != ""
		case "update":
			can = is != "" && is == in.was
		case "delete":
			can, next = is != "", ""
		}
		if !can {
			next = is
		}
		return out.unknown || can == out.done, next
	},
	DescribeOperation: func(input, output any) string { return fmt.Sprintf("%+v: %+v", input, output) },
}

// TestLinearizable runs two API servers on one etcd, which is killed repeatedly. The results of all
// clients must form a linearizable history of each object, and the cache must never go backwards
// for any client.
func TestLinearizable(t *testing.T) {
	length, kills := 3*time.Second, 2
	if *long {
		length, kills = time.Minute, 30
	}
	url := "http://" + testport.Address(t)
	dir := t.TempDir() + "/data"
	startMember := func() *exec.Cmd {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), "APISERVER_TEST_ETCD="+dir, "APISERVER_TEST_URL="+url)
		cmd.Stderr = os.Stderr
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		return cmd
	}
	member := startMember()
	defer func() {
		_ = member.Process.Kill()
		_ = member.Wait()
	}()
	var servers []kubernetes.Interface
	for range 2 {
		client, err := etcd.Dial(etcd.DialConfig{Servers: []string{url}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { client.Close() })
		s := startServer(t, apiserver.Config{Etcd: client})
		servers = append(servers, kubeOf(t, s, protobuf))
	}

	began := time.Now()
	var mu sync.Mutex
	var ops []porcupine.Operation
	var answered atomic.Int64 // requests with a known result
	var wg sync.WaitGroup
	const least = 100  // requests, even on slow machines
	const serving = 12 // of them succeeded: two for each client
	ctx, cancel := context.WithTimeout(t.Context(), length+5*time.Minute)
	defer cancel()
	for id := range 6 {
		wg.Go(func() {
			c := &historian{t: t, rest: servers[id%2].CoreV1().RESTClient(), rand: rand.New(rand.NewPCG(1, uint64(id))), seen: map[string]int64{}, versions: map[string]*corev1.ConfigMap{}}
			for i := 0; ctx.Err() == nil; i++ {
				in, do := c.next(fmt.Sprintf("%d-%d", id, i))
				call := time.Since(began)
				out := do()
				op := porcupine.Operation{ClientId: id, Input: in, Output: out, Call: int64(call), Return: int64(time.Since(began))}
				if !out.unknown {
					answered.Add(1)
				} else {
					if in.verb == "get" {
						continue
					}
					op.Return = 1 << 62
				}
				mu.Lock()
				ops = append(ops, op)
				mu.Unlock()
			}
		})
	}
	for range kills {
		select {
		case <-time.After(length / time.Duration(kills+1)):
		case <-ctx.Done():
		}
		_ = member.Process.Kill()
		_ = member.Wait()
		member = startMember()
		// An etcd that is killed before it serves again would test nothing.
		dead := answered.Load()
		testwait.Until(t, "etcd to serve again", func() bool { return answered.Load() >= dead+serving })
	}
	select {
	case <-time.After(length / time.Duration(kills+1)):
	case <-ctx.Done():
	}
	testwait.Until(t, "enough operations", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(ops) >= least || ctx.Err() != nil
	})
	cancel()
	wg.Wait()
	unknown := 0
	for _, op := range ops {
		if op.Output.(outcome).unknown {
			unknown++
		}
	}
	t.Logf("%d requests, of %d the end is not known", len(ops), unknown)
	if len(ops) < least {
		t.Error("too few requests")
	}
	if result := porcupine.CheckOperationsTimeout(history, ops, 30*time.Second); result == porcupine.Illegal {
		t.Error("the history is not linearizable")
	}
}

// historian is a client that records its requests.
type historian struct {
	t    *testing.T
	rest clientrest.Interface
	rand *rand.Rand
	// seen are the versions that reads from the cache have returned.
	seen map[string]int64
	// versions are the objects as last read.
	versions map[string]*corev1.ConfigMap
}

// next returns a request and a function that sends it. Requests are not retried.
func (c *historian) next(value string) (asked, func() outcome) {
	key := fmt.Sprint("k", c.rand.IntN(5))
	in := asked{verb: []string{"get", "get", "create", "patch", "update", "update", "delete"}[c.rand.IntN(7)], key: key, value: value}
	was := c.versions[key]
	if in.verb == "update" && was == nil {
		in.verb = "create"
	}
	if in.verb == "update" {
		in.was = was.Data["v"]
	}
	object := func() *corev1.ConfigMap {
		return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: key, Namespace: "default"}, Data: map[string]string{"v": value}}
	}
	return in, func() outcome {
		// This check is not part of the history: the cache of one server must not go backwards.
		c.cached()
		var r *clientrest.Request
		switch in.verb {
		case "get":
			r = c.rest.Get().Name(key)
		case "create":
			r = c.rest.Post().Body(object())
		case "patch":
			r = c.rest.Patch(types.MergePatchType).Name(key).Body([]byte(`{"data":{"v":"` + value + `"}}`))
		case "update":
			cm := object()
			cm.ResourceVersion, cm.UID = was.ResourceVersion, was.UID
			r = c.rest.Put().Name(key).Body(cm)
		case "delete":
			r = c.rest.Delete().Name(key)
		}
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		defer cancel()
		result := r.Namespace("default").Resource("configmaps").MaxRetries(0).Do(ctx)
		err := result.Error()
		switch {
		case err == nil && in.verb == "delete":
			return outcome{done: true}
		case err == nil:
			cm := &corev1.ConfigMap{}
			if err := result.Into(cm); err != nil {
				c.t.Error(err)
			}
			c.versions[key] = cm
			return outcome{value: cm.Data["v"], done: true}
		case apierrors.IsConflict(err) && in.verb != "update":
			// There were too many conflicts, so the state of the object is unknown.
			c.t.Logf("%s: %v", in.verb, err)
			return outcome{unknown: true}
		case apierrors.IsNotFound(err), apierrors.IsConflict(err), apierrors.IsAlreadyExists(err):
			return outcome{}
		}
		return outcome{unknown: true}
	}
}

// cached lists from the cache and checks that the version of the list never decreases.
func (c *historian) cached() {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	list := &corev1.ConfigMapList{}
	if err := c.rest.Get().Namespace("default").Resource("configmaps").Param("resourceVersion", "0").MaxRetries(0).Do(ctx).Into(list); err != nil {
		return
	}
	version, err := strconv.ParseInt(list.ResourceVersion, 10, 64)
	if err != nil {
		c.t.Error(err)
	}
	if version < c.seen[""] {
		c.t.Errorf("a list of version %d came after one of %d", version, c.seen[""])
	}
	c.seen[""] = version
	for i := range list.Items {
		item := &list.Items[i]
		version, err := strconv.ParseInt(item.ResourceVersion, 10, 64)
		if err != nil || version < c.seen[item.Name] {
			c.t.Errorf("%s of version %d came after one of %d (%v)", item.Name, version, c.seen[item.Name], err)
		}
		c.seen[item.Name] = version
	}
}
