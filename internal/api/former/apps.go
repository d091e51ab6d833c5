package former

import (
	"math"
	"strconv"

	appsv1 "k8s.io/api/apps/v1"
	appsv1beta1 "k8s.io/api/apps/v1beta1"
	appsv1beta2 "k8s.io/api/apps/v1beta2"
	extensionsv1beta1 "k8s.io/api/extensions/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"hyperkube/internal/api"
)

// appsVersions returns the readers of workloads in versions before v1: selectors and labels were
// defaulted from the pod template, and update strategies and history limits had other defaults.
func appsVersions() []version {
	v1, ext := appsv1.SchemeGroupVersion, extensionsv1beta1.SchemeGroupVersion
	return []version{
		{"Deployment", v1, appsv1beta1.SchemeGroupVersion, convertByName(func(old *appsv1beta1.Deployment, now *appsv1.Deployment) error {
			selectTemplate(&now.ObjectMeta, &now.Spec.Selector, now.Spec.Template.Labels)
			api.SetDefault(&now.Spec.RevisionHistoryLimit, 2)
			if to := old.Spec.RollbackTo; to != nil {
				setRollback(&now.ObjectMeta, &to.Revision)
			} else {
				setRollback(&now.ObjectMeta, nil)
			}
			return nil
		})},
		{"Deployment", v1, ext, convertByName(func(old *extensionsv1beta1.Deployment, now *appsv1.Deployment) error {
			selectTemplate(&now.ObjectMeta, &now.Spec.Selector, now.Spec.Template.Labels)
			if s := &now.Spec.Strategy; s.Type == "" || s.Type == appsv1.RollingUpdateDeploymentStrategyType || s.RollingUpdate != nil {
				api.SetDefault(&s.RollingUpdate, appsv1.RollingUpdateDeployment{})
				api.SetDefault(&s.RollingUpdate.MaxUnavailable, intstr.FromInt32(1))
				api.SetDefault(&s.RollingUpdate.MaxSurge, intstr.FromInt32(1))
			}
			// The maximum number means no limit.
			api.SetDefault(&now.Spec.ProgressDeadlineSeconds, math.MaxInt32)
			api.SetDefault(&now.Spec.RevisionHistoryLimit, math.MaxInt32)
			if to := old.Spec.RollbackTo; to != nil {
				setRollback(&now.ObjectMeta, &to.Revision)
			} else {
				setRollback(&now.ObjectMeta, nil)
			}
			return nil
		})},
		{"DaemonSet", v1, v1, sameFields(templateGeneration)},
		{"DaemonSet", v1, appsv1beta2.SchemeGroupVersion, sameFields(templateGeneration)},
		{"DaemonSet", v1, ext, convertByName(func(old *extensionsv1beta1.DaemonSet, now *appsv1.DaemonSet) error {
			selectTemplate(&now.ObjectMeta, &now.Spec.Selector, now.Spec.Template.Labels)
			if now.Spec.UpdateStrategy.Type == "" {
				now.Spec.UpdateStrategy.Type = appsv1.OnDeleteDaemonSetStrategyType
			}
			annotate(&now.ObjectMeta, appsv1.DeprecatedTemplateGeneration, strconv.FormatInt(old.Spec.TemplateGeneration, 10))
			return nil
		})},
		{"ReplicaSet", v1, ext, sameFields(func(now *appsv1.ReplicaSet) error {
			selectTemplate(&now.ObjectMeta, &now.Spec.Selector, now.Spec.Template.Labels)
			return nil
		})},
		{"StatefulSet", v1, appsv1beta1.SchemeGroupVersion, sameFields(func(now *appsv1.StatefulSet) error {
			selectTemplate(&now.ObjectMeta, &now.Spec.Selector, now.Spec.Template.Labels)
			if now.Spec.UpdateStrategy.Type == "" {
				now.Spec.UpdateStrategy.Type = appsv1.OnDeleteStatefulSetStrategyType
			}
			return nil
		})},
	}
}

// templateGeneration sets the annotation with the template generation, which DaemonSets always have
// since v1beta2.
func templateGeneration(now *appsv1.DaemonSet) error {
	if _, ok := now.Annotations[appsv1.DeprecatedTemplateGeneration]; !ok {
		annotate(&now.ObjectMeta, appsv1.DeprecatedTemplateGeneration, "0")
	}
	return nil
}

// selectTemplate sets a missing selector and missing labels of an object to the labels of its pod
// template, as servers did before apps/v1. It does nothing if the template has no labels.
func selectTemplate(meta *metav1.ObjectMeta, selector **metav1.LabelSelector, labels map[string]string) {
	if labels == nil {
		return
	}
	api.SetDefault(selector, metav1.LabelSelector{MatchLabels: labels})
	if len(meta.Labels) == 0 {
		meta.Labels = labels
	}
}

// setRollback sets the annotation with the revision for a rollback of a Deployment, or removes it
// if revision is nil.
func setRollback(meta *metav1.ObjectMeta, revision *int64) {
	if revision == nil {
		delete(meta.Annotations, appsv1.DeprecatedRollbackTo)
		return
	}
	annotate(meta, appsv1.DeprecatedRollbackTo, strconv.FormatInt(*revision, 10))
}

// annotate sets an annotation.
func annotate(meta *metav1.ObjectMeta, key, value string) {
	if meta.Annotations == nil {
		meta.Annotations = map[string]string{}
	}
	meta.Annotations[key] = value
}
