package plugins

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	volumehelpers "k8s.io/component-helpers/storage/volume"
	"k8s.io/utils/ptr"

	"hyperkube/components/scheduler/framework"
	"hyperkube/components/scheduler/state"
)

// store implements framework.Volumes for tests.
type store struct {
	claims      []*corev1.PersistentVolumeClaim
	volumes     []*corev1.PersistentVolume
	classes     []*storagev1.StorageClass
	drivers     []*storagev1.CSIDriver
	csiNodes    []*storagev1.CSINode
	capacities  []*storagev1.CSIStorageCapacity
	attachments []*storagev1.VolumeAttachment
}

func find[T metav1.Object](all []T, name string) T {
	for _, o := range all {
		if o.GetName() == name {
			return o
		}
	}
	var none T
	return none
}

func (s *store) Claim(_, name string) *corev1.PersistentVolumeClaim { return find(s.claims, name) }
func (s *store) Volume(name string) *corev1.PersistentVolume        { return find(s.volumes, name) }
func (s *store) Class(name string) *storagev1.StorageClass          { return find(s.classes, name) }
func (s *store) Driver(name string) *storagev1.CSIDriver            { return find(s.drivers, name) }
func (s *store) CSINode(name string) *storagev1.CSINode             { return find(s.csiNodes, name) }
func (s *store) Capacities() []*storagev1.CSIStorageCapacity        { return s.capacities }
func (s *store) Attachments() []*storagev1.VolumeAttachment         { return s.attachments }
func (s *store) VolumesOf(class string) (out []*corev1.PersistentVolume) {
	for _, pv := range s.volumes {
		if pv.Spec.StorageClassName == class {
			out = append(out, pv)
		}
	}
	return out
}

func claimOf(name, class string) *corev1.PersistentVolumeClaim {
	pvc := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID("uid-" + name)}}
	pvc.Spec.StorageClassName = &class
	pvc.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	pvc.Spec.Resources.Requests = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}
	return pvc
}

func bound(pvc *corev1.PersistentVolumeClaim, volume string) *corev1.PersistentVolumeClaim {
	pvc.Spec.VolumeName, pvc.Status.Phase = volume, corev1.ClaimBound
	metav1.SetMetaDataAnnotation(&pvc.ObjectMeta, volumehelpers.AnnBindCompleted, "yes")
	return pvc
}

// volumeAt returns a volume with a size that is accessible from nodes with a zone, or from all
// nodes if zone is empty.
func volumeAt(name, class, size, zone string) *corev1.PersistentVolume {
	pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name}}
	pv.Spec.StorageClassName = class
	pv.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	pv.Spec.Capacity = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(size)}
	pv.Status.Phase = corev1.VolumeAvailable
	if zone != "" {
		pv.Spec.NodeAffinity = &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
			MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "zone", Operator: corev1.NodeSelectorOpIn, Values: []string{zone}}},
		}}}}
	}
	return pv
}

func delaying(name, provisioner string) *storagev1.StorageClass {
	return &storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Provisioner: provisioner,
		VolumeBindingMode: ptr.To(storagev1.VolumeBindingWaitForFirstConsumer),
	}
}

func podWith(name string, claims ...string) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name)}}
	for i, c := range claims {
		p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: fmt.Sprint("v", i), VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: c},
		}})
	}
	return p
}

// zones returns a state with one node for each name, in a zone of the same name.
func zones(names ...string) *state.State {
	s := state.New()
	for _, n := range names {
		s.SetNode(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n, Labels: map[string]string{"zone": n, corev1.LabelTopologyZone: n}}})
	}
	return s
}

// fits returns the reason for each node, "" for nodes that fit. If no node can fit, the reason has
// the key "*".
func fits(t *testing.T, f framework.Filter, c *framework.Cycle) map[string]string {
	t.Helper()
	check, err := f.Filter(c)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	if check != nil && check.Refused != "" {
		out["*"] = check.Refused
		return out
	}
	for _, n := range c.State.Nodes() {
		out[n.Name] = ""
		if check == nil {
			continue
		}
		var texts []string
		for _, r := range check.Node(n) {
			texts = append(texts, r.Text)
		}
		out[n.Name] = strings.Join(texts, "; ")
	}
	return out
}

func TestVolumeBinding(t *testing.T) {
	const conflict = "node(s) didn't match PersistentVolume's node affinity"
	selected := claimOf("c", "make")
	metav1.SetMetaDataAnnotation(&selected.ObjectMeta, volumehelpers.AnnSelectedNode, "b")
	topology := delaying("make", "p")
	topology.AllowedTopologies = []corev1.TopologySelectorTerm{{MatchLabelExpressions: []corev1.TopologySelectorLabelRequirement{{Key: "zone", Values: []string{"b"}}}}}
	for name, tc := range map[string]struct {
		store *store
		want  map[string]string
	}{
		"no claim":                   {&store{}, map[string]string{"*": `persistentvolumeclaim "c" not found`}},
		"immediate binding, unbound": {&store{claims: []*corev1.PersistentVolumeClaim{claimOf("c", "now")}}, map[string]string{"*": "pod has unbound immediate PersistentVolumeClaims"}},
		"bound to a volume in another zone": {
			&store{claims: []*corev1.PersistentVolumeClaim{bound(claimOf("c", ""), "v")}, volumes: []*corev1.PersistentVolume{volumeAt("v", "", "1Gi", "b")}},
			map[string]string{"a": conflict, "b": ""},
		},
		"bound to a missing volume": {
			&store{claims: []*corev1.PersistentVolumeClaim{bound(claimOf("c", ""), "v")}},
			map[string]string{"a": "node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)", "b": "node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)"},
		},
		"delayed, matching volumes": {
			&store{
				claims: []*corev1.PersistentVolumeClaim{claimOf("c", "static")}, classes: []*storagev1.StorageClass{delaying("static", volumehelpers.NotSupportedProvisioner)},
				volumes: []*corev1.PersistentVolume{volumeAt("small", "static", "1Mi", "b"), volumeAt("fits", "static", "2Gi", "a")},
			},
			map[string]string{"a": "", "b": noVolume},
		},
		"delayed, provisioning": {
			&store{claims: []*corev1.PersistentVolumeClaim{claimOf("c", "make")}, classes: []*storagev1.StorageClass{delaying("make", "p")}},
			map[string]string{"a": "", "b": ""},
		},
		"delayed, provisioning with allowed topologies": {
			&store{claims: []*corev1.PersistentVolumeClaim{claimOf("c", "make")}, classes: []*storagev1.StorageClass{topology}},
			map[string]string{"a": noVolume, "b": ""},
		},
		"provisioning for a selected node": {
			&store{claims: []*corev1.PersistentVolumeClaim{selected}, classes: []*storagev1.StorageClass{delaying("make", "p")}},
			map[string]string{"a": noVolume, "b": ""},
		},
		"provisioning with storage capacity": {
			&store{
				claims: []*corev1.PersistentVolumeClaim{claimOf("c", "make")}, classes: []*storagev1.StorageClass{delaying("make", "p")},
				drivers: []*storagev1.CSIDriver{{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Spec: storagev1.CSIDriverSpec{StorageCapacity: ptr.To(true)}}},
				capacities: []*storagev1.CSIStorageCapacity{
					{StorageClassName: "make", Capacity: ptr.To(resource.MustParse("2Gi")), NodeTopology: &metav1.LabelSelector{MatchLabels: map[string]string{"zone": "b"}}},
					{StorageClassName: "make", Capacity: ptr.To(resource.MustParse("2Mi")), NodeTopology: &metav1.LabelSelector{MatchLabels: map[string]string{"zone": "a"}}},
				},
			},
			map[string]string{"a": noSpace, "b": ""},
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := &framework.Cycle{Pod: state.NewPod(podWith("p", "c")), State: zones("a", "b"), Volumes: tc.store}
			if got := fits(t, VolumeBinding{}, c); fmt.Sprint(got) != fmt.Sprint(tc.want) {
				t.Errorf("got %v, want %v", got, tc.want)
			}
		})
	}
}

// TestReserve: two claims get the two volumes of their node, the smaller claim the smaller one, and
// the third is provisioned.
func TestReserve(t *testing.T) {
	large := claimOf("large", "c")
	large.Spec.Resources.Requests[corev1.ResourceStorage] = resource.MustParse("3Gi")
	third := claimOf("third", "c")
	third.Spec.Resources.Requests[corev1.ResourceStorage] = resource.MustParse("9Gi")
	v := &store{
		claims:  []*corev1.PersistentVolumeClaim{large, claimOf("small", "c"), third},
		classes: []*storagev1.StorageClass{delaying("c", "p")},
		volumes: []*corev1.PersistentVolume{volumeAt("v4", "c", "4Gi", "a"), volumeAt("v2", "c", "2Gi", "a"), volumeAt("elsewhere", "c", "1Gi", "b")},
	}
	s := zones("a", "b")
	c := &framework.Cycle{Pod: state.NewPod(podWith("p", "large", "small", "third")), State: s, Volumes: v}
	r, err := VolumeBinding{}.Reserve(c, s.Node("a"))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, b := range r.Bind {
		got = append(got, b.Volume.Name+"="+b.Volume.Spec.ClaimRef.Name)
		if b.Was.Spec.ClaimRef != nil {
			t.Error("a shared volume was modified")
		}
	}
	for _, p := range r.Provision {
		got = append(got, p.Claim.Name+"@"+p.Claim.Annotations[volumehelpers.AnnSelectedNode])
		if len(p.Was.Annotations) != 0 {
			t.Error("a shared claim was modified")
		}
	}
	if want := "[v2=small v4=large third@a]"; fmt.Sprint(got) != want {
		t.Errorf("got %v, want %v", got, want)
	}
}

// TestVolumeScore checks the scores of nodes by their storage utilization.
func TestVolumeScore(t *testing.T) {
	driver := []*storagev1.CSIDriver{{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Spec: storagev1.CSIDriverSpec{StorageCapacity: ptr.To(true)}}}
	space := func(zone, size string) *storagev1.CSIStorageCapacity {
		return &storagev1.CSIStorageCapacity{StorageClassName: "make", Capacity: ptr.To(resource.MustParse(size)), NodeTopology: &metav1.LabelSelector{MatchLabels: map[string]string{"zone": zone}}}
	}
	made := &store{
		claims: []*corev1.PersistentVolumeClaim{claimOf("c", "make"), claimOf("d", "make")}, classes: []*storagev1.StorageClass{delaying("make", "p")},
		drivers: driver, capacities: []*storagev1.CSIStorageCapacity{space("a", "4Gi"), space("b", "10Gi")},
	}
	chosen := &store{
		claims: []*corev1.PersistentVolumeClaim{claimOf("c", "static")}, classes: []*storagev1.StorageClass{delaying("static", volumehelpers.NotSupportedProvisioner)},
		volumes: []*corev1.PersistentVolume{volumeAt("v1", "static", "1Gi", "a"), volumeAt("v4", "static", "4Gi", "b")},
	}
	unreported := &store{claims: []*corev1.PersistentVolumeClaim{claimOf("c", "make")}, classes: []*storagev1.StorageClass{delaying("make", "p")}}
	settled := &store{claims: []*corev1.PersistentVolumeClaim{bound(claimOf("c", ""), "v")}, volumes: []*corev1.PersistentVolume{volumeAt("v", "", "1Gi", "")}}
	for name, tc := range map[string]struct {
		store *store
		pod   *corev1.Pod
		shape []Point
		want  []int64 // of a and b; nil: no scores
	}{
		"provisioned":                     {made, podWith("p", "c"), nil, []int64{75, 90}},
		"two claims of one class":         {made, podWith("p", "c", "d"), nil, []int64{50, 80}},
		"shape prefers full storage":      {made, podWith("p", "c", "d"), []Point{{0, 0}, {100, 100}}, []int64{50, 20}},
		"bound to existing volumes":       {chosen, podWith("p", "c"), nil, []int64{0, 75}},
		"driver without storage capacity": {unreported, podWith("p", "c"), nil, []int64{0, 0}},
		"bound":                           {settled, podWith("p", "c"), nil, nil},
		"no claims":                       {&store{}, podWith("p"), nil, nil},
	} {
		s := zones("a", "b")
		c := &framework.Cycle{Pod: state.NewPod(tc.pod), State: s, Volumes: tc.store}
		out := []int64{-1, -1}
		if got := (VolumeBinding{Shape: tc.shape}).Score(c, []*state.Node{s.Node("a"), s.Node("b")}, out); got != (tc.want != nil) || got && !slices.Equal(out, tc.want) {
			t.Errorf("%s: %v %v, want %v", name, got, out, tc.want)
		}
	}
}

func TestVolumeZone(t *testing.T) {
	pv := volumeAt("v", "", "1Gi", "")
	pv.Labels = map[string]string{corev1.LabelFailureDomainBetaZone: "b__c"}
	v := &store{claims: []*corev1.PersistentVolumeClaim{bound(claimOf("c", ""), "v")}, volumes: []*corev1.PersistentVolume{pv}}
	s := zones("a", "b")
	s.SetNode(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "nowhere"}})
	got := fits(t, VolumeZone{}, &framework.Cycle{Pod: state.NewPod(podWith("p", "c")), State: s, Volumes: v})
	if want := map[string]string{"a": "node(s) had no available volume zone", "b": "", "nowhere": ""}; fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got %v", got)
	}
}

func TestVolumeRestrictions(t *testing.T) {
	pvc := claimOf("c", "")
	pvc.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOncePod}
	v := &store{claims: []*corev1.PersistentVolumeClaim{pvc}}
	s := zones("a", "b")
	user := state.NewPod(podWith("user", "c"))
	s.SetPod(user, "b")
	c := &framework.Cycle{Pod: state.NewPod(podWith("p", "c")), State: s, Volumes: v}
	check, err := VolumeRestrictions{}.Filter(c)
	if err != nil {
		t.Fatal(err)
	}
	if r := check.Node(s.Node("a")); len(r) != 1 || r[0].Unresolvable {
		t.Errorf("while it is used: %v", r)
	}
	check.Moved(user, s.Node("b"), -1)
	if r := check.Node(s.Node("a")); r != nil {
		t.Errorf("once it is not: %v", r)
	}
}

func TestNodeVolumeLimits(t *testing.T) {
	csi := func(name string) *corev1.PersistentVolume {
		pv := volumeAt(name, "", "1Gi", "")
		pv.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: "d", VolumeHandle: name}
		return pv
	}
	v := &store{
		claims:   []*corev1.PersistentVolumeClaim{bound(claimOf("c1", ""), "v1"), bound(claimOf("c2", ""), "v2")},
		volumes:  []*corev1.PersistentVolume{csi("v1"), csi("v2"), csi("v3")},
		csiNodes: []*storagev1.CSINode{{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Spec: storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{{Name: "d", Allocatable: &storagev1.VolumeNodeResources{Count: ptr.To[int32](1)}}}}}},
	}
	s := zones("a", "b")
	s.SetPod(state.NewPod(podWith("user", "c1")), "a")
	const full = "node(s) exceed max volume count"
	for claim, want := range map[string]string{"c1": "", "c2": full} {
		got := fits(t, NodeVolumeLimits{}, &framework.Cycle{Pod: state.NewPod(podWith("p", claim)), State: s, Volumes: v})
		if got["a"] != want || got["b"] != "" {
			t.Errorf("%s: %v", claim, got)
		}
	}
	// A driver may require to be installed before pods are scheduled.
	v.drivers = []*storagev1.CSIDriver{{ObjectMeta: metav1.ObjectMeta{Name: "d"}, Spec: storagev1.CSIDriverSpec{PreventPodSchedulingIfMissing: ptr.To(true)}}}
	if got := fits(t, NodeVolumeLimits{}, &framework.Cycle{Pod: state.NewPod(podWith("p", "c1")), State: s, Volumes: v}); got["a"] != "" || got["b"] != "d CSI driver is not installed on the node" {
		t.Errorf("with a driver that must be installed: %v", got)
	}
	v.drivers[0].Spec.PreventPodSchedulingIfMissing = ptr.To(false)
	if got := fits(t, NodeVolumeLimits{}, &framework.Cycle{Pod: state.NewPod(podWith("p", "c1")), State: s, Volumes: v}); got["b"] != "" {
		t.Errorf("with a driver that need not be installed: %v", got)
	}
	v.attachments = []*storagev1.VolumeAttachment{{Spec: storagev1.VolumeAttachmentSpec{NodeName: "a", Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: ptr.To("v3")}}}}
	s = zones("a")
	if got := fits(t, NodeVolumeLimits{}, &framework.Cycle{Pod: state.NewPod(podWith("p", "c1")), State: s, Volumes: v}); got["a"] != full {
		t.Errorf("with another attached: %v", got)
	}
}
