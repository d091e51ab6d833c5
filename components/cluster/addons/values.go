package addons

import (
	"context"
	"fmt"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/yaml"

	"hyperkube/components/cluster/clusterconfig"
	"hyperkube/components/cluster/joindiscovery"
	"hyperkube/components/cluster/kubeadmapi"
	"hyperkube/internal/base/version"
	"hyperkube/internal/host/layout"
	"hyperkube/manifests"
)

// DiscoverValues returns the template values of a cluster. managed is true for a cluster of `up`, whose main process
// applies add-ons with its own values. A cluster of `init` is recognized by the ConfigMap of kubeadm, which contains
// its values. managed is also true if the user may not read that ConfigMap.
func DiscoverValues(ctx context.Context, kube kubernetes.Interface) (v manifests.Values, managed bool, err error) {
	v = manifests.Values{Image: version.Image(), NodeDNSDir: layout.Default().NodeDNS(), InProcess: true}
	cm, err := kube.CoreV1().ConfigMaps(metav1.NamespaceSystem).Get(ctx, joindiscovery.ClusterConfig, metav1.GetOptions{})
	// In a cluster of `up`, users need no permission to read the ConfigMap, which does not exist.
	if apierrors.IsNotFound(err) || apierrors.IsForbidden(err) {
		return v, true, nil
	}
	if err != nil {
		return v, false, fmt.Errorf("reading the configuration of the cluster: %w", err)
	}
	var cfg kubeadmapi.ClusterConfiguration
	if err := yaml.Unmarshal([]byte(cm.Data["ClusterConfiguration"]), &cfg); err != nil {
		return v, false, fmt.Errorf("parsing the configuration of the cluster: %w", err)
	}
	first, _, _ := strings.Cut(cfg.Networking.ServiceSubnet, ",")
	address, err := clusterconfig.NthAddress(first, 10)
	if err != nil {
		return v, false, fmt.Errorf("parsing the configuration of the cluster: service subnet: %w", err)
	}
	v.InProcess, v.DNSAddress, v.Domain = false, address.String(), cfg.Networking.DNSDomain
	return v, false, nil
}
