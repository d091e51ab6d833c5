package podmachine

import (
	"fmt"
	"math/rand"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"hyperkube/components/kubelet/pod/podstate"
	"hyperkube/internal/pod/podutil"
)

// TestRandomLives checks the rules that hold for every pod with random events: operations do not
// overlap, nothing is started in a terminating pod, containers are stopped once for each grace
// period, and a removed pod ends.
func TestRandomLives(t *testing.T) {
	for seed := range int64(500) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { randomLife(t, rand.New(rand.NewSource(seed))) })
	}
}

// life is the simulated life of a pod: a machine to which random events happen, with the state that the checked
// rules are about.
type life struct {
	*simulation
	random *rand.Rand
	trace  []string
	grace  map[string]int64 // of the kills in progress
	ended  bool             // the pod was seen terminating
	done   bool
}

func randomLife(t *testing.T, random *rand.Rand) {
	l := &life{simulation: &simulation{t: t, now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC), health: map[string]podstate.Health{}}, random: random, grace: map[string]int64{}}
	t.Cleanup(func() {
		if t.Failed() {
			for _, line := range l.trace {
				t.Log(line)
			}
		}
	})
	l.m = New(l.pod(), Options{HasObject: random.Intn(3) > 0, Limits: limitsOf})
	l.step()
	for range random.Intn(40) {
		l.event()
		l.step()
	}
	if !l.m.Removed {
		l.m.Remove()
	}
	// From now on everything succeeds.
	for range 100 {
		if l.done {
			return
		}
		l.cooperate()
		l.step()
	}
	t.Fatalf("the removed pod does not end: stage %d, step %d, operation %s, kills %v", l.m.Stage, l.m.Final, l.m.Operation, l.m.Kills)
}

// pod returns a random pod.
func (l *life) pod() *v1.Pod {
	pod := &v1.Pod{}
	pod.Name, pod.Namespace, pod.UID, pod.Generation = "pod", "default", "uid", 1
	pod.Spec.RestartPolicy = []v1.RestartPolicy{v1.RestartPolicyAlways, v1.RestartPolicyOnFailure, v1.RestartPolicyNever}[l.random.Intn(3)]
	pod.Spec.TerminationGracePeriodSeconds = ptr.To(l.random.Int63n(60))
	for i := range l.random.Intn(3) {
		c := v1.Container{Name: fmt.Sprintf("init%d", i)}
		if l.random.Intn(2) == 0 {
			c.RestartPolicy = ptr.To(v1.ContainerRestartPolicyAlways)
		}
		pod.Spec.InitContainers = append(pod.Spec.InitContainers, c)
	}
	for i := range 1 + l.random.Intn(3) {
		pod.Spec.Containers = append(pod.Spec.Containers, v1.Container{Name: fmt.Sprintf("app%d", i)})
	}
	return pod
}

// event makes something random happen.
func (l *life) event() {
	running := l.running()
	switch n := l.random.Intn(12); {
	case n < 4 && l.m.Operation != None:
		l.end(Outcome(l.random.Intn(3)))
	case n < 7 && len(running) > 0:
		st := running[l.random.Intn(len(running))]
		l.trace = append(l.trace, "exit "+st.ID)
		l.exit(st, int32(l.random.Intn(2)))
		delete(l.grace, st.ID)
	case n == 7 && len(running) > 0:
		st := running[l.random.Intn(len(running))]
		l.trace = append(l.trace, "probe of "+st.ID)
		l.health[st.ID] = podstate.Health{Liveness: podstate.Failure}
	case n == 8 && l.random.Intn(4) == 0:
		l.trace = append(l.trace, "delete")
		pod := l.m.Pod.DeepCopy()
		pod.DeletionTimestamp, pod.DeletionGracePeriodSeconds = &metav1.Time{Time: l.now}, ptr.To(l.random.Int63n(30))
		pod.Generation++
		l.m.SetPod(pod)
	case n == 9 && l.random.Intn(4) == 0:
		l.trace = append(l.trace, "verdict")
		l.m.Terminate(&Verdict{Reason: "Evicted", Grace: ptr.To(l.random.Int63n(30)), Discard: l.random.Intn(2) == 0}, l.now)
	case n == 10 && l.random.Intn(4) == 0:
		l.trace = append(l.trace, "remove")
		l.m.Remove()
	default:
		l.now = l.now.Add(time.Duration(l.random.Intn(60)) * time.Second)
	}
}

// cooperate makes the next thing happen that the machine waits for.
func (l *life) cooperate() {
	switch {
	case l.m.Operation != None:
		l.end(Succeeded)
	case len(l.grace) > 0:
		for id := range l.grace {
			l.trace = append(l.trace, "killed "+id)
			l.exit(l.m.Containers.Observed.ByID(id), 137)
			delete(l.grace, id)
			return
		}
	default:
		l.now = l.now.Add(3 * time.Minute)
	}
}

// end ends the operation in progress.
func (l *life) end(outcome Outcome) {
	op := l.op
	l.trace = append(l.trace, fmt.Sprintf("end of %s: %d", op.Kind, outcome))
	l.op = Operation{}
	switch {
	case op.Kind == Start && outcome == Failed:
		l.m.PrepareFailed(l.now)
	case op.Kind == Start && outcome == Succeeded:
		l.started(&op, func(*podstate.Start) (string, time.Duration) {
			if l.random.Intn(5) == 0 {
				return "ErrImagePull", 10 * time.Second
			}
			return "", 0
		})
	case op.Kind == RemoveContainers && outcome == Succeeded:
		for _, id := range op.Remove {
			l.m.Containers.Forget(id)
		}
	}
	l.m.Finish(outcome, l.now)
}

// step calls the machine and checks its decision.
func (l *life) step() {
	if l.done {
		return
	}
	before := l.m.Operation
	last := l.status
	d := l.m.Step(Input{Now: l.now, Health: l.healths(), Last: &last, StatusSettled: true})
	if l.ended && l.m.Stage == Syncing {
		l.t.Fatal("a terminating pod is running again")
	}
	l.ended = l.m.Stage != Syncing
	if op := d.Operation.Kind; op != None {
		l.trace = append(l.trace, "begin "+op.String()+arguments(&d.Operation))
		if before != None {
			l.t.Fatalf("%s overlaps with %s", op, before)
		}
		if l.ended != op.terminates() {
			l.t.Fatalf("%s in stage %d", op, l.m.Stage)
		}
		l.op = d.Operation
	}
	for _, k := range d.Kill {
		l.trace = append(l.trace, fmt.Sprintf("kill %s with %d", k.ID, k.Grace))
		if st := l.m.Containers.Observed.ByID(k.ID); st == nil || st.State != podstate.Running {
			l.t.Fatalf("%s is stopped but does not run", k.ID)
		}
		if old, ok := l.grace[k.ID]; ok != k.Shortened || ok && k.Grace >= old {
			l.t.Fatalf("a kill with %d seconds replaces one with %d (%t)", k.Grace, old, ok)
		}
		l.grace[k.ID] = k.Grace
	}
	for _, id := range d.AllowStop {
		l.checkOrder(id)
	}
	if d.Done && (len(l.running()) > 0 || !l.m.Removed && l.m.Pod.DeletionTimestamp == nil) {
		l.t.Fatalf("the pod ends with %d running containers, removed %t", len(l.running()), l.m.Removed)
	}
	if l.done = d.Done; d.Again {
		l.step()
	}
}

// checkOrder checks that no app container is running, and no sidecar that was started after the sidecar
// id.
func (l *life) checkOrder(id string) {
	name := l.m.Containers.Observed.ByID(id).Name
	for _, st := range l.running() {
		c, kind := podstate.Find(l.m.Pod, st.Name)
		if kind == podstate.App || podutil.Sidecar(c) && st.Name > name {
			l.t.Fatalf("sidecar %s is stopped before %s", name, st.Name)
		}
	}
}

// running returns the running containers.
func (l *life) running() []*podstate.Container {
	var out []*podstate.Container
	for i := range l.m.Containers.Observed.Containers {
		if st := &l.m.Containers.Observed.Containers[i]; st.State == podstate.Running {
			out = append(out, st)
		}
	}
	return out
}
