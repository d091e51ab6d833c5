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

	"hyperkube/internal/host/layout"
)

// The duration of TestChurn, and the seed of its random schedule.
const (
	churnRoundsEnv = "HYPERKUBE_E2E_CHURN_ROUNDS" // default 3
	churnSeedEnv   = "HYPERKUBE_E2E_CHURN_SEED"   // random by default
)

// churn is a cluster whose processes are killed by TestChurn and TestWindows.
type churn struct {
	*alone
	root  string
	args  []string      // additional arguments of up
	nodes []layout.Node // the first belongs to the main process
	names []string      // names of the nodes
	kube  kubernetes.Interface
}

// victim selects the processes that are killed in a round.
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

// TestChurn kills a node's process (the first is also the control plane), a container runtime, or
// both, while pods start, run, are probed and terminate. Running pods are not disturbed and lose no
// log line, the exit codes that the runtime has observed are reported, all pods reach the desired
// state, and nothing is left behind.
func TestChurn(t *testing.T) {
	rounds, seed := 3, uint64(time.Now().UnixNano())
	if n, err := strconv.Atoi(os.Getenv(churnRoundsEnv)); err == nil {
		rounds = n
	}
	if n, err := strconv.ParseUint(os.Getenv(churnSeedEnv), 10, 64); err == nil {
		seed = n
	}
	t.Logf("%d rounds, seed %d", rounds, seed)
	c := newChurn(t, 10*time.Minute+time.Duration(rounds)*2*time.Minute, 2, nil)
	for i := range c.nodes {
		if err := c.create(c.steady(i)); err != nil {
			t.Fatal(err)
		}
	}
	c.settled("", nil)
	before := c.steadyState()
	census := c.leftovers()
	for round := range rounds {
		random := rand.New(rand.NewPCG(seed, uint64(round)))
		c.round(round, random)
		if after := c.steadyState(); after != before {
			t.Fatalf("round %d: steady pods were\n%s\nand are\n%s", round, before, after)
		}
		if t.Failed() {
			break
		}
	}
	c.emptied()
	var diff string
	(&space{T: t}).eventually(30*time.Second, func() error {
		if diff = census.diff(c.leftovers()); diff != "" {
			return errors.New(diff)
		}
		return nil
	})
	c.checkLogs()
}

// round creates pods, kills processes in the meantime, and checks the pods.
func (c *churn) round(round int, random *rand.Rand) {
	c.t.Helper()
	v := victim{node: random.IntN(3) % 2} // killing the first node takes more time
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
			if i > 4 { // some are deleted before they start
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
				return errors.New("the runtime was not restarted")
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
	} // otherwise the next kill happens during their termination
}
