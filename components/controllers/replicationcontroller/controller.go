// Package replicationcontroller maintains the desired number of pods of ReplicationControllers.
// They are handled like ReplicaSets.
package replicationcontroller

import (
	"context"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"hyperkube/components/controllers/internal/control"
	"hyperkube/components/controllers/replicaset"
)

// New returns a Controller that uses the API client, the informers and the event recorder in env. The caller then
// starts the informers and calls Run.
func New(env control.Env) (*replicaset.Controller, error) {
	return replicaset.NewFlavor(env, replicaset.Flavor{
		Name:     "replicationcontroller",
		Kind:     corev1.SchemeGroupVersion.WithKind("ReplicationController"),
		Informer: env.Informers.Core().V1().ReplicationControllers().Informer(),
		Convert: func(obj any) *appsv1.ReplicaSet {
			rc, ok := control.Object[*corev1.ReplicationController](obj)
			if !ok {
				return nil
			}
			return toSet(rc)
		},
		Live: func(ctx context.Context, namespace, name string) (*appsv1.ReplicaSet, error) {
			rc, err := env.Kube.CoreV1().ReplicationControllers(namespace).Get(ctx, name, metav1.GetOptions{})
			if err != nil {
				return nil, err
			}
			return toSet(rc), nil
		},
		UpdateStatus: func(ctx context.Context, rs *appsv1.ReplicaSet) (*appsv1.ReplicaSet, error) {
			rc, err := env.Kube.CoreV1().ReplicationControllers(rs.Namespace).UpdateStatus(ctx, fromSet(rs), metav1.UpdateOptions{})
			if err != nil {
				return nil, err
			}
			return toSet(rc), nil
		},
		Object: func(rs *appsv1.ReplicaSet) runtime.Object { return fromSet(rs) },
	})
}

// toSet converts rc to a ReplicaSet, which shares memory with rc.
func toSet(rc *corev1.ReplicationController) *appsv1.ReplicaSet {
	rs := &appsv1.ReplicaSet{
		ObjectMeta: rc.ObjectMeta,
		Spec: appsv1.ReplicaSetSpec{
			Replicas:        rc.Spec.Replicas,
			MinReadySeconds: rc.Spec.MinReadySeconds,
			Selector:        &metav1.LabelSelector{MatchLabels: rc.Spec.Selector},
		},
		Status: appsv1.ReplicaSetStatus{
			Replicas:             rc.Status.Replicas,
			FullyLabeledReplicas: rc.Status.FullyLabeledReplicas,
			ReadyReplicas:        rc.Status.ReadyReplicas,
			AvailableReplicas:    rc.Status.AvailableReplicas,
			ObservedGeneration:   rc.Status.ObservedGeneration,
			// TerminatingReplicas stays nil: a ReplicationController has no such field.
		},
	}
	if rc.Spec.Template != nil {
		rs.Spec.Template = *rc.Spec.Template
	}
	for _, c := range rc.Status.Conditions {
		rs.Status.Conditions = append(rs.Status.Conditions, appsv1.ReplicaSetCondition{
			Type: appsv1.ReplicaSetConditionType(c.Type), Status: c.Status, LastTransitionTime: c.LastTransitionTime, Reason: c.Reason, Message: c.Message,
		})
	}
	return rs
}

// fromSet converts rs, which toSet returned, back to a ReplicationController, which shares memory with rs.
func fromSet(rs *appsv1.ReplicaSet) *corev1.ReplicationController {
	rc := &corev1.ReplicationController{
		ObjectMeta: rs.ObjectMeta,
		Spec: corev1.ReplicationControllerSpec{
			Replicas:        rs.Spec.Replicas,
			MinReadySeconds: rs.Spec.MinReadySeconds,
			Template:        &rs.Spec.Template,
		},
		Status: corev1.ReplicationControllerStatus{
			Replicas:             rs.Status.Replicas,
			FullyLabeledReplicas: rs.Status.FullyLabeledReplicas,
			ReadyReplicas:        rs.Status.ReadyReplicas,
			AvailableReplicas:    rs.Status.AvailableReplicas,
			ObservedGeneration:   rs.Status.ObservedGeneration,
		},
	}
	if rs.Spec.Selector != nil {
		rc.Spec.Selector = rs.Spec.Selector.MatchLabels
	}
	for _, c := range rs.Status.Conditions {
		rc.Status.Conditions = append(rc.Status.Conditions, corev1.ReplicationControllerCondition{
			Type: corev1.ReplicationControllerConditionType(c.Type), Status: c.Status, LastTransitionTime: c.LastTransitionTime, Reason: c.Reason, Message: c.Message,
		})
	}
	return rc
}
