// Package nodettl sets an annotation on each node with the duration for which its kubelet may cache
// Secrets and ConfigMaps. The duration increases with the number of nodes.
//
// https://kubernetes.io/docs/reference/labels-annotations-taints/#node-alpha-kubernetes-io-ttl
package nodettl

import (
	"context"
	"fmt"
	"math"
	"strconv"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	corelisters "k8s.io/client-go/listers/core/v1"

	"hyperkube/components/controllers/internal/control"
)

// step is a range of cluster sizes, from least to most nodes, and the TTL in seconds of the annotation
// node.alpha.kubernetes.io/ttl for it. The ranges overlap, so that adding and removing single nodes does not
// repeatedly change the annotation of all nodes.
type step struct{ least, most, seconds int }

var steps = []step{
	{0, 100, 0},
	{90, 500, 15},
	{450, 1000, 30},
	{900, 2000, 60},
	{1800, math.MaxInt, 300},
}

// Controller sets the annotation node.alpha.kubernetes.io/ttl of each node: for how many seconds its kubelet may cache
// Secrets and ConfigMaps. The time depends on the number of nodes.
type Controller struct {
	*control.Loop
	env   control.Env
	nodes corelisters.NodeLister

	mu    sync.Mutex
	count int // number of nodes; guarded by mu
	at    int // index in steps; guarded by mu
}

// New returns a Controller that uses the API client, the informers and the event recorder in env. The caller then
// starts the informers and calls Run.
func New(env control.Env) (*Controller, error) {
	env = env.Defaulted()
	nodes := env.Informers.Core().V1().Nodes()
	c := &Controller{env: env, nodes: nodes.Lister()}
	c.Loop = control.NewLoop(env, "node-ttl", c.sync)
	// When the step changes, the other nodes are annotated at their next update, which is soon,
	// because nodes are updated often.
	return c, c.Watch(nodes.Informer(), control.Handlers(
		func(n *corev1.Node) {
			c.addNodes(1)
			c.AddObject(n)
		},
		func(_, n *corev1.Node) { c.AddObject(n) },
		func(*corev1.Node) { c.addNodes(-1) }))
}

// addNodes adds by, which is 1 or -1, to the number of nodes, and selects the next step if the number leaves the range
// of the current one.
func (c *Controller) addNodes(by int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.count += by
	switch {
	case c.count > steps[c.at].most:
		c.at++
	case c.count < steps[c.at].least:
		c.at--
	}
}

// seconds returns the TTL for the current number of nodes, the value of the annotation.
func (c *Controller) seconds() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return steps[c.at].seconds
}

// sync annotates the node with the name, unless the annotation is up to date.
func (c *Controller) sync(ctx context.Context, name string) error {
	n, err := c.nodes.Get(name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	want := c.seconds()
	if is, err := strconv.Atoi(n.Annotations[corev1.ObjectTTLAnnotationKey]); err == nil && is == want {
		return nil
	}
	patch := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:"%d"}}}`, corev1.ObjectTTLAnnotationKey, want)
	_, err = c.env.Kube.CoreV1().Nodes().Patch(ctx, name, types.StrategicMergePatchType, patch, metav1.PatchOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("annotating node %s: %w", name, err)
	}
	return nil
}
