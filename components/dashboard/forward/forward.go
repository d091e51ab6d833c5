// Package forward forwards ports of the loopback address of this machine to pods, through the API server and with the credentials of a
// user, like `kubectl port-forward`. Forwards exist until they are stopped, or until the process exits.
package forward

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strconv"
	"sync"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/transport/spdy"
	"k8s.io/streaming/pkg/httpstream"

	"hyperkube/internal/base/broadcast"
)

// Kinds of objects to forward to.
const (
	KindPod     = "Pod"
	KindService = "Service"
)

// address is the address of the local ports. Other machines cannot connect to it.
const address = "127.0.0.1"

// maxForwards is the number of forwards that can exist.
const maxForwards = 100

// Request describes a forward to start.
type Request struct {
	Kind      string `json:"kind"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// Port is the port of the pod, or of the Service.
	Port int `json:"port"`
	// LocalPort is the port on 127.0.0.1. If it is 0, a free port is used.
	LocalPort int `json:"localPort"`
}

// validate returns an error that can be shown to the user.
func (r Request) validate() error {
	switch {
	case r.Kind != KindPod && r.Kind != KindService:
		return errors.New("ports are forwarded to pods and Services only")
	case r.Namespace == "" || r.Name == "":
		return errors.New("the namespace and the name are required")
	case r.Port < 1 || r.Port > 65535:
		return errors.New("the port must be from 1 to 65535")
	case r.LocalPort < 0 || r.LocalPort > 65535:
		return errors.New("the local port must be from 1 to 65535, or 0 for a free port")
	}
	return nil
}

// Forward is a port that is forwarded. LocalPort is the port that is used.
type Forward struct {
	Request
	ID int `json:"id"`
	// Pod is the pod that connections are forwarded to, and PodPort its port.
	Pod     string `json:"pod"`
	PodPort int    `json:"podPort"`
	// Error is why the forward does not accept connections any more, for example because the pod was deleted. It is empty otherwise.
	Error string `json:"error,omitempty"`
}

// State is the list of forwards at a time.
type State struct {
	// Version changes whenever the list changes.
	Version  int       `json:"version"`
	Forwards []Forward `json:"forwards"`
}

// running is a forward with the function that stops it.
type running struct {
	Forward
	cancel context.CancelFunc
}

// Forwards are the forwards of one user. It is safe for concurrent use.
type Forwards struct {
	rest *rest.Config
	kube kubernetes.Interface

	closed  chan struct{}  // closed by Close
	wg      sync.WaitGroup // goroutines of forwards
	changed broadcast.Broadcast

	mu      sync.Mutex // guards the fields below, and the closing of closed
	version int
	nextID  int
	byID    map[int]*running
	active  map[*running]bool // those with a goroutine, also before they are in byID
}

// New returns Forwards with the credentials of cfg. The caller must call Close.
func New(cfg *rest.Config) (*Forwards, error) {
	kube, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return nil, fmt.Errorf("creating the API client: %w", err)
	}
	return &Forwards{rest: cfg, kube: kube, closed: make(chan struct{}), version: 1, nextID: 1, byID: map[int]*running{}, active: map[*running]bool{}}, nil
}

// Close stops all forwards and waits until they have stopped. It must be called once.
func (f *Forwards) Close() {
	f.mu.Lock()
	close(f.closed)
	for one := range f.active {
		one.cancel()
	}
	f.mu.Unlock()
	f.wg.Wait()
}

// Wait returns the list of forwards when its version differs from after, or when ctx is done.
func (f *Forwards) Wait(ctx context.Context, after int) State {
	for {
		next := f.changed.Next()
		state := f.state()
		if state.Version != after {
			return state
		}
		select {
		case <-next:
		case <-ctx.Done():
			return state
		case <-f.closed:
			return state
		}
	}
}

func (f *Forwards) state() State {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := State{Version: f.version, Forwards: make([]Forward, 0, len(f.byID))}
	for _, r := range f.byID {
		s.Forwards = append(s.Forwards, r.Forward)
	}
	slices.SortFunc(s.Forwards, func(a, b Forward) int { return cmp.Compare(a.ID, b.ID) })
	return s
}

// update changes the list and notifies the waiters.
func (f *Forwards) update(change func()) {
	f.mu.Lock()
	change()
	f.version++
	f.mu.Unlock()
	f.changed.Send()
}

// Stop stops a forward and removes it from the list. It reports whether the forward existed.
func (f *Forwards) Stop(id int) bool {
	var found *running
	f.update(func() {
		found = f.byID[id]
		delete(f.byID, id)
	})
	if found == nil {
		return false
	}
	found.cancel()
	return true
}

// Start starts a forward and returns it when its local port accepts connections.
func (f *Forwards) Start(ctx context.Context, req Request) (Forward, error) {
	if err := req.validate(); err != nil {
		return Forward{}, err
	}
	if req.LocalPort != 0 {
		// The library does not report why it cannot listen.
		l, err := net.Listen("tcp", net.JoinHostPort(address, strconv.Itoa(req.LocalPort)))
		if err != nil {
			return Forward{}, fmt.Errorf("listening on port %d, select another one: %w", req.LocalPort, err)
		}
		l.Close()
	}
	pod, podPort, err := resolve(ctx, f.kube, req)
	if err != nil {
		return Forward{}, err
	}
	one := &running{Forward: Forward{Request: req, Pod: pod, PodPort: podPort}}
	forwardCtx, cancel := context.WithCancel(context.WithoutCancel(ctx)) // the forward outlives the request
	one.cancel = cancel
	ready := make(chan struct{})
	forwarder, err := f.forwarder(forwardCtx, one, ready)
	if err != nil {
		cancel()
		return Forward{}, err
	}
	failed := make(chan error, 1)
	if err := f.goRun(one, forwarder, failed); err != nil {
		cancel()
		return Forward{}, err
	}
	select {
	case err := <-failed:
		cancel()
		return Forward{}, cmp.Or(err, errors.New("the dashboard is stopping"))
	case <-ready:
	}
	ports, err := forwarder.GetPorts()
	if err != nil {
		cancel()
		return Forward{}, fmt.Errorf("reading the local port: %w", err)
	}
	one.LocalPort = int(ports[0].Local)
	f.update(func() {
		one.ID = f.nextID
		f.nextID++
		f.byID[one.ID] = one
	})
	f.watch(one, failed)
	return one.Forward, nil
}

// goRun runs a forward until its context is canceled or the connection to the pod is lost, and then sends the error.
func (f *Forwards) goRun(one *running, forwarder *portforward.PortForwarder, failed chan<- error) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	select {
	case <-f.closed:
		return errors.New("the dashboard is stopping")
	default:
	}
	if len(f.byID) >= maxForwards {
		return fmt.Errorf("%d ports are forwarded; stop one of them", len(f.byID))
	}
	f.active[one] = true
	f.wg.Go(func() {
		err := forwarder.ForwardPorts()
		f.mu.Lock()
		delete(f.active, one)
		f.mu.Unlock()
		failed <- err
	})
	return nil
}

// watch records why a forward has stopped, unless Stop or Close has stopped it.
func (f *Forwards) watch(one *running, failed <-chan error) {
	f.wg.Go(func() {
		err := <-failed
		one.cancel()
		if err != nil {
			f.update(func() { one.Error = err.Error() })
		}
	})
}

// forwarder returns the forwarder of a request. It connects with a WebSocket or, to old API servers, with SPDY.
func (f *Forwards) forwarder(ctx context.Context, one *running, ready chan struct{}) (*portforward.PortForwarder, error) {
	at := f.kube.CoreV1().RESTClient().Post().Resource("pods").Namespace(one.Namespace).Name(one.Pod).SubResource("portforward").URL()
	transport, upgrader, err := spdy.RoundTripperFor(f.rest)
	if err != nil {
		return nil, fmt.Errorf("creating the API client: %w", err)
	}
	tunnel, err := portforward.NewSPDYOverWebsocketDialerForStreaming(at, f.rest)
	if err != nil {
		return nil, fmt.Errorf("creating the API client: %w", err)
	}
	dialer := portforward.NewFallbackDialerForStreaming(tunnel, spdy.NewDialerForStreaming(upgrader, &http.Client{Transport: transport}, http.MethodPost, at), func(err error) bool {
		return httpstream.IsUpgradeFailure(err) || httpstream.IsHTTPSProxyError(err)
	})
	ports := []string{fmt.Sprintf("%d:%d", one.LocalPort, one.PodPort)}
	return portforward.NewOnAddressesForStreamingWithContext(ctx, dialer, []string{address}, ports, ready, nil, nil)
}
