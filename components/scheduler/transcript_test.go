package scheduler

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/datadriven"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"hyperkube/components/scheduler/framework"
	"hyperkube/components/scheduler/state"
	"hyperkube/internal/client"
)

// TestTranscripts replays the transcripts in testdata: commands and the scheduler's reactions to them.
// `go test -run TestTranscripts ./components/scheduler -rewrite` records them again; review the diff.
//
// The transcripts run the scheduler's own code, including its informers and writes, with a fake API
// server and a fake clock. Only the loop of Scheduler.Run is replaced by the commands:
//
//	add-node NAME [cpu=4] [memory=8Gi] [pods=110] [labels=(K=V, …)] [taints=(K=V:EFFECT, …)] [unschedulable]
//	update-node NAME …      replace a node
//	delete-node NAME
//	add-pod NAME [node=NODE] [cpu=…] [memory=…] [priority=…] [labels=(K=V, …)] [gates=(…)] [tolerations=(K=V:EFFECT, …)]
//	        [selector=(K=V, …)] [spread=KEY:SKEW[:ScheduleAnyway]] [affinity=K=V@KEY] [anti-affinity=K=V@KEY] [preemption=Never]
//	update-pod NAME …       replace the metadata and the spec of a pod
//	delete-pod NAME         delete a pod, or complete its termination
//	add-budget NAME selector=(K=V, …) allowed=N
//	advance DURATION        advance the clock
//	cycle [hold] [fail]     schedule the next pod; with hold, its decision is written by `write` later; with
//	                        fail, the API server rejects the binding
//	write                   write the decision that `cycle hold` made
//	queue                   print the scheduling queue
//
// There are no ties between nodes in the transcripts, because the scheduler chooses randomly then.
func TestTranscripts(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no transcripts: %v", err)
	}
	for _, name := range files {
		t.Run(strings.TrimSuffix(filepath.Base(name), ".txt"), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				x := newTranscript(t)
				datadriven.RunTest(t, name, x.run)
			})
		})
	}
}

// transcript is a scheduler that commands drive. It runs in a synctest bubble.
type transcript struct {
	s    *Scheduler
	kube *fake.Clientset
	// start is the fake time of the first command.
	start time.Time
	out   strings.Builder
	// held is the decision that `cycle hold` made, nil if there is none.
	held *decision
	// bindErr is the error of bindings, nil if they succeed.
	bindErr error
}

var podResource = corev1.SchemeGroupVersion.WithResource("pods")

func newTranscript(t *testing.T) *transcript {
	kube := fake.NewClientset(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default"}})
	x := &transcript{kube: kube, start: time.Now()}
	bindable(kube)
	kube.PrependReactor("delete", "pods", x.terminate)
	kube.PrependReactor("*", "pods", x.print)
	ctx, cancel := context.WithCancel(t.Context())
	clients := &client.Clients{Kube: kube, Informers: informers.NewSharedInformerFactory(kube, 0)}
	var err error
	if x.s, err = New(Config{Clients: clients, Log: slog.New(slog.DiscardHandler)}); err != nil {
		t.Fatal(err)
	}
	clients.Informers.StartWithContext(ctx)
	t.Cleanup(func() {
		cancel()
		clients.Informers.Shutdown()
	})
	synctest.Wait()
	if !x.s.Synced() {
		t.Fatal("informers are not synced")
	}
	return x
}

// terminate handles the deletion of a pod by the scheduler like the API server: the pod exists until
// its kubelet has terminated it, which is the command delete-pod.
func (x *transcript) terminate(action clienttesting.Action) (bool, runtime.Object, error) {
	obj, err := x.kube.Tracker().Get(podResource, action.GetNamespace(), action.(clienttesting.DeleteAction).GetName())
	if err != nil {
		return true, nil, err
	}
	p := obj.(*corev1.Pod).DeepCopy()
	now := metav1.Now()
	p.DeletionTimestamp = &now
	return true, p, x.kube.Tracker().Update(podResource, p, p.Namespace)
}

// print prints the scheduler's writes.
func (x *transcript) print(action clienttesting.Action) (bool, runtime.Object, error) {
	switch a := action.(type) {
	case clienttesting.CreateAction:
		if b, ok := a.GetObject().(*corev1.Binding); ok {
			fmt.Fprintf(&x.out, "write: bind %s to %s\n", b.Name, b.Target.Name)
			return x.bindErr != nil, nil, x.bindErr
		}
	case clienttesting.PatchAction:
		var patch struct {
			Status struct {
				Conditions        []corev1.PodCondition
				NominatedNodeName json.RawMessage
			}
		}
		if err := json.Unmarshal(a.GetPatch(), &patch); err != nil {
			return true, nil, err
		}
		fmt.Fprintf(&x.out, "write: patch status of %s:", a.GetName())
		for _, c := range patch.Status.Conditions {
			fmt.Fprintf(&x.out, " %s=%s (%s)", c.Type, c.Status, c.Reason)
		}
		if n := patch.Status.NominatedNodeName; n != nil {
			fmt.Fprintf(&x.out, " nominatedNodeName=%s", n)
		}
		x.out.WriteString("\n")
	case clienttesting.DeleteAction:
		fmt.Fprintf(&x.out, "write: delete %s\n", a.GetName())
	}
	return false, nil, nil
}

// Eventf implements events.EventRecorder.
func (x *transcript) Eventf(regarding, _ runtime.Object, kind, reason, _, text string, args ...any) {
	fmt.Fprintf(&x.out, "event: %s %s %s: %s\n", kind, reason, regarding.(*corev1.Pod).Name, fmt.Sprintf(text, args...))
}

// run runs a command and returns its output.
func (x *transcript) run(t *testing.T, td *datadriven.TestData) string {
	x.out.Reset()
	if err := x.command(t, td); err != nil {
		td.Fatalf(t, "%v", err)
	}
	synctest.Wait() // until the informers have delivered the changes
	x.s.processInbox()
	if x.out.Len() == 0 {
		return "ok\n"
	}
	return x.out.String()
}

func (x *transcript) command(t *testing.T, td *datadriven.TestData) error {
	tracker := x.kube.Tracker()
	nodes := corev1.SchemeGroupVersion.WithResource("nodes")
	object, args := "", td.CmdArgs
	if len(args) > 0 && len(args[0].Vals) == 0 && strings.Contains(td.Cmd, "-") {
		object, args = args[0].Key, args[1:]
	}
	switch td.Cmd {
	case "add-node", "update-node":
		n, err := parseNode(object, args)
		if err != nil {
			return err
		}
		if td.Cmd == "add-node" {
			return tracker.Create(nodes, n, "")
		}
		return tracker.Update(nodes, n, "")
	case "delete-node":
		return tracker.Delete(nodes, "", object)
	case "add-pod", "update-pod":
		p, err := parsePod(object, args)
		if err != nil {
			return err
		}
		if td.Cmd == "add-pod" {
			return tracker.Create(podResource, p, p.Namespace)
		}
		old, err := tracker.Get(podResource, p.Namespace, p.Name)
		if err != nil {
			return err
		}
		p.Status = old.(*corev1.Pod).Status
		return tracker.Update(podResource, p, p.Namespace)
	case "delete-pod":
		return tracker.Delete(podResource, "default", object)
	case "add-budget":
		b, err := parseBudget(object, args)
		if err != nil {
			return err
		}
		return tracker.Create(policyv1.SchemeGroupVersion.WithResource("poddisruptionbudgets"), b, b.Namespace)
	case "advance":
		d, err := time.ParseDuration(td.CmdArgs[0].Key)
		if err != nil {
			return err
		}
		time.Sleep(d) // fake time of the bubble
		fmt.Fprintf(&x.out, "now %s\n", x.since(time.Now()))
	case "cycle":
		return x.cycle(t.Context(), td)
	case "write":
		if x.held == nil {
			return errors.New("no decision is held")
		}
		x.write(t.Context(), x.held)
		x.held = nil
	case "queue":
		x.printQueue()
	default:
		return errors.New("unknown command")
	}
	return nil
}

// cycle schedules the next pod.
func (x *transcript) cycle(ctx context.Context, td *datadriven.TestData) error {
	it := x.s.queue.pop(time.Now())
	if it == nil {
		x.out.WriteString("no pod is ready")
		if next := x.s.queue.nextReady(); !next.IsZero() {
			fmt.Fprintf(&x.out, " before %s", x.since(next))
		}
		x.out.WriteString("\n")
		return nil
	}
	fmt.Fprintf(&x.out, "pod: %s, priority %d, attempt %d\n", it.pod.Name, state.NewPod(it.pod).Priority, it.attempts)
	if err := x.explain(it.pod); err != nil {
		return err
	}
	d := x.s.attempt(ctx, it)
	switch {
	case d.node != "":
		fmt.Fprintf(&x.out, "decision: node %s\n", d.node)
	case d.failed:
		fmt.Fprintf(&x.out, "decision: error, in %s\n", subQueueNames[it.subQueue])
	default:
		fmt.Fprintf(&x.out, "decision: %s until %s\n", subQueueNames[it.subQueue], wakes(it.events))
	}
	if td.HasArg("hold") {
		x.held = d
		return nil
	}
	if td.HasArg("fail") {
		x.bindErr = errors.New("rejected by the API server")
		defer func() { x.bindErr = nil }()
	}
	x.write(ctx, d)
	return nil
}

func (x *transcript) write(ctx context.Context, d *decision) {
	w := x.s.newWriters()
	w.apply(ctx, d, x)
	w.done.Wait()
}

// explain prints the results of the filters and the scores, which have no side effects.
func (x *transcript) explain(pod *corev1.Pod) error {
	profile := x.s.profiles[pod.Spec.SchedulerName]
	c := x.s.newCycle(state.NewPod(pod), profile)
	search, err := newSearch(c, &profile.Plugins, nil)
	if err != nil || search.refused != "" {
		// The decision contains the reason.
		return nil
	}
	nodes := slices.Clone(c.State.Nodes())
	slices.SortFunc(nodes, func(a, b *state.Node) int { return strings.Compare(a.Name, b.Name) })
	nominated := c.State.NominatedNode(pod.UID)
	found, _ := candidates(c, &profile.Plugins, nil, nil)
	only := len(found) == 1 && found[0] == nominated
	for _, n := range nodes {
		fmt.Fprintf(&x.out, "  %s: ", n.Name)
		if search.only != nil && !search.only[n.Name] {
			fmt.Fprintf(&x.out, "excluded by %s\n", strings.Join(search.onlyBy, ", "))
			continue
		}
		reasons, by := search.check(n)
		switch {
		case reasons == nil && n == nominated:
			x.out.WriteString("fits, nominated")
		case reasons == nil:
			x.out.WriteString("fits")
		}
		for i, r := range reasons {
			if i > 0 {
				x.out.WriteString("; ")
			}
			x.out.WriteString(r.Text)
			if r.Unresolvable {
				x.out.WriteString(" (unresolvable)")
			}
		}
		if by != nil {
			fmt.Fprintf(&x.out, " [%s]", by.name)
		}
		x.out.WriteString("\n")
	}
	if only || len(found) < 2 {
		return nil // there are no scores
	}
	return x.explainScores(c, profile, found)
}

// explainScores prints the scores of the nodes that fit. It returns an error if several nodes have the
// highest sum, because the scheduler then chooses randomly.
func (x *transcript) explainScores(c *framework.Cycle, profile *Profile, found []*state.Node) error {
	found = slices.Clone(found)
	slices.SortFunc(found, func(a, b *state.Node) int { return strings.Compare(a.Name, b.Name) })
	sums, texts := make([]int64, len(found)), make([][]string, len(found))
	for _, p := range profile.Plugins.Score {
		scores := make([]int64, len(found))
		if !p.Score.Score(c, found, scores) {
			continue
		}
		for i, v := range scores {
			sums[i] += v * p.Weight
			if v != 0 {
				texts[i] = append(texts[i], fmt.Sprintf("%s %d*%d", p.Name(), v, p.Weight))
			}
		}
	}
	highest := 0
	for i, n := range found {
		fmt.Fprintf(&x.out, "  %s: score %d = %s\n", n.Name, sums[i], strings.Join(texts[i], " + "))
		if sums[i] == slices.Max(sums) {
			highest++
		}
	}
	if highest > 1 {
		return fmt.Errorf("%d nodes have the highest score, so the result is random:\n%s", highest, x.out.String())
	}
	return nil
}

var subQueueNames = [numSubQueues]string{
	activeQ: "activeQ", backoffQ: "backoffQ", unschedulable: "unschedulable", gated: "gated", inFlight: "inFlight",
}

// printQueue prints the parts of the queue that contain pods, in the order in which they are scheduled
// or retried.
func (x *transcript) printQueue() {
	q := x.s.queue
	for part := range numSubQueues {
		var items []*item
		for _, it := range q.items {
			if it.subQueue == part {
				items = append(items, it)
			}
		}
		slices.SortFunc(items, func(a, b *item) int { return strings.Compare(a.pod.Name, b.pod.Name) })
		if h := q.heaps[part]; h != nil {
			slices.SortStableFunc(items, func(a, b *item) int {
				switch {
				case h.less(a, b):
					return -1
				case h.less(b, a):
					return 1
				}
				return 0
			})
		}
		for _, it := range items {
			fmt.Fprintf(&x.out, "%s: %s", subQueueNames[part], it.pod.Name)
			switch {
			case part == backoffQ && it.failed:
				fmt.Fprintf(&x.out, ", not before %s", x.since(it.backoffEnd))
			case part == backoffQ:
				fmt.Fprintf(&x.out, ", back-off until %s", x.since(it.backoffEnd))
			case part == unschedulable:
				fmt.Fprintf(&x.out, ", back-off until %s, retried at %s", x.since(it.backoffEnd), x.since(it.retryAt))
			}
			if n := x.s.state.NominatedNode(it.pod.UID); n != nil {
				fmt.Fprintf(&x.out, ", nominated to %s", n.Name)
			}
			if it.evicting {
				x.out.WriteString(", evicting")
			}
			if len(it.plugins) > 0 {
				fmt.Fprintf(&x.out, " [%s]", strings.Join(it.plugins, " "))
			}
			x.out.WriteString("\n")
		}
	}
	if x.out.Len() == 0 {
		x.out.WriteString("empty\n")
	}
}

// since formats a time as the duration since the first command.
func (x *transcript) since(t time.Time) string { return t.Sub(x.start).String() }

// wakes returns the names of events.
func wakes(e framework.Event) string {
	if e == framework.AnyEvent {
		return "any event"
	}
	var names []string
	for bit := framework.Event(1); bit != 0 && bit <= e; bit <<= 1 {
		if e&bit != 0 {
			names = append(names, bit.String())
		}
	}
	return strings.Join(names, " ")
}
