package pods

import (
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"hyperkube/components/kubelet/pod/volume"
)

// TestMounts mounts a volume of each kind.
func TestMounts(t *testing.T) {
	node := &v1.Node{}
	yes := true
	node.Status.RuntimeHandlers = []v1.NodeRuntimeHandler{
		{Name: "", Features: &v1.NodeRuntimeHandlerFeatures{RecursiveReadOnlyMounts: &yes}}, {Name: "unable"},
	}
	enabled, able, disabled := v1.RecursiveReadOnlyEnabled, v1.RecursiveReadOnlyIfPossible, v1.RecursiveReadOnlyDisabled
	toContainer, both := v1.MountPropagationHostToContainer, v1.MountPropagationBidirectional
	unable := "unable"
	volumes := map[string]volume.Result{
		"dir": {Path: "/on/host"}, "ro": {Path: "/on/host", ReadOnly: true}, "claim": {Path: "/on/host", ReadOnly: true, Persistent: true},
		"image": {Image: &v1.ImageVolumeSource{Reference: "img:1"}, ReadOnly: true}, "device": {Device: "/dev/sdz"},
	}
	for _, tc := range []struct {
		name  string
		mount v1.VolumeMount
		class *string
		want  string
		err   string
	}{
		{name: "plain", mount: v1.VolumeMount{Name: "dir", MountPath: "/m"}, want: "/on/host /m rw PROPAGATION_PRIVATE"},
		{name: "relative", mount: v1.VolumeMount{Name: "dir", MountPath: "m/n"}, want: "/on/host /m/n rw PROPAGATION_PRIVATE"},
		{name: "read-only mount", mount: v1.VolumeMount{Name: "dir", MountPath: "/m", ReadOnly: true}, want: "/on/host /m ro PROPAGATION_PRIVATE"},
		{name: "read-only volume", mount: v1.VolumeMount{Name: "ro", MountPath: "/m"}, want: "/on/host /m rw PROPAGATION_PRIVATE"},
		{name: "read-only claim", mount: v1.VolumeMount{Name: "claim", MountPath: "/m"}, want: "/on/host /m ro PROPAGATION_PRIVATE"},
		{name: "image", mount: v1.VolumeMount{Name: "image", MountPath: "/m", SubPath: "etc"}, want: "image img:1/etc /m ro PROPAGATION_PRIVATE"},
		{name: "from the host", mount: v1.VolumeMount{Name: "dir", MountPath: "/m", MountPropagation: &toContainer}, want: "/on/host /m rw PROPAGATION_HOST_TO_CONTAINER"},
		{name: "bidirectional", mount: v1.VolumeMount{Name: "dir", MountPath: "/m", MountPropagation: &both}, want: "/on/host /m rw PROPAGATION_BIDIRECTIONAL"},
		{name: "recursive", mount: v1.VolumeMount{Name: "dir", MountPath: "/m", ReadOnly: true, RecursiveReadOnly: &enabled}, want: "/on/host /m rro PROPAGATION_PRIVATE"},
		{name: "recursive if possible", mount: v1.VolumeMount{Name: "dir", MountPath: "/m", ReadOnly: true, RecursiveReadOnly: &able}, want: "/on/host /m rro PROPAGATION_PRIVATE"},
		{name: "recursive if possible, not supported", mount: v1.VolumeMount{Name: "dir", MountPath: "/m", ReadOnly: true, RecursiveReadOnly: &able}, class: &unable, want: "/on/host /m ro PROPAGATION_PRIVATE"},
		{name: "recursive enabled, not supported", mount: v1.VolumeMount{Name: "dir", MountPath: "/m", ReadOnly: true, RecursiveReadOnly: &enabled}, class: &unable, err: "not supported by the runtime"},
		{name: "recursive and propagated", mount: v1.VolumeMount{Name: "dir", MountPath: "/m", ReadOnly: true, RecursiveReadOnly: &enabled, MountPropagation: &toContainer}, err: "not compatible with propagation"},
		{name: "not recursive", mount: v1.VolumeMount{Name: "dir", MountPath: "/m", ReadOnly: true, RecursiveReadOnly: &disabled}, want: "/on/host /m ro PROPAGATION_PRIVATE"},
		{name: "writable", mount: v1.VolumeMount{Name: "dir", MountPath: "/m", RecursiveReadOnly: &enabled}, want: "/on/host /m rw PROPAGATION_PRIVATE"},
		{name: "device", mount: v1.VolumeMount{Name: "device", MountPath: "/m"}, err: "volume device has volumeMode Block, but is specified in volumeMounts"},
		{name: "none", mount: v1.VolumeMount{Name: "none", MountPath: "/m"}, err: `cannot find volume "none" to mount into container "c"`},
		{name: "expression", mount: v1.VolumeMount{Name: "image", MountPath: "/m", SubPathExpr: "a/$(NAME)"}, want: "image img:1/a/x /m ro PROPAGATION_PRIVATE"},
		{name: "undefined variable", mount: v1.VolumeMount{Name: "dir", MountPath: "/m", SubPathExpr: "a/$(EMPTY)"}, err: `missing value for "EMPTY"`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			h := newHost(Config{Volumes: &volume.Set{Root: t.TempDir()}, Node: Node{Object: func() *v1.Node { return node }}})
			c := &v1.Container{Name: "c", VolumeMounts: []v1.VolumeMount{tc.mount}}
			pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "u"}, Spec: v1.PodSpec{RuntimeClassName: tc.class}}
			mounts, err := h.configs.mounts(pod, c, containerInput{volumes: volumes}, map[string]string{"NAME": "x", "EMPTY": ""})
			if tc.err != "" {
				if err == nil || !strings.Contains(err.Error(), tc.err) {
					t.Errorf("%v, want %s", err, tc.err)
				}
				return
			}
			if err != nil || len(mounts) != 1 {
				t.Fatal(mounts, err)
			}
			if got := formatMount(mounts[0]); got != tc.want {
				t.Errorf("%s, want %s", got, tc.want)
			}
		})
	}
}

// formatMount formats a mount as text.
func formatMount(m *runtimeapi.Mount) string {
	from, mode := m.HostPath, "rw"
	if m.Image != nil {
		from += "image " + m.Image.Image + "/" + m.ImageSubPath
	}
	if m.Readonly {
		mode = "ro"
	}
	if m.RecursiveReadOnly {
		mode = "r" + mode
	}
	return strings.Join([]string{from, m.ContainerPath, mode, m.Propagation.String()}, " ")
}

func TestVolumeDevices(t *testing.T) {
	volumes := map[string]volume.Result{"rw": {Device: "/dev/a"}, "ro": {Device: "/dev/b", ReadOnly: true}, "dir": {Path: "/x"}}
	for name, want := range map[string]string{"rw": "/dev/a /in mrw", "ro": "/dev/b /in r", "dir": "", "none": ""} {
		got, err := volumeDevices(&v1.Container{Name: "c", VolumeDevices: []v1.VolumeDevice{{Name: name, DevicePath: "/in"}}}, volumes)
		switch {
		case want == "":
			if err == nil || !strings.Contains(err.Error(), "cannot find volume") {
				t.Errorf("%s: %v, %v", name, got, err)
			}
		case err != nil || len(got) != 1 || got[0].HostPath+" "+got[0].ContainerPath+" "+got[0].Permissions != want:
			t.Errorf("%s: %v, %v, want %s", name, got, err, want)
		}
	}
}
