package scheduler

import (
	"context"
	"encoding/json"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	configv1 "k8s.io/kube-scheduler/config/v1"
	extenderv1 "k8s.io/kube-scheduler/extender/v1"

	"hyperkube/components/scheduler/framework"
	"hyperkube/components/scheduler/plugins"
	"hyperkube/internal/client"
)

// TestExtender: an extender that rejects node a, prefers node c, and binds.
func TestExtender(t *testing.T) {
	bound := make(chan string, 10)
	mux := http.NewServeMux()
	reply := func(w http.ResponseWriter, v any) { _ = json.NewEncoder(w).Encode(v) }
	mux.HandleFunc("/x/filter", func(w http.ResponseWriter, r *http.Request) {
		var args extenderv1.ExtenderArgs
		if err := json.NewDecoder(r.Body).Decode(&args); err != nil || args.NodeNames == nil {
			http.Error(w, "bad", http.StatusBadRequest)
			return
		}
		result := extenderv1.ExtenderFilterResult{NodeNames: &[]string{}, FailedNodes: extenderv1.FailedNodesMap{}}
		for _, n := range *args.NodeNames {
			if n == "a" || args.Pod.Name == "never" {
				result.FailedNodes[n] = "the extender says no"
			} else {
				*result.NodeNames = append(*result.NodeNames, n)
			}
		}
		reply(w, result)
	})
	mux.HandleFunc("/x/prioritize", func(w http.ResponseWriter, r *http.Request) {
		reply(w, extenderv1.HostPriorityList{{Host: "b", Score: 1}, {Host: "c", Score: 10}})
	})
	mux.HandleFunc("/x/bind", func(w http.ResponseWriter, r *http.Request) {
		var args extenderv1.ExtenderBindingArgs
		_ = json.NewDecoder(r.Body).Decode(&args)
		bound <- args.PodName + " " + args.Node
		reply(w, extenderv1.ExtenderBindingResult{})
	})
	server := httptest.NewServer(mux)
	defer server.Close()
	kube := fake.NewClientset(node("a"), node("b"), node("c"))
	clients := &client.Clients{Kube: kube, Informers: informers.NewSharedInformerFactory(kube, 0)}
	s, err := New(Config{Clients: clients, Extenders: []configv1.Extender{
		{URLPrefix: server.URL + "/gone", FilterVerb: "filter", Ignorable: true, NodeCacheCapable: true},
		{URLPrefix: server.URL + "/x", FilterVerb: "filter", PrioritizeVerb: "prioritize", BindVerb: "bind", Weight: 100, NodeCacheCapable: true},
	}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	done := make(chan error, 1)
	clients.Informers.Start(ctx.Done())
	go func() { done <- s.Run(ctx) }()
	<-s.Ready()
	watch, err := kube.CoreV1().Pods("default").Watch(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"p", "never"} {
		if _, err := kube.CoreV1().Pods("default").Create(ctx, pod(name), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	if got := <-bound; got != "p c" {
		t.Errorf("bound %s", got)
	}
	for e := range watch.ResultChan() {
		p := e.Object.(*corev1.Pod)
		if p.Name == "never" && len(p.Status.Conditions) > 0 {
			if got := p.Status.Conditions[0].Message; got != "0/3 nodes are available: 3 the extender says no. preemption: 0/3 nodes are available: 3 No preemption victims found for incoming pod." {
				t.Errorf("message %q", got)
			}
			break
		}
	}
	watch.Stop()
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	clients.Informers.Shutdown()
}

// TestExtenderAmong: reasons of extenders and filters are merged, extenders can prevent preemption,
// and a pod is retried soon after an extender failed.
func TestExtenderAmong(t *testing.T) {
	s := newIdle(t)
	answer := func(r extenderv1.ExtenderFilterResult) *extender {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _ = json.NewEncoder(w).Encode(r) }))
		t.Cleanup(server.Close)
		e, err := newExtender(&configv1.Extender{URLPrefix: server.URL, FilterVerb: "filter", NodeCacheCapable: true})
		if err != nil {
			t.Fatal(err)
		}
		return e
	}
	for _, n := range []string{"a", "b", "c"} {
		s.inbox.put(message{node: node(n)})
	}
	s.inbox.put(message{pod: pod("large", requests("3"), func(p *corev1.Pod) { p.Spec.NodeName = "a" })})
	s.inbox.put(message{pod: pod("p", requests("2"), func(p *corev1.Pod) { p.Spec.Priority = new(int32(1)) })})
	s.processInbox()
	try := func() *decision {
		t.Helper()
		return s.attempt(t.Context(), s.queue.pop(time.Now()))
	}
	s.extended = []*extender{answer(extenderv1.ExtenderFilterResult{Error: "out of order"})}
	if d := try(); !d.failed || d.item.subQueue != backoffQ {
		t.Errorf("with a failing extender: %+v", d)
	}
	d := s.queue.items["p"]
	d.backoffEnd = time.Now()
	s.extended = []*extender{answer(extenderv1.ExtenderFilterResult{
		NodeNames: &[]string{}, FailedNodes: extenderv1.FailedNodesMap{"b": "not now", "c": "not now"}, FailedAndUnresolvableNodes: extenderv1.FailedNodesMap{"c": "never"},
	})}
	got := try()
	if want := "0/3 nodes are available: 1 Insufficient cpu, 1 never, 1 not now. preemption: found a potential placement for pod on node a, preempting 1 victims"; got.reason != want {
		t.Errorf("message %q, want %q", got.reason, want)
	}
	if len(got.victims) != 1 || got.victims[0].Name != "large" {
		t.Errorf("victims %v", got.victims)
	}
}

// TestExtenderPreempts: an extender chooses the preemption victims.
func TestExtenderPreempts(t *testing.T) {
	meta := func(uids ...string) *extenderv1.MetaVictims {
		v := &extenderv1.MetaVictims{}
		for _, uid := range uids {
			v.Pods = append(v.Pods, &extenderv1.MetaPod{UID: uid})
		}
		return v
	}
	type answer map[string]*extenderv1.MetaVictims
	for name, c := range map[string]struct {
		answer          answer // nil: the extender fails
		ignorable, byID bool
		want            string // "victim of node", or the end of the message
	}{
		"one of two":             {answer{"b": meta("low-b")}, false, true, "low-b of b"},
		"request with full pods": {answer{"a": meta("low-a")}, false, false, "low-a of a"},
		"another pod":            {answer{"a": meta("lower-a")}, false, true, "lower-a of a"},
		"no node left":           {answer{}, false, true, "preemption: no candidate node for preemption"},
		"no victims":             {answer{"a": meta()}, false, true, `preemption: expected at least one victim pod on node "a"`},
		"no victims, ignorable":  {answer{"a": meta(), "b": meta("low-b")}, true, true, "low-b of b"},
		"unknown pod":            {answer{"a": meta("low-b")}, false, true, "but the pod is not found on that node"},
		"fails":                  {nil, false, true, "code 500"},
		"fails, ignorable":       {nil, true, true, "low-a of a"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newIdle(t)
			var asked extenderv1.ExtenderPreemptionArgs
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				_ = json.NewDecoder(r.Body).Decode(&asked)
				if c.answer == nil {
					http.Error(w, "", http.StatusInternalServerError)
					return
				}
				_ = json.NewEncoder(w).Encode(extenderv1.ExtenderPreemptionResult{NodeNameToMetaVictims: c.answer})
			}))
			defer server.Close()
			e, err := newExtender(&configv1.Extender{URLPrefix: server.URL, PreemptVerb: "preempt", NodeCacheCapable: c.byID, Ignorable: c.ignorable})
			if err != nil {
				t.Fatal(err)
			}
			s.extended = []*extender{e}
			on := func(node string, more int32) func(*corev1.Pod) {
				return func(p *corev1.Pod) { p.Spec.NodeName, p.Spec.Priority = node, &more }
			}
			for _, n := range []string{"a", "b"} {
				s.inbox.put(message{node: node(n)})
			}
			// Without the extender, node a would be chosen.
			s.inbox.put(message{pod: pod("low-a", requests("3"), on("a", 1))})
			s.inbox.put(message{pod: pod("lower-a", requests("0"), on("a", 0))})
			s.inbox.put(message{pod: pod("low-b", requests("3"), on("b", 2))})
			s.inbox.put(message{pod: pod("p", requests("3"), func(p *corev1.Pod) { p.Spec.Priority = new(int32(9)) })})
			s.processInbox()
			d := s.attempt(t.Context(), s.queue.pop(time.Now()))
			if (len(asked.NodeNameToMetaVictims) == 2) != c.byID || (len(asked.NodeNameToVictims) == 2) == c.byID || asked.Pod == nil || asked.Pod.Name != "p" {
				t.Errorf("asked %+v", asked)
			}
			got := d.reason
			if len(d.victims) == 1 {
				got = d.victims[0].Name + " of " + d.victims[0].Spec.NodeName
			}
			if !strings.HasSuffix(got, c.want) {
				t.Errorf("%q, want %q", got, c.want)
			}
		})
	}
}

// TestIgnoredByScheduler: a resource that an extender manages need not exist on a node, regardless
// of other ignored resources. Ignorable extenders are called last.
func TestIgnoredByScheduler(t *testing.T) {
	const extenders = `
extenders:
- {urlPrefix: "http://a", filterVerb: filter, ignorable: true}
- {urlPrefix: "http://b", filterVerb: filter, managedResources: [{name: example.com/gpu-mem, ignoredByScheduler: true}, {name: example.com/other}]}
`
	const fit = `
profiles:
- {schedulerName: default-scheduler, pluginConfig: [{name: NodeResourcesFit, args: {ignoredResources: [example.com/own]}}]}
`
	for name, text := range map[string]string{"without profiles": "", "with one": fit} {
		cfg, err := parseConfig([]byte("apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n" + extenders + text))
		if err != nil {
			t.Fatal(err)
		}
		profiles, err := profiles(cfg)
		if err != nil {
			t.Fatal(err)
		}
		kube := fake.NewClientset()
		s, err := New(Config{Clients: &client.Clients{Kube: kube, Informers: informers.NewSharedInformerFactory(kube, 0)}, Profiles: profiles, Extenders: cfg.Extenders})
		if err != nil {
			t.Fatal(err)
		}
		if len(s.extended) != 2 || s.extended[0].cfg.URLPrefix != "http://b" {
			t.Errorf("%s: extenders %+v", name, s.extended)
		}
		i := slices.IndexFunc(profiles[0].Plugins.Filter, func(f framework.Filter) bool { return f.Name() == plugins.NodeResourcesFit{}.Name() })
		if fit, ok := profiles[0].Plugins.Filter[i].(plugins.NodeResourcesFit); !ok || !maps.Equal(fit.Ignored, map[corev1.ResourceName]bool{"example.com/gpu-mem": true}) {
			t.Errorf("%s: %+v is ignored", name, fit.Ignored)
		}
	}
}
