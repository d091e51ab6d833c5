package cluster

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"
)

// waitNodeReady blocks until the node's Ready condition is true.
func waitNodeReady(ctx context.Context, kube kubernetes.Interface, name string) error {
	nodes := kube.CoreV1().Nodes()
	selector := fields.OneTermEqualSelector("metadata.name", name).String()
	lw := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, opts metav1.ListOptions) (runtime.Object, error) {
			opts.FieldSelector = selector
			return nodes.List(ctx, opts)
		},
		WatchFuncWithContext: func(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error) {
			opts.FieldSelector = selector
			return nodes.Watch(ctx, opts)
		},
	}
	_, err := watchtools.UntilWithSync(ctx, lw, &corev1.Node{}, nil, func(e watch.Event) (bool, error) {
		node, ok := e.Object.(*corev1.Node)
		if !ok || e.Type == watch.Deleted {
			return false, nil
		}
		for _, c := range node.Status.Conditions {
			if c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue {
				return true, nil
			}
		}
		return false, nil
	})
	return err
}

// waitDNS blocks until the cluster's DNS has an endpoint and answers by its
// address.
func waitDNS(ctx context.Context, kube kubernetes.Interface, id identity) error {
	slices := kube.DiscoveryV1().EndpointSlices(metav1.NamespaceSystem)
	selector := discoveryv1.LabelServiceName + "=kube-dns"
	lw := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, opts metav1.ListOptions) (runtime.Object, error) {
			opts.LabelSelector = selector
			return slices.List(ctx, opts)
		},
		WatchFuncWithContext: func(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error) {
			opts.LabelSelector = selector
			return slices.Watch(ctx, opts)
		},
	}
	_, err := watchtools.UntilWithSync(ctx, lw, &discoveryv1.EndpointSlice{}, nil, func(e watch.Event) (bool, error) {
		slice, ok := e.Object.(*discoveryv1.EndpointSlice)
		if !ok || e.Type == watch.Deleted {
			return false, nil
		}
		for _, endpoint := range slice.Endpoints {
			if endpoint.Conditions.Ready != nil && *endpoint.Conditions.Ready {
				return true, nil
			}
		}
		return false, nil
	})
	if err != nil {
		return err
	}
	return askDNS(ctx, id)
}

// askDNS asks until there is an answer: the proxy leads there a moment after
// the endpoint is known, of which this process hears nothing.
func askDNS(ctx context.Context, id identity) error {
	query := new(dns.Msg).SetQuestion(dns.Fqdn("kubernetes.default.svc."+id.Domain), dns.TypeA)
	client := dns.Client{Timeout: time.Second}
	wait := 5 * time.Millisecond
	for {
		answer, _, err := client.ExchangeContext(ctx, query, net.JoinHostPort(id.DNSAddress, "53"))
		if err == nil && answer.Rcode == dns.RcodeSuccess {
			return nil
		}
		if err == nil {
			err = fmt.Errorf("DNS answers %s", dns.RcodeToString[answer.Rcode])
		}
		select {
		case <-ctx.Done():
			return errors.Join(ctx.Err(), err)
		case <-time.After(wait):
		}
		wait = min(2*wait, 200*time.Millisecond)
	}
}
