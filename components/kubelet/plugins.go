package kubelet

import (
	"context"
	"path/filepath"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"

	"hyperkube/components/kubelet/pluginwatch"
	"hyperkube/components/kubelet/pod/objectcache"
	"hyperkube/components/kubelet/pod/volume"
	"hyperkube/components/kubelet/pod/volume/csi"
	"hyperkube/components/kubelet/pod/volume/iscsi"
	"hyperkube/internal/base/lifecycle"
)

// newCSI creates the CSI volume plugin. Its callbacks are not called before compose has finished.
func (k *Kubelet) newCSI(events record.EventRecorder) (*csi.Plugin, error) {
	return csi.New(csi.Config{
		Root: k.cfg.Layout.Kubelet, NodeName: k.cfg.NodeName, Kube: k.kube, Tokens: k.tokens, Events: events, Log: k.log, Metrics: k.metrics,
		Node:       func() *v1.Node { return k.nodeStatus.Node() },
		FileLabel:  volume.FileLabels(),
		InUse:      k.volumesInUseChanged,
		Registered: func() { k.pods.RetryVolumes() },
	})
}

// newISCSI creates the iSCSI volume plugin. Its callbacks are not called before compose has
// finished.
func (k *Kubelet) newISCSI() *iscsi.Plugin {
	cfg := iscsi.Config{
		Root: k.cfg.Layout.Kubelet, Log: k.log,
		Secret: func(ctx context.Context, namespace, name string) (*v1.Secret, error) {
			if k.kube == nil {
				return nil, objectcache.ErrNoAPI
			}
			return k.kube.CoreV1().Secrets(namespace).Get(ctx, name, metav1.GetOptions{})
		},
		InUse: k.volumesInUseChanged,
	}
	if k.kube != nil {
		cfg.Node = func() *v1.Node { return k.nodeStatus.Node() }
	}
	return iscsi.New(cfg)
}

// volumesInUseChanged triggers an update of volumesInUse in the node's status.
func (k *Kubelet) volumesInUseChanged() {
	if k.nodeStatus != nil {
		k.nodeStatus.Changed()
	}
}

// volumesInUse returns the volumes that must not be attached to other nodes, sorted.
func (k *Kubelet) volumesInUse() []v1.UniqueVolumeName {
	return append(k.csi.VolumesInUse(), k.iscsi.VolumesInUse()...)
}

// nodeChanged notifies the volume plugins that the Node has changed.
func (k *Kubelet) nodeChanged() {
	k.csi.Observe()
	k.iscsi.Observe()
}

// newPlugins creates the watcher of plugin registration sockets.
func (k *Kubelet) newPlugins() *pluginwatch.Watcher {
	return &pluginwatch.Watcher{
		Dir: filepath.Join(k.cfg.Layout.Kubelet, "plugins_registry"), Alias: k.cfg.Layout.KubeletAlias(), Log: k.log,
		Handlers: map[string]pluginwatch.Handler{"CSIPlugin": k.csi, "DRAPlugin": k.claims},
	}
}

// Bounds of the back-off for unpreparing claims of pods that were deleted while the kubelet was not
// running. Their drivers may not have registered yet.
const (
	minReconcileBackoff = time.Second
	maxReconcileBackoff = 5 * time.Minute
)

// reconcileClaims unprepares the claims of pods that no longer exist. All pods of the node must be
// known.
func (k *Kubelet) reconcileClaims(ctx context.Context) {
	there := func(uid types.UID) bool {
		select {
		case <-k.pods.Cleaned(uid):
			return false
		default:
			return true
		}
	}
	for pause := minReconcileBackoff; ; pause = min(2*pause, maxReconcileBackoff) {
		err := k.claims.Reconcile(ctx, there)
		if err == nil || ctx.Err() != nil {
			return
		}
		k.log.Warn("unpreparing claims of deleted pods failed, will retry", "err", err)
		if !lifecycle.Pause(ctx, pause) {
			return
		}
	}
}
