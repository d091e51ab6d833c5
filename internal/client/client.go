// Package client is the one way of every component to the API: a *rest.Config,
// over TLS or, in the same process, over an in-memory RoundTripper into the API
// server's handler. All clients and informers are made from it. In one process
// informers are fed straight from the watch cache with the same immutable
// objects; components cannot tell.
//
// Nobody may write to an object that came from an informer or a lister: copy it
// first (DeepCopy).
package client

import (
	"fmt"
	"net/http"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"

	"hyperkube/internal/measure"
)

// Source feeds informers from memory.
type Source interface {
	// ListWatch returns where to list and watch a kind's objects in all
	// namespaces, or false when it is not served from memory. Its watch
	// events carry shared objects, and it streams initial lists.
	ListWatch(gvk schema.GroupVersionKind) (cache.ListerWatcher, bool)
}

// Config says how to reach the API.
type Config struct {
	// REST is how requests are made. It is copied.
	REST *rest.Config
	// Source is not nil when the API server is in this process.
	Source Source
	// Requests measures the requests; nil: that of the Clients is made.
	Requests *measure.Requests
}

// Clients is one user's way to the API.
type Clients struct {
	REST     *rest.Config
	Kube     kubernetes.Interface
	Dynamic  dynamic.Interface
	Metadata metadata.Interface
	// Informers is shared by all that run under this user. Whoever composes
	// the process starts it, after every component has asked for what it
	// needs, and again when one asks later.
	Informers informers.SharedInformerFactory
	// Source is that of Config, for informers of kinds without a Go type in
	// client-go; nil when the API server is elsewhere.
	Source Source
	// Requests measures what is asked of the API server.
	Requests *measure.Requests
}

// FromKubeconfig makes all clients of the kubeconfig at path, whose requests name agent as
// what sends them. An empty path is the service account of the pod that this process is in.
func FromKubeconfig(path, agent string) (*Clients, error) {
	config, err := clientcmd.BuildConfigFromFlags("", path)
	if err != nil {
		return nil, fmt.Errorf("reading the kubeconfig: %w", err)
	}
	config.UserAgent = agent
	return New(Config{REST: config})
}

// New makes all clients from cfg.
func New(cfg Config) (*Clients, error) {
	rc := rest.CopyConfig(cfg.REST)
	// The limits of client-go guard a remote server from its clients; here
	// the server's own fairness does.
	rc.QPS = -1
	if rc.WarningHandler == nil && rc.WarningHandlerWithContext == nil {
		// What is deprecated is the business of who wrote a component, not of
		// who runs it.
		rc.WarningHandler = rest.NoWarnings{}
	}
	requests := cfg.Requests
	if requests == nil {
		requests = measure.NewRequests()
	}
	counted := rest.CopyConfig(rc)
	counted.Wrap(requests.Wrap)
	counted.Wrap(func(next http.RoundTripper) http.RoundTripper { return initialLists{next} })
	httpClient, err := rest.HTTPClientFor(counted)
	if err != nil {
		return nil, fmt.Errorf("making an API client: %w", err)
	}
	proto := rest.CopyConfig(rc)
	proto.ContentType = "application/vnd.kubernetes.protobuf"
	proto.AcceptContentTypes = "application/vnd.kubernetes.protobuf,application/json"
	kube, err := kubernetes.NewForConfigAndClient(proto, httpClient)
	if err != nil {
		return nil, fmt.Errorf("making an API client: %w", err)
	}
	dyn, err := dynamic.NewForConfigAndClient(rc, httpClient)
	if err != nil {
		return nil, fmt.Errorf("making a dynamic API client: %w", err)
	}
	meta, err := metadata.NewForConfigAndClient(rc, httpClient)
	if err != nil {
		return nil, fmt.Errorf("making a metadata API client: %w", err)
	}
	c := &Clients{
		REST:      rc,
		Kube:      kube,
		Dynamic:   dyn,
		Metadata:  meta,
		Informers: newInformers(kube, cfg.Source),
		Source:    cfg.Source,
		Requests:  requests,
	}
	return c, nil
}

// Builder makes the clients of single controllers, each under its own user.
type Builder interface {
	// For returns the clients of the controller of that name, e.g.
	// "deployment-controller"; its user is the service account of that name
	// in kube-system. Their Informers are those of the whole process.
	For(name string) (*Clients, error)
}
