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
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"

	"hyperkube/components/cluster/addons"
	"hyperkube/components/cluster/clusterconfig"
	"hyperkube/internal/base/backoff"
	"hyperkube/internal/base/lifecycle"
)

// waitForObject blocks until the informer has an object for which match returns true. Existing objects count too. When
// ctx is done, it returns its cause. The caller starts the informer.
func waitForObject[T any](ctx context.Context, informer cache.SharedIndexInformer, match func(T) bool) error {
	found := make(chan struct{}, 1)
	check := func(obj any) {
		if typed, ok := obj.(T); ok && match(typed) {
			select {
			case found <- struct{}{}:
			default:
			}
		}
	}
	registration, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: check, UpdateFunc: func(_, obj any) { check(obj) }})
	if err != nil {
		return err
	}
	defer func() { _ = informer.RemoveEventHandler(registration) }() // fails only for an unknown registration
	select {
	case <-found:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// readyCondition returns the Ready condition of a node; nil if it has none yet.
func readyCondition(node *corev1.Node) *corev1.NodeCondition {
	i := slices.IndexFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool { return c.Type == corev1.NodeReady })
	if i < 0 {
		return nil
	}
	return &node.Status.Conditions[i]
}

// waitNodeReady blocks until the node's Ready condition is true.
func waitNodeReady(ctx context.Context, nodes cache.SharedIndexInformer, name string) error {
	return waitForObject(ctx, nodes, func(node *corev1.Node) bool {
		c := readyCondition(node)
		return node.Name == name && c != nil && c.Status == corev1.ConditionTrue
	})
}

// labelControlPlane labels the node as a control plane node. NodeRestriction does not let the kubelet set this label.
// The node gets no taint, because it runs all pods.
func labelControlPlane(ctx context.Context, kube kubernetes.Interface, name string) error {
	patch := fmt.Appendf(nil, `{"metadata":{"labels":{%q:""}}}`, clusterconfig.ControlPlaneRole)
	if _, err := kube.CoreV1().Nodes().Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: addons.FieldManager}); err != nil {
		return fmt.Errorf("labeling node %s as control plane: %w", name, err)
	}
	return nil
}

// describeNode returns the message of the node's Ready condition, or why that cannot be read.
func describeNode(ctx context.Context, kube kubernetes.Interface, name string) string {
	node, err := kube.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return err.Error()
	}
	if c := readyCondition(node); c != nil {
		return c.Message
	}
	return "the kubelet has not posted the node status yet"
}

// dnsWait waits for the cluster's DNS.
type dnsWait struct {
	slices cache.SharedIndexInformer
	kube   kubernetes.Interface
	server string // IP address and port of the service
	domain string
	// lastResult describes the last failed query; nil if there was none, because there is no endpoint
	// yet.
	lastResult atomic.Pointer[string]
}

// wait blocks until DNS has an endpoint and answers at its service IP.
func (w *dnsWait) wait(ctx context.Context) error {
	err := waitForObject(ctx, w.slices, func(slice *discoveryv1.EndpointSlice) bool {
		return slice.Namespace == metav1.NamespaceSystem && slice.Labels[discoveryv1.LabelServiceName] == "kube-dns" &&
			slices.ContainsFunc(slice.Endpoints, func(e discoveryv1.Endpoint) bool { return ptr.Deref(e.Conditions.Ready, false) })
	})
	if err != nil {
		return err
	}
	return w.queryUntilAnswered(ctx)
}

// queryUntilAnswered sends queries until one is answered successfully or ctx is done. kube-proxy writes its rules a
// moment after the endpoint appears, without a notification to this process. A query that is sent earlier leaves the
// machine and is lost without an error, so the timeout of the first queries is short.
func (w *dnsWait) queryUntilAnswered(ctx context.Context) error {
	query := new(dns.Msg).SetQuestion(dns.Fqdn("kubernetes.default.svc."+w.domain), dns.TypeA)
	retry := backoff.Backoff{First: 10 * time.Millisecond, Max: time.Second}
	for {
		began, wait := time.Now(), retry.Next()
		client := dns.Client{Timeout: wait}
		answer, _, err := client.ExchangeContext(ctx, query, w.server)
		if err == nil && answer.Rcode == dns.RcodeSuccess {
			return nil
		}
		if err == nil {
			err = fmt.Errorf("response code %s", dns.RcodeToString[answer.Rcode])
		}
		text := fmt.Sprintf("the DNS pod is ready, but a query to %s failed: %v", w.server, err)
		w.lastResult.Store(&text)
		if !lifecycle.Pause(ctx, wait-time.Since(began)) {
			return errors.Join(context.Cause(ctx), err)
		}
	}
}

// describe describes why DNS is not ready: the last failed query or, without an endpoint, the state
// of its pods.
func (w *dnsWait) describe(ctx context.Context) string {
	if result := w.lastResult.Load(); result != nil {
		return *result
	}
	pods, err := w.kube.CoreV1().Pods(metav1.NamespaceSystem).List(ctx, metav1.ListOptions{LabelSelector: "k8s-app=kube-dns"})
	if err != nil {
		return err.Error()
	}
	if len(pods.Items) == 0 {
		return "there is no DNS pod yet"
	}
	var texts []string
	scheduled := true
	for i := range pods.Items {
		texts = append(texts, describePod(ctx, w.kube, &pods.Items[i]))
		scheduled = scheduled && pods.Items[i].Spec.NodeName != ""
	}
	if !scheduled {
		texts = append(texts, describePressure(ctx, w.kube)...)
	}
	return strings.Join(texts, "; ")
}

// describePressure returns a sentence with the remedy for each pressure condition of the nodes. The scheduler's message
// does not name the taint of such a condition.
func describePressure(ctx context.Context, kube kubernetes.Interface) []string {
	nodes, err := kube.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil
	}
	remedies := map[corev1.NodeConditionType]string{
		corev1.NodeDiskPressure:   "free disk space",
		corev1.NodeMemoryPressure: "stop programs that use much memory",
		corev1.NodePIDPressure:    "stop programs with many processes",
	}
	var texts []string
	for i := range nodes.Items {
		for _, c := range nodes.Items[i].Status.Conditions {
			if remedy := remedies[c.Type]; remedy != "" && c.Status == corev1.ConditionTrue {
				texts = append(texts, fmt.Sprintf("node %s has %s, so no pod starts there: %s (`hyperkube check` shows how much is missing)", nodes.Items[i].Name, c.Type, remedy))
			}
		}
	}
	return texts
}

// describePod describes the phase and the containers that are not ready of a pod in one line, with its last event if
// events can be read.
func describePod(ctx context.Context, kube kubernetes.Interface, pod *corev1.Pod) string {
	var b strings.Builder
	fmt.Fprintf(&b, "pod %s is %s", pod.Name, pod.Status.Phase)
	for _, s := range pod.Status.ContainerStatuses {
		if s.State.Waiting != nil {
			fmt.Fprintf(&b, ", container %s is waiting: %s %s", s.Name, s.State.Waiting.Reason, s.State.Waiting.Message)
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
	fmt.Fprintf(&b, "; last event: %s: %s", last.Reason, last.Message)
	return b.String()
}

// eventTime returns when an event was last seen, however it was reported.
func eventTime(e *corev1.Event) time.Time {
	at := e.CreationTimestamp.Time
	for _, t := range []time.Time{e.LastTimestamp.Time, e.EventTime.Time} {
		if t.After(at) {
			at = t
		}
	}
	return at
}
