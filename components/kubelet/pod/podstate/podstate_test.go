package podstate

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

var now = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

var always = v1.ContainerRestartPolicyAlways

func pod(policy v1.RestartPolicy, inits ...string) *v1.Pod {
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "n", UID: "u"}, Spec: v1.PodSpec{RestartPolicy: policy}}
	for _, name := range inits {
		c := v1.Container{Name: name, Image: "i"}
		if strings.HasPrefix(name, "side") {
			c.RestartPolicy = &always
		}
		p.Spec.InitContainers = append(p.Spec.InitContainers, c)
	}
	p.Spec.Containers = []v1.Container{{Name: "a", Image: "i"}, {Name: "b", Image: "i"}}
	return p
}

// observe returns an observed state: containers such as "a:running" and "b:exited=1" in a sandbox that
// is ready unless "dead" is in the list. An empty list means no sandbox; "box" alone means a
// sandbox without containers.
func observe(list ...string) *Observed {
	o := &Observed{}
	ready := !slices.Contains(list, "dead")
	if slices.Contains(list, "box") || len(list) > 0 {
		o.Sandboxes = []Sandbox{{ID: "box", Ready: ready, IPs: []string{"10.0.0.1"}}}
	}
	for _, s := range list {
		name, state, ok := strings.Cut(s, ":")
		if !ok {
			continue
		}
		c := Container{ID: "id-" + name, SandboxID: "box", Name: name, Hash: Hash(&v1.Container{Name: name, Image: "i"}), StartedAt: now.Add(-time.Minute), FinishedAt: now.Add(-time.Second)}
		state, code, _ := strings.Cut(state, "=")
		switch state {
		case "running":
			c.State = Running
		case "created":
			c.State = Created
		case "exited":
			c.State = Exited
			_, _ = fmt.Sscan(code, &c.ExitCode)
		}
		o.Containers = append(o.Containers, c)
	}
	return o
}

// TestMadeAndNeverStarted checks how a container whose start was interrupted is handled.
func TestMadeAndNeverStarted(t *testing.T) {
	for _, c := range []struct {
		name        string
		change      func(*Observed)
		made, stale string
	}{
		{name: "as desired", change: func(*Observed) {}, made: "id-a"},
		{name: "outdated definition", change: func(o *Observed) { o.Containers[0].Hash = "other" }, stale: "id-a"},
		{name: "of another sandbox", change: func(o *Observed) { o.Containers[0].SandboxID = "former" }, stale: "id-a"},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := observe("a:created")
			c.change(o)
			plan := Next(Input{Pod: pod(v1.RestartPolicyNever), Observed: o, Now: now})
			if len(plan.Start) != 2 || plan.Start[0].Created != c.made || plan.Start[0].Stale != c.stale || plan.Start[0].Attempt != 0 {
				t.Errorf("plan %+v", plan)
			}
		})
	}
}

// observeWithoutIP is observe with a sandbox that has lost its IP address.
func observeWithoutIP(list ...string) *Observed {
	o := observe(list...)
	o.Sandboxes[0].IPs, o.Sandboxes[0].Lost = nil, true
	return o
}

func text(p Plan) string {
	var out []string
	if p.NewSandbox {
		out = append(out, "sandbox")
	}
	for _, s := range p.StopSandboxes {
		out = append(out, "stop "+s)
	}
	for _, k := range p.Kill {
		out = append(out, "kill "+k.Name)
	}
	for _, s := range p.Start {
		out = append(out, fmt.Sprintf("start %s#%d", s.Name, s.Attempt))
	}
	for _, b := range p.BackOff {
		out = append(out, "wait "+b.Name)
	}
	if p.Finished {
		out = append(out, "finished")
	}
	return strings.Join(out, ", ")
}

func TestNext(t *testing.T) {
	A, F, N := v1.RestartPolicyAlways, v1.RestartPolicyOnFailure, v1.RestartPolicyNever
	changed := pod(A)
	changed.Spec.Containers[1].Image = "j"
	for _, c := range []struct {
		name   string
		pod    *v1.Pod
		seen   *Observed
		health map[string]Health
		slots  map[string]Slot
		want   string
	}{
		{name: "new", pod: pod(A), seen: observe(), want: "sandbox, start a#0, start b#0"},
		{name: "sandbox made", pod: pod(A), seen: observe("box"), want: "start a#0, start b#0"},
		{name: "half started", pod: pod(A), seen: observe("a:running"), want: "start b#0"},
		{name: "all runs", pod: pod(A), seen: observe("a:running", "b:running"), want: ""},
		{name: "create failed", pod: pod(A), seen: observe("a:running"), slots: map[string]Slot{"b": {RetryAt: now.Add(time.Second), CreateFailed: true}}, want: ""},
		{name: "create failed, but it exists", pod: pod(A), seen: observe("a:running", "b:created"), slots: map[string]Slot{"b": {RetryAt: now.Add(time.Second), CreateFailed: true}}, want: "start b#0"},
		{name: "created, start failed", pod: pod(A), seen: observe("a:running", "b:created"), slots: map[string]Slot{"b": {RetryAt: now.Add(time.Second)}}, want: ""},
		{name: "exit restarts", pod: pod(A), seen: observe("a:running", "b:exited=0"), want: "start b#1"},
		{name: "exit backs off", pod: pod(A), seen: observe("a:running", "b:exited=0"),
			slots: map[string]Slot{"b": {Crash: BackOff{Delay: 10 * time.Second, Updated: now.Add(-time.Minute)}}}, want: "wait b"},
		{name: "no back-off after a changed definition", pod: changed, seen: observe("a:running", "b:exited=0"),
			slots: map[string]Slot{"b": {Crash: BackOff{Delay: 10 * time.Second, Updated: now.Add(-time.Minute)}}}, want: "start b#1"},
		{name: "back-off expired", pod: pod(A), seen: observe("a:running", "b:exited=0"),
			slots: map[string]Slot{"b": {Crash: BackOff{Delay: 300 * time.Second, Updated: now.Add(-11 * time.Minute)}}}, want: "start b#1"},
		{name: "failure restarts", pod: pod(F), seen: observe("a:exited=0", "b:exited=1"), want: "start b#1"},
		{name: "success does not restart", pod: pod(F), seen: observe("a:exited=0", "b:exited=0"), want: "finished"},
		{name: "never", pod: pod(N), seen: observe("a:exited=1", "b:running"), want: ""},
		{name: "never, finished", pod: pod(N), seen: observe("a:exited=1", "b:exited=0"), want: "finished"},
		{name: "start failed, back-off over", pod: pod(A), seen: observe("a:running"), slots: map[string]Slot{"b": {RetryAt: now.Add(time.Second)}}, want: ""},
		{name: "being killed", pod: pod(A), seen: observe("a:running", "b:running"), slots: map[string]Slot{"b": {Killing: true}},
			health: map[string]Health{"id-b": {Liveness: Failure}}, want: ""},
		{name: "liveness", pod: pod(A), seen: observe("a:running", "b:running"), health: map[string]Health{"id-b": {Liveness: Failure}}, want: "kill b"},
		{name: "startup", pod: pod(A), seen: observe("a:running", "b:running"), health: map[string]Health{"id-a": {Startup: Failure}}, want: "kill a"},
		{name: "sandbox died", pod: pod(A), seen: observe("dead", "a:exited=137", "b:exited=137"), want: "sandbox, stop box, start a#1, start b#1"},
		{name: "sandbox died, a runs", pod: pod(A), seen: observe("dead", "a:running", "b:exited=137"), want: "sandbox, stop box, kill a, start b#1"},
		{name: "sandbox lost its address", pod: pod(A), seen: observeWithoutIP("a:running", "b:exited=0"), want: "sandbox, stop box, kill a, start b#1"},
		{name: "sandbox died, never", pod: pod(N), seen: observe("dead", "a:exited=137", "b:exited=137"), want: "stop box, finished"},
		{name: "sandbox died, one done", pod: pod(F), seen: observe("dead", "a:exited=0", "b:exited=137"), want: "sandbox, stop box, start b#1"},

		{name: "init first", pod: pod(A, "one", "two"), seen: observe(), want: "sandbox, start one#0"},
		{name: "init runs", pod: pod(A, "one", "two"), seen: observe("one:running"), want: ""},
		{name: "init next", pod: pod(A, "one", "two"), seen: observe("one:exited=0"), want: "start two#0"},
		{name: "init removed, next one exists", pod: pod(A, "one", "two"), seen: observe("two:exited=0"), want: "start a#0, start b#0"},
		{name: "init done", pod: pod(A, "one", "two"), seen: observe("one:exited=0", "two:exited=0"), want: "start a#0, start b#0"},
		{name: "init fails", pod: pod(A, "one"), seen: observe("one:exited=1"), want: "start one#1"},
		{name: "init fails for good", pod: pod(N, "one"), seen: observe("one:exited=1"), want: "finished"},
		{name: "init removed later", pod: pod(A, "one"), seen: observe("a:running", "b:running"), want: ""},
		{name: "sandbox died, init again", pod: pod(A, "one"), seen: observe("dead", "one:exited=0", "a:exited=137", "b:exited=137"), want: "sandbox, stop box, start one#1"},
		{name: "sandbox died, init failed", pod: pod(N, "one", "two"), seen: observe("dead", "one:exited=0", "two:exited=1"), want: "stop box, finished"},
		{name: "sandbox died, init failed and is retried", pod: pod(F, "one", "two"), seen: observe("dead", "one:exited=0", "two:exited=1"), want: "sandbox, stop box, start one#1"},
		{name: "sandbox died, all done", pod: pod(F, "one"), seen: observe("dead", "one:exited=0", "a:exited=0", "b:exited=0"), want: "stop box, finished"},

		{name: "sidecar first", pod: pod(A, "side", "two"), seen: observe("box"), want: "start side#0"},
		{name: "sidecar started", pod: pod(A, "side", "two"), seen: observe("side:running"), want: "start two#0"},
		{name: "sidecar not started", pod: pod(A, "side", "two"), seen: observe("side:running"), health: map[string]Health{"id-side": {Startup: Pending}}, want: ""},
		{name: "sidecar in postStart", pod: pod(A, "side"), seen: observe("side:running"), health: map[string]Health{"id-side": {PostStartRunning: true}}, want: ""},
		{name: "sidecar died early", pod: pod(A, "side", "two"), seen: observe("side:exited=0", "two:running"), want: "start side#1"},
		{name: "sidecar died before the last began", pod: pod(A, "side", "side2"), seen: observe("side:exited=1", "side2:running"), want: "start side#1, start a#0, start b#0"},
		{name: "sidecar waits before the last began", pod: pod(A, "side", "side2"), seen: observe("side:exited=1", "side2:running"),
			slots: map[string]Slot{"side": {Crash: BackOff{Delay: 10 * time.Second, Updated: now.Add(-time.Minute)}}}, want: "start a#0, start b#0, wait side"},
		{name: "sidecars died", pod: pod(A, "side", "side2", "side3"), seen: observe("side:exited=1", "side2:running", "side3:exited=1"), want: "start side#1, start side3#1"},
		{name: "sidecar died", pod: pod(N, "side"), seen: observe("side:exited=1", "a:running", "b:running"), want: "start side#1"},
		{name: "sidecar alone left", pod: pod(N, "side"), seen: observe("side:running", "a:exited=0", "b:exited=0"), want: "finished"},
		{name: "sidecar unhealthy", pod: pod(N, "side"), seen: observe("side:running", "a:running", "b:running"),
			health: map[string]Health{"id-side": {Liveness: Failure}}, want: "kill side"},
		{name: "sidecar being stopped early", pod: pod(A, "side", "two"), seen: observe("side:running"), slots: map[string]Slot{"side": {Killing: true}}, want: ""},
		{name: "sidecar being stopped", pod: pod(A, "side"), seen: observe("side:running", "a:running"), slots: map[string]Slot{"side": {Killing: true}}, want: "start b#0"},
		{name: "sidecar died at the end", pod: pod(N, "side"), seen: observe("side:exited=1", "a:running", "b:exited=0"), slots: map[string]Slot{"a": {Killing: true}}, want: ""},
		{name: "sidecar died at the start of termination", pod: pod(N, "side"), seen: observe("side:exited=1", "a:running", "b:exited=0"),
			health: map[string]Health{"id-a": {Liveness: Failure}}, want: "kill a"},
		{name: "sidecar died while another is restarted", pod: pod(N, "side"), seen: observe("side:exited=1", "a:running", "b:exited=0"),
			slots: map[string]Slot{"a": {Killing: true, ForceRestart: "id-a"}}, want: "start side#1"},
		{name: "sidecar died while another fails", pod: pod(F, "side"), seen: observe("side:exited=1", "a:running", "b:exited=0"), slots: map[string]Slot{"a": {Killing: true}}, want: "start side#1"},
	} {
		got := text(Next(Input{Pod: c.pod, Observed: c.seen, Health: c.health, Slots: c.slots, Now: now}))
		if got != c.want {
			t.Errorf("%s: got %q, want %q", c.name, got, c.want)
		}
	}
}

// TestProbeRestarts checks that a container whose probe has failed is restarted regardless of its
// exit code, unless its policy is Never.
func TestProbeRestarts(t *testing.T) {
	never := v1.ContainerRestartPolicyNever
	for name, tc := range map[string]struct {
		policy  v1.RestartPolicy
		own     *v1.ContainerRestartPolicy
		message string
		replace bool
	}{
		"always":           {policy: v1.RestartPolicyAlways, message: "Container a failed startup probe, will be restarted"},
		"on failure":       {policy: v1.RestartPolicyOnFailure, message: "Container a failed startup probe, will be restarted", replace: true},
		"never":            {policy: v1.RestartPolicyNever, message: "Container a failed startup probe"},
		"container: never": {policy: v1.RestartPolicyOnFailure, own: &never, message: "Container a failed startup probe"},
	} {
		p := pod(tc.policy)
		p.Spec.Containers[0].RestartPolicy = tc.own
		plan := Next(Input{Pod: p, Observed: observe("a:running", "b:running"), Health: map[string]Health{"id-a": {Startup: Failure}}, Now: now})
		if text(plan) != "kill a" || plan.Kill[0].Message != tc.message || plan.Kill[0].Replace != tc.replace {
			t.Errorf("%s: %+v", name, plan.Kill)
		}
	}
}

func TestImageChange(t *testing.T) {
	p := pod(v1.RestartPolicyNever)
	p.Spec.Containers[0].Image = "other"
	plan := Next(Input{Pod: p, Observed: observe("a:running", "b:running"), Now: now})
	if text(plan) != "kill a" || !plan.Kill[0].Replace {
		t.Errorf("plan %q", text(plan))
	}
	plan = Next(Input{Pod: p, Observed: observe("a:exited=0", "b:running"), Slots: map[string]Slot{"a": {ForceRestart: "id-a"}}, Now: now})
	if text(plan) != "start a#1" {
		t.Errorf("plan after the kill %q", text(plan))
	}
}

func TestEphemeral(t *testing.T) {
	p := pod(v1.RestartPolicyAlways)
	p.Spec.EphemeralContainers = []v1.EphemeralContainer{{EphemeralContainerCommon: v1.EphemeralContainerCommon{Name: "debug", Image: "i"}}}
	if got := text(Next(Input{Pod: p, Observed: observe("a:running", "b:running"), Now: now})); got != "start debug#0" {
		t.Errorf("plan %q", got)
	}
	if got := text(Next(Input{Pod: p, Observed: observe("a:running", "b:running", "debug:exited=0"), Now: now})); got != "" {
		t.Errorf("plan %q", got)
	}
}

func TestBackOff(t *testing.T) {
	var b BackOff
	var delays []time.Duration
	at := now
	for range 8 {
		b = b.Next(at)
		delays = append(delays, b.Delay/time.Second)
		at = at.Add(time.Second)
	}
	if want := []time.Duration{10, 20, 40, 80, 160, 300, 300, 300}; !slices.Equal(delays, want) {
		t.Errorf("delays %v, want %v", delays, want)
	}
}

func TestRestartRules(t *testing.T) {
	c := &v1.Container{RestartPolicyRules: []v1.ContainerRestartRule{{
		Action: v1.ContainerRestartRuleActionRestart, ExitCodes: &v1.ContainerRestartRuleOnExitCodes{Operator: v1.ContainerRestartRuleOnExitCodesOpIn, Values: []int32{42}},
	}}}
	never := v1.ContainerRestartPolicyNever
	c.RestartPolicy = &never
	if p := pod(v1.RestartPolicyAlways); !shouldRestart(p, c, 42) || shouldRestart(p, c, 1) {
		t.Error("restart rules are ignored")
	}
}

func TestRestartAll(t *testing.T) {
	p := pod(v1.RestartPolicyNever, "one", "side")
	p.Spec.Containers[1].RestartPolicyRules = []v1.ContainerRestartRule{{
		Action: v1.ContainerRestartRuleActionRestartAllContainers, ExitCodes: &v1.ContainerRestartRuleOnExitCodes{Operator: v1.ContainerRestartRuleOnExitCodesOpIn, Values: []int32{42}},
	}}
	// The container that triggers it is removed last, after all are stopped.
	begun := Next(Input{Pod: p, Observed: observe("b:exited=42", "a:running", "side:running", "one:exited=0"), Now: now})
	if got := text(begun); got != "kill a, kill side" || !begun.RestartingAll || !begun.Kill[0].Immediately || !slices.Equal(begun.Remove, []string{"id-a", "id-side", "id-one", "id-b"}) {
		t.Errorf("begun: %s, %+v", got, begun)
	}
	if plan := Next(Input{Pod: p, Observed: observe("a:exited=42", "b:exited=1"), Now: now}); plan.RestartingAll || !plan.Finished {
		t.Errorf("others' codes: %+v", plan)
	}
	// A restarted kubelet continues.
	if plan := Next(Input{Pod: p, Observed: observe("one:exited=0"), Now: now, RestartingAll: true}); !slices.Equal(plan.Remove, []string{"id-one"}) {
		t.Errorf("half removed: %+v", plan)
	}
	last := Status(StatusInput{Input: Input{Pod: p, Observed: observe("b:exited=42", "a:running", "side:running", "one:exited=0"), Now: now}, Last: &v1.PodStatus{Phase: v1.PodRunning}, RuntimeName: "r"})
	if c := last.Conditions[len(last.Conditions)-1]; c.Type != v1.AllContainersRestarting || c.Status != v1.ConditionTrue || last.Phase != v1.PodRunning {
		t.Errorf("condition %+v in phase %s", c, last.Phase)
	}
	slots := map[string]Slot{}
	for _, name := range []string{"a", "b", "side", "one"} {
		slots[name] = Slot{Next: 1}
	}
	// It is one restart, regardless of how often the status is computed.
	for range 2 {
		in := Input{Pod: p, Observed: observe("box"), Slots: slots, Now: now, RestartingAll: true}
		last = Status(StatusInput{Input: in, Last: &last, RuntimeName: "r"})
		p.Status = last
		if plan := Next(in); text(plan) != "start one#1" {
			t.Errorf("all removed: %s", text(plan))
		}
	}
	for _, st := range append(last.ContainerStatuses, last.InitContainerStatuses...) {
		if st.RestartCount != 1 || st.State.Waiting == nil || st.State.Waiting.Reason != restartingAll || st.LastTerminationState.Terminated.ExitCode != 137 {
			t.Errorf("removed: %+v", st)
		}
	}
	if c := last.Conditions[len(last.Conditions)-1]; c.Status != v1.ConditionFalse || last.Phase != v1.PodRunning {
		t.Errorf("condition %+v in phase %s", c, last.Phase)
	}
}

func TestStatus(t *testing.T) {
	A, F, N := v1.RestartPolicyAlways, v1.RestartPolicyOnFailure, v1.RestartPolicyNever
	for _, c := range []struct {
		name    string
		pod     *v1.Pod
		seen    *Observed
		last    v1.PodStatus
		stopped bool
		health  map[string]Health
		phase   v1.PodPhase
		ready   bool
	}{
		{name: "new", pod: pod(A), seen: observe(), phase: v1.PodPending},
		{name: "half", pod: pod(A), seen: observe("a:running"), phase: v1.PodPending},
		{name: "runs", pod: pod(A), seen: observe("a:running", "b:running"), phase: v1.PodRunning, ready: true},
		{name: "not ready", pod: pod(A), seen: observe("a:running", "b:running"), health: map[string]Health{"id-a": {Readiness: Pending}}, phase: v1.PodRunning},
		{name: "restarting", pod: pod(A), seen: observe("a:exited=1", "b:exited=1"), phase: v1.PodRunning},
		{name: "init", pod: pod(A, "one"), seen: observe("one:running"), phase: v1.PodPending},
		{name: "init failed", pod: pod(N, "one"), seen: observe("one:exited=1"), stopped: true, phase: v1.PodFailed},
		{name: "succeeded", pod: pod(F), seen: observe("a:exited=0", "b:exited=0"), stopped: true, phase: v1.PodSucceeded},
		{name: "not yet stopped", pod: pod(F), seen: observe("a:exited=0", "b:exited=0"), last: v1.PodStatus{Phase: v1.PodRunning}, phase: v1.PodRunning},
		{name: "failed", pod: pod(N), seen: observe("a:exited=0", "b:exited=2"), stopped: true, phase: v1.PodFailed},
		{name: "deleted while running", pod: pod(A), seen: observe("a:exited=0", "b:exited=0"), stopped: true, phase: v1.PodSucceeded},
		{name: "killed", pod: pod(A), seen: observe("a:exited=137", "b:exited=0"), stopped: true, phase: v1.PodFailed},
		{name: "finished pod stays finished", pod: pod(A), seen: observe("a:running"), last: v1.PodStatus{Phase: v1.PodSucceeded}, phase: v1.PodSucceeded},
		{name: "never started", pod: pod(A), seen: observe(), stopped: true, phase: v1.PodFailed},
	} {
		s := Status(StatusInput{
			Input: Input{Pod: c.pod, Observed: c.seen, Health: c.health, Now: now}, Last: &c.last,
			RuntimeName: "r", HostIPs: []string{"192.0.2.1"}, Stopped: c.stopped, Terminating: c.stopped,
		})
		if s.Phase != c.phase {
			t.Errorf("%s: phase %s, want %s", c.name, s.Phase, c.phase)
		}
		var types []string
		for _, cond := range s.Conditions {
			types = append(types, string(cond.Type))
			if cond.Type == v1.PodReady && (cond.Status == v1.ConditionTrue) != c.ready {
				t.Errorf("%s: ready %+v", c.name, cond)
			}
		}
		if got := strings.Join(types, " "); got != "PodReadyToStartContainers Initialized Ready ContainersReady PodScheduled" {
			t.Errorf("%s: conditions %s", c.name, got)
		}
	}
}

func TestReadinessGates(t *testing.T) {
	p := pod(v1.RestartPolicyAlways)
	p.Spec.ReadinessGates = []v1.PodReadinessGate{{ConditionType: "example.com/gate"}}
	in := StatusInput{Input: Input{Pod: p, Observed: observe("a:running", "b:running"), Now: now}, Last: &v1.PodStatus{}}
	find := func(s v1.PodStatus) v1.PodCondition {
		for _, c := range s.Conditions {
			if c.Type == v1.PodReady {
				return c
			}
		}
		return v1.PodCondition{}
	}
	c := find(Status(in))
	if c.Status != v1.ConditionFalse || c.Reason != "ReadinessGatesNotReady" || c.Message != `corresponding condition of pod readiness gate "example.com/gate" does not exist.` {
		t.Errorf("%+v", c)
	}
	in.Last = &v1.PodStatus{Conditions: []v1.PodCondition{{Type: "example.com/gate", Status: v1.ConditionTrue}}}
	s := Status(in)
	if find(s).Status != v1.ConditionTrue || len(s.Conditions) != 6 {
		t.Errorf("%+v", s.Conditions)
	}
}

func TestRejected(t *testing.T) {
	pod := &v1.Pod{Spec: v1.PodSpec{InitContainers: []v1.Container{{Name: "i"}}, Containers: []v1.Container{{Name: "c"}}}}
	in := StatusInput{Input: Input{Pod: pod, Observed: &Observed{}, Now: time.Unix(1000, 0)}, Last: &v1.PodStatus{}, Reason: "OutOfcpu", Rejected: true, Stopped: true}
	s := Status(in)
	if s.Phase != v1.PodFailed || s.Reason != "OutOfcpu" || len(s.ContainerStatuses) != 0 || len(s.InitContainerStatuses) != 0 {
		t.Errorf("status %+v", s)
	}
	// After a restart of the kubelet the status is the same.
	again := Status(StatusInput{Input: in.Input, Last: &s, Stopped: true})
	if again.Phase != v1.PodFailed || again.Reason != "OutOfcpu" || len(again.ContainerStatuses) != 0 {
		t.Errorf("status %+v", again)
	}
}

// TestClockSetBack restarts a container that exited in the future.
func TestClockSetBack(t *testing.T) {
	now := time.Now()
	b := BackOff{Delay: 10 * time.Second, Updated: now.Add(-30 * time.Second)}
	if until := b.Until(now.Add(time.Hour), now); until.After(now) {
		t.Errorf("waits for %s", until.Sub(now))
	}
	if until := b.Until(now.Add(-time.Second), now); !until.After(now) {
		t.Error("does not wait with a steady clock")
	}
}
