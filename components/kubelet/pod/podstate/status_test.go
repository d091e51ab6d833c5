package podstate

import (
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
)

// statusOf returns the status of a pod with an observed state.
func statusOf(p *v1.Pod, seen *Observed) v1.PodStatus {
	return Status(StatusInput{Input: Input{Pod: p, Observed: seen, Now: now}, Last: &p.Status, RuntimeName: "r"})
}

// TestOwnPolicyOfInit checks that the restart policy of a failed init container decides about the
// pod.
func TestOwnPolicyOfInit(t *testing.T) {
	for _, c := range []struct {
		pod   v1.RestartPolicy
		own   v1.ContainerRestartPolicy
		phase v1.PodPhase
		again bool
	}{
		{v1.RestartPolicyAlways, "", v1.PodPending, true},
		{v1.RestartPolicyAlways, v1.ContainerRestartPolicyNever, v1.PodFailed, false},
		{v1.RestartPolicyNever, "", v1.PodFailed, false},
		{v1.RestartPolicyNever, v1.ContainerRestartPolicyOnFailure, v1.PodPending, true},
	} {
		p := pod(c.pod, "init")
		if c.own != "" {
			p.Spec.InitContainers[0].RestartPolicy = &c.own
		}
		seen := observe("init:exited=1")
		seen.Containers[0].Hash = Hash(&p.Spec.InitContainers[0])
		plan := Next(Input{Pod: p, Observed: seen, Now: now})
		if got := len(plan.Start) == 1 && !plan.Finished; got != c.again {
			t.Errorf("%s, own %q: %+v", c.pod, c.own, plan)
		}
		if got := Status(StatusInput{Input: Input{Pod: p, Observed: seen, Now: now}, Last: &p.Status, Stopped: !c.again}).Phase; got != c.phase {
			t.Errorf("%s, own %q: %s, want %s", c.pod, c.own, got, c.phase)
		}
	}
}

// TestExitedContainerStatuses checks that terminated containers and those that are not created yet have
// the same status fields as running ones.
func TestExitedContainerStatuses(t *testing.T) {
	p := pod(v1.RestartPolicyNever)
	for i := range p.Spec.Containers {
		p.Spec.Containers[i].Resources.Requests = v1.ResourceList{v1.ResourceCPU: resource.MustParse("1")}
		p.Spec.Containers[i].VolumeMounts = []v1.VolumeMount{{Name: "v", MountPath: "/v"}}
	}
	s := statusOf(p, observe("a:exited=0"))
	if a := s.ContainerStatuses[0]; a.Resources == nil || a.Resources.Requests.Cpu().Value() != 1 || a.AllocatedResources.Cpu().Value() != 1 || len(a.VolumeMounts) != 1 {
		t.Errorf("ended: %+v", a)
	}
	if b := s.ContainerStatuses[1]; b.Resources != nil || len(b.VolumeMounts) != 1 || b.VolumeMounts[0].MountPath != "/v" {
		t.Errorf("not created: %+v", b)
	}
}

// TestLostInit checks that an init container that does not exist any more counts as completed if
// there are app containers.
func TestLostInit(t *testing.T) {
	p := pod(v1.RestartPolicyAlways, "init", "side")
	seen := observe("a:running", "b:running", "side:running")
	s := Status(StatusInput{
		Input: Input{Pod: p, Observed: seen, Now: now, Slots: map[string]Slot{"init": {Waiting: &v1.ContainerStateWaiting{Reason: "ErrImagePull"}}}}, Last: &p.Status,
	})
	if end := s.InitContainerStatuses[0].State.Terminated; s.Phase != v1.PodRunning || end == nil || end.ExitCode != 0 || end.Reason != "Completed" {
		t.Errorf("%s, %+v", s.Phase, s.InitContainerStatuses[0])
	}
	if s := statusOf(p, observe("box")); s.Phase != v1.PodPending || s.InitContainerStatuses[0].State.Waiting == nil {
		t.Errorf("at first: %s, %+v", s.Phase, s.InitContainerStatuses[0])
	}
	// A sidecar is restarted.
	if s := statusOf(p, observe("a:running", "b:running")); s.InitContainerStatuses[1].State.Waiting == nil {
		t.Errorf("%+v", s.InitContainerStatuses[1])
	}
}

// TestSandboxReady checks the reasons of the PodReadyToStartContainers condition.
func TestSandboxReady(t *testing.T) {
	p := pod(v1.RestartPolicyAlways)
	without := observe("box")
	without.Sandboxes[0].IPs = nil
	two := observe("box")
	two.Sandboxes = append(two.Sandboxes, Sandbox{ID: "other", Ready: true})
	for message, seen := range map[string]*Observed{
		"": observe("box"), "no pod sandbox exists": {}, "pod sandbox is not ready": observe("dead"), "pod sandbox has no IP address": without,
		"multiple pod sandboxes are ready and need to be reconciled": two,
	} {
		s := statusOf(p, seen)
		want := v1.PodCondition{Type: v1.PodReadyToStartContainers, Status: v1.ConditionFalse, Reason: "PodSandboxNotReady", Message: message}
		if message == "" {
			want.Status, want.Reason = v1.ConditionTrue, ""
		}
		got := s.Conditions[0]
		got.LastTransitionTime = want.LastTransitionTime
		if got != want {
			t.Errorf("%+v, want %+v", got, want)
		}
	}
	if got := statusOf(p, observeWithoutIP("box")).Conditions[0]; got.Status != v1.ConditionFalse || got.Message != "pod sandbox has no IP address" {
		t.Errorf("lost its address: %+v", got)
	}
}

// TestReasonOfThePhase checks that the reason and message of a phase are kept as long as the phase.
func TestReasonOfThePhase(t *testing.T) {
	p := pod(v1.RestartPolicyAlways)
	p.Status = v1.PodStatus{Phase: v1.PodRunning, Reason: "NodeLost", Message: "it was away"}
	if s := statusOf(p, observe("a:running", "b:running")); s.Reason != "NodeLost" || s.Message != "it was away" {
		t.Errorf("%s: %s", s.Reason, s.Message)
	}
	p.Status.Phase = v1.PodPending
	if s := statusOf(p, observe("a:running", "b:running")); s.Phase != v1.PodRunning || s.Reason != "" || s.Message != "" {
		t.Errorf("%s: %s: %s", s.Phase, s.Reason, s.Message)
	}
}

// TestSandboxRecreated checks that a pod in a new sandbox waits for its sidecars as in its first
// sandbox.
func TestSandboxRecreated(t *testing.T) {
	p := pod(v1.RestartPolicyAlways, "side")
	seen := observe("side:running", "a:exited=0", "b:exited=0")
	seen.Containers[1].SandboxID, seen.Containers[2].SandboxID = "former", "former"
	in := StatusInput{Input: Input{Pod: p, Observed: seen, Now: now, Health: map[string]Health{"id-side": {Startup: Pending}}}, Last: &p.Status}
	if s := Status(in); s.Phase != v1.PodPending {
		t.Errorf("a sidecar has not started: %s", s.Phase)
	}
	seen.Containers[1].SandboxID = "box"
	if s := Status(in); s.Phase != v1.PodRunning {
		t.Errorf("a sidecar restarts: %s", s.Phase)
	}
}

// TestOthersFields checks that status fields of other components are kept.
func TestOthersFields(t *testing.T) {
	p := pod(v1.RestartPolicyAlways)
	claim := "claim"
	p.Status = v1.PodStatus{
		NominatedNodeName: "n", ResourceClaimStatuses: []v1.PodResourceClaimStatus{{Name: "c", ResourceClaimName: &claim}},
		ExtendedResourceClaimStatus:          &v1.PodExtendedResourceClaimStatus{ResourceClaimName: claim},
		NodeAllocatableResourceClaimStatuses: []v1.NodeAllocatableResourceClaimStatus{{ResourceClaimName: claim}},
	}
	s := statusOf(p, observe("a:running", "b:running"))
	got := v1.PodStatus{
		NominatedNodeName: s.NominatedNodeName, ResourceClaimStatuses: s.ResourceClaimStatuses,
		ExtendedResourceClaimStatus: s.ExtendedResourceClaimStatus, NodeAllocatableResourceClaimStatuses: s.NodeAllocatableResourceClaimStatuses,
	}
	if !apiequality.Semantic.DeepEqual(got, p.Status) {
		t.Errorf("%+v, want %+v", got, p.Status)
	}
}

// TestStoppedBefore checks which containers of a stopped pod are terminated and which are still
// waiting.
func TestStoppedBefore(t *testing.T) {
	for _, c := range []struct {
		inits []string
		seen  *Observed
		want  string // init containers, then app containers: t is terminated, w is waiting
	}{
		{nil, observe(), "tt"},
		{nil, observe("a:exited=1"), "tt"},
		{[]string{"one", "two"}, observe(), "twww"},
		{[]string{"one", "two"}, observe("two:exited=1"), "ttww"},
		{[]string{"one", "two"}, observe("one:exited=0", "two:exited=0"), "tttt"},
		{[]string{"one", "side"}, observe("one:exited=0"), "twww"},
	} {
		p := pod(v1.RestartPolicyAlways, c.inits...)
		s := Status(StatusInput{
			Input: Input{Pod: p, Observed: c.seen, Now: now}, Last: &p.Status, Stopped: true, Terminating: true, Reason: "DeadlineExceeded",
		})
		got := ""
		for _, st := range append(s.InitContainerStatuses, s.ContainerStatuses...) {
			if st.State.Terminated != nil {
				got += "t"
			} else {
				got += "w"
			}
		}
		if got != c.want || s.Phase != v1.PodFailed {
			t.Errorf("%v, %+v: %s %s, want %s", c.inits, c.seen.Containers, s.Phase, got, c.want)
		}
	}
}

// TestStoppedBetween checks that a pod that is stopped while a container is about to be restarted
// has failed, regardless of the container's last exit code.
func TestStoppedBetween(t *testing.T) {
	p := pod(v1.RestartPolicyAlways)
	p.Spec.Containers = p.Spec.Containers[:1]
	seen := observe("a:created")
	before := observe("a:exited=0").Containers[0]
	before.ID = "before"
	seen.Containers[0].Attempt, seen.Containers = 1, append(seen.Containers, before)
	s := Status(StatusInput{Input: Input{Pod: p, Observed: seen, Now: now}, Last: &p.Status, Stopped: true, Terminating: true})
	st := s.ContainerStatuses[0]
	if s.Phase != v1.PodFailed || st.State.Terminated == nil || st.State.Terminated.ExitCode != 137 ||
		st.LastTerminationState.Terminated == nil || st.LastTerminationState.Terminated.ExitCode != 0 {
		t.Errorf("%s, %+v", s.Phase, st)
	}
}

// TestUnknown checks that a container in unknown state is stopped and recreated, except an init
// container with the restart policy Never.
func TestUnknown(t *testing.T) {
	never, onFailure := v1.ContainerRestartPolicyNever, v1.ContainerRestartPolicyOnFailure
	for name, c := range map[string]struct {
		policy v1.RestartPolicy
		own    *v1.ContainerRestartPolicy
		seen   string
		want   string
	}{
		"app":                                  {v1.RestartPolicyNever, nil, "a", "Container is in \"unknown\" state, try killing it before restart"},
		"sidecar":                              {v1.RestartPolicyNever, nil, "side", "Init container is in \"unknown\" state, try killing it before restart"},
		"init":                                 {v1.RestartPolicyOnFailure, nil, "init", "Init container is in \"unknown\" state, try killing it before restart"},
		"init, pod policy Never":               {v1.RestartPolicyNever, nil, "init", "finished"},
		"init policy Never":                    {v1.RestartPolicyAlways, &never, "init", "finished"},
		"init policy Always, pod policy Never": {v1.RestartPolicyNever, &onFailure, "init", "Init container is in \"unknown\" state, try killing it before restart"},
	} {
		p := pod(c.policy, "init", "side")
		p.Spec.InitContainers[0].RestartPolicy = c.own
		if c.own != nil {
			p.Spec.InitContainers[0].RestartPolicyRules = []v1.ContainerRestartRule{{Action: v1.ContainerRestartRuleActionRestart}}
		}
		list := map[string][]string{"app": {"init:exited=0", "side:running", "a:?", "b:running"}, "sidecar": {"init:exited=0", "side:?"}}[name]
		if list == nil {
			list = []string{"init:?"}
		}
		plan := Next(Input{Pod: p, Observed: observe(list...), Now: now})
		said := ""
		if len(plan.Kill) == 1 && plan.Kill[0].Name == c.seen && plan.Kill[0].Replace {
			said = plan.Kill[0].Message
		}
		if plan.Finished {
			said = "finished"
		}
		if said != c.want || len(plan.Start) > 0 && name != "app" {
			t.Errorf("%s: %q, plan %+v", name, said, plan)
		}
	}
}

// TestSidecarMessages checks that the messages of stopped sidecars are those of init containers.
func TestSidecarMessages(t *testing.T) {
	for want, c := range map[string]struct {
		hash   string
		health Health
	}{
		"Init container side failed liveness probe": {health: Health{Liveness: Failure}},
		"Init container side failed startup probe":  {health: Health{Startup: Failure}},
		"Init container side definition changed":    {hash: "other"},
	} {
		seen := observe("side:running", "a:running", "b:running")
		if c.hash != "" {
			seen.Containers[0].Hash = c.hash
		}
		plan := Next(Input{Pod: pod(v1.RestartPolicyAlways, "side"), Observed: seen, Health: map[string]Health{"id-side": c.health}, Now: now})
		if len(plan.Kill) != 1 || plan.Kill[0].Message != want {
			t.Errorf("want %q, plan %+v", want, plan)
		}
	}
}

// TestSidecarWaits checks that a sidecar that will be restarted is waiting, but a completed one is
// terminated.
func TestSidecarWaits(t *testing.T) {
	for seen, waits := range map[string]bool{"side:exited=0": false, "side:exited=3": true, "init:exited=0": false} {
		name, _, _ := strings.Cut(seen, ":")
		s := Status(StatusInput{Last: &v1.PodStatus{}, Input: Input{
			Pod: pod(v1.RestartPolicyAlways, name), Observed: observe(seen, "a:running", "b:running"), Now: now,
			Slots: map[string]Slot{name: {Waiting: &v1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}}},
		}})
		state := s.InitContainerStatuses[0].State
		if (state.Waiting != nil) != waits || (state.Terminated != nil) == waits {
			t.Errorf("%s: %+v", seen, state)
		}
	}
}

// TestTerminationOfUnseenPod checks that a container with an unknown termination is neither ready nor
// started, and that a known termination is kept.
func TestTerminationOfUnseenPod(t *testing.T) {
	yes := true
	st := v1.ContainerStatus{State: v1.ContainerState{Running: &v1.ContainerStateRunning{}}, Ready: true, Started: &yes}
	markTerminated(&st)
	if got := st.State.Terminated; got == nil || got.ExitCode != 137 || st.State.Running != nil || st.Ready || *st.Started {
		t.Errorf("%+v", st)
	}
	st = v1.ContainerStatus{State: v1.ContainerState{Terminated: &v1.ContainerStateTerminated{ExitCode: 3}}}
	markTerminated(&st)
	if st.State.Terminated.ExitCode != 3 {
		t.Errorf("%+v", st)
	}
}

// TestObservedGeneration checks the observed generation of a status and of its conditions.
func TestObservedGeneration(t *testing.T) {
	p := pod(v1.RestartPolicyAlways, "init")
	p.Generation = 7
	for name, seen := range map[string]*Observed{"new": observe(), "begun": observe("init:running"), "runs": observe("init:exited=0", "a:running", "b:running")} {
		s := Status(StatusInput{Last: &v1.PodStatus{}, Conditions: []v1.PodCondition{{Type: v1.DisruptionTarget, Status: v1.ConditionTrue}}, Input: Input{Pod: p, Observed: seen, Now: now}})
		if s.ObservedGeneration != 7 || len(s.Conditions) < 5 {
			t.Errorf("%s: %+v", name, s)
		}
		for _, c := range s.Conditions {
			if c.ObservedGeneration != 7 {
				t.Errorf("%s: condition %+v", name, c)
			}
		}
	}
}
