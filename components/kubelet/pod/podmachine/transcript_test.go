package podmachine

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"hyperkube/components/kubelet/pod/podstate"
)

// TestTranscripts replays the transcripts in testdata, which show what the machine decides after each
// command. "go test -rewrite" writes the current decisions to them. The commands are:
//
//	pod [no-object] [reject=R]  a new pod, in YAML, which is not admitted with reject
//	update                      a change of the pod, in YAML that is merged into the pod
//	delete grace=SECONDS        deletion in the API
//	remove [run-again]          removal from the source, such as a forced deletion
//	verdict reason=R [grace=SECONDS] [discard] [suspend]
//	finish [volumes-fail] [sandbox-fail] [fail=CONTAINER reason=R retry=DURATION]
//	       [failed] [interrupted] [still-running] [reason=R message=M]
//	                            the end of the operation in progress and its result
//	exit NAME [code=N]          the exit of a container, and of its kill if it is being stopped
//	probe NAME startup|liveness=success|failure
//	hook NAME                   the end of a container's postStart hook
//	sandbox-lost                the end of the sandbox and all containers, such as a reboot
//	discard                     the request to discard the containers of terminated pods
//	restart-kubelet [no-status] a new machine for the same pod and runtime; the status of a static pod
//	                            is unknown
//	advance DURATION            the passing of time; the machine is called when it asked for it
//
// After each command the machine is called until it decides nothing more. Each action is a line. A
// line that begins with "status" is a reported status that differs from the one before.
func TestTranscripts(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		s := &simulation{t: t, now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)}
		s.began = s.now
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			s.t = t
			return s.run(d)
		})
	})
}

// simulation is the caller of a machine, with a simulated runtime and clock.
type simulation struct {
	t          *testing.T
	began, now time.Time
	m          *Machine
	op         Operation
	health     map[string]podstate.Health
	status     v1.PodStatus // as reported
	shown      string       // status line last printed
	wakeAt     time.Time
	out        strings.Builder
}

// run executes one command and returns the decisions that follow.
func (s *simulation) run(d *datadriven.TestData) string {
	s.out.Reset()
	switch d.Cmd {
	case "pod":
		s.m = New(s.parse(d.Input, &v1.Pod{}), Options{HasObject: !d.HasArg("no-object"), Limits: limitsOf})
		s.health, s.status = map[string]podstate.Health{}, v1.PodStatus{}
		if d.HasArg("reject") {
			s.m.Terminate(&Verdict{Reason: s.text(d, "reject"), Message: "not here", Rejected: true}, s.now)
		}
	case "update":
		s.m.SetPod(s.parse(d.Input, s.m.Pod.DeepCopy()))
	case "delete":
		pod := s.m.Pod.DeepCopy()
		pod.DeletionTimestamp, pod.DeletionGracePeriodSeconds = &metav1.Time{Time: s.now}, s.number(d, "grace")
		pod.Generation++
		s.m.SetPod(pod)
	case "remove":
		s.m.Remove()
		s.m.RunAgain = d.HasArg("run-again")
	case "verdict":
		v := &Verdict{Reason: s.text(d, "reason"), Message: "decided by the kubelet", Discard: d.HasArg("discard"), Suspend: d.HasArg("suspend"), Grace: s.number(d, "grace")}
		if !s.m.Terminate(v, s.now) {
			fmt.Fprintln(&s.out, "ignored")
		}
	case "finish":
		if s.m.Operation == None {
			return "no operation is in progress\n"
		}
		s.finish(d)
	case "exit":
		s.exit(s.container(d), int32(*cmp.Or(s.number(d, "code"), new(int64))))
	case "probe":
		s.probe(d)
	case "hook":
		s.m.Containers.HookFinished(s.container(d).ID)
	case "sandbox-lost":
		for i := range s.m.Containers.Observed.Sandboxes {
			s.m.Containers.Observed.Sandboxes[i].Ready = false
		}
		for i := range s.m.Containers.Observed.Containers {
			if st := &s.m.Containers.Observed.Containers[i]; st.State == podstate.Running {
				s.exit(st, 137)
			}
		}
	case "discard":
		if !s.m.RequestDiscard() {
			fmt.Fprintln(&s.out, "ignored")
		}
	case "restart-kubelet":
		pod := s.m.Pod.DeepCopy()
		pod.Status = s.status
		if d.HasArg("no-status") {
			pod.Status, s.status = v1.PodStatus{}, v1.PodStatus{}
		}
		observed := s.m.Containers.Observed
		if s.m.Discarding == DiscardDone {
			observed = podstate.Observed{}
		}
		s.m = New(pod, s.m.Options)
		s.m.Containers.Observed, s.op = observed, Operation{}
	case "advance":
		return s.advance(d)
	default:
		s.t.Fatalf("%s: unknown command %s", d.Pos, d.Cmd)
	}
	s.settle()
	return s.out.String()
}

// settle calls the machine until it decides nothing more, and prints its decisions.
func (s *simulation) settle() {
	for range 10 {
		last := s.status
		d := s.m.Step(Input{Now: s.now, Health: s.healths(), Last: &last, StartTime: last.StartTime, StatusSettled: true})
		s.print(&d)
		if d.Report {
			s.report()
		}
		s.wakeAt = d.WakeAt
		if d.Operation.Kind != None {
			s.op = d.Operation
		}
		if !d.Again {
			if !d.WakeAt.IsZero() {
				fmt.Fprintf(&s.out, "wake at %s\n", s.clock(d.WakeAt))
			}
			return
		}
	}
	s.t.Fatal("the machine does not settle")
}

func (s *simulation) print(d *Decision) {
	for _, e := range d.Events {
		kind := "Normal"
		if e.Warning {
			kind = "Warning"
		}
		fmt.Fprintf(&s.out, "event %s %s %s: %s\n", kind, e.Reason, cmp.Or(e.Container, "pod"), e.Message)
	}
	if d.CancelOperation {
		fmt.Fprintf(&s.out, "cancel %s\n", s.m.Operation)
	}
	for _, k := range d.Kill {
		fmt.Fprintf(&s.out, "kill %s grace=%ds", k.ID, k.Grace)
		if k.Ordered {
			fmt.Fprint(&s.out, " ordered")
		}
		if k.Shortened {
			fmt.Fprint(&s.out, " shortened")
		}
		fmt.Fprintf(&s.out, ": %s\n", k.Message)
	}
	for _, id := range d.AllowStop {
		fmt.Fprintf(&s.out, "allow stop of %s\n", id)
	}
	if d.Operation.Kind != None {
		fmt.Fprintf(&s.out, "begin %s%s\n", d.Operation.Kind, arguments(&d.Operation))
	}
	if d.Done {
		fmt.Fprintln(&s.out, "done")
	}
}

// arguments returns the arguments of an operation as text for the transcript, with a leading space, or "" if it
// has none.
func arguments(o *Operation) string {
	var out []string
	for _, id := range o.Plan.StopSandboxes {
		out = append(out, "stop="+id)
	}
	if o.Plan.NewSandbox {
		out = append(out, fmt.Sprintf("sandbox-%d", o.Plan.Attempt))
	}
	for _, c := range o.Starts {
		out = append(out, fmt.Sprintf("%s-%d", c.Name, c.Attempt))
	}
	out = append(out, o.Remove...)
	for _, c := range o.Resize.Containers {
		text := c.ID
		if c.Restart {
			text += "(restart)"
		}
		if c.Shrinks {
			text += "(shrinks)"
		}
		out = append(out, text)
	}
	if len(out) == 0 {
		return ""
	}
	return " " + strings.Join(out, " ")
}

// report computes the status and prints it if it has changed.
func (s *simulation) report() {
	m := s.m
	in := podstate.StatusInput{
		Input: m.NextInput(s.now, s.healths()), Last: s.status.DeepCopy(), RuntimeName: "test", HostIPs: []string{"192.0.2.1"},
		Terminating: m.Stage != Syncing, Stopped: m.Stage == Stopped, QOS: v1.PodQOSBurstable, Actuated: m.Resize.Actuated,
		Recursive: func(*v1.VolumeMount) bool { return false },
	}
	if r := m.Resize.State; r != nil {
		in.Conditions, in.Pending = append(in.Conditions, r.Condition()), r.Kind == v1.PodResizePending
	}
	if v := m.Verdict; v != nil {
		in.Reason, in.Message, in.Rejected = v.Reason, v.Message, v.Rejected
	}
	s.status = podstate.Status(in)
	line := "status " + string(s.status.Phase)
	if s.status.Reason != "" {
		line += " " + s.status.Reason
	}
	for _, c := range s.status.Conditions {
		switch {
		case c.Type == v1.PodReady && c.Status == v1.ConditionTrue:
			line += " ready"
		case c.Type == v1.AllContainersRestarting && c.Status == v1.ConditionTrue, c.Type == v1.PodResizePending, c.Type == v1.PodResizeInProgress:
			line += " " + string(c.Type)
			if c.Reason != "" {
				line += "(" + c.Reason + ")"
			}
		}
	}
	for _, c := range slices.Concat(s.status.InitContainerStatuses, s.status.ContainerStatuses) {
		line += " " + c.Name + "=" + containerState(&c)
	}
	if line != s.shown {
		fmt.Fprintln(&s.out, line)
	}
	s.shown = line
}

func containerState(c *v1.ContainerStatus) string {
	restarts := ""
	if c.RestartCount > 0 {
		restarts = fmt.Sprintf("#%d", c.RestartCount)
	}
	switch {
	case c.State.Running != nil:
		return "running" + restarts
	case c.State.Terminated != nil:
		return fmt.Sprintf("exited(%d)%s", c.State.Terminated.ExitCode, restarts)
	case c.State.Waiting != nil:
		return c.State.Waiting.Reason + restarts
	}
	return "unknown"
}

// finish ends the operation in progress.
func (s *simulation) finish(d *datadriven.TestData) {
	op := s.op
	s.op = Operation{}
	outcome := Succeeded
	switch {
	case d.HasArg("failed"):
		outcome = Failed
	case d.HasArg("interrupted"):
		outcome = Interrupted
	case d.HasArg("still-running"):
		outcome = StillRunning
	}
	switch {
	case op.Kind == ResizePod:
		s.finishResize(d, &op.Resize)
		return
	case op.Kind == Start && outcome == Succeeded:
		outcome = s.start(d, &op)
	case op.Kind == RemoveContainers && outcome == Succeeded:
		for _, id := range op.Remove {
			s.m.Containers.Forget(id)
		}
	case op.Kind == RefreshVolumes:
		s.m.Volumes.Updating()
		s.m.Volumes.Updated(time.Time{})
	}
	s.m.Finish(outcome, s.now)
}

// start simulates the operation Start.
func (s *simulation) start(d *datadriven.TestData, op *Operation) Outcome {
	m := s.m
	m.Volumes.Updating()
	if d.HasArg("volumes-fail") {
		m.PrepareFailed(s.now)
		return Failed
	}
	m.Volumes.Updated(time.Time{})
	if d.HasArg("sandbox-fail") {
		m.PrepareFailed(s.now)
		return Failed
	}
	return s.started(op, func(c *podstate.Start) (reason string, retry time.Duration) {
		if !d.HasArg("fail") || s.text(d, "fail") != c.Name {
			return "", 0
		}
		retry, err := time.ParseDuration(s.text(d, "retry"))
		if err != nil {
			s.t.Fatal(err)
		}
		return s.text(d, "reason"), retry
	})
}

// started creates the sandbox and starts the containers of the operation Start. fails returns why a
// container is not started, if it is not, and when it is retried.
func (s *simulation) started(op *Operation, fails func(*podstate.Start) (reason string, retry time.Duration)) Outcome {
	m := s.m
	if op.Plan.NewSandbox {
		m.Containers.SandboxCreated(podstate.Sandbox{
			ID: fmt.Sprintf("sandbox-%d", op.Plan.Attempt), Attempt: op.Plan.Attempt, Ready: true, CreatedAt: s.now, IPs: []string{"10.0.0.1"},
		})
	}
	m.Retry.Reset()
	for _, c := range op.Starts {
		spec, kind := podstate.Find(m.Pod, c.Name)
		if reason, retry := fails(&c); reason != "" {
			m.Containers.Failed(c.Name, reason, "refused", s.now.Add(retry))
			if kind == podstate.Init {
				return Failed
			}
			continue
		}
		id := fmt.Sprintf("%s-%d", c.Name, c.Attempt)
		hook := spec.Lifecycle != nil && spec.Lifecycle.PostStart != nil
		limits := limitsOf(m.Pod, spec)
		m.Containers.Starting(c.Name, id, hook)
		m.Containers.Created(podstate.Container{
			ID: id, SandboxID: m.Containers.Observed.Sandbox().ID, Name: c.Name, Attempt: c.Attempt, State: podstate.Running, Hash: podstate.Hash(spec),
			CreatedAt: s.now, StartedAt: s.now, Image: spec.Image, ImageID: spec.Image, Resources: &limits,
		}, c.Crash)
		m.Containers.Started(c.Name)
	}
	return Succeeded
}

// finishResize simulates the operation ResizePod.
func (s *simulation) finishResize(d *datadriven.TestData, req *ResizeRequest) {
	result := ResizeState{Kind: v1.PodResizeInProgress}
	if d.HasArg("reason") {
		result.Reason, result.Message = s.text(d, "reason"), "simulated"
		if result.Reason != v1.PodReasonError {
			result.Kind = v1.PodResizePending
		}
	}
	if result.Kind == v1.PodResizeInProgress {
		started := s.m.Resize.Started(req)
		s.print(&started)
	}
	if result.Reason == "" {
		for _, c := range req.Containers {
			spec, _ := podstate.Find(req.Pod, c.Name)
			if st := s.m.Containers.Observed.ByID(c.ID); st != nil && spec != nil && !c.Restart {
				limits := limitsOf(req.Pod, spec)
				st.Resources = &limits
			}
		}
	}
	done := s.m.FinishResize(req, result, s.now)
	s.print(&done)
}

// exit makes a container exit.
func (s *simulation) exit(st *podstate.Container, code int32) {
	st.State, st.ExitCode, st.FinishedAt, st.Resources = podstate.Exited, code, s.now, nil
	delete(s.health, st.ID)
	s.m.Containers.HookFinished(st.ID)
	s.m.KillFinished(st.ID)
}

func (s *simulation) probe(d *datadriven.TestData) {
	id := s.container(d).ID
	h := s.health[id]
	for arg, result := range map[string]*podstate.Result{"startup": &h.Startup, "liveness": &h.Liveness} {
		if d.HasArg(arg) {
			*result = map[string]podstate.Result{"success": podstate.Success, "failure": podstate.Failure}[s.text(d, arg)]
		}
	}
	s.health[id] = h
}

// healths returns the probe results of running containers.
func (s *simulation) healths() map[string]podstate.Health {
	out := map[string]podstate.Health{}
	for i := range s.m.Containers.Observed.Containers {
		st := &s.m.Containers.Observed.Containers[i]
		c, _ := podstate.Find(s.m.Pod, st.Name)
		if st.State != podstate.Running || c == nil {
			continue
		}
		h := s.health[st.ID]
		if c.StartupProbe != nil && h.Startup == podstate.NoProbe {
			h.Startup = podstate.Pending
		}
		out[st.ID] = h
	}
	return out
}

// advance lets time pass, and calls the machine each time that it asked for.
func (s *simulation) advance(d *datadriven.TestData) string {
	by, err := time.ParseDuration(d.CmdArgs[0].Key)
	if err != nil {
		s.t.Fatalf("%s: %v", d.Pos, err)
	}
	end := s.now.Add(by)
	for !s.wakeAt.IsZero() && !s.wakeAt.After(end) {
		s.now = s.wakeAt
		fmt.Fprintf(&s.out, "at %s\n", s.clock(s.now))
		s.settle()
	}
	s.now = end
	return s.out.String()
}

// parse reads a pod in YAML over base, which it returns. It sets missing names and the restart policy, and
// increments the generation.
func (s *simulation) parse(text string, base *v1.Pod) *v1.Pod {
	if err := yaml.UnmarshalStrict([]byte(text), base); err != nil {
		s.t.Fatal(err)
	}
	if base.UID == "" {
		base.UID, base.Name, base.Namespace = "uid", "pod", "default"
		base.CreationTimestamp.Time = s.now
	}
	if base.Spec.RestartPolicy == "" {
		base.Spec.RestartPolicy = v1.RestartPolicyAlways
	}
	base.Generation++
	return base
}

// container returns the latest container of the name that is the first argument.
func (s *simulation) container(d *datadriven.TestData) *podstate.Container {
	st := s.m.Containers.Observed.Latest(d.CmdArgs[0].Key)
	if st == nil {
		s.t.Fatalf("%s: no container %s exists", d.Pos, d.CmdArgs[0].Key)
	}
	return st
}

func (s *simulation) text(d *datadriven.TestData, arg string) (value string) {
	d.ScanArgs(s.t, arg, &value)
	return value
}

// number returns a numeric argument, or nil without one.
func (s *simulation) number(d *datadriven.TestData, arg string) *int64 {
	if !d.HasArg(arg) {
		return nil
	}
	n, err := strconv.ParseInt(s.text(d, arg), 10, 64)
	if err != nil {
		s.t.Fatalf("%s: %v", d.Pos, err)
	}
	return &n
}

// clock returns the time since the begin of the transcript.
func (s *simulation) clock(at time.Time) string { return "+" + at.Sub(s.began).String() }

// limitsOf are simple limits of a container.
func limitsOf(_ *v1.Pod, c *v1.Container) podstate.Resources {
	return podstate.Resources{CPUShares: c.Resources.Requests.Cpu().MilliValue(), MemoryLimit: c.Resources.Limits.Memory().Value()}
}
