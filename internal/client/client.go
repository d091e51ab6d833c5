// Package client creates the API clients of all components from a *rest.Config. Requests go over
// TLS or, in the process of the API server, over an in-memory RoundTripper to the API server's
// handler. All clients and informers are created from the same configuration. In the process of the
// API server, informers are fed from the watch cache and share its immutable objects. Components
// cannot observe the difference.
//
// Callers must not modify an object from an informer or a lister. Copy it first (DeepCopy).
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

	"hyperkube/internal/base/tracing"
	"hyperkube/internal/serving/componentmetrics"
)

// Source feeds informers from the watch cache of an API server in the same process.
type Source interface {
	// ListWatch returns a ListerWatcher for the objects of a kind in all namespaces, or false if
	// the source does not serve the kind. Its watch events carry shared objects, and it supports
	// streaming of the initial list.
	ListWatch(gvk schema.GroupVersionKind) (cache.ListerWatcher, bool)
}

// Config specifies how Clients connect to the API server, and from where their informers get objects.
type Config struct {
	// REST is the client configuration. New copies it, disables client-side rate limits in the copy, and ignores API
	// warnings unless it has a warning handler.
	REST *rest.Config
	// Source is not nil if the API server runs in this process.
	Source Source
	// Requests records metrics of the requests. If it is nil, New creates one.
	Requests *componentmetrics.Requests
}

// Clients are the API clients and the informer factory of one user or component, which share one connection
// configuration.
type Clients struct {
	// REST is the configuration of the clients, without their metrics, from which other clients can be created.
	REST     *rest.Config
	Kube     kubernetes.Interface
	Dynamic  dynamic.Interface
	Metadata metadata.Interface
	// Informers is shared by all components that run as this user. The composition root starts it
	// after every component has requested its informers, and again when a component requests one
	// later.
	Informers informers.SharedInformerFactory
	// Source is the Source of Config. It feeds informers of kinds without a Go type in client-go.
	// It is nil if the API server runs in another process.
	Source Source
	// Requests records metrics of the requests to the API server.
	Requests *componentmetrics.Requests
}

// FromKubeconfig creates the clients for the kubeconfig file at path. Requests have the user agent agent. If path is
// empty, it uses the service account of the pod in which this process runs, or fails outside of a pod.
func FromKubeconfig(path, agent string) (*Clients, error) {
	config, err := clientcmd.BuildConfigFromFlags("", path)
	if err != nil {
		return nil, fmt.Errorf("reading kubeconfig: %w", err)
	}
	config.UserAgent = agent
	return New(Config{REST: config})
}

// New creates all clients from cfg. They share one HTTP client, whose requests are recorded in metrics. Kube and
// Metadata use protobuf, Dynamic uses JSON. Client-side rate limits are disabled. It returns an error if cfg.REST is
// invalid, for example because a certificate file cannot be read.
func New(cfg Config) (*Clients, error) {
	rc := rest.CopyConfig(cfg.REST)
	// The client-side limits of client-go protect a server from its clients. Here, API priority and
	// fairness of the server does that.
	rc.QPS = -1
	if rc.WarningHandler == nil && rc.WarningHandlerWithContext == nil {
		// Deprecation warnings are for the developers of a component, not for its operators.
		rc.WarningHandler = rest.NoWarnings{}
	}
	requests := cfg.Requests
	if requests == nil {
		requests = componentmetrics.NewRequests()
	}
	counted := rest.CopyConfig(rc)
	counted.Wrap(requests.Wrap)
	counted.Wrap(func(next http.RoundTripper) http.RoundTripper { return hideConnectionRefused{next} })
	counted.Wrap(func(next http.RoundTripper) http.RoundTripper { return tracing.Transport{Next: next} })
	httpClient, err := rest.HTTPClientFor(counted)
	if err != nil {
		return nil, fmt.Errorf("creating API client: %w", err)
	}
	proto := rest.CopyConfig(rc)
	proto.ContentType = "application/vnd.kubernetes.protobuf"
	proto.AcceptContentTypes = "application/vnd.kubernetes.protobuf,application/json"
	kube, err := kubernetes.NewForConfigAndClient(proto, httpClient)
	if err != nil {
		return nil, fmt.Errorf("creating API client: %w", err)
	}
	dyn, err := dynamic.NewForConfigAndClient(rc, httpClient)
	if err != nil {
		return nil, fmt.Errorf("creating dynamic API client: %w", err)
	}
	meta, err := metadata.NewForConfigAndClient(rc, httpClient)
	if err != nil {
		return nil, fmt.Errorf("creating metadata API client: %w", err)
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

// Builder creates the clients of individual controllers, each with its own user.
type Builder interface {
	// For returns the clients of the controller with the name, for example "deployment-controller".
	// Their user is the service account of that name in kube-system. Their Informers are shared by
	// the whole process.
	For(name string) (*Clients, error)
}
