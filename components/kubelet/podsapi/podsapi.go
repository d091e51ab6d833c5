// Package podsapi tells programs on the node of its pods by a socket, as the
// kubelet knows them: they need neither the API server nor credentials, and learn
// of statuses before the API server does.
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

	"hyperkube/components/kubelet/nodesocket"
)

// Socket is where in the kubelet's own folder the service is.
const Socket = "pods-api/pods-api.sock"

// behind is by how many events a client may be late before it is left behind.
const behind = 100

// Counter counts requests by their method, and events that nobody got; telemetry
// has it.
type Counter interface {
	PodsAsked(method, version, code string)
	PodEventLost()
}

// Config is what a Server needs.
type Config struct {
	// Pods returns the node's pods with their newest status. What they point to
	// is shared and not changed.
	Pods func() []*v1.Pod
	// Known tells whether all sources of pods have told theirs.
	Known func() bool
	// Count must not be nil.
	Count Counter
	Log   *slog.Logger
}

// Server is the service. Its methods are safe for several goroutines.
type Server struct {
	api.UnimplementedPodsServer
	cfg Config

	mu      sync.Mutex
	clients map[*client]struct{}
}

// client is who watches. Its channel is closed when it is too late.
type client struct{ events chan event }

// event is a pod as it is now, or the name of one that is gone.
type event struct {
	pod  *v1.Pod
	gone bool
}

// New makes a Server.
func New(cfg Config) (*Server, error) {
	if cfg.Pods == nil || cfg.Known == nil || cfg.Count == nil || cfg.Log == nil {
		return nil, errors.New("the service of pods needs pods, counters and a log")
	}
	return &Server{cfg: cfg, clients: map[*client]struct{}{}}, nil
}

// Updated tells who watches of a pod and its newest status. It does not block, and
// keeps what both point to.
func (s *Server) Updated(pod *v1.Pod, now *v1.PodStatus) {
	s.tell(func() event {
		shown := *pod
		shown.Status = *now
		return event{pod: &shown}
	})
}

// Removed tells who watches that a pod is here no more. It does not block.
func (s *Server) Removed(pod *v1.Pod) {
	s.tell(func() event {
		return event{pod: &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: pod.Name, Namespace: pod.Namespace, UID: pod.UID}}, gone: true}
	})
}

// tell makes an event if there is anybody to tell.
func (s *Server) tell(of func() event) {
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
			s.cfg.Log.Warn("who watches the node's pods is too late and is left behind")
			s.cfg.Count.PodEventLost()
			delete(s.clients, c)
			close(c.events)
		}
	}
}

// Serve answers at the socket below dir, the kubelet's own folder, until ctx ends.
func (s *Server) Serve(ctx context.Context, dir string) error {
	server := grpc.NewServer(nodesocket.Bounded(s.count)...)
	api.RegisterPodsServer(server, s)
	return nodesocket.Serve(ctx, filepath.Join(dir, Socket), "who asks for pods", server)
}

// count counts a request.
func (s *Server) count(method, version string, err error) {
	code := status.Code(err)
	if errors.Is(err, context.Canceled) {
		code = codes.Canceled
	}
	s.cfg.Count.PodsAsked(method, version, code.String())
}

// pods returns the node's pods in the order of their UIDs.
func (s *Server) pods() ([]*v1.Pod, error) {
	if !s.cfg.Known() {
		return nil, status.Error(codes.FailedPrecondition, "Kubelet is initializing")
	}
	all := s.cfg.Pods()
	slices.SortFunc(all, func(a, b *v1.Pod) int { return strings.Compare(string(a.UID), string(b.UID)) })
	return all, nil
}

// marshal encodes a pod, in the phase that it is in while nothing is known of it.
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

// ListPods implements api.PodsServer.
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

// GetPod implements api.PodsServer.
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

// WatchPods implements api.PodsServer.
func (s *Server) WatchPods(_ *api.WatchPodsRequest, stream api.Pods_WatchPodsServer) error {
	if !s.cfg.Known() {
		return status.Error(codes.FailedPrecondition, "Kubelet is initializing")
	}
	c := &client{events: make(chan event, behind)}
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
			case e.gone && !known[e.pod.UID]:
				continue
			case e.gone:
				kind = api.EventType_DELETED
				delete(known, e.pod.UID)
			case !known[e.pod.UID]:
				kind = api.EventType_ADDED
				known[e.pod.UID] = true
			}
			if e.gone {
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
