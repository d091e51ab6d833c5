package csi

import (
	"slices"
	"strings"
	"testing"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// level simulates FileLabel on a host with SELinux, where the label is the level.
func level(o *v1.SELinuxOptions) string { return o.Level }

// labelled returns a pod with a container that mounts the volume. The levels of the pod and of the
// container are empty for none.
func labelled(uid, ofPod, ofContainer string) *v1.Pod {
	p := pod(uid)
	c := v1.Container{Name: "c", VolumeMounts: []v1.VolumeMount{{Name: "data", MountPath: "/data"}}}
	if ofPod != "" {
		p.Spec.SecurityContext = &v1.PodSecurityContext{SELinuxOptions: &v1.SELinuxOptions{Level: ofPod}}
	}
	if ofContainer != "" {
		c.SecurityContext = &v1.SecurityContext{SELinuxOptions: &v1.SELinuxOptions{Level: ofContainer}}
	}
	p.Spec.Containers = []v1.Container{c}
	return p
}

func TestMountLabel(t *testing.T) {
	yes, no := true, false
	able := &storagev1.CSIDriver{Spec: storagev1.CSIDriverSpec{SELinuxMount: &yes}}
	recursive := v1.SELinuxChangePolicyRecursive
	opted := labelled("u", "s0:c1,c2", "")
	opted.Spec.SecurityContext.SELinuxChangePolicy = &recursive
	two := labelled("u", "s0:c1,c2", "")
	two.Spec.Containers = append(two.Spec.Containers, labelled("u", "", "s0:c3,c4").Spec.Containers...)
	elsewhere := labelled("u", "s0:c1,c2", "")
	elsewhere.Spec.Containers = append(elsewhere.Spec.Containers, v1.Container{SecurityContext: &v1.SecurityContext{SELinuxOptions: &v1.SELinuxOptions{Level: "s0:c3,c4"}}})
	for name, test := range map[string]struct {
		driver *storagev1.CSIDriver
		job    job
		want   string
		fails  string
	}{
		"pod level":                   {able, job{pod: labelled("u", "s0:c1,c2", "")}, "s0:c1,c2", ""},
		"container level":             {able, job{pod: labelled("u", "s0:c1,c2", "s0:c3,c4")}, "s0:c3,c4", ""},
		"none":                        {able, job{pod: labelled("u", "", "")}, "", ""},
		"opted out":                   {able, job{pod: opted}, "", ""},
		"two":                         {able, job{pod: two}, "", "multiple SELinux labels found: s0:c1,c2,s0:c3,c4"},
		"container without the mount": {able, job{pod: elsewhere}, "s0:c1,c2", ""},
		"driver without support":      {&storagev1.CSIDriver{Spec: storagev1.CSIDriverSpec{SELinuxMount: &no}}, job{pod: labelled("u", "s0:c1,c2", "")}, "", ""},
		"no driver object":            {nil, job{pod: labelled("u", "s0:c1,c2", "")}, "", ""},
		"device":                      {able, job{pod: labelled("u", "s0:c1,c2", ""), block: true}, "", ""},
		"inline":                      {able, job{pod: labelled("u", "s0:c1,c2", ""), inline: true}, "", ""},
	} {
		test.job.volume = "data"
		got, err := (&Plugin{cfg: Config{FileLabel: level}}).mountLabel(test.driver, &test.job)
		if got != test.want || (err == nil) != (test.fails == "") || err != nil && err.Error() != test.fails {
			t.Errorf("%s: label %q (%v), want %q (%s)", name, got, err, test.want, test.fails)
		}
		if got, err := (&Plugin{}).mountLabel(test.driver, &test.job); got != "" || err != nil {
			t.Errorf("%s: without SELinux label %q (%v)", name, got, err)
		}
	}
}

// A volume is mounted with the label of the first pod. A pod with another label waits until the
// first one has terminated.
func TestLabelsConflict(t *testing.T) {
	f := newFixture(t, csipb.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME)
	f.plugin.cfg.FileLabel = level
	yes := true
	f.object.Spec.SELinuxMount = &yes
	if _, err := f.kube.StorageV1().CSIDrivers().Update(f.Context(), f.object, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	set := f.set()
	up := func(uid, level string) error {
		_, err := set.SetUp(f.Context(), labelled(uid, level, ""), claimed())
		return err
	}
	if err := up("a", "s0:c1,c2"); err != nil {
		t.Fatal(err)
	}
	if err := up("b", "s0:c1,c2"); err != nil {
		t.Fatalf("another pod with the same label: %v", err)
	}
	if err := up("a", "s0:c1,c2"); err != nil {
		t.Fatalf("the same pod again: %v", err)
	}
	const want = `conflicting SELinux labels of volume pv: "s0:c1,c2" and "s0:c3,c4"`
	if err := up("c", "s0:c3,c4"); err == nil || !strings.Contains(err.Error(), want) {
		t.Fatalf("pod with another label: %v, want %s", err, want)
	}
	f.down("a")
	f.down("b")
	if err := up("c", "s0:c3,c4"); err != nil {
		t.Fatalf("only a pod with another label: %v", err)
	}
	staged, err := readData(f.plugin.places.staged(key{driverName, "vol-1"}))
	if err != nil || staged.Label != "s0:c3,c4" {
		t.Fatalf("staged with %+v (%v)", staged, err)
	}
	f.down(types.UID("c"))
}

func TestLabelAmongMountFlags(t *testing.T) {
	j := &job{options: withLabel([]string{"noatime"}, "u:object_r:container_file_t:s0:c1,c2")}
	flags := j.capability(&driver{}).GetMount().GetMountFlags()
	if !slices.Equal(flags, []string{"noatime", `context="u:object_r:container_file_t:s0:c1,c2"`}) {
		t.Fatalf("mount flags %q", flags)
	}
}
