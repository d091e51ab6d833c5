package integration

import (
	"fmt"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	clientrest "k8s.io/client-go/rest"

	"hyperkube/components/apiserver"
)

func somePod(name string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": name}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}},
	}
}

func TestPods(t *testing.T) {
	s := startServer(t, apiserver.Config{})
	ctx := contextOf(t)
	kube := kubeOf(t, s, protobuf)
	pods := kube.CoreV1().Pods("default")
	made, err := pods.Create(ctx, somePod("a"), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if made.Status.Phase != corev1.PodPending || made.Spec.RestartPolicy != corev1.RestartPolicyAlways {
		t.Errorf("%+v", made)
	}

	bind := func(node string) error {
		return pods.Bind(ctx, &corev1.Binding{
			ObjectMeta: metav1.ObjectMeta{Name: "a", Namespace: "default"}, Target: corev1.ObjectReference{Kind: "Node", Name: node},
		}, metav1.CreateOptions{})
	}
	if err := bind("n1"); err != nil {
		t.Fatal(err)
	}
	if err := bind("n2"); !apierrors.IsConflict(err) || !strings.Contains(err.Error(), `pod a is already assigned to node "n1"`) {
		t.Errorf("bound twice: %v", err)
	}
	pod, err := pods.Get(ctx, "a", metav1.GetOptions{})
	if err != nil || pod.Spec.NodeName != "n1" || pod.Status.Conditions[0].Type != corev1.PodScheduled {
		t.Fatalf("%+v %v", pod, err)
	}
	list, err := pods.List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=n1"})
	if err != nil || len(list.Items) != 1 {
		t.Errorf("%+v %v", list, err)
	}

	pod, err = pods.Patch(ctx, "a", types.StrategicMergePatchType, []byte(`{"metadata":{"labels":{"not":"mine"}},"status":{"phase":"Running","podIP":"10.0.0.1"}}`), metav1.PatchOptions{}, "status")
	if err != nil || pod.Status.Phase != corev1.PodRunning {
		t.Fatalf("%+v %v", pod, err)
	}
	last := pod.ManagedFields[len(pod.ManagedFields)-1]
	if last.Subresource != "status" {
		t.Errorf("managed fields: %+v", pod.ManagedFields)
	}
	pod.Spec.Containers[0].Image = "j"
	if pod, err = pods.Update(ctx, pod, metav1.UpdateOptions{}); err != nil || pod.Generation != 2 {
		t.Errorf("%v %v", pod.Generation, err)
	}
	pod.Spec.NodeName = "n3"
	if _, err = pods.Update(ctx, pod, metav1.UpdateOptions{}); !apierrors.IsInvalid(err) {
		t.Errorf("moved: %v", err)
	}

	if err := pods.Delete(ctx, "a", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	pod, err = pods.Get(ctx, "a", metav1.GetOptions{})
	if err != nil || pod.DeletionTimestamp == nil || *pod.DeletionGracePeriodSeconds != 30 {
		t.Fatalf("%+v %v", pod, err)
	}
	zero := int64(0)
	if err := pods.Delete(ctx, "a", metav1.DeleteOptions{GracePeriodSeconds: &zero}); err != nil {
		t.Fatal(err)
	}
	if _, err = pods.Get(ctx, "a", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("still there: %v", err)
	}
	// An unassigned pod is deleted immediately, but its deletion timestamp is set before.
	b, err := pods.Create(ctx, somePod("b"), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	events, err := pods.Watch(ctx, metav1.ListOptions{ResourceVersion: b.ResourceVersion})
	if err != nil {
		t.Fatal(err)
	}
	defer events.Stop()
	if err := pods.Delete(ctx, "b", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	marked := expect(t, events, watch.Modified, "b")
	if g := marked.GetDeletionGracePeriodSeconds(); g == nil || *g != 0 || marked.GetDeletionTimestamp() == nil {
		t.Errorf("marked: %+v", marked)
	}
	expect(t, events, watch.Deleted, "b")
	if _, err = pods.Get(ctx, "b", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("still there: %v", err)
	}
}

// TestConcurrentForceDeletion force-deletes pods while their kubelet also deletes them as soon as it
// sees the deletion timestamp. Both requests must succeed.
func TestConcurrentForceDeletion(t *testing.T) {
	ctx := t.Context() // no timeout, because there are many requests
	pods := kubeOf(t, startServer(t, apiserver.Config{}), protobuf).CoreV1().Pods("default")
	events, err := pods.Watch(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for e := range events.ResultChan() {
			if p, ok := e.Object.(*corev1.Pod); ok && e.Type == watch.Modified && p.DeletionTimestamp != nil {
				_ = pods.Delete(ctx, p.Name, *metav1.NewDeleteOptions(0)) // it may have been deleted already
			}
		}
	}()
	for i := range 200 {
		name := fmt.Sprint("p", i)
		if _, err := pods.Create(ctx, somePod(name), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		if err := pods.Delete(ctx, name, *metav1.NewDeleteOptions(0)); err != nil {
			t.Fatalf("pod %d: %v", i, err)
		}
	}
	events.Stop()
	<-ended
}

func TestEviction(t *testing.T) {
	s := startServer(t, apiserver.Config{})
	ctx := contextOf(t)
	kube := kubeOf(t, s, protobuf)
	pods := kube.CoreV1().Pods("default")
	for _, name := range []string{"a", "b", "c", "bare"} {
		pod := somePod(name)
		if name == "bare" {
			pod.Labels = nil
		}
		pod, err := pods.Create(ctx, pod, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		pod.Status.Phase = corev1.PodRunning
		pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
		if _, err = pods.UpdateStatus(ctx, pod, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	one := intstr.FromInt32(1)
	budget, err := kube.PolicyV1().PodDisruptionBudgets("default").Create(ctx, &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Name: "a"},
		Spec:       policyv1.PodDisruptionBudgetSpec{MinAvailable: &one, Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "a"}}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	budget.Status = policyv1.PodDisruptionBudgetStatus{ObservedGeneration: budget.Generation, DesiredHealthy: 1, CurrentHealthy: 1, ExpectedPods: 1}
	if _, err := kube.PolicyV1().PodDisruptionBudgets("default").UpdateStatus(ctx, budget, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	evict := func(name string) error {
		return pods.EvictV1(ctx, &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"}})
	}
	if err := evict("a"); !apierrors.IsTooManyRequests(err) || !strings.Contains(err.Error(), "Cannot evict pod as it would violate the pod's disruption budget.") {
		t.Errorf("%v", err)
	}
	if err := evict("b"); err != nil {
		t.Error(err)
	}
	if _, err := pods.Get(ctx, "b", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("still there: %v", err)
	}

	// Preconditions apply to the pod before its condition is set.
	of := func(name string, change func(*metav1.DeleteOptions)) error {
		opts := &metav1.DeleteOptions{}
		change(opts)
		return pods.EvictV1(ctx, &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"}, DeleteOptions: opts})
	}
	other, yes := types.UID("other"), true
	c, err := pods.Get(ctx, "c", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	older := "1"
	for _, test := range []struct {
		change func(*metav1.DeleteOptions)
		want   string
	}{
		{func(o *metav1.DeleteOptions) { o.Preconditions = &metav1.Preconditions{UID: &other} }, "the UID in the precondition (other) does not match"},
		{func(o *metav1.DeleteOptions) { o.Preconditions = &metav1.Preconditions{ResourceVersion: &older} }, "the ResourceVersion in the precondition (1) does not match"},
		{func(o *metav1.DeleteOptions) { o.IgnoreStoreReadErrorWithClusterBreakingPotential = &yes }, "can not be set for pod eviction, try after removing the option"},
	} {
		if err := of("c", test.change); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%v, want %s", err, test.want)
		}
	}
	if now, err := pods.Get(ctx, "c", metav1.GetOptions{}); err != nil || now.ResourceVersion != c.ResourceVersion {
		t.Errorf("what is not evicted was changed: %+v, %v", now.Status, err)
	}
	if err := of("c", func(o *metav1.DeleteOptions) {
		o.Preconditions = &metav1.Preconditions{UID: &c.UID, ResourceVersion: &c.ResourceVersion}
	}); err != nil {
		t.Errorf("the very pod: %v", err)
	}

	// A budget with an empty selector also counts pods without labels. A pod may have only one
	// budget.
	all, err := kube.PolicyV1().PodDisruptionBudgets("default").Create(ctx, &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Name: "all"}, Spec: policyv1.PodDisruptionBudgetSpec{MinAvailable: &one, Selector: &metav1.LabelSelector{}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	all.Status = policyv1.PodDisruptionBudgetStatus{ObservedGeneration: all.Generation, DesiredHealthy: 1, CurrentHealthy: 1, ExpectedPods: 1}
	if _, err := kube.PolicyV1().PodDisruptionBudgets("default").UpdateStatus(ctx, all, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := evict("bare"); !apierrors.IsTooManyRequests(err) {
		t.Errorf("a pod without labels: %v", err)
	}
	if err := evict("a"); err == nil || err.Error() != "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support." {
		t.Errorf("a pod with two budgets: %v", err)
	}
}

func TestScale(t *testing.T) {
	s := startServer(t, apiserver.Config{})
	ctx := contextOf(t)
	kube := kubeOf(t, s, protobuf)
	deployments := kube.AppsV1().Deployments("default")
	three := int32(3)
	labels := map[string]string{"app": "web"}
	_, err := deployments.Create(ctx, &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec: appsv1.DeploymentSpec{
			Replicas: &three, Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: somePod("x").Spec},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	scale, err := deployments.GetScale(ctx, "web", metav1.GetOptions{})
	if err != nil || scale.Spec.Replicas != 3 || scale.Status.Selector != "app=web" {
		t.Fatalf("%+v %v", scale, err)
	}
	scale.Spec.Replicas = 5
	if scale, err = deployments.UpdateScale(ctx, "web", scale, metav1.UpdateOptions{}); err != nil || scale.Spec.Replicas != 5 {
		t.Fatalf("%+v %v", scale, err)
	}
	scale.Spec.Replicas = -1
	if _, err = deployments.UpdateScale(ctx, "web", scale, metav1.UpdateOptions{}); !apierrors.IsInvalid(err) {
		t.Errorf("%v", err)
	}
	var patched autoscalingv1.Scale
	err = kube.AppsV1().RESTClient().Patch(types.MergePatchType).Namespace("default").Resource("deployments").Name("web").SubResource("scale").
		Body([]byte(`{"spec":{"replicas":7}}`)).Do(ctx).Into(&patched)
	if err != nil || patched.Spec.Replicas != 7 {
		t.Errorf("%+v %v", patched, err)
	}
	d, err := deployments.Get(ctx, "web", metav1.GetOptions{})
	if err != nil || *d.Spec.Replicas != 7 || d.Generation != 3 {
		t.Errorf("%+v %v", d, err)
	}
	owned := false
	for _, m := range d.ManagedFields {
		owned = owned || m.Subresource == "scale" && strings.Contains(m.FieldsV1.String(), "f:replicas")
	}
	if !owned {
		t.Errorf("%+v", d.ManagedFields)
	}
}

func TestImpersonation(t *testing.T) {
	s := startServer(t, apiserver.Config{})
	as := func(user string, groups ...string) error {
		rc := admin(s)
		rc.Impersonate = clientrest.ImpersonationConfig{UserName: user, Groups: groups}
		kube, err := kubernetes.NewForConfig(rc)
		if err != nil {
			t.Fatal(err)
		}
		_, err = kube.CoreV1().Namespaces().List(contextOf(t), metav1.ListOptions{})
		return err
	}
	if err := as("jane"); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), `User "jane" cannot list resource "namespaces" in API group "" at the cluster scope`) {
		t.Errorf("%v", err)
	}
	if err := as("jane", "system:masters"); err != nil {
		t.Error(err)
	}
}
