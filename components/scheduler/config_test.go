package scheduler

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"hyperkube/components/scheduler/framework"
	"hyperkube/components/scheduler/plugins"
	"hyperkube/components/scheduler/state"
)

const configHead = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"

func TestProfiles(t *testing.T) {
	cfg, err := parseConfig([]byte(configHead + `
leaderElection: {leaderElect: false}
profiles:
- schedulerName: default-scheduler
- schedulerName: packer
  plugins:
    score:
      disabled: [{name: "*"}]
      enabled: [{name: NodeResourcesFit, weight: 5}, {name: TaintToleration}]
    postFilter:
      disabled: [{name: DefaultPreemption}]
    multiPoint:
      disabled: [{name: NodePorts}, {name: VolumeBinding}]
  pluginConfig:
  - name: NodeResourcesFit
    args:
      apiVersion: kubescheduler.config.k8s.io/v1
      kind: NodeResourcesFitArgs
      ignoredResourceGroups: [example.com]
      scoringStrategy:
        type: RequestedToCapacityRatio
        resources: [{name: cpu, weight: 3}]
        requestedToCapacityRatio: {shape: [{utilization: 0, score: 0}, {utilization: 100, score: 10}]}
  - name: PodTopologySpread
    args: {defaultingType: List, defaultConstraints: [{maxSkew: 1, topologyKey: zone, whenUnsatisfiable: DoNotSchedule}]}
  - name: InterPodAffinity
    args: {hardPodAffinityWeight: 7}
  - name: NodeAffinity
    args: {addedAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: pool, operator: In, values: [big]}]}]}}}
`))
	if err != nil {
		t.Fatal(err)
	}
	profiles, err := profiles(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if len(profiles) != 2 || profiles[0].SchedulerName != "default-scheduler" || profiles[1].SchedulerName != "packer" {
		t.Fatalf("profiles: %+v", profiles)
	}
	if p := profiles[0].Plugins; len(p.Score) != 8 || len(p.Filter) != 14 || p.Preemption == nil || p.Devices == nil {
		t.Errorf("the default profile: %+v", p)
	}
	p := profiles[1].Plugins
	if p.Preemption != nil || len(p.Filter) != 12 || len(p.Score) != 2 || p.Score[0].Name() != "TaintToleration" || p.Score[0].Weight != 1 ||
		p.Score[1].Name() != "NodeResourcesFit" || p.Score[1].Weight != 5 {
		t.Errorf("the other profile: %+v", p)
	}
	s := state.New()
	for _, n := range []*corev1.Node{node("a"), node("b"), node("c")} {
		if n.Name != "c" {
			n.Labels["pool"] = "big"
		}
		s.SetNode(n)
	}
	s.SetPod(state.NewPod(pod("q", requests("1"))), "b")
	// The node of the pool with more requested resources.
	n, failed := findNode(&framework.Cycle{Pod: state.NewPod(pod("p", requests("1"))), State: s}, &p, nil)
	if n == nil || n.Name != "b" {
		t.Errorf("placed on %v: %v", n, failed)
	}
	// The pod's services select it, and no node has the topology label.
	_, failed = findNode(&framework.Cycle{
		Pod: state.NewPod(pod("p", requests("1"))), State: s,
		SpreadSelector: func(*corev1.Pod) labels.Selector { return labels.SelectorFromSet(labels.Set{"app": "web"}) },
	}, &p, nil)
	want := "0/3 nodes are available: 1 node(s) didn't match scheduler-enforced node affinity, 2 node(s) didn't match pod topology spread constraints (missing required label)."
	if failed == nil || failed.Error() != want {
		t.Errorf("%v, want %s", failed, want)
	}
}

func TestBadConfigs(t *testing.T) {
	for text, want := range map[string]string{
		"apiVersion: v1\nkind: Pod\n":                                                                                      "want KubeSchedulerConfiguration",
		configHead + "profile: []\n":                                                                                       "unknown field",
		configHead + "podMaxBackoffSeconds: 0\n":                                                                           "must be positive",
		configHead + "profiles: [{plugins: {filter: {enabled: [{name: Magic}]}}}]":                                         `unknown plugin "Magic"`,
		configHead + "profiles: [{plugins: {score: {disabled: [{name: Magic}]}}}]":                                         `unknown plugin "Magic"`,
		configHead + "profiles: [{plugins: {filter: {enabled: [{name: ImageLocality}]}}}]":                                 `plugin "ImageLocality" does not extend Filter plugin`,
		configHead + "profiles: [{pluginConfig: [{name: Magic, args: {}}]}]":                                               `arguments of unknown plugin "Magic"`,
		configHead + "profiles: [{pluginConfig: [{name: NodeAffinity}, {name: NodeAffinity}]}]":                            "repeated config for plugin NodeAffinity",
		configHead + "profiles: [{pluginConfig: [{name: NodeAffinity, args: {kind: PodArgs}}]}]":                           "want NodeAffinityArgs",
		configHead + "profiles: [{pluginConfig: [{name: NodeResourcesFit, args: {strategy: {}}}]}]":                        "unknown field",
		configHead + "profiles: [{pluginConfig: [{name: PodTopologySpread, args: {defaultConstraints: [{maxSkew: 1}]}}]}]": "it must be List",
		configHead + "profiles: [{pluginConfig: [{name: InterPodAffinity, args: {hardPodAffinityWeight: 101}}]}]":          "not in valid range [0-100]",
	} {
		cfg, err := parseConfig([]byte(text))
		if err == nil {
			_, err = profiles(cfg)
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s\n%v, want %q", text, err, want)
		}
	}
}

func FuzzConfig(f *testing.F) {
	f.Add([]byte(configHead + "profiles: [{plugins: {filter: {enabled: [{name: Magic}]}}, pluginConfig: [{name: NodeResourcesFit, args: {scoringStrategy: {}}}]}]"))
	f.Fuzz(func(_ *testing.T, data []byte) {
		if cfg, err := parseConfig(data); err == nil {
			_, _ = profiles(cfg)
		}
	})
}

func TestStrategies(t *testing.T) {
	s := state.New()
	s.SetNode(node("a"))
	s.SetPod(state.NewPod(pod("q", requests("1"))), "a")
	c := &framework.Cycle{Pod: state.NewPod(pod("p", requests("1"))), State: s}
	cpu := []plugins.WeightedResource{{Name: corev1.ResourceCPU, Weight: 1}}
	for want, strategy := range map[int64]plugins.Strategy{
		50: {Resources: cpu},
		// 2 of 4 CPUs, and twice the default of 200 MiB of 8 GiB.
		27: {Most: true},
		80: {Resources: cpu, Shape: []plugins.Point{{Utilization: 0, Score: 100}, {Utilization: 50, Score: 80}, {Utilization: 100, Score: 0}}},
	} {
		out := []int64{0}
		plugins.NodeResourcesFit{Strategy: strategy}.Score(c, s.Nodes(), out)
		if out[0] != want {
			t.Errorf("%+v: %d, want %d", strategy, out[0], want)
		}
	}
}
