package masters

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"hyperkube/components/cluster/progress"
)

// timeouts are how kubeadm's configuration says how long is waited.
type timeouts struct {
	ControlPlaneComponentHealthCheck *metav1.Duration `json:"controlPlaneComponentHealthCheck,omitempty"`
	KubeletHealthCheck               *metav1.Duration `json:"kubeletHealthCheck,omitempty"`
	KubernetesAPICall                *metav1.Duration `json:"kubernetesAPICall,omitempty"`
	EtcdAPICall                      *metav1.Duration `json:"etcdAPICall,omitempty"`
	TLSBootstrap                     *metav1.Duration `json:"tlsBootstrap,omitempty"`
	Discovery                        *metav1.Duration `json:"discovery,omitempty"`
	UpgradeManifests                 *metav1.Duration `json:"upgradeManifests,omitempty"`
}

// waits are how long things may take; zero is the default of each.
type waits struct {
	// ControlPlane is until this machine's control plane runs.
	ControlPlane time.Duration `json:",omitzero"`
	// Kubelet and Bootstrap together are until the node of a worker is known to the cluster.
	Kubelet   time.Duration `json:",omitzero"`
	Bootstrap time.Duration `json:",omitzero"`
	// Call is one call of the API by who joins.
	Call time.Duration `json:",omitzero"`
	// Etcd is until etcd has this machine as a member and, again, until that has a vote.
	Etcd time.Duration `json:",omitzero"`
	// Discovery is until the cluster has been found that is to be joined.
	Discovery time.Duration `json:",omitzero"`
	// Upgrade is until a node of another version runs.
	Upgrade time.Duration `json:",omitzero"`
}

// The defaults of those that are not as long as any wait.
const (
	findBound = 5 * time.Minute
	callBound = 30 * time.Second
)

func (w waits) controlPlane() time.Duration { return cmp.Or(w.ControlPlane, progress.WaitBound) }
func (w waits) call() time.Duration         { return cmp.Or(w.Call, callBound) }
func (w waits) etcd() time.Duration         { return cmp.Or(w.Etcd, progress.WaitBound) }
func (w waits) discovery() time.Duration    { return cmp.Or(w.Discovery, findBound) }
func (w waits) upgrade() time.Duration      { return cmp.Or(w.Upgrade, progress.WaitBound) }

func (w waits) worker() time.Duration {
	if w.Kubelet == 0 && w.Bootstrap == 0 {
		return progress.WaitBound
	}
	return w.Kubelet + w.Bootstrap
}

// waits are what is said of them; nil says nothing.
func (t *timeouts) waits() (waits, error) {
	var w waits
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
