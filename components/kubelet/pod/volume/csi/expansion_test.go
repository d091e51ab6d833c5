package csi

import (
	"reflect"
	"strings"
	"testing"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/record"
)

const expands = csipb.NodeServiceCapability_RPC_EXPAND_VOLUME

// grown sets the size of the volume to 2Mi and updates the claim as an external resizer does.
func (f *fixture) grown(change func(*v1.PersistentVolumeClaimStatus)) {
	f.Helper()
	f.pv.Spec.Capacity[v1.ResourceStorage] = resource.MustParse("2Mi")
	f.pvc.Spec.Resources.Requests = v1.ResourceList{v1.ResourceStorage: resource.MustParse("2Mi")}
	f.change(change)
}

// recovering is the status written by a resizer that supports recovery from expansion failures.
func recovering(s *v1.PersistentVolumeClaimStatus) {
	s.AllocatedResources = v1.ResourceList{v1.ResourceStorage: resource.MustParse("2Mi")}
	s.AllocatedResourceStatuses = map[v1.ResourceName]v1.ClaimResourceStatus{v1.ResourceStorage: v1.PersistentVolumeClaimNodeResizePending}
	s.Conditions = []v1.PersistentVolumeClaimCondition{
		{Type: v1.PersistentVolumeClaimFileSystemResizePending, Status: v1.ConditionTrue},
		{Type: "Unused", Status: v1.ConditionTrue},
	}
}

func (f *fixture) change(change func(*v1.PersistentVolumeClaimStatus)) {
	f.Helper()
	change(&f.pvc.Status)
	if _, err := f.kube.CoreV1().PersistentVolumeClaims("ns").Update(f.Context(), f.pvc, metav1.UpdateOptions{}); err != nil {
		f.Fatal(err)
	}
}

// claim reads the claim, as the kubelet does in its next sync.
func (f *fixture) claim() *v1.PersistentVolumeClaim {
	f.Helper()
	pvc, err := f.kube.CoreV1().PersistentVolumeClaims("ns").Get(f.Context(), "c", metav1.GetOptions{})
	if err != nil {
		f.Fatal(err)
	}
	f.pvc = pvc.DeepCopy()
	return pvc
}

// watchEvents records events; the returned function returns those since its last call.
func (f *fixture) watchEvents() func() string {
	r := record.NewFakeRecorder(100)
	f.plugin.cfg.Events = r
	return func() string {
		var out []string
		for {
			select {
			case e := <-r.Events:
				out = append(out, e)
			default:
				return strings.Join(out, "\n")
			}
		}
	}
}

// due makes the next attempt of each expansion due now.
func (f *fixture) due() {
	f.plugin.mu.Lock()
	defer f.plugin.mu.Unlock()
	for k, g := range f.plugin.expansions {
		g.nextAttempt = time.Time{}
		f.plugin.expansions[k] = g
	}
}

func (f *fixture) expanded() int {
	n := 0
	for _, c := range f.driver.Calls("vol-1") {
		if c.Method == "NodeExpandVolume" {
			n++
		}
	}
	return n
}

func TestGrow(t *testing.T) {
	for name, tc := range map[string]struct {
		mounted bool
		change  func(*v1.PersistentVolumeClaimStatus)
	}{
		"in use":               {mounted: true, change: recovering},
		"mounted":              {change: recovering},
		"in use, old resizer":  {mounted: true, change: func(*v1.PersistentVolumeClaimStatus) {}},
		"mounted, old resizer": {change: func(*v1.PersistentVolumeClaimStatus) {}},
		"the node was killed": {change: func(s *v1.PersistentVolumeClaimStatus) {
			recovering(s)
			s.AllocatedResourceStatuses[v1.ResourceStorage] = v1.PersistentVolumeClaimNodeResizeInProgress
		}},
		"after another rejection": {change: func(s *v1.PersistentVolumeClaimStatus) {
			recovering(s)
			s.Conditions = append(s.Conditions, v1.PersistentVolumeClaimCondition{Type: v1.PersistentVolumeClaimNodeResizeError, Status: v1.ConditionTrue})
		}},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, expands)
			events := f.watchEvents()
			if tc.mounted {
				if r := f.up("a"); r.Refresh.IsZero() {
					t.Error("no refresh for the expansion")
				}
			}
			f.grown(tc.change)
			f.up("a")
			pvc := f.claim()
			if size := pvc.Status.Capacity[v1.ResourceStorage]; size.String() != "2Mi" || pvc.Status.AllocatedResourceStatuses != nil {
				t.Errorf("status %+v", pvc.Status)
			}
			for _, c := range pvc.Status.Conditions {
				if c.Type != "Unused" {
					t.Errorf("condition %+v", c)
				}
			}
			const text = `Normal FileSystemResizeSuccessful MountVolume.NodeExpandVolume succeeded for volume "pv" n`
			if got := events(); got != text+"\n"+text {
				t.Errorf("events:\n%s", got)
			}
			f.up("a")
			f.up("b")
			if n := f.expanded(); n != 1 {
				t.Errorf("expanded %d times", n)
			}
			f.down("a")
			f.down("b")
			if len(f.plugin.expansions) != 0 {
				t.Errorf("left: %v", f.plugin.expansions)
			}
		})
	}
}

func TestGrowRefused(t *testing.T) {
	for name, tc := range map[string]struct {
		code   codes.Code
		wanted string // the size that the user requests now
		state  v1.ClaimResourceStatus
		text   string
		busy   bool
		// unrecorded is true if the driver may still be working, so that the claim has no condition about the failure.
		unrecorded bool
	}{
		"timeout":                {code: codes.DeadlineExceeded, wanted: "1536Ki", state: v1.PersistentVolumeClaimNodeResizeInProgress, text: "Expander.NodeExpand failed to expand the volume : rpc error: code = DeadlineExceeded desc = no", unrecorded: true},
		"temporary error":        {code: codes.Internal, wanted: "2Mi", state: v1.PersistentVolumeClaimNodeResizeInProgress, text: "Expander.NodeExpand failed to expand the volume : rpc error: code = Internal desc = no"},
		"infeasible":             {code: codes.OutOfRange, wanted: "2Mi", state: v1.PersistentVolumeClaimNodeResizeInfeasible, text: "Expander.NodeExpand failed to expand the volume rpc error: code = OutOfRange desc = no"},
		"in use":                 {code: codes.FailedPrecondition, wanted: "2Mi", state: v1.PersistentVolumeClaimNodeResizeInProgress, text: "Expander.NodeExpand failed to expand the volume : rpc error: code = FailedPrecondition desc = no", busy: true},
		"smaller size requested": {code: codes.Internal, wanted: "1536Ki", state: v1.PersistentVolumeClaimNodeResizeInfeasible, text: "Expander.NodeExpand failed to expand the volume : rpc error: code = Internal desc = no"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, expands)
			events := f.watchEvents()
			f.driver.Fail = func(method, _ string) error {
				if method == "NodeExpandVolume" {
					return status.Error(tc.code, "no")
				}
				return nil
			}
			f.up("a")
			f.grown(recovering)
			r := f.up("a")
			if !tc.busy && time.Until(r.Refresh) > time.Second {
				t.Errorf("next attempt at %v", r.Refresh)
			}
			f.claim()
			f.pvc.Spec.Resources.Requests[v1.ResourceStorage] = resource.MustParse(tc.wanted)
			f.change(func(*v1.PersistentVolumeClaimStatus) {})
			f.up("a")
			if n := f.expanded(); n != 1 {
				t.Errorf("%d calls without backoff", n)
			}
			f.due()
			f.up("a")
			pvc := f.claim()
			if got := pvc.Status.AllocatedResourceStatuses[v1.ResourceStorage]; got != tc.state {
				t.Errorf("state %s", got)
			}
			var found bool
			for _, c := range pvc.Status.Conditions {
				found = found || c.Type == v1.PersistentVolumeClaimNodeResizeError && c.Message == "failed to expand pvc with "+tc.text
			}
			if size := pvc.Status.Capacity[v1.ResourceStorage]; found == tc.unrecorded || size.String() != "1Mi" || !tc.unrecorded && len(pvc.Status.Conditions) != 3 {
				t.Errorf("status %+v", pvc.Status)
			}
			got := events()
			if want := `Warning VolumeResizeFailed NodeExpandVolume.NodeExpandVolume failed for volume "pv" : ` + tc.text; strings.HasPrefix(got, want) == tc.busy {
				t.Errorf("events:\n%s", got)
			}
			// A new pod does not get the volume, unless it is in use.
			f.change(recovering)
			f.down("a")
			_, err := f.set().SetUp(t.Context(), pod("b"), claimed())
			if (err == nil) != tc.busy {
				t.Errorf("the next pod: %v", err)
			}
			if want := `MountVolume.Setup failed while expanding volume for volume "pv" : ` + tc.text; err != nil && err.Error() != want {
				t.Errorf("%v", err)
			}
			f.down("b")
		})
	}
}

func TestGrowReadOnly(t *testing.T) {
	f := newFixture(t, expands)
	events := f.watchEvents()
	f.pv.Spec.CSI.ReadOnly = true
	f.grown(recovering)
	f.up("a")
	const text = `Warning FileSystemResizeFailed MountVolume.NodeExpandVolume failed for volume "pv" requested read-only file system`
	if got := events(); got != text+"\n"+text || f.expanded() != 0 {
		t.Errorf("events:\n%s", got)
	}
	f.down("a")
}

func TestPlanGrowth(t *testing.T) {
	mi := func(n string) v1.ResourceList { return v1.ResourceList{v1.ResourceStorage: resource.MustParse(n)} }
	many := []v1.PersistentVolumeAccessMode{v1.ReadWriteMany}
	for name, tc := range map[string]struct {
		has, wanted string
		state       v1.ClaimResourceStatus
		allocated   string
		modes       []v1.PersistentVolumeAccessMode
		annotation  string
		refused     bool
		want        expansionPlan
	}{
		"old resizer":                             {has: "1Mi", wanted: "2Mi", want: expansionPlan{callDriver: true, updateClaim: true}},
		"old resizer, expanded on another node":   {has: "2Mi", wanted: "2Mi", want: expansionPlan{callDriver: true}},
		"pending":                                 {has: "1Mi", wanted: "2Mi", allocated: "2Mi", state: v1.PersistentVolumeClaimNodeResizePending, want: expansionPlan{callDriver: true, updateClaim: true, recordStates: true}},
		"begun":                                   {has: "1Mi", wanted: "2Mi", allocated: "2Mi", state: v1.PersistentVolumeClaimNodeResizeInProgress, want: expansionPlan{callDriver: true, updateClaim: true, recordStates: true}},
		"control plane in progress":               {has: "1Mi", wanted: "2Mi", allocated: "2Mi", state: v1.PersistentVolumeClaimControllerResizeInProgress, want: expansionPlan{updateClaim: true, recordStates: true}},
		"infeasible":                              {has: "1Mi", wanted: "2Mi", allocated: "2Mi", state: v1.PersistentVolumeClaimNodeResizeInfeasible, want: expansionPlan{updateClaim: true, recordStates: true}},
		"another size after a rejection":          {has: "1Mi", wanted: "1500Ki", allocated: "2Mi", state: v1.PersistentVolumeClaimNodeResizeInProgress, refused: true, want: expansionPlan{callDriver: true, updateClaim: true, recordStates: true, abandonOnFailure: true}},
		"expanded by the control plane":           {has: "2Mi", wanted: "2Mi", allocated: "2Mi", want: expansionPlan{done: true, recordStates: true}},
		"expanded on another node, ReadWriteMany": {has: "2Mi", wanted: "2Mi", allocated: "2Mi", modes: many, want: expansionPlan{callDriver: true, recordStates: true}},
		"expanded on another node, no node expansion required": {has: "2Mi", wanted: "2Mi", allocated: "2Mi", modes: many, annotation: noNodeExpansion, want: expansionPlan{done: true, recordStates: true}},
	} {
		pvc, pv := &v1.PersistentVolumeClaim{}, &v1.PersistentVolume{}
		pv.Spec.Capacity = mi("2Mi")
		pvc.Spec.AccessModes, pvc.Spec.Resources.Requests, pvc.Status.Capacity = tc.modes, mi(tc.wanted), mi(tc.has)
		if tc.allocated != "" {
			pvc.Status.AllocatedResources = mi(tc.allocated)
		}
		if tc.state != "" {
			pvc.Status.AllocatedResourceStatuses = map[v1.ResourceName]v1.ClaimResourceStatus{v1.ResourceStorage: tc.state}
		}
		if tc.annotation != "" {
			pvc.Annotations = map[string]string{tc.annotation: "true"}
		}
		got := planExpansion(pvc, pv, tc.refused)
		if got.size.String() != "2Mi" {
			t.Errorf("%s: size %s", name, &got.size)
		}
		got.size = resource.Quantity{}
		if !reflect.DeepEqual(got, tc.want) {
			t.Errorf("%s: %+v", name, got)
		}
	}
}
