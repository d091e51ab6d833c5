package linearizability

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"

	"hyperkube/internal/testing/history"
	"hyperkube/internal/testing/testwait"
)

const (
	// clientsPerServer is the number of clients of each server in a round.
	clientsPerServer = 4
	// serving is the number of requests that each server must answer after a fault.
	serving = 20
	// maxCalm is the maximum time between two faults in milliseconds.
	maxCalm = 500
	// finishTimeout limits how long watchers take to receive the last write.
	finishTimeout = 2 * time.Minute
)

// cluster consists of etcd members and API servers.
type cluster struct {
	t       testing.TB
	servers []*server
	// members are the client URLs of the etcd members.
	members []string
	// padding is the size of the objects.
	padding int

	total totals
}

// totals are the numbers of all rounds.
type totals struct{ rounds, faults, operations, unknown, events, watchEvents, resumed, expired, cached int }

// log prints the totals.
func (c *cluster) log(began time.Time) {
	c.t.Logf("%+v in %s", c.total, time.Since(began).Round(time.Second))
}

// fault is a fault that a test causes while clients send requests. It returns when it is over.
type fault struct {
	name string
	do   func()
}

// round runs clients and watchers in a new namespace, causes the faults, and checks the history.
func (c *cluster) round(faults ...fault) {
	c.t.Helper()
	namespace := fmt.Sprint("round-", c.total.rounds)
	began := c.revision()
	c.createNamespace(namespace)
	r := newRecorder()
	ctx, cancel := context.WithCancel(c.t.Context())
	defer cancel()
	var clients, watchers sync.WaitGroup
	for id := range clientsPerServer * len(c.servers) {
		one := newClient(r, id, c.servers[id%len(c.servers)], namespace, c.padding)
		clients.Go(func() { one.run(ctx) })
	}
	watching, stopWatching := context.WithCancel(c.t.Context())
	defer stopWatching()
	var all []*watcher
	var done []chan final
	var incomplete atomic.Int64
	for i, w := range []struct {
		key           string
		initialEvents bool
	}{{"", false}, {"", true}, {"", false}, {keys[0], false}, {keys[1], true}} {
		one, finished := newWatcher(r, 100+i, c.servers, namespace, w.key, w.initialEvents), make(chan final, 1)
		all, done = append(all, one), append(done, finished)
		watchers.Go(func() {
			if !one.run(watching, finished) {
				incomplete.Add(1)
				c.t.Errorf("watcher %d of %q is at revision %d", one.id, one.key, one.last)
			}
		})
	}
	c.waitForRequests("the servers to serve")
	for _, f := range faults {
		time.Sleep(milliseconds(maxCalm))
		start := r.now()
		f.do()
		over := r.now()
		c.waitForRequests(f.name + " to be over")
		c.t.Logf("%s: from %s to %s, the servers served until %s", f.name, start.Round(time.Millisecond), over.Round(time.Millisecond), r.now().Round(time.Millisecond))
	}
	cancel()
	clients.Wait()
	last := c.finish(r, namespace)
	for _, finished := range done {
		finished <- last
	}
	timer := time.AfterFunc(finishTimeout, stopWatching)
	watchers.Wait()
	timer.Stop()

	logs := make([]history.Log, len(c.members))
	for i, url := range c.members {
		logs[i] = c.readLog(url, namespace, began, last.of(""))
		if !slices.Equal(logs[i], logs[0]) {
			c.t.Errorf("the logs of two members differ:\n%v\n%v", logs[0], logs[i])
		}
	}
	r.history.Log = logs[0]
	checking := time.Now()
	if err := r.history.Check(); err != nil {
		c.t.Errorf("round %d: %v", c.total.rounds, err)
	}
	c.count(r, all, len(faults))
	c.t.Logf("round %d: %d requests, %d without a known result, %d writes, checked in %s%s", c.total.rounds, len(r.history.Operations), r.unknown, len(logs[0]), time.Since(checking).Round(time.Millisecond), r.summary())
	c.total.rounds++
}

func (c *cluster) count(r *recorder, watchers []*watcher, faults int) {
	c.total.faults += faults
	c.total.operations += len(r.history.Operations)
	c.total.unknown += r.unknown
	c.total.events += len(r.history.Log)
	for _, w := range r.history.Watches {
		c.total.watchEvents += len(w.Events)
	}
	for _, w := range watchers {
		c.total.resumed += w.resumed
		c.total.expired += w.expired
	}
	for _, cache := range r.history.Caches {
		c.total.cached += len(cache.Reads)
	}
}

// waitForRequests waits until each server has answered requests.
func (c *cluster) waitForRequests(what string) {
	c.t.Helper()
	for _, s := range c.servers {
		before := s.answered.Load()
		testwait.Until(c.t, what+" at "+s.name, func() bool { return s.answered.Load() >= before+serving })
	}
}

func (c *cluster) createNamespace(name string) {
	c.t.Helper()
	rest := c.servers[0].connect("application/json")
	testwait.Succeed(c.t, "a namespace", func() error {
		ctx, cancel := context.WithTimeout(c.t.Context(), requestTimeout)
		defer cancel()
		err := rest.Post().Resource("namespaces").Body(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}).Do(ctx).Error()
		if apierrors.IsAlreadyExists(err) {
			return nil
		}
		return err
	})
}

// finish writes each object once more, until the write succeeds, and returns the revisions.
func (c *cluster) finish(r *recorder, namespace string) final {
	c.t.Helper()
	last := newClient(r, 99, c.servers[0], namespace, 0)
	written := final{}
	for _, key := range keys {
		verb := history.Patch
		testwait.Until(c.t, "the last write", func() bool {
			out := last.do(history.Request{Verb: verb, Key: key, Value: r.value()})
			switch out.Result {
			case history.OK:
				written[key] = out.Object.Revision
			case history.NotFound:
				verb = history.Create
			case history.Exists:
				verb = history.Patch
			}
			return out.Result == history.OK
		})
	}
	return written
}

// revision returns the revision of etcd.
func (c *cluster) revision() int64 {
	c.t.Helper()
	revision := int64(0)
	c.etcd(c.members[0], func(ctx context.Context, client *clientv3.Client) error {
		resp, err := client.Get(ctx, "/registry/")
		if err == nil {
			revision = resp.Header.Revision
		}
		return err
	})
	return revision
}

// readLog reads the log of a member, from the first revision to the last one.
func (c *cluster) readLog(url, namespace string, first, last int64) history.Log {
	c.t.Helper()
	prefix := "/registry/configmaps/" + namespace + "/"
	var log history.Log
	c.etcd(url, func(ctx context.Context, client *clientv3.Client) error {
		log = nil
		for resp := range client.Watch(ctx, prefix, clientv3.WithPrefix(), clientv3.WithRev(first)) {
			if err := resp.Err(); err != nil {
				return err
			}
			for _, ev := range resp.Events {
				if ev.Kv.ModRevision > last {
					return nil
				}
				event := history.Event{Key: string(ev.Kv.Key[len(prefix):]), Revision: ev.Kv.ModRevision}
				if ev.Type == clientv3.EventTypePut {
					object, _, err := scheme.Codecs.UniversalDeserializer().Decode(ev.Kv.Value, nil, nil)
					if err != nil {
						return err
					}
					event.Value = object.(*corev1.ConfigMap).Data["v"]
				}
				log = append(log, event)
				if event.Revision == last {
					return nil
				}
			}
		}
		return ctx.Err()
	})
	return log
}

// etcd calls f with a client of a member until it succeeds.
func (c *cluster) etcd(url string, f func(context.Context, *clientv3.Client) error) {
	c.t.Helper()
	testwait.Succeed(c.t, "etcd", func() error {
		client, err := clientv3.New(clientv3.Config{Endpoints: []string{url}, Logger: zap.NewNop()})
		if err != nil {
			return err
		}
		defer client.Close()
		ctx, cancel := context.WithTimeout(c.t.Context(), 10*time.Second)
		defer cancel()
		return f(ctx, client)
	})
}
