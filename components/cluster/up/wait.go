package up

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"

	"hyperkube/internal/lifecycle"
)

// until blocks until the informer has an object that is as wanted.
func until[T any](ctx context.Context, informer cache.SharedIndexInformer, wanted func(T) bool) error {
	found := make(chan struct{}, 1)
	look := func(obj any) {
		if typed, ok := obj.(T); ok && wanted(typed) {
			select {
			case found <- struct{}{}:
			default:
			}
		}
	}
	registration, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: look, UpdateFunc: func(_, obj any) { look(obj) }})
	if err != nil {
		return err
	}
	defer func() { _ = informer.RemoveEventHandler(registration) }() // fails only for one that is none
	select {
	case <-found:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// readyCondition is the condition that says whether a node is ready, nil
// before it says anything.
func readyCondition(node *corev1.Node) *corev1.NodeCondition {
	i := slices.IndexFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool { return c.Type == corev1.NodeReady })
	if i < 0 {
		return nil
	}
	return &node.Status.Conditions[i]
}

// waitNodeReady blocks until the node's Ready condition is true.
func waitNodeReady(ctx context.Context, nodes cache.SharedIndexInformer, name string) error {
	return until(ctx, nodes, func(node *corev1.Node) bool {
		c := readyCondition(node)
		return node.Name == name && c != nil && c.Status == corev1.ConditionTrue
	})
}

// describeNode says why a node is not ready.
func describeNode(ctx context.Context, kube kubernetes.Interface, name string) string {
	node, err := kube.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return err.Error()
	}
	if c := readyCondition(node); c != nil {
		return c.Message
	}
	return "its kubelet says nothing yet"
}

// dnsWait waits for the cluster's DNS.
type dnsWait struct {
	slices cache.SharedIndexInformer
	kube   kubernetes.Interface
	server string // the service's address and port
	domain string
	// said is what the service last said when it was asked; nil: it was not
	// asked yet, for there is no endpoint.
	said atomic.Pointer[string]
}

// wait blocks until DNS has an endpoint and answers by its address.
func (w *dnsWait) wait(ctx context.Context) error {
	err := until(ctx, w.slices, func(slice *discoveryv1.EndpointSlice) bool {
		return slice.Namespace == metav1.NamespaceSystem && slice.Labels[discoveryv1.LabelServiceName] == "kube-dns" &&
			slices.ContainsFunc(slice.Endpoints, func(e discoveryv1.Endpoint) bool { return ptr.Deref(e.Conditions.Ready, false) })
	})
	if err != nil {
		return err
	}
	return w.ask(ctx)
}

// ask asks until there is an answer: the proxy leads there a moment after the
// endpoint is known, of which this process hears nothing. A question that comes
// before the proxy's rules leaves the machine and is lost without a word, so
// the first answers are not waited for long.
func (w *dnsWait) ask(ctx context.Context) error {
	query := new(dns.Msg).SetQuestion(dns.Fqdn("kubernetes.default.svc."+w.domain), dns.TypeA)
	wait := 10 * time.Millisecond
	for {
		began := time.Now()
		client := dns.Client{Timeout: wait}
		answer, _, err := client.ExchangeContext(ctx, query, w.server)
		if err == nil && answer.Rcode == dns.RcodeSuccess {
			return nil
		}
		if err == nil {
			err = fmt.Errorf("it answers %s", dns.RcodeToString[answer.Rcode])
		}
		text := fmt.Sprintf("its pod is ready, but asked at %s: %v", w.server, err)
		w.said.Store(&text)
		if !lifecycle.Pause(ctx, wait-time.Since(began)) {
			return errors.Join(context.Cause(ctx), err)
		}
		wait = min(2*wait, time.Second)
	}
}

// describe says what stands in the way: what DNS answers or, while it has no
// endpoint, how its pods are.
func (w *dnsWait) describe(ctx context.Context) string {
	if said := w.said.Load(); said != nil {
		return *said
	}
	pods, err := w.kube.CoreV1().Pods(metav1.NamespaceSystem).List(ctx, metav1.ListOptions{LabelSelector: "k8s-app=kube-dns"})
	if err != nil {
		return err.Error()
	}
	if len(pods.Items) == 0 {
		return "it has no pod yet"
	}
	var texts []string
	for i := range pods.Items {
		texts = append(texts, describePod(ctx, w.kube, &pods.Items[i]))
	}
	return strings.Join(texts, "; ")
}

// describePod says in a line how a pod is, with its last event.
func describePod(ctx context.Context, kube kubernetes.Interface, pod *corev1.Pod) string {
	var b strings.Builder
	fmt.Fprintf(&b, "pod %s is %s", pod.Name, pod.Status.Phase)
	for _, s := range pod.Status.ContainerStatuses {
		if s.State.Waiting != nil {
			fmt.Fprintf(&b, ", container %s waits: %s %s", s.Name, s.State.Waiting.Reason, s.State.Waiting.Message)
		} else if !s.Ready {
			fmt.Fprintf(&b, ", container %s is not ready", s.Name)
		}
	}
	events, err := kube.CoreV1().Events(pod.Namespace).List(ctx, metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector("involvedObject.name", pod.Name).String(),
	})
	if err != nil || len(events.Items) == 0 {
		return b.String()
	}
	last := slices.MaxFunc(events.Items, func(a, b corev1.Event) int { return eventTime(&a).Compare(eventTime(&b)) })
	fmt.Fprintf(&b, "; its last event: %s: %s", last.Reason, last.Message)
	return b.String()
}

// eventTime is when an event was last seen, however it was reported.
func eventTime(e *corev1.Event) time.Time {
	at := e.CreationTimestamp.Time
	for _, t := range []time.Time{e.LastTimestamp.Time, e.EventTime.Time} {
		if t.After(at) {
			at = t
		}
	}
	return at
}
