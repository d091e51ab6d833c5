// Package events emits events of the node and of its pods to the API server.
package events

import (
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/flowcontrol"

	"hyperkube/components/kubelet/node/nodestatus"
	"hyperkube/internal/base/backoff"
)

// Recorder emits the events of one kubelet about its node and pods. Its methods are safe for concurrent use
// and do not block.
type Recorder struct {
	record.EventRecorder
	nodeName    string
	broadcaster record.EventBroadcaster
	stopped     chan struct{} // closed by Shutdown
}

// New returns a Recorder of events about the node nodeName and its pods, which discards events until Start is
// called.
func New(nodeName string) *Recorder {
	b := record.NewBroadcaster()
	return &Recorder{
		EventRecorder: b.NewRecorder(scheme.Scheme, v1.EventSource{Component: "kubelet", Host: nodeName}),
		nodeName:      nodeName, broadcaster: b, stopped: make(chan struct{}),
	}
}

// Start sends events to the API server, at most qps per second on average, and at most burst in a burst. A
// qps of 0 means no limit.
func (r *Recorder) Start(kube kubernetes.Interface, qps int32, burst int) {
	var sink record.EventSink = &typedcorev1.EventSinkImpl{Interface: kube.CoreV1().Events("")}
	if qps > 0 {
		sink = &limitedSink{EventSink: sink, limit: flowcontrol.NewTokenBucketRateLimiter(float32(qps), burst)}
	}
	r.broadcaster.StartRecordingToSink(&startSink{EventSink: sink, stopped: r.stopped, started: time.Now()})
}

// Shutdown stops sending events. Events that were not sent yet are lost.
func (r *Recorder) Shutdown() {
	close(r.stopped)
	r.broadcaster.Shutdown()
}

// Node emits an event about the node. kind is Normal or Warning.
func (r *Recorder) Node(kind, reason, message string) {
	r.Event(nodestatus.Reference(r.nodeName), kind, reason, message)
}

// NodeWarning emits a Warning event about the node.
func (r *Recorder) NodeWarning(reason, message string) {
	r.Node(v1.EventTypeWarning, reason, message)
}

// NodeNormal emits a Normal event about the node.
func (r *Recorder) NodeNormal(reason, message string) { r.Node(v1.EventTypeNormal, reason, message) }

// PodWarning emits a Warning event about a pod.
func (r *Recorder) PodWarning(pod *v1.Pod, reason, message string) {
	r.Event(podReference(pod), v1.EventTypeWarning, reason, message)
}

// DuplicateStaticPod emits a Warning event about the static pod of a manifest file that is not run because
// another manifest has a pod of the same name.
func (r *Recorder) DuplicateStaticPod(p *v1.Pod) {
	r.Eventf(podReference(p), v1.EventTypeWarning, "FailedValidation", "Error validating pod %s_%s(%s) from %s due to duplicate pod name %q, ignoring", p.Name, p.Namespace, p.UID, "file", p.Name)
}

// podReference returns the reference to a pod in events.
func podReference(pod *v1.Pod) *v1.ObjectReference {
	return &v1.ObjectReference{Kind: "Pod", APIVersion: "v1", Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID}
}

// limitedSink is an event sink that delays events above the rate limit.
type limitedSink struct {
	record.EventSink
	limit flowcontrol.RateLimiter
}

// Create creates an event in the API when the rate limit permits it.
func (s *limitedSink) Create(e *v1.Event) (*v1.Event, error) {
	s.limit.Accept()
	return s.EventSink.Create(e)
}

// Update updates an event in the API when the rate limit permits it.
func (s *limitedSink) Update(e *v1.Event) (*v1.Event, error) {
	s.limit.Accept()
	return s.EventSink.Update(e)
}

// Patch patches an event in the API when the rate limit permits it.
func (s *limitedSink) Patch(old *v1.Event, data []byte) (*v1.Event, error) {
	s.limit.Accept()
	return s.EventSink.Patch(old, data)
}

// startTolerance is how long after the start of the kubelet the API server may not serve events yet.
const startTolerance = time.Minute

// startSink is an event sink that repeats requests while the API server of a new control plane, which this kubelet starts,
// accepts no connections or does not have the namespace of events about nodes. The caller would drop such events.
type startSink struct {
	record.EventSink
	stopped <-chan struct{} // closed when the kubelet stops
	started time.Time
}

// Create creates an event in the API. It blocks while the API server does not serve events yet.
func (s *startSink) Create(e *v1.Event) (*v1.Event, error) {
	retry := backoff.Backoff{First: 50 * time.Millisecond, Max: time.Second}
	for {
		made, err := s.EventSink.Create(e)
		notServed := utilnet.IsConnectionRefused(err) || e.Namespace == metav1.NamespaceDefault && apierrors.IsNotFound(err)
		if !notServed || time.Since(s.started) >= startTolerance {
			return made, err
		}
		select {
		case <-time.After(retry.Next()):
		case <-s.stopped:
			return made, err
		}
	}
}
