package serviceip

import (
	"fmt"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"

	"hyperkube/internal/testing/testetcd"
)

// TestCounts checks the metrics of allocations, of failed ones, and of the allocated addresses and
// ports.
func TestCounts(t *testing.T) {
	c := newCluster(t, testetcd.Client(t), utilnet.PortRange{Base: 30000, Size: 100}, "10.96.0.0/24")
	c.attempts = make(map[string]int)
	first := c.mustCreate(service("first", corev1.ServiceTypeNodePort, corev1.ServicePort{Port: 80, Protocol: corev1.ProtocolTCP}))
	c.mustCreate(service("second", corev1.ServiceTypeNodePort, corev1.ServicePort{Port: 80, NodePort: 30001, Protocol: corev1.ProtocolTCP}))
	_, err := c.create(with(service("third", corev1.ServiceTypeClusterIP), func(s *corev1.ServiceSpec) {
		s.ClusterIP, s.ClusterIPs = first.Spec.ClusterIP, []string{first.Spec.ClusterIP}
	}))
	wantError(t, err, "already allocated")
	const names = "kube_apiserver_clusterip_allocator_"
	const ports = "kube_apiserver_nodeport_allocator_"
	// The initial repair may cause a conflict, after which the write is retried.
	created, assigned := c.attempts["default/first"], c.attempts["default/second"]
	want := fmt.Sprintf(`
# HELP kube_apiserver_clusterip_allocator_allocated_ips [ALPHA] Gauge measuring the number of allocated IPs for Services
# TYPE kube_apiserver_clusterip_allocator_allocated_ips gauge
kube_apiserver_clusterip_allocator_allocated_ips{cidr="10.96.0.0/24"} 2
# HELP kube_apiserver_clusterip_allocator_allocation_errors_total [ALPHA] Number of errors trying to allocate Cluster IPs
# TYPE kube_apiserver_clusterip_allocator_allocation_errors_total counter
kube_apiserver_clusterip_allocator_allocation_errors_total{cidr="10.96.0.0/24",scope="static"} 1
# HELP kube_apiserver_clusterip_allocator_allocation_total [ALPHA] Number of Cluster IPs allocations
# TYPE kube_apiserver_clusterip_allocator_allocation_total counter
kube_apiserver_clusterip_allocator_allocation_total{cidr="10.96.0.0/24",scope="dynamic"} %d
# HELP kube_apiserver_clusterip_allocator_available_ips [ALPHA] Gauge measuring the number of available IPs for Services
# TYPE kube_apiserver_clusterip_allocator_available_ips gauge
kube_apiserver_clusterip_allocator_available_ips{cidr="10.96.0.0/24"} 252
# HELP kube_apiserver_nodeport_allocator_allocated_ports [ALPHA] Gauge measuring the number of allocated NodePorts for Services
# TYPE kube_apiserver_nodeport_allocator_allocated_ports gauge
kube_apiserver_nodeport_allocator_allocated_ports 2
# HELP kube_apiserver_nodeport_allocator_allocation_total [ALPHA] Number of NodePort allocations
# TYPE kube_apiserver_nodeport_allocator_allocation_total counter
kube_apiserver_nodeport_allocator_allocation_total{scope="dynamic"} %d
kube_apiserver_nodeport_allocator_allocation_total{scope="static"} %d
# HELP kube_apiserver_nodeport_allocator_available_ports [ALPHA] Gauge measuring the number of available NodePorts for Services
# TYPE kube_apiserver_nodeport_allocator_available_ports gauge
kube_apiserver_nodeport_allocator_available_ports 98
`, created+assigned, created, assigned)
	// Wait until the cache is up to date.
	c.names()
	if err := testutil.CollectAndCompare(c.Allocator, strings.NewReader(want),
		names+"allocated_ips", names+"available_ips", names+"allocation_total", names+"allocation_errors_total",
		ports+"allocated_ports", ports+"available_ports", ports+"allocation_total", ports+"allocation_errors_total"); err != nil {
		t.Error(err)
	}
}
