package scheduler

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	configv1 "k8s.io/kube-scheduler/config/v1"
	extenderv1 "k8s.io/kube-scheduler/extender/v1"

	"hyperkube/components/scheduler/framework"
	"hyperkube/components/scheduler/state"
)

// extender is a scheduler extender: an HTTP server that filters, scores, binds or preempts in addition to the plugins.
// Its methods are safe for concurrent use. https://kubernetes.io/docs/reference/config-api/kube-scheduler-config.v1/
type extender struct {
	cfg  *configv1.Extender
	http *http.Client
	// managed are the resources that a pod must request to be sent to this extender. If nil, all
	// pods are sent.
	managed map[corev1.ResourceName]bool
}

// maxExtenderAnswer is the maximum size in bytes of an extender's response.
const maxExtenderAnswer = 64 << 20

// newExtender validates the configuration of an extender and reads its certificates. It does not connect. As
// upstream, it does not verify the certificate of an extender that uses HTTPS without a CA.
func newExtender(cfg *configv1.Extender) (*extender, error) {
	if cfg.URLPrefix == "" {
		return nil, fmt.Errorf("an extender has no urlPrefix")
	}
	if cfg.PrioritizeVerb != "" && cfg.Weight <= 0 {
		return nil, fmt.Errorf("extender %s: weight must be positive", cfg.URLPrefix)
	}
	transport := &http.Transport{MaxIdleConnsPerHost: 16}
	if t := cfg.TLSConfig; t != nil {
		conf := &tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: t.Insecure, ServerName: t.ServerName}
		ca, err := dataOr(t.CAData, t.CAFile)
		if err != nil {
			return nil, fmt.Errorf("extender %s: %w", cfg.URLPrefix, err)
		}
		if len(ca) > 0 {
			conf.RootCAs = x509.NewCertPool()
			if !conf.RootCAs.AppendCertsFromPEM(ca) {
				return nil, fmt.Errorf("extender %s: CA data contains no certificate", cfg.URLPrefix)
			}
		}
		cert, err := dataOr(t.CertData, t.CertFile)
		if err != nil {
			return nil, fmt.Errorf("extender %s: %w", cfg.URLPrefix, err)
		}
		key, err := dataOr(t.KeyData, t.KeyFile)
		if err != nil {
			return nil, fmt.Errorf("extender %s: %w", cfg.URLPrefix, err)
		}
		if len(cert) > 0 {
			pair, err := tls.X509KeyPair(cert, key)
			if err != nil {
				return nil, fmt.Errorf("extender %s: %w", cfg.URLPrefix, err)
			}
			conf.Certificates = []tls.Certificate{pair}
		}
		transport.TLSClientConfig = conf
	}
	if conf := transport.TLSClientConfig; cfg.EnableHTTPS && (conf == nil || conf.RootCAs == nil) {
		// Without a CA, the extender's certificate is not verified, like upstream.
		if conf == nil {
			conf = &tls.Config{MinVersion: tls.VersionTLS12}
			transport.TLSClientConfig = conf
		}
		conf.InsecureSkipVerify = true
	}
	timeout := cfg.HTTPTimeout.Duration
	if timeout == 0 {
		timeout = 5 * time.Second
	}
	e := &extender{cfg: cfg, http: &http.Client{Transport: transport, Timeout: timeout}}
	if len(cfg.ManagedResources) > 0 {
		e.managed = map[corev1.ResourceName]bool{}
		for _, r := range cfg.ManagedResources {
			e.managed[corev1.ResourceName(r.Name)] = true
		}
	}
	return e, nil
}

// dataOr returns data, the inline value of a setting, or if it is empty the content of file. If both are empty, the
// setting is not configured and the result is empty.
func dataOr(data []byte, file string) ([]byte, error) {
	if len(data) > 0 || file == "" {
		return data, nil
	}
	return os.ReadFile(file)
}

// interested reports whether a pod must be sent to the extender: if the extender manages all pods, or a resource that
// one of the pod's containers requests.
func (e *extender) interested(pod *corev1.Pod) bool {
	if e.managed == nil {
		return true
	}
	for _, containers := range [][]corev1.Container{pod.Spec.Containers, pod.Spec.InitContainers} {
		for i := range containers {
			for name := range containers[i].Resources.Requests {
				if e.managed[name] {
					return true
				}
			}
			for name := range containers[i].Resources.Limits {
				if e.managed[name] {
					return true
				}
			}
		}
	}
	return false
}

// call sends the request in to the extender's path for verb and decodes the response into out. It returns an error if
// the HTTP status is not 200. Responses longer than maxExtenderAnswer are truncated, so they cannot be decoded.
func (e *extender) call(ctx context.Context, verb string, in, out any) error {
	body, err := json.Marshal(in)
	if err != nil {
		return fmt.Errorf("encoding request for extender %s: %w", e.cfg.URLPrefix, err)
	}
	url := strings.TrimRight(e.cfg.URLPrefix, "/") + "/" + verb
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("calling extender %s: %w", url, err)
	}
	r.Header.Set("Content-Type", "application/json")
	answer, err := e.http.Do(r)
	if err != nil {
		return fmt.Errorf("calling extender: %w", err)
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("failed %v with extender at URL %v, code %v", verb, url, answer.StatusCode)
	}
	if err := json.NewDecoder(io.LimitReader(answer.Body, maxExtenderAnswer)).Decode(out); err != nil {
		return fmt.Errorf("decoding response of extender %s: %w", url, err)
	}
	return nil
}

// args returns the request for a pod and nodes. It contains the complete nodes, or only their names if the extender
// caches nodes.
func (e *extender) args(pod *corev1.Pod, nodes []*state.Node) *extenderv1.ExtenderArgs {
	args := &extenderv1.ExtenderArgs{Pod: pod}
	if e.cfg.NodeCacheCapable {
		names := make([]string, len(nodes))
		for i, n := range nodes {
			names[i] = n.Name
		}
		args.NodeNames = &names
		return args
	}
	args.Nodes = &corev1.NodeList{Items: make([]corev1.Node, len(nodes))}
	for i, n := range nodes {
		args.Nodes.Items[i] = *n.Object
	}
	return args
}

// filter returns the nodes that the extender accepts for a pod, and the response, which contains the reasons for the
// other nodes.
func (e *extender) filter(ctx context.Context, pod *corev1.Pod, nodes []*state.Node) ([]*state.Node, *extenderv1.ExtenderFilterResult, error) {
	var result extenderv1.ExtenderFilterResult
	if err := e.call(ctx, e.cfg.FilterVerb, e.args(pod, nodes), &result); err != nil {
		return nil, nil, err
	}
	if result.Error != "" {
		return nil, nil, fmt.Errorf("extender %s: %s", e.cfg.URLPrefix, result.Error)
	}
	passed := map[string]bool{}
	switch {
	case result.NodeNames != nil:
		for _, name := range *result.NodeNames {
			passed[name] = true
		}
	case result.Nodes != nil:
		for i := range result.Nodes.Items {
			passed[result.Nodes.Items[i].Name] = true
		}
	}
	var left []*state.Node
	for _, n := range nodes {
		if passed[n.Name] {
			left = append(left, n)
		}
	}
	return left, &result, nil
}

// bind requests that the extender binds a pod to the node in b.
func (e *extender) bind(ctx context.Context, b *corev1.Binding) error {
	var result extenderv1.ExtenderBindingResult
	err := e.call(ctx, e.cfg.BindVerb, &extenderv1.ExtenderBindingArgs{
		PodName: b.Name, PodNamespace: b.Namespace, PodUID: b.UID, Node: b.Target.Name,
	}, &result)
	if err == nil && result.Error != "" {
		err = fmt.Errorf("extender %s: %s", e.cfg.URLPrefix, result.Error)
	}
	return err
}

// preempt sends the candidates for preemption, found, to the extender and returns those that it selects. The extender
// may omit nodes and choose other victims on a node. It returns an error if the response contains an unknown node or
// pod.
func (e *extender) preempt(ctx context.Context, pod *corev1.Pod, found []*victims, now time.Time) ([]*victims, error) {
	args := extenderv1.ExtenderPreemptionArgs{Pod: pod}
	nodes := map[string]*state.Node{}
	for _, v := range found {
		nodes[v.node.Name] = v.node
		if e.cfg.NodeCacheCapable {
			meta := &extenderv1.MetaVictims{Pods: []*extenderv1.MetaPod{}, NumPDBViolations: int64(v.violations)}
			for _, p := range v.pods {
				meta.Pods = append(meta.Pods, &extenderv1.MetaPod{UID: string(p.Object.UID)})
			}
			if args.NodeNameToMetaVictims == nil {
				args.NodeNameToMetaVictims = map[string]*extenderv1.MetaVictims{}
			}
			args.NodeNameToMetaVictims[v.node.Name] = meta
			continue
		}
		whole := &extenderv1.Victims{Pods: []*corev1.Pod{}, NumPDBViolations: int64(v.violations)}
		for _, p := range v.pods {
			whole.Pods = append(whole.Pods, p.Object)
		}
		if args.NodeNameToVictims == nil {
			args.NodeNameToVictims = map[string]*extenderv1.Victims{}
		}
		args.NodeNameToVictims[v.node.Name] = whole
	}
	// The response contains UIDs, whatever the format of the request.
	var result extenderv1.ExtenderPreemptionResult
	if err := e.call(ctx, e.cfg.PreemptVerb, &args, &result); err != nil {
		return nil, err
	}
	var left []*victims
	for name, meta := range result.NodeNameToMetaVictims {
		n := nodes[name]
		if n == nil {
			return nil, fmt.Errorf("extender: %s claims to preempt pods on node %s, which was not among those it was asked about", e.cfg.URLPrefix, name)
		}
		if meta == nil || len(meta.Pods) == 0 {
			if e.cfg.Ignorable {
				continue
			}
			return nil, fmt.Errorf("expected at least one victim pod on node %q", name)
		}
		v := &victims{node: n, violations: int(meta.NumPDBViolations)}
		for _, m := range meta.Pods {
			i := slices.IndexFunc(n.Pods, func(p *state.Pod) bool { return m != nil && string(p.Object.UID) == m.UID })
			if i < 0 {
				return nil, fmt.Errorf("extender: %s claims to preempt pod (UID: %v) on node: %s, but the pod is not found on that node", e.cfg.URLPrefix, m, name)
			}
			v.pods = append(v.pods, n.Pods[i])
		}
		slices.SortStableFunc(v.pods, func(a, b *state.Pod) int { return byImportance(a, b, now) })
		left = append(left, v)
	}
	return left, nil
}

// extendPreempt passes the candidates for preemption through all extenders in order and returns the remaining ones. An
// error of an ignorable extender is logged and the extender skipped; other errors are returned.
func (s *Scheduler) extendPreempt(ctx context.Context, pod *corev1.Pod, found []*victims, now time.Time) ([]*victims, error) {
	for _, e := range s.extended {
		if e.cfg.PreemptVerb == "" || !e.interested(pod) || len(found) == 0 {
			continue
		}
		left, err := e.preempt(ctx, pod, found, now)
		if err != nil {
			if e.cfg.Ignorable {
				s.cfg.Log.Warn("scheduler extender failed to filter preemption victims; victims for this pod are chosen without the extender, because it is configured as ignorable", "extender", e.cfg.URLPrefix, "pod", pod.Namespace+"/"+pod.Name, "err", err)
				continue
			}
			return nil, err
		}
		found = left
	}
	return found, nil
}

// extendFilter passes the nodes that fit through all extenders in order and returns the remaining ones. It adds the
// reasons for rejected nodes to failed. After a rejection, any event retries the pod, because the scheduler does not
// know which events matter to an extender. An error of an ignorable extender is logged and the extender skipped; other
// errors are returned.
func (s *Scheduler) extendFilter(ctx context.Context, pod *corev1.Pod, nodes []*state.Node, failed *fitError) ([]*state.Node, error) {
	for _, e := range s.extended {
		if e.cfg.FilterVerb == "" || !e.interested(pod) || len(nodes) == 0 {
			continue
		}
		left, result, err := e.filter(ctx, pod, nodes)
		if err != nil {
			if e.cfg.Ignorable {
				s.cfg.Log.Warn("scheduler extender failed to filter nodes; this pod is scheduled without the filter of the extender, because it is configured as ignorable", "extender", e.cfg.URLPrefix, "pod", pod.Namespace+"/"+pod.Name, "err", err)
				continue
			}
			return nil, err
		}
		if len(left) < len(nodes) {
			failed.events = framework.AnyEvent
		}
		for _, n := range nodes {
			// An unresolvable failure takes precedence.
			if text, ok := result.FailedAndUnresolvableNodes[n.Name]; ok {
				failed.reasons[text]++
			} else if text, ok := result.FailedNodes[n.Name]; ok {
				failed.reasons[text]++
				failed.resolvable = append(failed.resolvable, n)
			}
		}
		nodes = left
	}
	return nodes, nil
}

// extendScore returns the sum of all extenders' weighted scores by node name. The scores of an extender that returns an
// error are ignored. It returns nil for a single node, which needs no score.
func (s *Scheduler) extendScore(ctx context.Context, pod *corev1.Pod, nodes []*state.Node) map[string]int64 {
	if len(nodes) < 2 {
		return nil
	}
	sums := map[string]int64{}
	for _, e := range s.extended {
		if e.cfg.PrioritizeVerb == "" || !e.interested(pod) {
			continue
		}
		var list extenderv1.HostPriorityList
		if err := e.call(ctx, e.cfg.PrioritizeVerb, e.args(pod, nodes), &list); err != nil {
			s.cfg.Log.Warn("scheduler extender failed to score nodes; this pod is scheduled without the scores of the extender", "extender", e.cfg.URLPrefix, "pod", pod.Namespace+"/"+pod.Name, "err", err)
			continue
		}
		for _, host := range list {
			sums[host.Host] += host.Score * e.cfg.Weight * (framework.MaxScore / extenderv1.MaxExtenderPriority)
		}
	}
	return sums
}
