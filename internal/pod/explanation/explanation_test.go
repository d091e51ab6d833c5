package explanation

import (
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	ktesting "k8s.io/client-go/testing"
)

// owned returns the metadata of an object that owner controls.
func owned(name string, owner metav1.Object, kind string) metav1.ObjectMeta {
	yes := true
	return metav1.ObjectMeta{Name: name, Namespace: "a", OwnerReferences: []metav1.OwnerReference{{Kind: kind, Name: owner.GetName(), UID: owner.GetUID(), Controller: &yes}}}
}

// TestExplain explains a pod, a Deployment whose pod is not ready, and one without pods.
func TestExplain(t *testing.T) {
	selector := &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}
	one := int32(1)
	deployment := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "a", UID: "d"}, Spec: appsv1.DeploymentSpec{Selector: selector}}
	set := &appsv1.ReplicaSet{ObjectMeta: owned("web-1", deployment, "Deployment"), Spec: appsv1.ReplicaSetSpec{Replicas: &one, Selector: selector}}
	set.UID, set.Labels = "r", selector.MatchLabels
	pod := func(name string, ready corev1.ConditionStatus) *corev1.Pod {
		p := &corev1.Pod{ObjectMeta: owned(name, set, "ReplicaSet"), Spec: corev1.PodSpec{NodeName: "n"}}
		p.Labels = selector.MatchLabels
		p.Status.Phase, p.Status.Conditions = corev1.PodRunning, []corev1.PodCondition{{Type: corev1.PodReady, Status: ready}}
		p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "c", Ready: ready == corev1.ConditionTrue, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}
		return p
	}
	broken := pod("broken", corev1.ConditionFalse)
	broken.Status.ContainerStatuses[0].State = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ErrImageNeverPull"}}
	failed := &corev1.Event{ObjectMeta: metav1.ObjectMeta{Name: "e", Namespace: "a"}, Reason: "FailedCreate", Message: "exceeded quota: small, requested: pods=1",
		InvolvedObject: corev1.ObjectReference{Kind: "ReplicaSet", Name: "web-1"}}
	for _, test := range []struct {
		name    string
		objects []runtime.Object
		// forbidden are the resources that the user may not read.
		forbidden, want, err string
	}{
		{name: "good", objects: []runtime.Object{pod("good", corev1.ConditionTrue)}, want: "Pod a/good is running and ready on node n.\n\nThe scheduler has selected node \"n\""},
		{name: "good", objects: []runtime.Object{pod("good", corev1.ConditionTrue)}, want: "\n\nNo problem was found.\n"},
		{name: "web", objects: []runtime.Object{deployment, set, pod("good", corev1.ConditionTrue), broken}, want: "Pod a/broken is running, but not ready on node n.\n\nProblem: The container \"c\" cannot start"},
		{name: "deployments/web", objects: []runtime.Object{deployment, set, failed}, want: "Deployment a/web is without pods.\n\nProblem: The ReplicaSet \"web-1\" cannot create a pod, because the ResourceQuota \"small\" is used up"},
		{name: "web", objects: []runtime.Object{deployment, set, broken, failed}, forbidden: "events nodes", want: "\nNot read, so that causes may be missing: node n (forbidden), events (forbidden).\n"},
		{name: "none", err: `namespace a has no pod, Deployment, StatefulSet, DaemonSet, ReplicaSet or Job "none"`},
		{name: "none", forbidden: "pods deployments", err: "reading the Pod: pods is forbidden"},
	} {
		kube := fake.NewClientset(test.objects...)
		kube.PrependReactor("*", "*", func(action ktesting.Action) (bool, runtime.Object, error) {
			resource := action.GetResource()
			if strings.Contains(" "+test.forbidden+" ", " "+resource.Resource+" ") {
				return true, nil, apierrors.NewForbidden(resource.GroupResource(), "", nil)
			}
			return false, nil, nil
		})
		got, err := Explain(t.Context(), kube, "a", test.name)
		if test.err != "" {
			if err == nil || !strings.Contains(err.Error(), test.err) {
				t.Errorf("%s: error %v", test.name, err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", test.name, err)
			continue
		}
		var text strings.Builder
		if err := got.Write(&text); err != nil || !strings.Contains(text.String(), test.want) {
			t.Errorf("%s: %v, got\n%s", test.name, err, text.String())
		}
	}
}
