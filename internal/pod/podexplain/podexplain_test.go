package podexplain

import (
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

var now = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// base returns a running and ready pod on node n. change changes it.
func base(change func(p *corev1.Pod)) *corev1.Pod {
	yes := true
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "a"}, Spec: corev1.PodSpec{
		NodeName: "n", SchedulerName: corev1.DefaultSchedulerName, Containers: []corev1.Container{{Name: "c", Image: "app:1"}},
	}}
	p.Status.Phase = corev1.PodRunning
	p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "c", Image: "app:1", Ready: true, Started: &yes, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(now.Add(-time.Minute))}}}}
	p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(now)}}
	change(p)
	return p
}

// pending returns a pod without a node, about which the scheduler has reported message.
func pending(message string) *corev1.Pod {
	return base(func(p *corev1.Pod) {
		p.Spec.NodeName, p.Status = "", corev1.PodStatus{Phase: corev1.PodPending}
		if message != "" {
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable, Message: message}}
		}
	})
}

// waiting returns a pod whose container waits.
func waiting(reason, message string) *corev1.Pod {
	return base(func(p *corev1.Pod) {
		p.Status.Phase, p.Status.Conditions = corev1.PodPending, nil
		p.Status.ContainerStatuses[0].Ready = false
		p.Status.ContainerStatuses[0].State = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message}}
	})
}

// stopped returns a pod whose container waits for the next start after it has exited.
func stopped(code int32, reason, message string) *corev1.Pod {
	p := waiting("CrashLoopBackOff", "back-off 10s restarting failed container")
	p.Status.ContainerStatuses[0].RestartCount = 3
	p.Status.ContainerStatuses[0].LastTerminationState.Terminated = &corev1.ContainerStateTerminated{ExitCode: code, Reason: reason, Message: message}
	return p
}

func event(kind, name, reason, message string) corev1.Event {
	return corev1.Event{InvolvedObject: corev1.ObjectReference{Kind: kind, Name: name}, Reason: reason, Message: message, LastTimestamp: metav1.NewTime(now)}
}

// withClaim returns a pending pod that uses the claim data.
func withClaim() *corev1.Pod {
	p := pending("0/1 nodes are available: pod has unbound immediate PersistentVolumeClaims.")
	p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}}}}
	return p
}

// claim returns a claim that is not bound, of a class unless it is nil.
func claim(class *string) []corev1.PersistentVolumeClaim {
	return []corev1.PersistentVolumeClaim{{ObjectMeta: metav1.ObjectMeta{Name: "data"}, Spec: corev1.PersistentVolumeClaimSpec{StorageClassName: class}, Status: corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimPending}}}
}

// TestExplain has a case for each cause. want has for each finding, separated by lines, its reason and a part of the sentence or
// remedy.
func TestExplain(t *testing.T) {
	zero, yes, no, fast, empty := int32(0), true, false, "fast", ""
	wait := storagev1.VolumeBindingWaitForFirstConsumer
	notReady := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}, Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionUnknown}}}}
	failed := func(reason, message string, conditions ...corev1.PodCondition) *corev1.Pod {
		return base(func(p *corev1.Pod) {
			p.Status = corev1.PodStatus{Phase: corev1.PodFailed, Reason: reason, Message: message, Conditions: conditions}
		})
	}
	deleted := func(at time.Time, finalizers ...string) *corev1.Pod {
		return base(func(p *corev1.Pod) { p.DeletionTimestamp, p.Finalizers = &metav1.Time{Time: at}, finalizers })
	}
	unready := func(change func(p *corev1.Pod)) *corev1.Pod {
		return base(func(p *corev1.Pod) {
			p.Status.Conditions, p.Status.ContainerStatuses[0].Ready = nil, false
			change(p)
		})
	}
	initWaits := waiting("PodInitializing", "")
	initWaits.Spec.InitContainers = []corev1.Container{{Name: "prepare"}}
	initWaits.Status.InitContainerStatuses = []corev1.ContainerStatus{{Name: "prepare", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}
	sidecar := waiting("PodInitializing", "")
	always := corev1.ContainerRestartPolicyAlways
	sidecar.Spec.InitContainers = []corev1.Container{{Name: "proxy", Image: "proxy:1", RestartPolicy: &always}}
	sidecar.Status.InitContainerStatuses = []corev1.ContainerStatus{{Name: "proxy", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ErrImageNeverPull"}}}}

	for name, test := range map[string]struct {
		in   Input
		want string
	}{
		"ready":           {Input{Pod: base(func(*corev1.Pod) {})}, "Placement node \"n\"\nReady since 2026-01-02 03:04:05 UTC"},
		"node selector":   {Input{Pod: base(func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"disk": "ssd"} })}, "Placement nodeSelector requires disk=ssd\nReady "},
		"static":          {Input{Pod: base(func(p *corev1.Pod) { p.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "x"} })}, "StaticPod runs it from a file\nReady "},
		"daemon set":      {Input{Pod: base(func(p *corev1.Pod) { p.OwnerReferences = []metav1.OwnerReference{{Kind: "DaemonSet", Name: "d"}} })}, "DaemonSet DaemonSet \"d\"\nReady "},
		"succeeded":       {Input{Pod: base(func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded })}, "Succeeded code 0"},
		"several reasons": {Input{Pod: pending("0/5 nodes are available: 1 Insufficient cpu, 2 node(s) had untolerated taint {gpu: yes}, 1 node(s) were unschedulable, 1 Too many pods. preemption: 0/5 nodes are available: 5 Preemption is not helpful for scheduling.")}, "InsufficientResources 1 of 5 nodes do not have enough free cpu\nTaint 2 of 5 nodes have a taint that the pod does not tolerate (gpu: yes)\nCordoned uncordon\nTooManyPods maxPods"},
		"selector":        {Input{Pod: pending("0/1 nodes are available: 1 node(s) didn't match Pod's node affinity/selector. no new claims to deallocate, preemption: 0/1 nodes are available: 1 Preemption is not helpful for scheduling.")}, "NodeSelector 1 of 1 nodes do not match"},
		"ports":           {Input{Pod: pending("0/1 nodes are available: 1 node(s) didn't have free ports for the requested pod ports.")}, "HostPort already use"},
		"affinity":        {Input{Pod: pending("0/2 nodes are available: 1 node(s) didn't match pod affinity rules, 1 node(s) didn't match pod anti-affinity rules.")}, "PodAffinity 1 of 2\nPodAntiAffinity 1 of 2"},
		"spread":          {Input{Pod: pending("0/2 nodes are available: 2 node(s) didn't match pod topology spread constraints.")}, "TopologySpread ScheduleAnyway"},
		"volume node":     {Input{Pod: pending("0/2 nodes are available: 2 node(s) had volume node affinity conflict.")}, "VolumeNode where its volume is"},
		"unknown reason":  {Input{Pod: pending("0/2 nodes are available: 2 something, else.")}, "Unschedulable 2 of 2 nodes are not suitable: Something, else."},
		"other message":   {Input{Pod: pending("running PreFilter: x")}, "Unschedulable Running PreFilter: x."},
		"gates": {Input{Pod: base(func(p *corev1.Pod) {
			p.Spec.NodeName = ""
			p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "x/y"}}
			p.Status.Phase = corev1.PodPending
		})}, "SchedulingGate x/y"},
		"other scheduler": {Input{Pod: base(func(p *corev1.Pod) { p.Spec.NodeName, p.Spec.SchedulerName = "", "mine"; p.Status = corev1.PodStatus{} })}, "NoScheduler \"mine\""},
		"new":             {Input{Pod: pending("")}, "NotScheduled yet"},
		"nominated": {Input{Pod: func() *corev1.Pod {
			p := pending("0/1 nodes are available: 1 Insufficient memory.")
			p.Status.NominatedNodeName = "n"
			return p
		}()}, "InsufficientResources memory\nPreemption lower priority"},
		"no claim":            {Input{Pod: withClaim(), ClaimsKnown: true}, "MissingClaim \"data\""},
		"no claim, message":   {Input{Pod: pending(`0/1 nodes are available: persistentvolumeclaim "data" not found.`)}, "MissingClaim \"data\""},
		"no default class":    {Input{Pod: withClaim(), ClaimsKnown: true, Claims: claim(nil)}, "NoStorageClass no default class"},
		"missing class":       {Input{Pod: withClaim(), ClaimsKnown: true, ClassesKnown: true, Claims: claim(&fast)}, "MissingStorageClass \"fast\""},
		"static volume":       {Input{Pod: withClaim(), ClaimsKnown: true, Claims: claim(&empty)}, "UnboundClaim matching PersistentVolume"},
		"provisioning":        {Input{Pod: withClaim(), ClaimsKnown: true, Claims: claim(&fast), Events: []corev1.Event{event("PersistentVolumeClaim", "data", "ProvisioningFailed", "quota")}}, "ProvisioningFailed Quota."},
		"first consumer":      {Input{Pod: withClaim(), ClaimsKnown: true, ClassesKnown: true, Claims: claim(&fast), Classes: []storagev1.StorageClass{{ObjectMeta: metav1.ObjectMeta{Name: fast}, VolumeBindingMode: &wait}}}, "ClaimWaits after the scheduler"},
		"provisioner":         {Input{Pod: withClaim(), ClaimsKnown: true, ClassesKnown: true, Claims: claim(&fast), Classes: []storagev1.StorageClass{{ObjectMeta: metav1.ObjectMeta{Name: fast}, Provisioner: "x.io"}}}, "UnboundClaim provisioner \"x.io\""},
		"lost":                {Input{Pod: withClaim(), ClaimsKnown: true, Claims: []corev1.PersistentVolumeClaim{{ObjectMeta: metav1.ObjectMeta{Name: "data"}, Status: corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimLost}}}}, "LostClaim deleted"},
		"claims unreadable":   {Input{Pod: withClaim()}, "UnboundClaim describe pvc"},
		"image not found":     {Input{Pod: waiting("ErrImagePull", `failed to pull: manifest unknown`)}, "ImageNotFound \"app:1\"\nPlacement "},
		"image back-off":      {Input{Pod: waiting("ImagePullBackOff", `Back-off pulling image "app:1"`), Events: []corev1.Event{event("Pod", "p", "Failed", `Failed to pull image "app:1": not found`)}}, "ImageNotFound not found\nPlacement "},
		"image authorization": {Input{Pod: waiting("ErrImagePull", "401 Unauthorized")}, "ImageUnauthorized imagePullSecrets\nPlacement "},
		"registry":            {Input{Pod: waiting("ErrImagePull", "dial tcp: lookup x: no such host")}, "RegistryUnreachable DNS\nPlacement "},
		"registry CA":         {Input{Pod: waiting("ErrImagePull", "x509: unknown authority")}, "RegistryCertificate CA\nPlacement "},
		"never":               {Input{Pod: waiting("ErrImageNeverPull", "")}, "ImageNeverPull Never\nPlacement "},
		"image name":          {Input{Pod: waiting("InvalidImageName", "invalid reference")}, "InvalidImageName reference\nPlacement "},
		"config map":          {Input{Pod: waiting("CreateContainerConfigError", `configmap "settings" not found`)}, "MissingConfigMap ConfigMap \"settings\"\nPlacement "},
		"secret":              {Input{Pod: waiting("CreateContainerConfigError", `secret "key" not found`)}, "MissingSecret Secret \"key\"\nPlacement "},
		"key":                 {Input{Pod: waiting("CreateContainerConfigError", `couldn't find key url in ConfigMap a/settings`)}, "MissingKey ConfigMap \"a/settings\" has no key \"url\"\nPlacement "},
		"non-root":            {Input{Pod: waiting("CreateContainerConfigError", "container has runAsNonRoot and image will run as root")}, "RunAsNonRoot runAsUser\nPlacement "},
		"no command":          {Input{Pod: waiting("CreateContainerError", `exec: "x": executable file not found in $PATH`)}, "CommandNotFound command and args\nPlacement "},
		"OOM": {Input{Pod: func() *corev1.Pod {
			p := stopped(137, "OOMKilled", "")
			p.Spec.Containers[0].Resources.Limits = corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("64Mi")}
			return p
		}()}, "OOMKilled limit of 64Mi\nPlacement "},
		"killed":             {Input{Pod: stopped(137, "Error", "")}, "Killed SIGKILL\nPlacement "},
		"segmentation fault": {Input{Pod: stopped(139, "Error", "")}, "SegmentationFault SIGSEGV\nPlacement "},
		"126":                {Input{Pod: stopped(126, "Error", "")}, "CommandNotExecutable architecture\nPlacement "},
		"127":                {Input{Pod: stopped(127, "Error", "")}, "CommandNotFound does not exist\nPlacement "},
		"143":                {Input{Pod: stopped(143, "Error", "")}, "Terminated SIGTERM\nPlacement "},
		"1":                  {Input{Pod: stopped(1, "Error", "bad flag")}, "Error stopped 3 times, so the kubelet delays its next start with an error (exit code 1). Its message: Bad flag.\nPlacement "},
		"1, log":             {Input{Pod: stopped(1, "Error", "")}, "Error kubectl logs p -n a -c c --previous\nPlacement "},
		"0":                  {Input{Pod: stopped(0, "Completed", "")}, "Exited use a Job\nPlacement "},
		"start error":        {Input{Pod: stopped(128, "StartError", "exec: no such file or directory")}, "CommandNotFound does not exist in the image\nPlacement "},
		"liveness":           {Input{Pod: stopped(137, "Error", ""), Events: []corev1.Event{event("Pod", "p", "Killing", "Container c failed liveness probe, will be restarted"), event("Pod", "p", "Unhealthy", "Liveness probe failed: 404")}}, "LivenessProbe Liveness probe failed: 404.\nPlacement "},
		"restarted": {Input{Pod: base(func(p *corev1.Pod) {
			p.Status.ContainerStatuses[0].RestartCount = 1
			p.Status.ContainerStatuses[0].LastTerminationState.Terminated = &corev1.ContainerStateTerminated{ExitCode: 2}
		})}, "Placement n\nError restarted 1 times; the last time it with an error\nReady "},
		"readiness": {Input{Pod: unready(func(p *corev1.Pod) { p.Spec.Containers[0].ReadinessProbe = &corev1.Probe{} }), Events: []corev1.Event{event("Pod", "p", "Unhealthy", "Readiness probe failed: connection refused")}}, "ReadinessProbe The last result: Connection refused.\nPlacement "},
		"startup": {Input{Pod: unready(func(p *corev1.Pod) {
			p.Spec.Containers[0].StartupProbe = &corev1.Probe{}
			p.Status.ContainerStatuses[0].Started = &no
		})}, "StartupProbe restarted if\nPlacement "},
		"gate missing": {Input{Pod: unready(func(p *corev1.Pod) { p.Spec.ReadinessGates = []corev1.PodReadinessGate{{ConditionType: "x/lb"}} })}, "ReadinessGate is not set\nPlacement "},
		"gate false": {Input{Pod: unready(func(p *corev1.Pod) {
			p.Spec.ReadinessGates = []corev1.PodReadinessGate{{ConditionType: "x/lb"}}
			p.Status.Conditions = []corev1.PodCondition{{Type: "x/lb", Status: corev1.ConditionFalse, Message: "no target"}}
		})}, "ReadinessGate No target.\nPlacement "},
		"init":           {Input{Pod: initWaits}, "Placement n\nInitContainer init container \"prepare\" is running"},
		"sidecar":        {Input{Pod: sidecar}, "ImageNeverPull sidecar \"proxy\"\nPlacement \nStarting "},
		"mount":          {Input{Pod: waiting("ContainerCreating", ""), Events: []corev1.Event{event("Pod", "p", "FailedMount", `MountVolume.SetUp failed for volume "v" : configmap "settings" not found`)}}, "MissingConfigMap mounts\nPlacement "},
		"multi-attach":   {Input{Pod: waiting("ContainerCreating", ""), Events: []corev1.Event{event("Pod", "p", "FailedAttachVolume", "Multi-Attach error for volume")}}, "VolumeInUse another node\nPlacement "},
		"sandbox":        {Input{Pod: waiting("ContainerCreating", ""), Events: []corev1.Event{event("Pod", "p", "FailedCreatePodSandBox", "no address")}}, "Sandbox No address.\nPlacement "},
		"pulling":        {Input{Pod: waiting("ContainerCreating", ""), Events: []corev1.Event{event("Pod", "p", "Pulling", "Pulling image")}}, "Placement n\nPulling 03:04:05 UTC"},
		"starting":       {Input{Pod: waiting("ContainerCreating", "")}, "Placement n\nStarting "},
		"node not ready": {Input{Pod: base(func(*corev1.Pod) {}), Node: notReady}, "NodeUnreachable stopped to report\nPlacement n\nReady "},
		"evicted":        {Input{Pod: failed("Evicted", "The node was low on resource: memory.")}, "Evicted low on resource"},
		"preempted":      {Input{Pod: failed("", "", corev1.PodCondition{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: "PreemptionByScheduler", Message: "x"})}, "Preempted higher priority"},
		"drained":        {Input{Pod: failed("", "", corev1.PodCondition{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: "EvictionByEvictionAPI"})}, "EvictedByRequest drain"},
		"deadline":       {Input{Pod: failed("DeadlineExceeded", "x")}, "DeadlineExceeded activeDeadlineSeconds"},
		"not admitted":   {Input{Pod: failed("OutOfcpu", "x")}, "NotAdmitted OutOfcpu"},
		"failed":         {Input{Pod: failed("Other", "x")}, "Failed Other"},
		"terminating":    {Input{Pod: deleted(now.Add(20 * time.Second))}, "Terminating 20s\nPlacement n"},
		"finalizer":      {Input{Pod: deleted(now.Add(-time.Minute), "x/y")}, "Finalizers x/y\nPlacement n"},
		"deletion, node": {Input{Pod: deleted(now.Add(-time.Minute)), Node: notReady}, "DeletionNodeNotReady out-of-service\nNodeUnreachable \nPlacement n"},
		"preemption": {Input{Pod: func() *corev1.Pod {
			p := deleted(now.Add(20 * time.Second))
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: "PreemptionByScheduler", Message: "preempting"}}
			return p
		}()}, "Terminating 20s\nDisruption (PreemptionByScheduler): Preempting.\nPlacement n"},
		"deletion hangs": {Input{Pod: deleted(now.Add(-time.Minute))}, "DeletionHangs 1m0s\nPlacement n"},
		"quota": {Input{Workloads: []any{&appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Name: "r"}}}, Events: []corev1.Event{event("ReplicaSet", "r", "FailedCreate", `Error creating: pods "r-x" is forbidden: exceeded quota: small, requested: pods=1, used: pods=2, limited: pods=2`)}},
			"QuotaExceeded ResourceQuota \"small\" is used up: Requested: pods=1"},
		"quota needs requests": {Input{Workloads: []any{&appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Name: "r"}}}, Events: []corev1.Event{event("ReplicaSet", "r", "FailedCreate", `Error creating: pods "r-x" is forbidden: failed quota: small: must specify cpu for: c`)}},
			"QuotaNeedsRequests Must specify cpu for: c."},
		"pod security": {Input{Workloads: []any{&appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Name: "r"}}}, Events: []corev1.Event{event("ReplicaSet", "r", "FailedCreate", `pods "r" is forbidden: violates PodSecurity "restricted:latest": x`)}},
			"PodSecurity PodSecurity \"restricted:latest\""},
		"service account": {Input{Workloads: []any{&appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Name: "s"}}}, Events: []corev1.Event{event("StatefulSet", "s", "FailedCreate", `error looking up service account a/b: serviceaccount "b" not found`)}},
			"ServiceAccountNotFound serviceAccountName"},
		"webhook": {Input{Workloads: []any{&appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Name: "r"}}}, Events: []corev1.Event{event("ReplicaSet", "r", "FailedCreate", `failed calling webhook "w"`)}},
			"AdmissionWebhook rejects it or does not respond"},
		"no replicas":   {Input{Workloads: []any{&appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "d"}, Spec: appsv1.DeploymentSpec{Replicas: &zero}}}}, "NoReplicas kubectl scale"},
		"paused":        {Input{Workloads: []any{&appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "d"}, Spec: appsv1.DeploymentSpec{Paused: true}}}}, "Paused rollout resume"},
		"no node":       {Input{Workloads: []any{&appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Name: "d"}}}}, "NoMatchingNode No node matches"},
		"suspended":     {Input{Workloads: []any{&batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: "j"}, Spec: batchv1.JobSpec{Suspend: &yes}}}}, "Suspended suspend"},
		"job failed":    {Input{Workloads: []any{&batchv1.Job{Status: batchv1.JobStatus{Conditions: []batchv1.JobCondition{{Type: batchv1.JobFailed, Status: corev1.ConditionTrue, Reason: "BackoffLimitExceeded"}}}}}}, "JobFailed BackoffLimitExceeded"},
		"nothing known": {Input{Workloads: []any{&appsv1.ReplicaSet{}}}, "Unknown No cause is visible"},
	} {
		t.Run(name, func(t *testing.T) {
			test.in.Now = now
			got := Explain(test.in)
			lines := strings.Split(test.want, "\n")
			bad := len(got) != len(lines)
			for i := 0; i < len(lines) && !bad; i++ {
				reason, text, _ := strings.Cut(lines[i], " ")
				bad = got[i].Reason != reason || !strings.Contains(got[i].Sentence+"|"+got[i].Remedy, text)
			}
			if bad {
				t.Errorf("got")
				for _, f := range got {
					t.Errorf("  %s %s: %s Remedy: %s", f.Reason, f.Severity, f.Sentence, f.Remedy)
				}
			}
		})
	}
}
