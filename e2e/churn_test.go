package e2e

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"hyperkube/internal/layout"
)

// How long TestChurn goes on, and what its schedule follows from.
const (
	churnRoundsEnv = "HYPERKUBE_E2E_CHURN_ROUNDS" // default 3
	churnSeedEnv   = "HYPERKUBE_E2E_CHURN_SEED"   // default one of its own
)

// churn is a cluster whose processes are killed, by TestChurn and TestWindows.
type churn struct {
	*alone
	root  string
	args  []string      // of up, besides the root
	nodes []layout.Node // the first is that of the main process
	names []string      // of the nodes
	kube  kubernetes.Interface
}

// victim is what is killed in a round.
type victim struct {
	node          int
	main, runtime bool
}

func (v victim) String() string {
	var what []string
	if v.main {
		what = append(what, "process")
	}
	if v.runtime {
		what = append(what, "runtime")
	}
	return fmt.Sprintf("%s of node %d", strings.Join(what, " and "), v.node+1)
}

// TestChurn kills a node's process (the first one's is the control plane, too),
// a container runtime, or both, while pods start, run, are probed and stopped.
// Who runs goes on undisturbed and loses no line of its log, exit codes that
// the runtime has seen are told, everybody becomes what was asked for, and
// nothing is left.
func TestChurn(t *testing.T) {
	rounds, seed := 3, uint64(time.Now().UnixNano())
	if n, err := strconv.Atoi(os.Getenv(churnRoundsEnv)); err == nil {
		rounds = n
	}
	if n, err := strconv.ParseUint(os.Getenv(churnSeedEnv), 10, 64); err == nil {
		seed = n
	}
	t.Logf("%d rounds, the seed is %d", rounds, seed)
	c := newChurn(t, 10*time.Minute+time.Duration(rounds)*2*time.Minute, 2, nil)
	for i := range c.nodes {
		if err := c.create(c.steady(i)); err != nil {
			t.Fatal(err)
		}
	}
	c.settled("", nil)
	before := c.steadyState()
	census := c.census()
	for round := range rounds {
		random := rand.New(rand.NewPCG(seed, uint64(round)))
		c.round(round, random)
		if after := c.steadyState(); after != before {
			t.Fatalf("round %d: who should run on was\n%s\nand is\n%s", round, before, after)
		}
		if t.Failed() {
			break
		}
	}
	c.emptied()
	var diff string
	(&space{T: t}).eventually(30*time.Second, func() error {
		if diff = census.diff(c.census()); diff != "" {
			return errors.New(diff)
		}
		return nil
	})
	c.checkLogs()
}

// round makes pods, kills in the middle of it, and sees what has come of them.
func (c *churn) round(round int, random *rand.Rand) {
	c.t.Helper()
	v := victim{node: random.IntN(3) % 2} // the first node's costs more time
	switch random.IntN(3) {
	case 0:
		v.main = true
	case 1:
		v.runtime = true
	case 2:
		v.main, v.runtime = true, true
	}
	pause := time.Duration(random.IntN(600)) * time.Millisecond
	c.t.Logf("round %d: %s after %s", round, v, pause)
	wants := c.pods(round, random)
	two := int32(2)
	job := &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("churn-%d", round)},
		Spec:       batchv1.JobSpec{Completions: &two, Parallelism: &two, Template: corev1.PodTemplateSpec{Spec: c.shell("x", "", "sleep 0.1").Spec}},
	}
	job.Spec.Template.Spec.RestartPolicy = corev1.RestartPolicyOnFailure
	if _, err := c.kube.BatchV1().Jobs("default").Create(c.ctx, job, metav1.CreateOptions{}); err != nil {
		c.t.Fatal(err)
	}
	created := make(chan error, 1)
	go func() {
		var errs []error
		defer func() { created <- errors.Join(errs...) }()
		for i, w := range wants {
			errs = append(errs, c.create(w.pod))
			if i > 4 { // some are stopped before they have begun
				time.Sleep(time.Duration(i) * 10 * time.Millisecond)
			}
		}
	}()
	time.Sleep(pause)
	killed := c.kill(v)
	if v.main {
		c.up()
	}
	if err := <-created; err != nil {
		c.t.Fatal(err)
	}
	if v.runtime {
		c.again(func() error {
			if pid := c.runtimePID(v.node); pid == 0 || slices.Contains(killed, pid) {
				return errors.New("the runtime was not started again")
			}
			return nil
		})
	}
	for _, w := range wants {
		touched := v.runtime && w.pod.Spec.NodeName == c.names[v.node]
		c.settled(w.pod.Name, func(p *corev1.Pod) error { return w.check(p, touched) })
	}
	c.again(func() error {
		j, err := c.kube.BatchV1().Jobs("default").Get(c.ctx, job.Name, metav1.GetOptions{})
		if err == nil && j.Status.Succeeded < two {
			err = fmt.Errorf("job %s: %+v", j.Name, j.Status)
		}
		return err
	})
	background := metav1.DeletePropagationBackground
	c.again(func() error {
		return errors.Join(
			c.kube.BatchV1().Jobs("default").DeleteCollection(c.ctx, metav1.DeleteOptions{PropagationPolicy: &background}, metav1.ListOptions{}),
			c.kube.CoreV1().Pods("default").DeleteCollection(c.ctx, metav1.DeleteOptions{}, metav1.ListOptions{LabelSelector: "churn=churn"}))
	})
	if random.IntN(2) == 0 {
		c.emptied()
	} // else the next round's kill meets their end
}
