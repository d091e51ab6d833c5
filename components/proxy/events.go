package proxy

import (
	"context"
	"fmt"
	"os"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// createUnservedEvent creates a warning event for a Service whose health check port this node
// cannot listen on because of cause. It writes to the API directly, because the event is too rare
// to justify a recorder.
func (p *Proxy) createUnservedEvent(ctx context.Context, service serviceName, port uint16, cause error) {
	now := time.Now()
	host, err := os.Hostname()
	if err != nil {
		host = p.cfg.NodeName
	}
	event := &eventsv1.Event{
		ObjectMeta:          metav1.ObjectMeta{Namespace: service.Namespace, Name: fmt.Sprintf("%s.%x", service.Name, now.UnixNano())},
		EventTime:           metav1.NewMicroTime(now),
		ReportingController: "kube-proxy", ReportingInstance: "kube-proxy-" + host,
		Action: "Listen", Reason: "FailedToStartServiceHealthcheck", Type: corev1.EventTypeWarning,
		Regarding: corev1.ObjectReference{APIVersion: "v1", Kind: "Service", Namespace: service.Namespace, Name: service.Name},
		Note:      fmt.Sprintf("node %s failed to start healthcheck %q on port %d: %v", p.cfg.NodeName, service.Namespace+"/"+service.Name, port, cause),
	}
	if _, err := p.cfg.Clients.Kube.EventsV1().Events(service.Namespace).Create(ctx, event, metav1.CreateOptions{}); err != nil && ctx.Err() == nil {
		p.cfg.Log.Warn("creating event about a health check port that this node cannot listen on failed; users see this problem of the Service only in this log, no retry of the event", "service", service.Namespace+"/"+service.Name, "port", port, "err", err)
	}
}
