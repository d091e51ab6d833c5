package controlplane

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"hyperkube/components/cluster/progress"
)

// timeouts are the timeouts in kubeadm's configuration files. A nil field means the default.
type timeouts struct {
	ControlPlaneComponentHealthCheck *metav1.Duration `json:"controlPlaneComponentHealthCheck,omitempty"`
	KubeletHealthCheck               *metav1.Duration `json:"kubeletHealthCheck,omitempty"`
	KubernetesAPICall                *metav1.Duration `json:"kubernetesAPICall,omitempty"`
	EtcdAPICall                      *metav1.Duration `json:"etcdAPICall,omitempty"`
	TLSBootstrap                     *metav1.Duration `json:"tlsBootstrap,omitempty"`
	Discovery                        *metav1.Duration `json:"discovery,omitempty"`
	UpgradeManifests                 *metav1.Duration `json:"upgradeManifests,omitempty"`
}

// nodeTimeouts are the timeouts of init, join and upgrade on this machine. Zero means the default of each.
type nodeTimeouts struct {
	// ControlPlane is the timeout for the start of this machine's control plane.
	ControlPlane time.Duration `json:",omitzero"`
	// Kubelet plus Bootstrap is the timeout until a worker has registered its node in the cluster.
	Kubelet   time.Duration `json:",omitzero"`
	Bootstrap time.Duration `json:",omitzero"`
	// Call is the timeout of one API request of join.
	Call time.Duration `json:",omitzero"`
	// Etcd is the timeout for adding this machine's etcd member and, separately, for promoting it.
	Etcd time.Duration `json:",omitzero"`
	// Discovery is the timeout for discovery of the cluster to join.
	Discovery time.Duration `json:",omitzero"`
	// Upgrade is the timeout for the start of an upgraded node.
	Upgrade time.Duration `json:",omitzero"`
}

// Default timeouts of the discovery of the cluster and of one API request of join. The other defaults are in package
// progress.
const (
	discoveryTimeout = 5 * time.Minute
	apiCallTimeout   = 30 * time.Second
)

// controlPlane and the methods below return the configured timeouts, or their defaults.
func (w nodeTimeouts) controlPlane() time.Duration {
	return cmp.Or(w.ControlPlane, progress.DefaultTimeout)
}
func (w nodeTimeouts) call() time.Duration      { return cmp.Or(w.Call, apiCallTimeout) }
func (w nodeTimeouts) etcd() time.Duration      { return cmp.Or(w.Etcd, progress.DefaultTimeout) }
func (w nodeTimeouts) discovery() time.Duration { return cmp.Or(w.Discovery, discoveryTimeout) }
func (w nodeTimeouts) upgrade() time.Duration   { return cmp.Or(w.Upgrade, progress.DefaultTimeout) }

// worker returns how long to wait for the kubelet of a new node: the sum of the configured timeouts for its start and its
// TLS bootstrap, or the default if neither is configured.
func (w nodeTimeouts) worker() time.Duration {
	if w.Kubelet == 0 && w.Bootstrap == 0 {
		return progress.DefaultTimeout
	}
	return w.Kubelet + w.Bootstrap
}

// values converts the configured timeouts. It returns zero values if t is nil.
func (t *timeouts) values() (nodeTimeouts, error) {
	var w nodeTimeouts
	if t == nil {
		return w, nil
	}
	var errs []error
	for _, f := range []struct {
		name string
		from *metav1.Duration
		to   *time.Duration
	}{
		{"controlPlaneComponentHealthCheck", t.ControlPlaneComponentHealthCheck, &w.ControlPlane},
		{"kubeletHealthCheck", t.KubeletHealthCheck, &w.Kubelet},
		{"kubernetesAPICall", t.KubernetesAPICall, &w.Call},
		{"etcdAPICall", t.EtcdAPICall, &w.Etcd},
		{"tlsBootstrap", t.TLSBootstrap, &w.Bootstrap},
		{"discovery", t.Discovery, &w.Discovery},
		{"upgradeManifests", t.UpgradeManifests, &w.Upgrade},
	} {
		if f.from == nil {
			continue
		}
		if f.from.Duration < 0 {
			errs = append(errs, fmt.Errorf("timeouts.%s: must not be negative", f.name))
		}
		*f.to = f.from.Duration
	}
	return w, errors.Join(errs...)
}
