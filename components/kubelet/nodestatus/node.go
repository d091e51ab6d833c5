package nodestatus

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/record"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"google.golang.org/grpc"

	"hyperkube/components/kubelet/cri"
	"hyperkube/internal/version"
)

// Pressure is what runs short on the node.
type Pressure struct{ Memory, Disk, PID bool }

// Config of a Keeper. All fields but those marked may not be empty.
type Config struct {
	Name string
	// Kube may be nil: then only the runtime is kept informed.
	Kube   kubernetes.Interface
	CRI    *cri.Client
	Events record.EventRecorder
	Log    *slog.Logger
	// Register: make the Node if there is none.
	Register bool
	// Labels, Annotations and Taints are added when the Node is registered; may
	// be nil.
	Labels, Annotations map[string]string
	Taints              []v1.Taint
	// Unschedulable as registered.
	Unschedulable bool
	// IPs returns the node's addresses, the primary one first.
	IPs func() []string
	// ProviderID may be empty.
	ProviderID string
	// Port is where the kubelet serves.
	Port    int32
	Machine Machine
	// Capacity and Allocatable are shared; they are not changed.
	Capacity, Allocatable v1.ResourceList
	// Devices returns what device plugins have: all, and what can be given to
	// pods. May be nil.
	Devices func() (all, healthy v1.ResourceList)
	// Pressure returns what runs short; may be nil.
	Pressure func() Pressure
	// Wrong returns why the node is not ready though its runtime is; may be nil.
	Wrong func() []string
	// VolumesInUse returns the volumes that must not be detached, sorted; may be
	// nil.
	VolumesInUse func() []v1.UniqueVolumeName
	// Seen is called when the Node that the API has has changed; may be nil.
	Seen func()
	// PodCIDR is given to the runtime until the Node has one; may be empty.
	PodCIDR string
	// Lease is the lease's duration, Renew how often it is renewed, Update how
	// often the status is computed, Report how often it is sent when nothing has
	// changed.
	Lease, Renew, Update, Report time.Duration
	// MaxImages is how many images the status lists.
	MaxImages int
}

// Keeper keeps the Node and its lease.
type Keeper struct {
	cfg     Config
	ready   chan struct{}
	trigger chan struct{}

	mu      sync.Mutex // guards what follows
	node    *v1.Node   // as the API has it, nil before it is known
	cidrs   string     // what the runtime was told
	runtime runtimeSays
	// unschedulable is what the Node said last.
	unschedulable bool
}

// runtimeSays is what the runtime said last.
type runtimeSays struct {
	asked            bool
	down             string
	runtimeOK, netOK bool
	netText, runText string
	name, version    string
	handlers         []v1.NodeRuntimeHandler
	features         *v1.NodeFeatures
}

// New makes a Keeper.
func New(cfg Config) *Keeper {
	return &Keeper{cfg: cfg, ready: make(chan struct{}), trigger: make(chan struct{}, 1)}
}

// Ready is closed once the API knows that the node is ready; without an API,
// once the runtime is.
func (k *Keeper) Ready() <-chan struct{} { return k.ready }

// Changed makes the Keeper look anew, for something that the status tells has
// changed. It does not block.
func (k *Keeper) Changed() {
	select {
	case k.trigger <- struct{}{}:
	default:
	}
}

// Node returns the Node as the API has it, nil before it is known. It is
// shared.
func (k *Keeper) Node() *v1.Node {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.node
}

// Observe takes in the Node as a watch tells of it.
func (k *Keeper) Observe(node *v1.Node) {
	k.mu.Lock()
	if k.node != nil && k.node.UID == node.UID && !newer(node.ResourceVersion, k.node.ResourceVersion) {
		k.mu.Unlock()
		return
	}
	k.node = node
	k.mu.Unlock()
	k.schedulable(node)
	k.seen()
	k.Changed()
}

// NetworkProblem tells why pods cannot be connected now, in upstream's words;
// empty when they can, or when that is not known yet.
func (k *Keeper) NetworkProblem() string {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.runtime.asked || k.runtime.down != "" || k.runtime.netOK {
		return ""
	}
	return "container runtime network not ready: " + k.runtime.netText
}

// Deleted takes in that the API has no such Node any more; it is registered
// anew.
func (k *Keeper) Deleted() {
	k.mu.Lock()
	k.node = nil
	k.mu.Unlock()
	k.Changed()
}

// newer compares resource versions, which are numbers that grow.
func newer(a, b string) bool {
	x, errA := strconv.ParseUint(a, 10, 64)
	y, errB := strconv.ParseUint(b, 10, 64)
	if errA != nil || errB != nil {
		return a != b
	}
	return x > y
}

// Run keeps everything until ctx ends.
func (k *Keeper) Run(ctx context.Context) error {
	var lease sync.WaitGroup
	if k.cfg.Kube != nil {
		lease.Add(1)
		go func() {
			defer lease.Done()
			k.keepLease(ctx)
		}()
	}
	defer lease.Wait()
	var lastReport time.Time
	announced := false
	pause := 20 * time.Millisecond
	for {
		k.askRuntime(ctx)
		err := k.tellRuntime(ctx)
		next := k.cfg.Update
		if err == nil && k.cfg.Kube != nil {
			var sent bool
			if sent, err = k.report(ctx, time.Since(lastReport) >= k.cfg.Report); sent {
				lastReport = time.Now()
			}
		}
		if ctx.Err() != nil {
			return nil
		}
		ok := k.isReady()
		switch {
		case err != nil:
			k.cfg.Log.Warn("keeping the node's status failed, trying again", "error", err)
			next = pause
			pause = min(2*pause, 5*time.Second)
		case !ok:
			next = min(pause, time.Second)
			pause = min(2*pause, 5*time.Second)
		default:
			pause = 20 * time.Millisecond
		}
		if ok && err == nil && !announced {
			announced = true
			close(k.ready)
		}
		timer := time.NewTimer(next)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-k.trigger:
		case <-timer.C:
		}
		timer.Stop()
	}
}

// askRuntime asks the runtime how it is.
func (k *Keeper) askRuntime(ctx context.Context) {
	ask, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	says := runtimeSays{asked: true}
	k.mu.Lock()
	says.name, says.version = k.runtime.name, k.runtime.version
	k.mu.Unlock()
	wait := grpc.WaitForReady(says.name == "")
	if says.name == "" {
		if v, err := k.cfg.CRI.Runtime.Version(ask, &runtimeapi.VersionRequest{}, wait); err == nil {
			says.name, says.version = v.RuntimeName, v.RuntimeVersion
		}
	}
	resp, err := k.cfg.CRI.Runtime.Status(ask, &runtimeapi.StatusRequest{})
	if err != nil {
		says.down = cri.Message(err)
	} else {
		for _, c := range resp.GetStatus().GetConditions() {
			text := fmt.Sprintf("%s=%v reason:%s message:%s", c.Type, c.Status, c.Reason, c.Message)
			switch c.Type {
			case "RuntimeReady":
				says.runtimeOK, says.runText = c.Status, text
			case "NetworkReady":
				says.netOK, says.netText = c.Status, text
			}
		}
		for _, h := range resp.RuntimeHandlers {
			recursive, users := h.GetFeatures().GetRecursiveReadOnlyMounts(), h.GetFeatures().GetUserNamespaces()
			says.handlers = append(says.handlers, v1.NodeRuntimeHandler{
				Name:     h.Name,
				Features: &v1.NodeRuntimeHandlerFeatures{RecursiveReadOnlyMounts: &recursive, UserNamespaces: &users},
			})
		}
		if f := resp.Features; f != nil {
			policy := f.SupplementalGroupsPolicy
			says.features = &v1.NodeFeatures{SupplementalGroupsPolicy: &policy}
		}
	}
	k.mu.Lock()
	k.runtime = says
	k.mu.Unlock()
}

// tellRuntime tells the runtime the node's pod addresses, once they are known
// and whenever it has restarted.
func (k *Keeper) tellRuntime(ctx context.Context) error {
	k.mu.Lock()
	cidrs := k.cfg.PodCIDR
	if k.node != nil {
		if len(k.node.Spec.PodCIDRs) > 0 {
			cidrs = strings.Join(k.node.Spec.PodCIDRs, ",")
		} else if k.node.Spec.PodCIDR != "" {
			cidrs = k.node.Spec.PodCIDR
		}
	}
	told := k.cidrs
	down := k.runtime.down != ""
	if down {
		// It may come back without memory of it.
		k.cidrs = ""
	}
	k.mu.Unlock()
	if cidrs == "" || cidrs == told || down {
		return nil
	}
	_, err := k.cfg.CRI.Runtime.UpdateRuntimeConfig(ctx, &runtimeapi.UpdateRuntimeConfigRequest{
		RuntimeConfig: &runtimeapi.RuntimeConfig{NetworkConfig: &runtimeapi.NetworkConfig{PodCidr: cidrs}},
	})
	if err != nil {
		return fmt.Errorf("telling the runtime the pods' addresses: %w", err)
	}
	k.mu.Lock()
	k.cidrs = cidrs
	k.mu.Unlock()
	k.askRuntime(ctx)
	return nil
}

func (k *Keeper) isReady() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	r := k.runtime
	return r.down == "" && r.runtimeOK && r.netOK
}

// report makes the API's Node say what is so. With force it is sent though
// nothing but the time has changed. It tells whether it was sent.
func (k *Keeper) report(ctx context.Context, force bool) (bool, error) {
	nodes := k.cfg.Kube.CoreV1().Nodes()
	have := k.Node()
	if have == nil {
		if !k.cfg.Register {
			found, err := nodes.Get(ctx, k.cfg.Name, metav1.GetOptions{})
			if err != nil {
				return false, fmt.Errorf("getting the node: %w", err)
			}
			have = found
		} else {
			fresh := k.initial(ctx)
			made, err := nodes.Create(ctx, fresh, metav1.CreateOptions{})
			switch {
			case err == nil:
				k.set(made)
				k.tell(&v1.NodeStatus{}, &made.Status)
				return true, nil
			case !apierrors.IsAlreadyExists(err):
				return false, fmt.Errorf("registering the node: %w", err)
			}
			found, err := nodes.Get(ctx, k.cfg.Name, metav1.GetOptions{})
			if err != nil {
				return false, fmt.Errorf("getting the node: %w", err)
			}
			if have, err = k.reconcile(ctx, found, fresh); err != nil {
				return false, err
			}
		}
		k.set(have)
		force = true
	}
	want := have.DeepCopy()
	k.fill(ctx, want, time.Now())
	if !force && same(&have.Status, &want.Status) {
		return false, nil
	}
	patch, err := statusPatch(have, want)
	if err != nil {
		return false, err
	}
	got, err := nodes.Patch(ctx, k.cfg.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	if apierrors.IsNotFound(err) {
		// Someone deleted it: it is registered anew.
		k.mu.Lock()
		k.node = nil
		k.mu.Unlock()
	}
	if err != nil {
		return false, fmt.Errorf("reporting the node's status: %w", err)
	}
	k.set(got)
	k.tell(&have.Status, &want.Status)
	return true, nil
}

func (k *Keeper) seen() {
	if k.cfg.Seen != nil {
		k.cfg.Seen()
	}
}

func (k *Keeper) set(node *v1.Node) {
	k.mu.Lock()
	k.node = node
	k.mu.Unlock()
	k.seen()
	// The runtime must know its addresses before pods come.
	if node.Spec.PodCIDR != "" {
		k.Changed()
	}
}

// initial is the Node as it is registered.
func (k *Keeper) initial(ctx context.Context) *v1.Node {
	n := &v1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name:        k.cfg.Name,
			Labels:      k.labels(),
			Annotations: map[string]string{"volumes.kubernetes.io/controller-managed-attach-detach": "true"},
		},
		Spec: v1.NodeSpec{ProviderID: k.cfg.ProviderID, Taints: slices.Clone(k.cfg.Taints), Unschedulable: k.cfg.Unschedulable},
	}
	maps.Copy(n.Annotations, k.cfg.Annotations)
	k.fill(ctx, n, time.Now())
	return n
}

func (k *Keeper) labels() map[string]string {
	out := maps.Clone(k.cfg.Labels)
	if out == nil {
		out = map[string]string{}
	}
	out[v1.LabelHostname] = k.cfg.Name
	out[v1.LabelOSStable], out[v1.LabelArchStable] = osName, archName
	out["beta.kubernetes.io/os"], out["beta.kubernetes.io/arch"] = osName, archName
	return out
}

// reconcile brings the labels of a Node that was there already up to date.
func (k *Keeper) reconcile(ctx context.Context, found, fresh *v1.Node) (*v1.Node, error) {
	want := found.DeepCopy()
	if want.Labels == nil {
		want.Labels = map[string]string{}
	}
	if want.Annotations == nil {
		want.Annotations = map[string]string{}
	}
	maps.Copy(want.Labels, fresh.Labels)
	maps.Copy(want.Annotations, fresh.Annotations)
	if want.Spec.ProviderID == "" {
		want.Spec.ProviderID = fresh.Spec.ProviderID
	}
	if apiequality.Semantic.DeepEqual(found, want) {
		return found, nil
	}
	old, err := json.Marshal(found)
	if err != nil {
		return nil, fmt.Errorf("encoding the node: %w", err)
	}
	now, err := json.Marshal(want)
	if err != nil {
		return nil, fmt.Errorf("encoding the node: %w", err)
	}
	patch, err := strategicpatch.CreateTwoWayMergePatch(old, now, v1.Node{})
	if err != nil {
		return nil, fmt.Errorf("making the node's patch: %w", err)
	}
	got, err := k.cfg.Kube.CoreV1().Nodes().Patch(ctx, k.cfg.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{})
	if err != nil {
		return nil, fmt.Errorf("updating the node's labels: %w", err)
	}
	return got, nil
}

// same compares statuses without their heartbeats.
func same(a, b *v1.NodeStatus) bool {
	strip := func(s *v1.NodeStatus) *v1.NodeStatus {
		out := s.DeepCopy()
		for i := range out.Conditions {
			out.Conditions[i].LastHeartbeatTime = metav1.Time{}
		}
		slices.SortStableFunc(out.Conditions, func(x, y v1.NodeCondition) int { return cmp.Compare(x.Type, y.Type) })
		return out
	}
	return apiequality.Semantic.DeepEqual(strip(a), strip(b))
}

func statusPatch(have, want *v1.Node) ([]byte, error) {
	old, err := json.Marshal(v1.Node{Status: have.Status})
	if err != nil {
		return nil, fmt.Errorf("encoding the node's status: %w", err)
	}
	// Addresses are a list by type in the patch strategy, but there may be two
	// of one type: they are replaced as a whole.
	now, err := json.Marshal(v1.Node{Status: want.Status})
	if err != nil {
		return nil, fmt.Errorf("encoding the node's status: %w", err)
	}
	patch, err := strategicpatch.CreateTwoWayMergePatch(old, now, v1.Node{})
	if err != nil {
		return nil, fmt.Errorf("making the patch of the node's status: %w", err)
	}
	if apiequality.Semantic.DeepEqual(have.Status.Addresses, want.Status.Addresses) {
		return patch, nil
	}
	var doc map[string]any
	if err := json.Unmarshal(patch, &doc); err != nil {
		return nil, fmt.Errorf("making the patch of the node's status: %w", err)
	}
	if doc["status"] == nil {
		doc["status"] = map[string]any{}
	}
	status := doc["status"].(map[string]any)
	list := []any{}
	for _, a := range want.Status.Addresses {
		list = append(list, a)
	}
	status["addresses"] = append(list, map[string]string{"$patch": "replace"})
	delete(status, "$setElementOrder/addresses")
	return json.Marshal(doc)
}

// fill makes the status of n what is so.
func (k *Keeper) fill(ctx context.Context, n *v1.Node, now time.Time) {
	k.mu.Lock()
	says := k.runtime
	k.mu.Unlock()
	s := &n.Status
	announced := s.Capacity
	s.Capacity, s.Allocatable = k.cfg.Capacity.DeepCopy(), k.cfg.Allocatable.DeepCopy()
	// Extended resources that others announce are theirs, and all of them can
	// be allocated.
	for name, quantity := range announced {
		if _, own := s.Capacity[name]; !own && strings.Contains(string(name), "/") && !strings.HasPrefix(string(name), v1.ResourceDefaultNamespacePrefix) {
			s.Capacity[name], s.Allocatable[name] = quantity.DeepCopy(), quantity.DeepCopy()
		}
	}
	if k.cfg.Devices != nil {
		all, healthy := k.cfg.Devices()
		maps.Copy(s.Capacity, all)
		maps.Copy(s.Allocatable, healthy)
	}
	s.Addresses = nil
	for _, ip := range k.cfg.IPs() {
		s.Addresses = append(s.Addresses, v1.NodeAddress{Type: v1.NodeInternalIP, Address: ip})
	}
	s.Addresses = append(s.Addresses, v1.NodeAddress{Type: v1.NodeHostName, Address: k.cfg.Name})
	s.DaemonEndpoints.KubeletEndpoint.Port = k.cfg.Port
	m := k.cfg.Machine
	s.NodeInfo = v1.NodeSystemInfo{
		MachineID: m.MachineID, SystemUUID: m.SystemUUID, BootID: m.Boot, KernelVersion: m.Kernel, OSImage: m.OSImage,
		ContainerRuntimeVersion: says.name + "://" + says.version,
		KubeletVersion:          version.Get().GitVersion,
		OperatingSystem:         osName, Architecture: archName,
	}
	if m.SwapBytes > 0 {
		swap := m.SwapBytes
		s.NodeInfo.Swap = &v1.NodeSwapStatus{Capacity: &swap}
	}
	s.RuntimeHandlers, s.Features = says.handlers, says.features
	if k.cfg.VolumesInUse != nil {
		s.VolumesInUse = k.cfg.VolumesInUse()
	}
	if images, err := k.images(ctx); err == nil {
		s.Images = images
	}
	k.conditions(s, says, metav1.NewTime(now.Truncate(time.Second)))
}

func (k *Keeper) conditions(s *v1.NodeStatus, says runtimeSays, now metav1.Time) {
	var p Pressure
	if k.cfg.Pressure != nil {
		p = k.cfg.Pressure()
	}
	set := func(t v1.NodeConditionType, ok bool, reason, message string) {
		c := v1.NodeCondition{Type: t, Status: v1.ConditionFalse, Reason: reason, Message: message, LastHeartbeatTime: now, LastTransitionTime: now}
		if ok {
			c.Status = v1.ConditionTrue
		}
		for i := range s.Conditions {
			if s.Conditions[i].Type == t {
				if s.Conditions[i].Status == c.Status {
					c.LastTransitionTime = s.Conditions[i].LastTransitionTime
				}
				s.Conditions[i] = c
				return
			}
		}
		s.Conditions = append(s.Conditions, c)
	}
	if p.Memory {
		set(v1.NodeMemoryPressure, true, "KubeletHasInsufficientMemory", "kubelet has insufficient memory available")
	} else {
		set(v1.NodeMemoryPressure, false, "KubeletHasSufficientMemory", "kubelet has sufficient memory available")
	}
	if p.Disk {
		set(v1.NodeDiskPressure, true, "KubeletHasDiskPressure", "kubelet has disk pressure")
	} else {
		set(v1.NodeDiskPressure, false, "KubeletHasNoDiskPressure", "kubelet has no disk pressure")
	}
	if p.PID {
		set(v1.NodePIDPressure, true, "KubeletHasInsufficientPID", "kubelet has insufficient PID available")
	} else {
		set(v1.NodePIDPressure, false, "KubeletHasSufficientPID", "kubelet has sufficient PID available")
	}
	var wrong []string
	switch {
	case says.down != "":
		wrong = append(wrong, "container runtime is down: "+says.down)
	case !says.asked:
		wrong = append(wrong, "container runtime status check may not have completed yet")
	default:
		if !says.runtimeOK {
			wrong = append(wrong, "container runtime not ready: "+says.runText)
		}
		if !says.netOK {
			wrong = append(wrong, "container runtime network not ready: "+says.netText)
		}
	}
	if k.cfg.Wrong != nil {
		wrong = append(wrong, k.cfg.Wrong()...)
	}
	switch len(wrong) {
	case 0:
		set(v1.NodeReady, true, "KubeletReady", "kubelet is posting ready status")
	case 1:
		set(v1.NodeReady, false, "KubeletNotReady", wrong[0])
	default:
		set(v1.NodeReady, false, "KubeletNotReady", "["+strings.Join(wrong, ", ")+"]")
	}
}

// images lists the largest images.
func (k *Keeper) images(ctx context.Context) ([]v1.ContainerImage, error) {
	resp, err := k.cfg.CRI.Images.ListImages(ctx, &runtimeapi.ListImagesRequest{})
	if err != nil {
		return nil, err
	}
	list := slices.Clone(resp.Images)
	slices.SortStableFunc(list, func(a, b *runtimeapi.Image) int {
		if a.Size != b.Size {
			return cmp.Compare(b.Size, a.Size)
		}
		return cmp.Compare(a.Id, b.Id)
	})
	if k.cfg.MaxImages >= 0 && len(list) > k.cfg.MaxImages {
		list = list[:k.cfg.MaxImages]
	}
	out := make([]v1.ContainerImage, 0, len(list))
	for _, i := range list {
		names := append(slices.Clone(i.RepoDigests), i.RepoTags...)
		if len(names) > 5 {
			names = names[:5]
		}
		out = append(out, v1.ContainerImage{Names: names, SizeBytes: int64(i.Size)})
	}
	return out, nil
}
