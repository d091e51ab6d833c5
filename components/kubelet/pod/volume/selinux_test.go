package volume

import (
	"context"
	"os"
	"testing"

	"github.com/moby/sys/mountinfo"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestWhatIsRelabelled(t *testing.T) {
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "ns", UID: "u"}}
	objects := fakeObjects{"o": {"k": "v"}}
	if os.Geteuid() != 0 {
		t.Skip("mounting needs root")
	}
	for _, selinux := range []bool{true, false} {
		s := &Set{Root: t.TempDir(), SELinux: selinux, Types: []Type{
			EmptyDir{}, HostPath{}, ConfigMapVolume{Objects: objects}, SecretVolume{Objects: objects}, DownwardAPI{}, Projected{}, Image{},
		}}
		t.Cleanup(func() {
			if err := s.TearDown(context.Background(), pod.UID); err != nil {
				t.Error(err)
			}
		})
		for name, test := range map[string]struct {
			source  v1.VolumeSource
			relabel bool
		}{
			"empty":     {v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}, true},
			"configmap": {v1.VolumeSource{ConfigMap: &v1.ConfigMapVolumeSource{LocalObjectReference: v1.LocalObjectReference{Name: "o"}}}, true},
			"downward":  {v1.VolumeSource{DownwardAPI: &v1.DownwardAPIVolumeSource{}}, true},
			"hostpath":  {v1.VolumeSource{HostPath: &v1.HostPathVolumeSource{Path: t.TempDir()}}, false},
			"image":     {v1.VolumeSource{Image: &v1.ImageVolumeSource{Reference: "i"}}, false},
		} {
			r, err := s.SetUp(context.Background(), pod, &v1.Volume{Name: name, VolumeSource: test.source})
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if want := test.relabel && selinux; r.Relabel != want {
				t.Errorf("%s is relabelled: %t, want %t (SELinux: %t)", name, r.Relabel, want, selinux)
			}
		}
	}
}

func TestLocalVolumesAreRelabelled(t *testing.T) {
	for _, readOnly := range []bool{true, false} {
		r, err := Local{}.SetUpPersistent(context.Background(), PersistentRequest{
			Pod: &v1.Pod{}, PV: &v1.PersistentVolume{Spec: v1.PersistentVolumeSpec{PersistentVolumeSource: v1.PersistentVolumeSource{
				Local: &v1.LocalVolumeSource{Path: t.TempDir()},
			}}}, Dir: t.TempDir() + "/own", ReadOnly: readOnly,
		})
		if err != nil || r.Relabel == readOnly {
			t.Errorf("read-only %t: relabelled %t (%v)", readOnly, r.Relabel, err)
		}
	}
}

func TestKeepsLabels(t *testing.T) {
	for _, test := range []struct {
		mount mountinfo.Info
		want  bool
	}{
		{mountinfo.Info{Options: "rw,relatime", VFSOptions: "rw,seclabel,data=ordered"}, true},
		{mountinfo.Info{Options: "rw,seclabel", VFSOptions: "rw"}, true},
		{mountinfo.Info{Options: "rw", VFSOptions: `rw,context="system_u:object_r:container_file_t:s0:c1,c2"`}, false},
		{mountinfo.Info{Options: "rw", VFSOptions: "rw,vers=4.2"}, false},
	} {
		if got := keepsLabels(&test.mount); got != test.want {
			t.Errorf("%+v keeps labels: %t", test.mount, got)
		}
	}
}

func TestFileLabel(t *testing.T) {
	const file = "system_u:object_r:container_file_t:s0:c1022,c1023"
	for want, o := range map[string]v1.SELinuxOptions{
		"system_u:object_r:container_file_t:s0:c1,c2": {Level: "s0:c1,c2", Type: "spc_t", Role: "r"},
		"u:object_r:container_file_t:s0":              {Level: "s0", User: "u"},
		"":                                            {Type: "spc_t"},
	} {
		if got := fileLabel(file, &o); got != want {
			t.Errorf("%+v: label %q, want %q", o, got, want)
		}
	}
}
