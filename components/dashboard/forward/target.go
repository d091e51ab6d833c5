package forward

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"

	"hyperkube/internal/pod/podutil"
)

// resolve returns the name of the pod and its port that a request refers to. For a Service, it is a ready pod, as with
// `kubectl port-forward`.
func resolve(ctx context.Context, kube kubernetes.Interface, req Request) (pod string, port int, err error) {
	if req.Kind == KindPod {
		return req.Name, req.Port, nil
	}
	service, err := kube.CoreV1().Services(req.Namespace).Get(ctx, req.Name, metav1.GetOptions{})
	if err != nil {
		return "", 0, fmt.Errorf("reading the Service: %w", err)
	}
	if len(service.Spec.Selector) == 0 {
		return "", 0, errors.New("the Service has no selector, so it has no pods to forward to")
	}
	pods, err := kube.CoreV1().Pods(req.Namespace).List(ctx, metav1.ListOptions{LabelSelector: labels.SelectorFromSet(service.Spec.Selector).String()})
	if err != nil {
		return "", 0, fmt.Errorf("reading the pods of the Service: %w", err)
	}
	for i := range pods.Items {
		if pods.Items[i].DeletionTimestamp != nil || !podutil.Ready(&pods.Items[i]) {
			continue
		}
		port, err := targetPort(service, &pods.Items[i], req.Port)
		return pods.Items[i].Name, port, err
	}
	return "", 0, errors.New("no pod of the Service is ready")
}

// targetPort returns the port of a pod for a TCP port of a Service.
func targetPort(service *corev1.Service, pod *corev1.Pod, port int) (int, error) {
	for i := range service.Spec.Ports {
		p := &service.Spec.Ports[i]
		if int(p.Port) != port || p.Protocol == corev1.ProtocolUDP || p.Protocol == corev1.ProtocolSCTP {
			continue
		}
		switch {
		case service.Spec.ClusterIP == corev1.ClusterIPNone, p.TargetPort == (intstr.IntOrString{}):
			return port, nil
		case p.TargetPort.Type == intstr.Int:
			return p.TargetPort.IntValue(), nil
		}
		for _, c := range pod.Spec.Containers {
			for _, cp := range c.Ports {
				if cp.Name == p.TargetPort.StrVal {
					return int(cp.ContainerPort), nil
				}
			}
		}
		return 0, fmt.Errorf("the pod %s has no port %q, which the Service refers to", pod.Name, p.TargetPort.StrVal)
	}
	return 0, errors.New("the Service has no TCP port " + strconv.Itoa(port))
}
