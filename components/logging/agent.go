// Package logging collects the logs of the pods and of the processes of each node, keeps them in a bounded store on the node, sends them to sinks, and
// searches them.
//
// An Agent runs on each node, as a pod of a DaemonSet. Records take this way:
//
//	log files → follow → collect (join lines, add metadata, apply rules) → store → sink, one worker for each sink
//	                                                                           └→ query → hyperkube logs
//
// Package record defines records, and settings reads the configuration. A record and the position behind it in its log file are written to the store
// atomically, and each sink has a cursor in the store. So no component needs another checkpoint, and the store is the buffer of the sinks.
package logging

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/tools/cache"

	"hyperkube/components/logging/collect"
	"hyperkube/components/logging/settings"
	"hyperkube/components/logging/store"
	"hyperkube/internal/base/configfile"
	"hyperkube/internal/base/lifecycle"
	"hyperkube/internal/client"
)

// Config configures an Agent.
type Config struct {
	// Clients authenticate as a user that may list and watch the pods of the node, create SubjectAccessReviews, list the EndpointSlices of the
	// agents, read and update the Secret CASecret, and read the front proxy configuration.
	Clients *client.Clients
	// Node is the name of the node.
	Node string
	// PodLogs is the directory of the logs of pods, and NodeLogs are directories with log files of the node.
	PodLogs  string
	NodeLogs []string
	// Dir is the directory of the store and of the state of sinks.
	Dir string
	// StoreBytes is the maximum size of the store. Zero means 200 MB.
	StoreBytes int64
	// File is the configuration file. It may not exist, and is read again when it changes. Empty means that there is none.
	File string
	// Address is the address of the API, which serves HTTPS. MetricsAddress serves /livez, /readyz and /metrics by HTTP.
	Address, MetricsAddress string
	// Namespace is the namespace of the agents. Service is the name of their Service, and CASecret that of the Secret with the CA of their
	// certificates, which must exist and may be empty.
	Namespace, Service, CASecret string
	// Log receives messages. Nil means slog's default.
	Log *slog.Logger
}

// Agent collects the logs of a node.
type Agent struct {
	cfg      Config
	settings atomic.Pointer[settings.Settings]
	store    *store.Store
	collect  *collect.Collector
	pods     cache.SharedIndexInformer
	sinks    *sinks
	ready    chan struct{} // closed when the API is served
}

// podsTimeout is how long the Agent waits for the pods of its node. Records that are read before have no labels.
const podsTimeout = 15 * time.Second

// New validates cfg, reads the configuration and opens the store. Run closes it.
func New(cfg Config) (*Agent, error) {
	if cfg.Clients == nil || cfg.Node == "" || cfg.PodLogs == "" || cfg.Dir == "" || cfg.Address == "" || cfg.MetricsAddress == "" || cfg.Namespace == "" {
		return nil, errors.New("logging agent: clients, node, directories, addresses and namespace are required")
	}
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	a := &Agent{cfg: cfg, ready: make(chan struct{})}
	first, err := a.readSettings()
	if err != nil {
		return nil, err
	}
	a.settings.Store(first)
	kube := cfg.Clients.Kube
	a.pods = client.NewInformer(kube, &corev1.Pod{}, kube.CoreV1().Pods(""), fields.OneTermEqualSelector("spec.nodeName", cfg.Node))
	if err := a.pods.SetTransform(stripPod); err != nil {
		return nil, fmt.Errorf("creating informer of pods: %w", err)
	}
	sinkDir := filepath.Join(cfg.Dir, "sinks")
	if err := os.MkdirAll(sinkDir, 0o700); err != nil {
		return nil, fmt.Errorf("creating directory of sinks: %w", err)
	}
	if a.store, err = store.Open(store.Config{Dir: filepath.Join(cfg.Dir, "store"), MaxBytes: cfg.StoreBytes, Log: cfg.Log}); err != nil {
		return nil, err
	}
	a.sinks = &sinks{dir: sinkDir, store: a.store, log: cfg.Log}
	a.collect, err = collect.New(collect.Config{
		Node: cfg.Node, PodLogs: cfg.PodLogs, NodeLogs: cfg.NodeLogs, Store: a.store, Pods: podLister{a.pods}, Settings: a.settings.Load, Log: cfg.Log,
	})
	if err != nil {
		return nil, errors.Join(err, a.store.Close())
	}
	return a, nil
}

// Ready returns a channel that is closed when the Agent serves the API.
func (a *Agent) Ready() <-chan struct{} { return a.ready }

// Run collects, sends and serves logs until ctx is canceled. It returns an error if it cannot listen or a part fails.
func (a *Agent) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	status, err := net.Listen("tcp", a.cfg.MetricsAddress)
	if err != nil {
		return errors.Join(fmt.Errorf("listening for metrics: %w", err), a.store.Close())
	}
	parts := lifecycle.Group{Log: a.cfg.Log}
	parts.Start(ctx, "metrics server", lifecycle.Func(func(ctx context.Context) error { return a.serveStatus(ctx, status) }))
	parts.Start(ctx, "informer of pods", lifecycle.Func(func(ctx context.Context) error {
		a.pods.RunWithContext(ctx)
		return nil
	}))
	if err := a.awaitPods(ctx, &parts); err == nil {
		// The sinks are created before the first record, so that they miss none.
		parts.Start(ctx, "log sinks", lifecycle.Func(a.runSinks))
		parts.Start(ctx, "log API", lifecycle.Func(a.serveAPI))
		parts.Start(ctx, "log collector", a.collect)
		a.cfg.Log.Info("log collection started", "node", a.cfg.Node, "sinks", len(a.settings.Load().Sinks))
	}
	select {
	case <-ctx.Done():
	case err = <-parts.Failed():
	}
	return errors.Join(err, parts.Stop(), a.store.Close())
}

// awaitPods waits until the pods of the node are known, at most podsTimeout. It returns an error if ctx is done or a part fails.
func (a *Agent) awaitPods(ctx context.Context, parts *lifecycle.Group) error {
	return parts.WaitFor(ctx, "the pods of the node", func(ctx context.Context) error {
		limited, cancel := context.WithTimeout(ctx, podsTimeout)
		defer cancel()
		if !cache.WaitForCacheSync(limited.Done(), a.pods.HasSynced) && ctx.Err() == nil {
			a.cfg.Log.Warn("listing the pods of the node failed; logs are collected, but have no labels until it succeeds, retrying in the background")
		}
		return ctx.Err()
	})
}

// runSinks runs the sinks of the configuration, and changes both when the file changes.
func (a *Agent) runSinks(ctx context.Context) error {
	defer a.sinks.stop()
	a.sinks.apply(ctx, a.settings.Load().Sinks)
	if a.cfg.File == "" {
		<-ctx.Done()
		return nil
	}
	var last string
	return configfile.Follow(ctx, a.cfg.File, a.cfg.Log, func() {
		next, err := a.readSettings()
		if err != nil {
			if text := err.Error(); text != last {
				last = text
				a.cfg.Log.Error("configuration of log collection is invalid; the previous one stays in use: correct the ConfigMap, it is then read again", "file", a.cfg.File, "err", err)
			}
			return
		}
		last = ""
		if next != a.settings.Load() {
			a.settings.Store(next)
			a.sinks.apply(ctx, next.Sinks)
			a.cfg.Log.Info("configuration of log collection changed", "sinks", len(next.Sinks))
		}
	})
}

// readSettings reads the configuration file. It returns the current settings if the file has not changed.
func (a *Agent) readSettings() (*settings.Settings, error) {
	var data []byte
	if a.cfg.File != "" {
		var err error
		if data, err = os.ReadFile(a.cfg.File); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("reading configuration of log collection: %w", err)
		}
	}
	if now := a.settings.Load(); now != nil && now.Source() == string(data) {
		return now, nil
	}
	return settings.Parse(filepath.Base(a.cfg.File), data)
}

// podLister finds pods in the cache of an informer.
type podLister struct{ informer cache.SharedIndexInformer }

// Pod implements collect.Pods.
func (l podLister) Pod(namespace, name string) *corev1.Pod {
	obj, ok, err := l.informer.GetStore().GetByKey(namespace + "/" + name)
	if err != nil || !ok {
		return nil
	}
	pod, _ := obj.(*corev1.Pod)
	return pod
}

// stripPod reduces a pod in the informer's cache to its names, labels and the annotations that log collection uses.
func stripPod(obj any) (any, error) {
	pod, ok := obj.(*corev1.Pod)
	if !ok {
		return obj, nil
	}
	out := &corev1.Pod{}
	out.Name, out.Namespace, out.UID, out.ResourceVersion, out.Labels = pod.Name, pod.Namespace, pod.UID, pod.ResourceVersion, pod.Labels
	for _, name := range []string{collect.StartAnnotation, "kubernetes.io/config.hash"} {
		if v, ok := pod.Annotations[name]; ok {
			if out.Annotations == nil {
				out.Annotations = map[string]string{}
			}
			out.Annotations[name] = v
		}
	}
	return out, nil
}

var _ lifecycle.Readier = (*Agent)(nil)
