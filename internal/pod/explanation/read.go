package explanation

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"hyperkube/internal/pod/podexplain"
)

// reader reads the objects that explain a pod.
type reader struct {
	kube      kubernetes.Interface
	namespace string
	// in collects the objects.
	in podexplain.Input
	// unreadable are the objects that could not be read, with the reason.
	unreadable []string
}

// allowed records that what could not be read because of err, and reports whether it could be. An object that does not exist is not
// recorded.
func (r *reader) allowed(what string, err error) bool {
	if err != nil && !apierrors.IsNotFound(err) {
		reason := err.Error()
		if apierrors.IsForbidden(err) {
			reason = "forbidden"
		}
		r.unreadable = append(r.unreadable, what+" ("+reason+")")
	}
	return err == nil
}

// find reads the pod, or the workload with the name and its pod that is not ready, or its newest pod. name may have the prefix of a kind,
// such as deployment/. It returns the kind of the object that was found, and an error if there is none.
func (r *reader) find(ctx context.Context, name string) (string, error) {
	kind, only, ok := strings.Cut(name, "/")
	if !ok {
		kind, only = "", name
	}
	core, apps := r.kube.CoreV1().Pods(r.namespace), r.kube.AppsV1()
	var errs []error
	failed := func(what string, err error) {
		if !apierrors.IsNotFound(err) {
			errs = append(errs, fmt.Errorf("reading %s: %w", what, err))
		}
	}
	for _, c := range []struct {
		kind string
		get  func() (any, error)
	}{
		{"Pod", func() (any, error) { return core.Get(ctx, only, metav1.GetOptions{}) }},
		{"Deployment", func() (any, error) { return apps.Deployments(r.namespace).Get(ctx, only, metav1.GetOptions{}) }},
		{"StatefulSet", func() (any, error) { return apps.StatefulSets(r.namespace).Get(ctx, only, metav1.GetOptions{}) }},
		{"DaemonSet", func() (any, error) { return apps.DaemonSets(r.namespace).Get(ctx, only, metav1.GetOptions{}) }},
		{"ReplicaSet", func() (any, error) { return apps.ReplicaSets(r.namespace).Get(ctx, only, metav1.GetOptions{}) }},
		{"Job", func() (any, error) {
			return r.kube.BatchV1().Jobs(r.namespace).Get(ctx, only, metav1.GetOptions{})
		}},
	} {
		if kind != "" && !strings.EqualFold(strings.TrimSuffix(kind, "s"), c.kind) {
			continue
		}
		obj, err := c.get()
		if err != nil {
			failed("the "+c.kind, err)
			continue
		}
		if pod, ok := obj.(*corev1.Pod); ok {
			r.in.Pod = pod
			return c.kind, nil
		}
		r.in.Workloads = append(r.in.Workloads, obj)
		return c.kind, nil
	}
	if len(errs) > 0 {
		return "", fmt.Errorf("finding %q in namespace %s: %w", name, r.namespace, errors.Join(errs...))
	}
	return "", fmt.Errorf("%w: namespace %s has no pod, Deployment, StatefulSet, DaemonSet, ReplicaSet or Job %q; `kubectl get pods -A` lists the pods of all namespaces", ErrNotFound, r.namespace, name)
}

// read reads everything else, with the permissions of the user. What the user may not read is recorded in unreadable.
func (r *reader) read(ctx context.Context) {
	r.in.Now = time.Now()
	names := map[string]bool{}
	for _, w := range r.in.Workloads {
		r.children(ctx, w, names)
	}
	if pod := r.in.Pod; pod != nil {
		names[pod.Name] = true
		r.podObjects(ctx, names)
	}
	events, err := r.kube.CoreV1().Events(r.namespace).List(ctx, metav1.ListOptions{})
	if r.allowed("events", err) {
		for i := range events.Items {
			if names[events.Items[i].InvolvedObject.Name] {
				r.in.Events = append(r.in.Events, events.Items[i])
			}
		}
	}
}

// children adds the names of a workload and of its ReplicaSets, and reads a pod of the workload that is not ready, or else the newest one.
func (r *reader) children(ctx context.Context, workload any, names map[string]bool) {
	var selector *metav1.LabelSelector
	owners := map[string]bool{}
	switch w := workload.(type) {
	case *appsv1.Deployment:
		selector, names[w.Name] = w.Spec.Selector, true
		list, err := r.kube.AppsV1().ReplicaSets(r.namespace).List(ctx, metav1.ListOptions{LabelSelector: metav1.FormatLabelSelector(selector)})
		if r.allowed("ReplicaSets", err) {
			for i := range list.Items {
				if owner := metav1.GetControllerOf(&list.Items[i]); owner != nil && owner.UID == w.UID {
					names[list.Items[i].Name], owners[string(list.Items[i].UID)] = true, true
					if list.Items[i].Spec.Replicas != nil && *list.Items[i].Spec.Replicas > 0 {
						r.in.Workloads = append(r.in.Workloads, &list.Items[i])
					}
				}
			}
		}
	case *appsv1.ReplicaSet:
		selector, names[w.Name], owners[string(w.UID)] = w.Spec.Selector, true, true
	case *appsv1.StatefulSet:
		selector, names[w.Name], owners[string(w.UID)] = w.Spec.Selector, true, true
	case *appsv1.DaemonSet:
		selector, names[w.Name], owners[string(w.UID)] = w.Spec.Selector, true, true
	case *batchv1.Job:
		selector, names[w.Name], owners[string(w.UID)] = w.Spec.Selector, true, true
	}
	if selector == nil {
		return
	}
	pods, err := r.kube.CoreV1().Pods(r.namespace).List(ctx, metav1.ListOptions{LabelSelector: metav1.FormatLabelSelector(selector)})
	if !r.allowed("pods", err) {
		return
	}
	for i := range pods.Items {
		p := &pods.Items[i]
		owner := metav1.GetControllerOf(p)
		if owner == nil || !owners[string(owner.UID)] {
			continue
		}
		if old := r.in.Pod; old == nil || ready(old) && !ready(p) || ready(old) == ready(p) && old.CreationTimestamp.Before(&p.CreationTimestamp) {
			r.in.Pod = p
		}
	}
}

// ready reports whether a pod is ready or has succeeded.
func ready(p *corev1.Pod) bool {
	for i := range p.Status.Conditions {
		if c := &p.Status.Conditions[i]; c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue {
			return true
		}
	}
	return p.Status.Phase == corev1.PodSucceeded
}

// podObjects reads the node, the claims and the StorageClasses of the pod, and adds the names of the claims.
func (r *reader) podObjects(ctx context.Context, names map[string]bool) {
	pod := r.in.Pod
	if name := pod.Spec.NodeName; name != "" {
		node, err := r.kube.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
		if r.allowed("node "+name, err) {
			r.in.Node = node
		}
	}
	claims := map[string]bool{}
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		if v.PersistentVolumeClaim != nil {
			claims[v.PersistentVolumeClaim.ClaimName] = true
		} else if v.Ephemeral != nil {
			claims[pod.Name+"-"+v.Name] = true
		}
	}
	if len(claims) == 0 {
		return
	}
	list, err := r.kube.CoreV1().PersistentVolumeClaims(r.namespace).List(ctx, metav1.ListOptions{})
	if r.allowed("PersistentVolumeClaims", err) {
		r.in.ClaimsKnown = true
		for i := range list.Items {
			if claims[list.Items[i].Name] {
				r.in.Claims = append(r.in.Claims, list.Items[i])
				names[list.Items[i].Name] = true
			}
		}
	}
	classes, err := r.kube.StorageV1().StorageClasses().List(ctx, metav1.ListOptions{})
	if r.allowed("StorageClasses", err) {
		r.in.Classes, r.in.ClassesKnown = classes.Items, true
	}
}
