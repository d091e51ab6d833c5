package pods

import (
	"context"
	"fmt"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"hyperkube/components/kubelet/cri/crifake"
	"hyperkube/components/kubelet/pod/volume"
)

// fullCSIPlugin is a plugin of inline CSI volumes that exceed the node's attachment limit.
type fullCSIPlugin struct{}

func (fullCSIPlugin) Name() string { return "kubernetes.io~csi" }

func (fullCSIPlugin) Is(v *v1.Volume) bool { return v.CSI != nil }

func (fullCSIPlugin) SetUp(context.Context, volume.Request) (volume.Result, error) {
	return volume.Result{}, fmt.Errorf("%w: %w", volume.ErrAttachLimit, context.DeadlineExceeded)
}

// TestAttachLimitRejects checks that a pod with a volume that exceeds the attachment limit is
// rejected, so that its controller replaces it, instead of waiting forever.
func TestAttachLimitRejects(t *testing.T) {
	b := newBenchWith(t, crifake.New(), func(cfg *Config) { cfg.Volumes.Types = append(cfg.Volumes.Types, fullCSIPlugin{}) })
	b.add(newPod("full", func(p *v1.Pod) {
		p.Spec.Volumes = []v1.Volume{
			{Name: "scratch", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}},
			{Name: "data", VolumeSource: v1.VolumeSource{CSI: &v1.CSIVolumeSource{Driver: "d"}}},
		}
	}))
	p := b.await("full", "failed", func(p *v1.Pod) bool { return p.Status.Phase == v1.PodFailed })
	want := "Pod was rejected: Node has reached its volume attachment limit, rejecting pod. " +
		"unmounted volumes=[data], unattached volumes=[data], failed to process volumes=[]: context deadline exceeded"
	if p.Status.Reason != "VolumeAttachmentLimitExceeded" || p.Status.Message != want {
		t.Errorf("%s: %s", p.Status.Reason, p.Status.Message)
	}
	for _, c := range b.runtime.Calls() {
		if strings.HasPrefix(c, "RunPodSandbox") {
			t.Errorf("runtime call %s", c)
		}
	}
	if e := <-b.events.Events; !strings.HasPrefix(e, "Warning VolumeAttachmentLimitExceeded ") {
		t.Errorf("event %s", e)
	}
}
