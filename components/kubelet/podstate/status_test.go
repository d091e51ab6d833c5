package podstate

import (
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
)

// statusOf is the status of a pod of which the runtime has that.
func statusOf(p *v1.Pod, seen *Observed) v1.PodStatus {
	return Status(StatusInput{Input: Input{Pod: p, Observed: seen, Now: now}, Last: &p.Status, RuntimeName: "r"})
}

// TestOwnPolicyOfInit: what becomes of a pod whose init container fails is that
// container's to say.
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
		seen := see("init:exited=1")
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

// TestEndedContainersTell: of a container that has ended, or is not made yet, the
// status says what one that runs says.
func TestEndedContainersTell(t *testing.T) {
	p := pod(v1.RestartPolicyNever)
	for i := range p.Spec.Containers {
		p.Spec.Containers[i].Resources.Requests = v1.ResourceList{v1.ResourceCPU: resource.MustParse("1")}
		p.Spec.Containers[i].VolumeMounts = []v1.VolumeMount{{Name: "v", MountPath: "/v"}}
	}
	s := statusOf(p, see("a:exited=0"))
	if a := s.ContainerStatuses[0]; a.Resources == nil || a.Resources.Requests.Cpu().Value() != 1 || a.AllocatedResources.Cpu().Value() != 1 || len(a.VolumeMounts) != 1 {
		t.Errorf("ended: %+v", a)
	}
	if b := s.ContainerStatuses[1]; b.Resources != nil || len(b.VolumeMounts) != 1 || b.VolumeMounts[0].MountPath != "/v" {
		t.Errorf("not made: %+v", b)
	}
}

// TestLostInit: an init container of which nothing is left has done its work when
// there are app containers.
func TestLostInit(t *testing.T) {
	p := pod(v1.RestartPolicyAlways, "init", "side")
	seen := see("a:running", "b:running", "side:running")
	s := Status(StatusInput{
		Input: Input{Pod: p, Observed: seen, Now: now, Slots: map[string]Slot{"init": {Waiting: &v1.ContainerStateWaiting{Reason: "ErrImagePull"}}}}, Last: &p.Status,
	})
	if end := s.InitContainerStatuses[0].State.Terminated; s.Phase != v1.PodRunning || end == nil || end.ExitCode != 0 || end.Reason != "Completed" {
		t.Errorf("%s, %+v", s.Phase, s.InitContainerStatuses[0])
	}
	if s := statusOf(p, see("box")); s.Phase != v1.PodPending || s.InitContainerStatuses[0].State.Waiting == nil {
		t.Errorf("at first: %s, %+v", s.Phase, s.InitContainerStatuses[0])
	}
	// A sidecar is started again.
	if s := statusOf(p, see("a:running", "b:running")); s.InitContainerStatuses[1].State.Waiting == nil {
		t.Errorf("%+v", s.InitContainerStatuses[1])
	}
}

// TestSandboxReady: the condition says why containers cannot be started.
func TestSandboxReady(t *testing.T) {
	p := pod(v1.RestartPolicyAlways)
	without := see("box")
	without.Sandboxes[0].IPs = nil
	two := see("box")
	two.Sandboxes = append(two.Sandboxes, Sandbox{ID: "other", Ready: true})
	for message, seen := range map[string]*Observed{
		"": see("box"), "no pod sandbox exists": {}, "pod sandbox is not ready": see("dead"), "pod sandbox has no IP address": without,
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
	if got := statusOf(p, lost("box")).Conditions[0]; got.Status != v1.ConditionFalse || got.Message != "pod sandbox has no IP address" {
		t.Errorf("one that has lost its address: %+v", got)
	}
}

// TestReasonOfThePhase: what is said of a phase stays while that does.
func TestReasonOfThePhase(t *testing.T) {
	p := pod(v1.RestartPolicyAlways)
	p.Status = v1.PodStatus{Phase: v1.PodRunning, Reason: "NodeLost", Message: "it was away"}
	if s := statusOf(p, see("a:running", "b:running")); s.Reason != "NodeLost" || s.Message != "it was away" {
		t.Errorf("%s: %s", s.Reason, s.Message)
	}
	p.Status.Phase = v1.PodPending
	if s := statusOf(p, see("a:running", "b:running")); s.Phase != v1.PodRunning || s.Reason != "" || s.Message != "" {
		t.Errorf("%s: %s: %s", s.Phase, s.Reason, s.Message)
	}
}

// TestSandboxMadeAnew: a pod in a new sandbox waits for its sidecars as it did the
// first time.
func TestSandboxMadeAnew(t *testing.T) {
	p := pod(v1.RestartPolicyAlways, "side")
	seen := see("side:running", "a:exited=0", "b:exited=0")
	seen.Containers[1].SandboxID, seen.Containers[2].SandboxID = "former", "former"
	in := StatusInput{Input: Input{Pod: p, Observed: seen, Now: now, Health: map[string]Health{"id-side": {Startup: Pending}}}, Last: &p.Status}
	if s := Status(in); s.Phase != v1.PodPending {
		t.Errorf("a sidecar has not started: %s", s.Phase)
	}
	seen.Containers[1].SandboxID = "box"
	if s := Status(in); s.Phase != v1.PodRunning {
		t.Errorf("a sidecar is started again: %s", s.Phase)
	}
}

// TestOthersFields: what others say in a pod's status stays.
func TestOthersFields(t *testing.T) {
	p := pod(v1.RestartPolicyAlways)
	claim := "claim"
	p.Status = v1.PodStatus{
		NominatedNodeName: "n", ResourceClaimStatuses: []v1.PodResourceClaimStatus{{Name: "c", ResourceClaimName: &claim}},
		ExtendedResourceClaimStatus:          &v1.PodExtendedResourceClaimStatus{ResourceClaimName: claim},
		NodeAllocatableResourceClaimStatuses: []v1.NodeAllocatableResourceClaimStatus{{ResourceClaimName: claim}},
	}
	s := statusOf(p, see("a:running", "b:running"))
	got := v1.PodStatus{
		NominatedNodeName: s.NominatedNodeName, ResourceClaimStatuses: s.ResourceClaimStatuses,
		ExtendedResourceClaimStatus: s.ExtendedResourceClaimStatus, NodeAllocatableResourceClaimStatuses: s.NodeAllocatableResourceClaimStatuses,
	}
	if !apiequality.Semantic.DeepEqual(got, p.Status) {
		t.Errorf("%+v, want %+v", got, p.Status)
	}
}

// TestStoppedBefore: of a pod that is over none of those that were to run waits.
func TestStoppedBefore(t *testing.T) {
	for _, c := range []struct {
		inits []string
		seen  *Observed
		want  string // of init containers, then of the others: t has ended, w waits
	}{
		{nil, see(), "tt"},
		{nil, see("a:exited=1"), "tt"},
		{[]string{"one", "two"}, see(), "twww"},
		{[]string{"one", "two"}, see("two:exited=1"), "ttww"},
		{[]string{"one", "two"}, see("one:exited=0", "two:exited=0"), "tttt"},
		{[]string{"one", "side"}, see("one:exited=0"), "twww"},
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

// TestStoppedBetween: a pod that is stopped while a container is to be started again
// has failed, however that ended before.
func TestStoppedBetween(t *testing.T) {
	p := pod(v1.RestartPolicyAlways)
	p.Spec.Containers = p.Spec.Containers[:1]
	seen := see("a:created")
	before := see("a:exited=0").Containers[0]
	before.ID = "before"
	seen.Containers[0].Attempt, seen.Containers = 1, append(seen.Containers, before)
	s := Status(StatusInput{Input: Input{Pod: p, Observed: seen, Now: now}, Last: &p.Status, Stopped: true, Terminating: true})
	st := s.ContainerStatuses[0]
	if s.Phase != v1.PodFailed || st.State.Terminated == nil || st.State.Terminated.ExitCode != 137 ||
		st.LastTerminationState.Terminated == nil || st.LastTerminationState.Terminated.ExitCode != 0 {
		t.Errorf("%s, %+v", s.Phase, st)
	}
}

// TestUnknown: what the runtime has lost track of is stopped and made anew, but for an
// init container of a pod that starts nothing again.
func TestUnknown(t *testing.T) {
	never, onFailure := v1.ContainerRestartPolicyNever, v1.ContainerRestartPolicyOnFailure
	for name, c := range map[string]struct {
		policy v1.RestartPolicy
		own    *v1.ContainerRestartPolicy
		seen   string
		want   string
	}{
		"app":                       {v1.RestartPolicyNever, nil, "a", "Container is in \"unknown\" state, try killing it before restart"},
		"sidecar":                   {v1.RestartPolicyNever, nil, "side", "Init container is in \"unknown\" state, try killing it before restart"},
		"init":                      {v1.RestartPolicyOnFailure, nil, "init", "Init container is in \"unknown\" state, try killing it before restart"},
		"init of never":             {v1.RestartPolicyNever, nil, "init", "finished"},
		"init that is never":        {v1.RestartPolicyAlways, &never, "init", "finished"},
		"init that is not of never": {v1.RestartPolicyNever, &onFailure, "init", "Init container is in \"unknown\" state, try killing it before restart"},
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
		plan := Next(Input{Pod: p, Observed: see(list...), Now: now})
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

// TestSidecarMessages: why a sidecar is stopped is told as of an init container.
func TestSidecarMessages(t *testing.T) {
	for want, c := range map[string]struct {
		hash   string
		health Health
	}{
		"Init container side failed liveness probe": {health: Health{Liveness: Failure}},
		"Init container side failed startup probe":  {health: Health{Startup: Failure}},
		"Init container side definition changed":    {hash: "other"},
	} {
		seen := see("side:running", "a:running", "b:running")
		if c.hash != "" {
			seen.Containers[0].Hash = c.hash
		}
		plan := Next(Input{Pod: pod(v1.RestartPolicyAlways, "side"), Observed: seen, Health: map[string]Health{"id-side": c.health}, Now: now})
		if len(plan.Kill) != 1 || plan.Kill[0].Message != want {
			t.Errorf("want %q, plan %+v", want, plan)
		}
	}
}

// TestSidecarWaits: a sidecar that is to start again waits, but one that ended well tells
// that.
func TestSidecarWaits(t *testing.T) {
	for seen, waits := range map[string]bool{"side:exited=0": false, "side:exited=3": true, "init:exited=0": false} {
		name, _, _ := strings.Cut(seen, ":")
		s := Status(StatusInput{Last: &v1.PodStatus{}, Input: Input{
			Pod: pod(v1.RestartPolicyAlways, name), Observed: see(seen, "a:running", "b:running"), Now: now,
			Slots: map[string]Slot{name: {Waiting: &v1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}}},
		}})
		state := s.InitContainerStatuses[0].State
		if (state.Waiting != nil) != waits || (state.Terminated != nil) == waits {
			t.Errorf("%s: %+v", seen, state)
		}
	}
}

// TestEndOfTheUnseen: a container whose end nobody saw is neither ready nor started any
// more; one that has ended keeps its end.
func TestEndOfTheUnseen(t *testing.T) {
	yes := true
	st := v1.ContainerStatus{State: v1.ContainerState{Running: &v1.ContainerStateRunning{}}, Ready: true, Started: &yes}
	end(&st)
	if got := st.State.Terminated; got == nil || got.ExitCode != 137 || st.State.Running != nil || st.Ready || *st.Started {
		t.Errorf("%+v", st)
	}
	st = v1.ContainerStatus{State: v1.ContainerState{Terminated: &v1.ContainerStateTerminated{ExitCode: 3}}}
	end(&st)
	if st.State.Terminated.ExitCode != 3 {
		t.Errorf("%+v", st)
	}
}

// TestObservedGeneration: a status and each of its conditions say of which pod they are.
func TestObservedGeneration(t *testing.T) {
	p := pod(v1.RestartPolicyAlways, "init")
	p.Generation = 7
	for name, seen := range map[string]*Observed{"new": see(), "begun": see("init:running"), "runs": see("init:exited=0", "a:running", "b:running")} {
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
