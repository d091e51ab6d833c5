package kubelet

import (
	"context"
	"path/filepath"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"

	"hyperkube/components/kubelet/objects"
	"hyperkube/components/kubelet/pluginwatch"
	"hyperkube/components/kubelet/volume"
	"hyperkube/components/kubelet/volume/csi"
	"hyperkube/components/kubelet/volume/iscsi"
	"hyperkube/internal/lifecycle"
)

// newCSI makes what uses volumes of CSI drivers. What it is given is not called
// before the parts are together.
func (k *Kubelet) newCSI(events record.EventRecorder) (*csi.Plugin, error) {
	return csi.New(csi.Config{
		Root: k.cfg.Layout.Kubelet, NodeName: k.cfg.NodeName, Kube: k.kube, Tokens: k.tokens, Events: events, Log: k.log, Metrics: k.metrics,
		Node:       func() *v1.Node { return k.keeper.Node() },
		FileLabel:  volume.FileLabels(),
		InUse:      k.usesChanged,
		Registered: func() { k.manager.RetryVolumes() },
	})
}

// newISCSI makes what uses disks of iSCSI targets. As newCSI's, what it is given is
// not called before the parts are together.
func (k *Kubelet) newISCSI() *iscsi.Plugin {
	cfg := iscsi.Config{
		Root: k.cfg.Layout.Kubelet, Log: k.log,
		Secret: func(ctx context.Context, namespace, name string) (*v1.Secret, error) {
			if k.kube == nil {
				return nil, objects.ErrNoAPI
			}
			return k.kube.CoreV1().Secrets(namespace).Get(ctx, name, metav1.GetOptions{})
		},
		InUse: k.usesChanged,
	}
	if k.kube != nil {
		cfg.Node = func() *v1.Node { return k.keeper.Node() }
	}
	return iscsi.New(cfg)
}

// usesChanged has the node's status say anew which volumes are in use.
func (k *Kubelet) usesChanged() {
	if k.keeper != nil {
		k.keeper.Changed()
	}
}

// volumesInUse are those that must not be given to other nodes, sorted.
func (k *Kubelet) volumesInUse() []v1.UniqueVolumeName {
	return append(k.csi.VolumesInUse(), k.iscsi.VolumesInUse()...)
}

// nodeSeen tells those who wait for what the Node says that it has changed.
func (k *Kubelet) nodeSeen() {
	k.csi.Observe()
	k.iscsi.Observe()
}

// newPlugins makes what takes in the plugins that register with the kubelet.
func (k *Kubelet) newPlugins() *pluginwatch.Watcher {
	return &pluginwatch.Watcher{
		Dir: filepath.Join(k.cfg.Layout.Kubelet, "plugins_registry"), Alias: k.cfg.Layout.KubeletAlias(), Log: k.log,
		Handlers: map[string]pluginwatch.Handler{"CSIPlugin": k.csi, "DRAPlugin": k.claims},
	}
}

// Bounds of the time between attempts to take back what pods had that went while
// the kubelet was away: their drivers may not be there yet.
const (
	reconcileFirst = time.Second
	reconcileMost  = 5 * time.Minute
)

// reconcileClaims has the devices of pods that are not there any more taken back.
// All that are there must be known.
func (k *Kubelet) reconcileClaims(ctx context.Context) {
	there := func(uid types.UID) bool {
		select {
		case <-k.manager.Cleaned(uid):
			return false
		default:
			return true
		}
	}
	for pause := reconcileFirst; ; pause = min(2*pause, reconcileMost) {
		err := k.claims.Reconcile(ctx, there)
		if err == nil || ctx.Err() != nil {
			return
		}
		k.log.Warn("taking back devices of pods that have gone failed, trying again", "error", err)
		if !lifecycle.Pause(ctx, pause) {
			return
		}
	}
}
