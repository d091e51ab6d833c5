// Package podsapi serves the node's pods to processes on the node over a unix socket, from the
// kubelet's state. Clients need neither the API server nor credentials, and get status changes
// before the API server does.
//
// https://github.com/kubernetes/enhancements/issues/4188
package podsapi

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	api "k8s.io/kubelet/pkg/apis/pods/v1alpha1"

	"hyperkube/components/kubelet/grpcsocket"
)

// Socket is the path of the socket relative to the kubelet's root directory.
const Socket = "pods-api/pods-api.sock"

// eventBuffer is the number of events that are buffered for a watch client. If more are pending, its watch is
// closed.
const eventBuffer = 100

// Counter counts requests by method, and closed watches. telemetry.Sockets implements it.
type Counter interface {
	PodsAPIRequest(method, version, code string)
	PodsAPIEventDropped()
}

// Config is the configuration of a Server. All fields are required.
type Config struct {
	// Pods returns the node's pods with their latest status. The pods are shared and must not be
	// modified.
	Pods func() []*v1.Pod
	// Known reports whether all pod sources have delivered their pods.
	Known func() bool
	// Count counts requests.
	Count Counter
	Log   *slog.Logger
}

// Server serves the pods API on a socket of the node. It is the pods.Observer of the pod workers. Its methods
// are safe for concurrent use.
type Server struct {
	api.UnimplementedPodsServer
	cfg Config

	// mu guards clients.
	mu      sync.Mutex
	clients map[*client]struct{}
}

// client is a client that watches pods. Its channel is closed if its buffer overflows.
type client struct{ events chan event }

// event is the current state of a pod or, if it was removed from the node, its metadata.
type event struct {
	pod     *v1.Pod
	removed bool
}

// New returns a Server. It returns an error if a field of cfg is missing.
func New(cfg Config) (*Server, error) {
	if cfg.Pods == nil || cfg.Known == nil || cfg.Count == nil || cfg.Log == nil {
		return nil, errors.New("pods, counters and a logger are required")
	}
	return &Server{cfg: cfg, clients: map[*client]struct{}{}}, nil
}

// Updated sends a pod and its latest status to the watch clients. It does not block, and retains its
// arguments.
func (s *Server) Updated(pod *v1.Pod, now *v1.PodStatus) {
	s.broadcast(func() event {
		shown := *pod
		shown.Status = *now
		return event{pod: &shown}
	})
}

// Removed notifies the watch clients that a pod was removed from the node. It does not block.
func (s *Server) Removed(pod *v1.Pod) {
	s.broadcast(func() event {
		return event{pod: &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: pod.Name, Namespace: pod.Namespace, UID: pod.UID}}, removed: true}
	})
}

// broadcast sends the event that of returns to all watch clients. The watch of a client whose buffer is full
// is closed. of is not called if there are no clients.
func (s *Server) broadcast(of func() event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.clients) == 0 {
		return
	}
	e := of()
	for c := range s.clients {
		select {
		case c.events <- e:
		default:
			s.cfg.Log.Warn("watch of a client of the kubelet's pods API closed because the client reads too slowly; the client must open a new watch")
			s.cfg.Count.PodsAPIEventDropped()
			delete(s.clients, c)
			close(c.events)
		}
	}
}

// Serve serves the API on the socket in dir, the kubelet's root directory, until ctx is done. It returns an
// error if the socket cannot be opened.
func (s *Server) Serve(ctx context.Context, dir string) error {
	server := grpc.NewServer(grpcsocket.RateLimited(s.count)...)
	api.RegisterPodsServer(server, s)
	return grpcsocket.Serve(ctx, filepath.Join(dir, Socket), "pods API clients", server)
}

// count counts a request to the pods API in the metrics: its method, the API version, and the gRPC code of err.
func (s *Server) count(method, version string, err error) {
	code := status.Code(err)
	if errors.Is(err, context.Canceled) {
		code = codes.Canceled
	}
	s.cfg.Count.PodsAPIRequest(method, version, code.String())
}

// pods returns the node's pods, sorted by UID. It returns an error with the code FailedPrecondition until all
// sources have delivered their pods.
func (s *Server) pods() ([]*v1.Pod, error) {
	if !s.cfg.Known() {
		return nil, status.Error(codes.FailedPrecondition, "Kubelet is initializing")
	}
	all := s.cfg.Pods()
	slices.SortFunc(all, func(a, b *v1.Pod) int { return strings.Compare(string(a.UID), string(b.UID)) })
	return all, nil
}

// marshal encodes a pod in protobuf. A pod without a phase is encoded as Pending.
func marshal(pod *v1.Pod) ([]byte, error) {
	if pod.Status.Phase == "" {
		shown := *pod
		shown.Status.Phase = v1.PodPending
		pod = &shown
	}
	data, err := pod.Marshal()
	if err != nil {
		return nil, status.Errorf(codes.Internal, "failed to marshal pod: %v", err)
	}
	return data, nil
}

// ListPods returns all pods of the node, or an error with the code FailedPrecondition until all sources have
// delivered their pods. It implements api.PodsServer.
func (s *Server) ListPods(context.Context, *api.ListPodsRequest) (*api.ListPodsResponse, error) {
	all, err := s.pods()
	if err != nil {
		return nil, err
	}
	out := &api.ListPodsResponse{}
	for _, pod := range all {
		data, err := marshal(pod)
		if err != nil {
			return nil, err
		}
		out.Pods = append(out.Pods, data)
	}
	return out, nil
}

// GetPod returns the pod with the UID of the request, or an error with the code NotFound, or FailedPrecondition
// until all sources have delivered their pods. It implements api.PodsServer.
func (s *Server) GetPod(_ context.Context, r *api.GetPodRequest) (*api.GetPodResponse, error) {
	all, err := s.pods()
	if err != nil {
		return nil, err
	}
	for _, pod := range all {
		if string(pod.UID) != r.GetPodUID() {
			continue
		}
		data, err := marshal(pod)
		if err != nil {
			return nil, err
		}
		return &api.GetPodResponse{Pod: data}, nil
	}
	return nil, status.Errorf(codes.NotFound, "pod with UID %s not found", r.GetPodUID())
}

// WatchPods sends all pods, then an event that the list is complete, and then changes until the client
// disconnects or is too slow. Until all sources have delivered their pods it returns an error with the code
// FailedPrecondition. It implements api.PodsServer.
func (s *Server) WatchPods(_ *api.WatchPodsRequest, stream api.Pods_WatchPodsServer) error {
	if !s.cfg.Known() {
		return status.Error(codes.FailedPrecondition, "Kubelet is initializing")
	}
	c := &client{events: make(chan event, eventBuffer)}
	s.mu.Lock()
	s.clients[c] = struct{}{}
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		delete(s.clients, c)
		s.mu.Unlock()
	}()
	all, err := s.pods()
	if err != nil {
		return err
	}
	known := map[types.UID]bool{}
	send := func(kind api.EventType, pod *v1.Pod) error {
		data, err := marshal(pod)
		if err != nil {
			return err
		}
		return stream.Send(&api.WatchPodsEvent{Type: kind, Pod: data})
	}
	for _, pod := range all {
		known[pod.UID] = true
		if err := send(api.EventType_ADDED, pod); err != nil {
			return err
		}
	}
	if err := stream.Send(&api.WatchPodsEvent{Type: api.EventType_INITIAL_SYNC_COMPLETE}); err != nil {
		return err
	}
	for {
		select {
		case <-stream.Context().Done():
			return stream.Context().Err()
		case e, ok := <-c.events:
			if !ok {
				return status.Error(codes.ResourceExhausted, "watch client channel closed")
			}
			kind := api.EventType_MODIFIED
			switch {
			case e.removed && !known[e.pod.UID]:
				continue
			case e.removed:
				kind = api.EventType_DELETED
				delete(known, e.pod.UID)
			case !known[e.pod.UID]:
				kind = api.EventType_ADDED
				known[e.pod.UID] = true
			}
			if e.removed {
				data, err := e.pod.Marshal()
				if err != nil {
					return status.Errorf(codes.Internal, "error marshalling watch event pod: %v", err)
				}
				if err := stream.Send(&api.WatchPodsEvent{Type: kind, Pod: data}); err != nil {
					return err
				}
				continue
			}
			if err := send(kind, e.pod); err != nil {
				return err
			}
		}
	}
}
