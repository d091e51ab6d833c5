package pod

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/yaml"
)

func parse(t testing.TB, text string) *corev1.Pod {
	t.Helper()
	p := &corev1.Pod{}
	if err := yaml.UnmarshalStrict([]byte(text), p); err != nil {
		t.Fatal(err)
	}
	return p
}

// newPod returns a valid pod as it is after creation.
func newPod(t testing.TB, edit func(*corev1.Pod)) *corev1.Pod {
	p := parse(t, "{metadata: {name: p, namespace: default}, spec: {containers: [{name: c, image: busybox}]}}")
	if edit != nil {
		edit(p)
	}
	Default(p)
	Kind().PrepareCreate(context.Background(), p)
	return p
}

func check(t *testing.T, errs field.ErrorList, want ...string) {
	t.Helper()
	var got []string
	for _, e := range errs {
		got = append(got, e.Error())
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("got:\n  %s\nwant:\n  %s", strings.Join(got, "\n  "), strings.Join(want, "\n  "))
	}
}

func TestNegativeGrace(t *testing.T) {
	p := parse(t, "spec: {terminationGracePeriodSeconds: -7}")
	Default(p)
	if got := *p.Spec.TerminationGracePeriodSeconds; got != 1 {
		t.Errorf("a pod's grace period of -7 s became %d", got)
	}
	p = parse(t, "spec: {terminationGracePeriodSeconds: -7}")
	defaultSpec(&p.Spec)
	if got := *p.Spec.TerminationGracePeriodSeconds; got != -7 {
		t.Errorf("a template's grace period of -7 s became %d", got)
	}
}

func TestDefaults(t *testing.T) {
	p := parse(t, `
spec:
  hostNetwork: true
  containers:
  - name: c
    image: registry:5000/x
    ports: [{containerPort: 80}]
    resources: {limits: {cpu: 100.5m, memory: 1Gi}, requests: {cpu: 50m}}
    env: [{name: A, valueFrom: {fieldRef: {fieldPath: metadata.name}}}]
    livenessProbe: {httpGet: {port: 80}}
    readinessProbe: {grpc: {port: 80}}
    lifecycle: {preStop: {httpGet: {port: 80}}}
  volumes:
  - {name: e}
  - {name: s, secret: {secretName: s}}
  - {name: h, hostPath: {path: /}}
  - {name: p, projected: {sources: [{serviceAccountToken: {path: t}}, {downwardAPI: {items: [{path: name, fieldRef: {fieldPath: metadata.name}}]}}]}}
  - {name: i, image: {reference: "x:1"}}
`)
	Default(p)
	want := parse(t, `
spec:
  hostNetwork: true
  dnsPolicy: ClusterFirst
  restartPolicy: Always
  schedulerName: default-scheduler
  securityContext: {}
  enableServiceLinks: true
  terminationGracePeriodSeconds: 30
  containers:
  - name: c
    image: registry:5000/x
    imagePullPolicy: Always
    terminationMessagePath: /dev/termination-log
    terminationMessagePolicy: File
    ports: [{containerPort: 80, hostPort: 80, protocol: TCP}]
    resources: {limits: {cpu: 101m, memory: 1Gi}, requests: {cpu: 50m, memory: 1Gi}}
    env: [{name: A, valueFrom: {fieldRef: {fieldPath: metadata.name, apiVersion: v1}}}]
    livenessProbe: {httpGet: {port: 80, path: /, scheme: HTTP}, timeoutSeconds: 1, periodSeconds: 10, successThreshold: 1, failureThreshold: 3}
    readinessProbe: {grpc: {port: 80, service: ""}, timeoutSeconds: 1, periodSeconds: 10, successThreshold: 1, failureThreshold: 3}
    lifecycle: {preStop: {httpGet: {port: 80, path: /, scheme: HTTP}}}
  volumes:
  - {name: e, emptyDir: {}}
  - {name: s, secret: {secretName: s, defaultMode: 420}}
  - {name: h, hostPath: {path: /, type: ""}}
  - {name: p, projected: {defaultMode: 420, sources: [{serviceAccountToken: {path: t, expirationSeconds: 3600}}, {downwardAPI: {items: [{path: name, fieldRef: {fieldPath: metadata.name, apiVersion: v1}}]}}]}}
  - {name: i, image: {reference: "x:1", pullPolicy: IfNotPresent}}
`)
	got, _ := yaml.Marshal(p)
	expected, _ := yaml.Marshal(want)
	if string(got) != string(expected) {
		t.Errorf("got:\n%s\nwant:\n%s", got, expected)
	}
}

func TestPullPolicy(t *testing.T) {
	for image, want := range map[string]corev1.PullPolicy{
		"busybox":                   corev1.PullAlways,
		"busybox:latest":            corev1.PullAlways,
		"busybox:1.36":              corev1.PullIfNotPresent,
		"host:5000/busybox":         corev1.PullAlways,
		"host:5000/busybox:1":       corev1.PullIfNotPresent,
		"busybox@sha256:0":          corev1.PullIfNotPresent,
		"busybox:latest@sha256:abc": corev1.PullIfNotPresent, // a valid digest is longer
		"-Bad_ /x":                  corev1.PullIfNotPresent,
		"busybox:latest@sha256:" + strings.Repeat("a", 64): corev1.PullAlways,
		"busybox@sha256:" + strings.Repeat("a", 64):        corev1.PullIfNotPresent,
		"": corev1.PullIfNotPresent,
	} {
		if got := pullPolicy(image); got != want {
			t.Errorf("%q: %s, want %s", image, got, want)
		}
	}
}

func TestValidateCreate(t *testing.T) {
	for name, test := range map[string]struct {
		pod  string
		want []string
	}{
		"good": {"{containers: [{name: c, image: x}]}", nil},
		"no containers": {"{containers: []}", []string{
			"spec.containers: Required value",
		}},
		"names": {"{containers: [{name: A, image: x}, {name: c, image: ''}, {name: c, image: y}]}", []string{
			`spec.containers[0].name: Invalid value: "A": a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')`,
			"spec.containers[1].image: Required value",
			`spec.containers[2].name: Duplicate value: "c"`,
		}},
		"policies": {"{restartPolicy: Sometimes, dnsPolicy: Foo, containers: [{name: c, image: x, imagePullPolicy: Bar}]}", []string{
			`spec.containers[0].imagePullPolicy: Unsupported value: "Bar": supported values: "Always", "IfNotPresent", "Never"`,
			`spec.restartPolicy: Unsupported value: "Sometimes": supported values: "Always", "OnFailure", "Never"`,
			`spec.dnsPolicy: Unsupported value: "Foo": supported values: "ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"`,
		}},
		"mounts": {"{containers: [{name: c, image: x, volumeMounts: [{name: v, mountPath: /a}, {name: e, mountPath: /b, subPath: ../x}, {name: e, mountPath: /b}]}], volumes: [{name: e, emptyDir: {}}]}", []string{
			`spec.containers[0].volumeMounts[0].name: Not found: "v"`,
			`spec.containers[0].volumeMounts.subPath: Invalid value: "../x": must not contain '..'`,
			`spec.containers[0].volumeMounts[2].mountPath: Invalid value: "/b": must be unique`,
		}},
		"resources": {"{containers: [{name: c, image: x, resources: {requests: {cpu: 2, example.com/gpu: 1}, limits: {cpu: 1, foo: 1, example.com/gpu: 1500m}}}]}", []string{
			`spec.containers[0].resources.limits[example.com/gpu]: Invalid value: "1500m": must be an integer`,
			`spec.containers[0].resources.limits[foo]: Invalid value: "foo": must be a standard resource type or fully qualified`,
			`spec.containers[0].resources.limits[foo]: Invalid value: "foo": must be a standard resource for containers`,
			`spec.containers[0].resources.requests: Invalid value: "2": must be less than or equal to cpu limit of 1`,
			`spec.containers[0].resources.requests: Invalid value: "1": must be equal to example.com/gpu limit of 1500m`,
			`spec.containers[0].resources.requests[foo]: Invalid value: "foo": must be a standard resource type or fully qualified`,
			`spec.containers[0].resources.requests[foo]: Invalid value: "foo": must be a standard resource for containers`,
		}},
		"huge pages": {"{containers: [{name: c, image: x, resources: {limits: {hugepages-2Mi: 3Mi}}}]}", []string{
			`spec.containers[0].resources.limits[hugepages-2Mi]: Invalid value: "3Mi": 3Mi is not positive integer multiple of hugepages-2Mi`,
			`spec.containers[0].resources.requests[hugepages-2Mi]: Invalid value: "3Mi": 3Mi is not positive integer multiple of hugepages-2Mi`,
			`spec.containers[0].resources: Forbidden: HugePages require cpu or memory`,
		}},
		"init containers": {"{containers: [{name: c, image: x}], initContainers: [{name: c, image: x, livenessProbe: {exec: {command: [a]}}}, {name: s, image: x, restartPolicy: Always, livenessProbe: {exec: {}}}]}", []string{
			`spec.initContainers[0].name: Duplicate value: "c"`,
			"spec.initContainers[0].livenessProbe: Forbidden: may not be set for init containers without restartPolicy=Always",
			"spec.initContainers[1].livenessProbe.exec.command: Required value",
		}},
		"ports": {"{containers: [{name: c, image: x, ports: [{containerPort: 0}, {containerPort: 80, hostPort: 80, name: http}, {containerPort: 81, hostPort: 80, name: http}, {containerPort: 70000}]}]}", []string{
			"spec.containers[0].ports[0].containerPort: Required value",
			`spec.containers[0].ports[2].name: Duplicate value: "http"`,
			"spec.containers[0].ports[3].containerPort: Invalid value: 70000: must be between 1 and 65535, inclusive",
			`spec.containers[0].ports[2].hostPort: Duplicate value: "TCP//80"`,
		}},
		"env": {"{containers: [{name: c, image: x, env: [{name: ''}, {name: 'A=B'}, {name: A, value: x, valueFrom: {fieldRef: {fieldPath: status.phase}}}], envFrom: [{}]}]}", []string{
			"spec.containers[0].env[0].name: Required value",
			`spec.containers[0].env[1].name: Invalid value: "A=B": a valid environment variable name must consist only of printable ASCII characters other than '='`,
			`spec.containers[0].env[2].valueFrom.fieldRef.fieldPath: Unsupported value: "status.phase": supported values: "metadata.name", "metadata.namespace", "metadata.uid", "spec.nodeName", "spec.serviceAccountName", "status.hostIP", "status.hostIPs", "status.podIP", "status.podIPs"`,
			"spec.containers[0].env[2].valueFrom: Invalid value: \"\": may not be specified when `value` is not empty",
			"spec.containers[0].envFrom: Invalid value: \"\": must specify one of: `configMapRef` or `secretRef`",
		}},
		"volumes": {"{containers: [{name: c, image: x}], volumes: [{name: a, emptyDir: {}, hostPath: {path: /}}, {name: a, hostPath: {path: /../x, type: Foo}}, {name: b, configMap: {items: [{key: '', path: ''}]}}]}", []string{
			"spec.volumes[0].hostPath: Forbidden: may not specify more than 1 volume type",
			`spec.volumes[1].hostPath.path: Invalid value: "/../x": must not contain '..'`,
			`spec.volumes[1].hostPath.type: Unsupported value: "Foo": supported values: "", "BlockDevice", "CharDevice", "Directory", "DirectoryOrCreate", "File", "FileOrCreate", "Socket"`,
			"spec.volumes[2].configMap.name: Required value",
			"spec.volumes[2].configMap.items[0].key: Required value",
			"spec.volumes[2].configMap.items[0].path: Required value",
		}},
		"tolerations": {"{containers: [{name: c, image: x}], tolerations: [{operator: Equal}, {key: a, operator: Exists, value: b}, {key: a, effect: NoSchedule, tolerationSeconds: 1}]}", []string{
			"spec.tolerations[0].operator: Invalid value: \"Equal\": operator must be Exists when `key` is empty, which means \"match all values and all keys\"",
			"spec.tolerations[1].operator: Invalid value: \"b\": value must be empty when `operator` is 'Exists'",
			"spec.tolerations[2].effect: Invalid value: \"NoSchedule\": effect must be 'NoExecute' when `tolerationSeconds` is set",
		}},
		"security": {"{containers: [{name: c, image: x, securityContext: {privileged: true, allowPrivilegeEscalation: false}}], securityContext: {runAsUser: -1, seccompProfile: {type: Localhost}, sysctls: [{name: 'A b', value: x}]}}", []string{
			"spec.containers[0].securityContext: Invalid value: {\"privileged\":true,\"allowPrivilegeEscalation\":false}: cannot set `allowPrivilegeEscalation` to false and `privileged` to true",
			"spec.securityContext.runAsUser: Invalid value: -1: must be between 0 and 2147483647, inclusive",
			`spec.securityContext.sysctls[0].name: Invalid value: "A b": must have at most 253 characters and match regex ^([a-z0-9]([-_a-z0-9]*[a-z0-9])?[\./])*[a-z0-9]([-_a-z0-9]*[a-z0-9])?$`,
			"spec.securityContext.seccompProfile.localhostProfile: Required value: must be set when seccomp type is Localhost",
		}},
		"gates": {"{nodeName: n, containers: [{name: c, image: x}], schedulingGates: [{name: a}, {name: a}]}", []string{
			`spec.schedulingGates[1]: Duplicate value: "a"`,
			"spec.nodeName: Forbidden: cannot be set until all schedulingGates have been cleared",
		}},
		"affinity": {"{containers: [{name: c, image: x}], affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: []}}, podAntiAffinity: {preferredDuringSchedulingIgnoredDuringExecution: [{weight: 0, podAffinityTerm: {}}]}}, topologySpreadConstraints: [{maxSkew: 0, topologyKey: a, whenUnsatisfiable: X}]}", []string{
			"spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms: Required value: must have at least one node selector term",
			"spec.affinity.podAntiAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].weight: Invalid value: 0: must be in the range 1-100",
			"spec.affinity.podAntiAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].podAffinityTerm.topologyKey: Required value: can not be empty",
			`spec.affinity.podAntiAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].podAffinityTerm.topologyKey: Invalid value: "": name part must be non-empty`,
			`spec.affinity.podAntiAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].podAffinityTerm.topologyKey: Invalid value: "": name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')`,
			"spec.topologySpreadConstraints[0].maxSkew: Invalid value: 0: must be greater than zero",
			`spec.topologySpreadConstraints[0].whenUnsatisfiable: Unsupported value: "X": supported values: "DoNotSchedule", "ScheduleAnyway"`,
		}},
		"dns": {"{dnsPolicy: None, containers: [{name: c, image: x}]}", []string{
			"spec.dnsConfig: Required value: must provide `dnsConfig` when `dnsPolicy` is None",
		}},
		"ephemeral on create": {"{containers: [{name: c, image: x}], ephemeralContainers: [{name: e, image: x}]}", []string{
			"spec.ephemeralContainers: Forbidden: cannot be set on create",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			p := parse(t, "{metadata: {name: p, namespace: d}, spec: "+test.pod+"}")
			Default(p)
			Kind().PrepareCreate(context.Background(), p)
			check(t, validateCreate(p), test.want...)
		})
	}
}

func TestUpdate(t *testing.T) {
	old := newPod(t, nil)
	p := old.DeepCopy()
	p.Spec.Containers[0].Image = "busybox:2"
	Kind().Update.Prepare(context.Background(), p, old)
	check(t, validateUpdate(p, old))
	if p.Generation != 2 {
		t.Errorf("generation %d", p.Generation)
	}

	p = old.DeepCopy()
	p.Spec.Hostname = "other"
	errs := validateUpdate(p, old)
	if len(errs) != 1 || !strings.HasPrefix(errs[0].Error(), "spec: Forbidden: pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)\n") ||
		!strings.Contains(errs[0].Error(), `"other"`) {
		t.Errorf("%v", errs)
	}

	p = old.DeepCopy()
	p.Spec.Containers = append(p.Spec.Containers, p.Spec.Containers[0])
	p.Spec.Containers[1].Name = "d"
	check(t, validateUpdate(p, old), "spec.containers: Forbidden: pod updates may not add or remove containers")

	// Fields that were invalid before cause errors too.
	old.Spec.Containers[0].ImagePullPolicy = "Foo"
	p = old.DeepCopy()
	p.Labels = map[string]string{"a": "b"}
	check(t, validateUpdate(p, old), `spec.containers[0].imagePullPolicy: Unsupported value: "Foo": supported values: "Always", "IfNotPresent", "Never"`)
}

func TestStatus(t *testing.T) {
	old := newPod(t, func(p *corev1.Pod) { p.Spec.RestartPolicy = corev1.RestartPolicyNever })
	old.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "c", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{}}}}
	p := old.DeepCopy()
	p.Spec.NodeName = "changed"
	p.Status.ContainerStatuses[0].State = corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}
	p.Status.PodIP, p.Status.PodIPs = "1.1.1.1", []corev1.PodIP{{IP: "1.1.1.1"}, {IP: "2.2.2.2"}}
	p.Status.QOSClass = corev1.PodQOSGuaranteed
	prepareStatus(p, old)
	if p.Spec.NodeName != "" {
		t.Error("the spec changed")
	}
	check(t, validateStatus(p, old),
		`status.qosClass: Invalid value: "Guaranteed": field is immutable`,
		"status.containerStatuses[0].state: Forbidden: may not be transitioned to non-terminated state",
		`status.podIPs: Invalid value: [{"ip":"1.1.1.1"},{"ip":"2.2.2.2"}]: may specify no more than one IP for each IP family`)
}

func TestStatusOfRestartedPod(t *testing.T) {
	never := corev1.ContainerRestartPolicyNever
	old := newPod(t, func(p *corev1.Pod) {
		p.Spec.RestartPolicy = corev1.RestartPolicyNever
		p.Spec.Containers = append(p.Spec.Containers, *p.Spec.Containers[0].DeepCopy())
		p.Spec.Containers[1].Name, p.Spec.Containers[1].RestartPolicy = "d", &never
		p.Spec.Containers[1].RestartPolicyRules = []corev1.ContainerRestartRule{{
			Action: corev1.ContainerRestartRuleActionRestartAllContainers, ExitCodes: &corev1.ContainerRestartRuleOnExitCodes{Operator: corev1.ContainerRestartRuleOnExitCodesOpIn, Values: []int32{42}},
		}}
	})
	old.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "c", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{}}}}
	p := old.DeepCopy()
	p.Status.ContainerStatuses[0].State = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "RestartingAllContainers"}}
	check(t, validateStatus(p, old))
}

func TestResize(t *testing.T) {
	limits := func(cpu string) corev1.ResourceRequirements {
		return corev1.ResourceRequirements{Requests: corev1.ResourceList{"cpu": resource.MustParse(cpu)}}
	}
	old := newPod(t, func(p *corev1.Pod) { p.Spec.Containers[0].Resources = limits("1") })
	resize := func(edit func(*corev1.Pod)) (*corev1.Pod, field.ErrorList) {
		p := old.DeepCopy()
		edit(p)
		Default(p)
		Kind().Views["resize"].Prepare(context.Background(), p, old)
		return p, validateResize(p, old)
	}
	p, errs := resize(func(p *corev1.Pod) { p.Spec.Containers[0].Resources = limits("2"); p.Spec.Hostname = "x" })
	check(t, errs)
	if p.Generation != 2 || p.Spec.Hostname != "" {
		t.Errorf("generation %d, hostname %q", p.Generation, p.Spec.Hostname)
	}
	_, errs = resize(func(p *corev1.Pod) { p.Spec.Containers[0].Resources = corev1.ResourceRequirements{} })
	check(t, errs, `spec: Invalid value: "Burstable": Pod QOS Class may not change as a result of resizing`,
		"spec.containers[0].resources.requests: Forbidden: resource requests cannot be removed")

	// Pod-level resources can be added but not removed.
	whole := limits("3")
	_, errs = resize(func(p *corev1.Pod) { p.Spec.Resources = &whole })
	check(t, errs)
	plain := old
	old = plain.DeepCopy()
	old.Spec.Resources = &whole
	p, errs = resize(func(p *corev1.Pod) { p.Spec.Resources = nil })
	check(t, errs)
	if p.Spec.Resources == nil {
		t.Error("resources omitted by the client were removed")
	}
	old = plain

	// Init containers that are not sidecars can be resized, but not with a restart.
	init := newPod(t, func(p *corev1.Pod) {
		p.Spec.Containers[0].Resources = limits("1")
		i := *p.Spec.Containers[0].DeepCopy()
		i.Name = "i"
		p.Spec.InitContainers = []corev1.Container{i}
	})
	for policy, want := range map[corev1.ResourceResizeRestartPolicy][]string{
		corev1.NotRequired:      nil,
		corev1.RestartContainer: {"spec.initContainers[0]: Forbidden: non-sidecar init containers with a resize policy of RestartContainer cannot be resized"},
	} {
		old = init.DeepCopy()
		old.Spec.InitContainers[0].ResizePolicy = []corev1.ContainerResizePolicy{{ResourceName: "cpu", RestartPolicy: policy}}
		p, errs = resize(func(p *corev1.Pod) { p.Spec.InitContainers[0].Resources = limits("2") })
		check(t, errs, want...)
		if got := p.Spec.InitContainers[0].Resources.Requests.Cpu(); got.Value() != 2 {
			t.Errorf("%s: %v", policy, got)
		}
	}
}

func TestEphemeralContainers(t *testing.T) {
	old := newPod(t, nil)
	p := old.DeepCopy()
	p.Spec.EphemeralContainers = []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: "e", Image: "x"}}}
	Default(p)
	check(t, validateEphemeralUpdate(p, old))
	check(t, validateEphemeralUpdate(old, p), "spec.ephemeralContainers: Forbidden: existing ephemeral containers \"e\" may not be removed\n")
	p.Spec.EphemeralContainers[0].Ports = []corev1.ContainerPort{{ContainerPort: 1, Protocol: "TCP"}}
	p.Spec.EphemeralContainers[0].TargetContainerName = "missing"
	check(t, validateEphemeralUpdate(p, old),
		`spec.ephemeralContainers[0].targetContainerName: Not found: "missing"`,
		"spec.ephemeralContainers[0].ports: Forbidden: cannot be set for an Ephemeral Container")
}

func TestBeforeDelete(t *testing.T) {
	i := func(n int64) *int64 { return &n }
	now := metav1.Now()
	for name, test := range map[string]struct {
		edit  func(*corev1.Pod)
		grace *int64
		want  int64
	}{
		"default":         {func(p *corev1.Pod) {}, nil, 30},
		"asked":           {func(p *corev1.Pod) {}, i(5), 5},
		"negative":        {func(p *corev1.Pod) {}, i(-3), 1},
		"unscheduled":     {func(p *corev1.Pod) { p.Spec.NodeName = "" }, nil, 0},
		"ended":           {func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }, i(9), 0},
		"ending":          {func(p *corev1.Pod) { p.DeletionTimestamp, p.DeletionGracePeriodSeconds = &now, i(10) }, nil, 10},
		"ending, shorter": {func(p *corev1.Pod) { p.DeletionTimestamp, p.DeletionGracePeriodSeconds = &now, i(10) }, i(2), 2},
		"ending, longer":  {func(p *corev1.Pod) { p.DeletionTimestamp, p.DeletionGracePeriodSeconds = &now, i(10) }, i(20), 10},
		"ending, forced":  {func(p *corev1.Pod) { p.DeletionTimestamp, p.DeletionGracePeriodSeconds = &now, i(10) }, i(0), 0},
	} {
		p := newPod(t, func(p *corev1.Pod) { p.Spec.NodeName = "n" })
		test.edit(p)
		opts := &metav1.DeleteOptions{GracePeriodSeconds: test.grace}
		if graceful := beforeDelete(p, opts); !graceful || *opts.GracePeriodSeconds != test.want {
			t.Errorf("%s: %v, %d", name, graceful, *opts.GracePeriodSeconds)
		}
	}
}

func TestRow(t *testing.T) {
	ago := metav1.NewTime(time.Now().Add(-5 * time.Minute))
	running := corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}
	for name, test := range map[string]struct {
		pod  string
		edit func(*corev1.Pod)
		want []any
	}{
		"pending": {"{spec: {containers: [{name: c}]}, status: {phase: Pending}}", nil, []any{"0/1", "Pending", "0"}},
		"running": {"{spec: {containers: [{name: c}]}, status: {phase: Running}}", func(p *corev1.Pod) {
			p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "c", Ready: true, State: running, RestartCount: 3,
				LastTerminationState: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{FinishedAt: ago}}}}
		}, []any{"1/1", "Running", "3 (5m ago)"}},
		"crash loop": {"{spec: {containers: [{name: c}]}, status: {phase: Running, containerStatuses: [{name: c, restartCount: 2, state: {waiting: {reason: CrashLoopBackOff}}}]}}", nil,
			[]any{"0/1", "CrashLoopBackOff", "2"}},
		"init": {"{spec: {initContainers: [{name: i}], containers: [{name: c}]}, status: {phase: Pending, initContainerStatuses: [{name: i, state: {running: {}}}]}}", nil,
			[]any{"0/1", "Init:0/1", "0"}},
		"init failed": {"{spec: {initContainers: [{name: i}], containers: [{name: c}]}, status: {phase: Pending, initContainerStatuses: [{name: i, restartCount: 1, state: {terminated: {exitCode: 3}}}]}}", nil,
			[]any{"0/1", "Init:ExitCode:3", "1"}},
		"sidecar": {"{spec: {initContainers: [{name: i, restartPolicy: Always}], containers: [{name: c}]}, status: {phase: Running, initContainerStatuses: [{name: i, ready: true, started: true, state: {running: {}}}], containerStatuses: [{name: c, ready: true, state: {running: {}}}]}}", nil,
			[]any{"2/2", "Running", "0"}},
		"completed": {"{spec: {containers: [{name: c}]}, status: {phase: Succeeded, containerStatuses: [{name: c, state: {terminated: {exitCode: 0, reason: Completed}}}]}}", nil,
			[]any{"0/1", "Completed", "0"}},
		"one of two terminated": {"{spec: {containers: [{name: c}, {name: d}]}, status: {phase: Running, containerStatuses: [{name: c, state: {terminated: {exitCode: 0, reason: Completed}}}, {name: d, ready: true, state: {running: {}}}]}}", nil,
			[]any{"1/2", "NotReady", "0"}},
		"terminating": {"{spec: {containers: [{name: c}]}, status: {phase: Running}}", func(p *corev1.Pod) { p.DeletionTimestamp = &ago },
			[]any{"0/1", "Terminating", "0"}},
		"gated": {"{spec: {containers: [{name: c}]}, status: {phase: Pending, conditions: [{type: PodScheduled, status: 'False', reason: SchedulingGated}]}}", nil,
			[]any{"0/1", "SchedulingGated", "0"}},
	} {
		p := parse(t, test.pod)
		if test.edit != nil {
			test.edit(p)
		}
		got := row(p)
		if len(got) != len(columns()) {
			t.Fatalf("%d cells", len(got))
		}
		for i, want := range test.want {
			if got[i+1] != want {
				t.Errorf("%s: %s is %v, want %v", name, columns()[i+1].Name, got[i+1], want)
			}
		}
	}
}

func TestRowConditions(t *testing.T) {
	for phase, want := range map[corev1.PodPhase]string{
		corev1.PodPending:   "[]",
		corev1.PodRunning:   "[]",
		corev1.PodUnknown:   "[]",
		corev1.PodSucceeded: "[{Completed True Succeeded The pod has completed successfully.}]",
		corev1.PodFailed:    "[{Completed True Failed The pod failed.}]",
	} {
		got := Kind().Resource().RowConditions(&corev1.Pod{Status: corev1.PodStatus{Phase: phase}})
		if text := fmt.Sprint(got); text != want {
			t.Errorf("%s: %s, want %s", phase, text, want)
		}
	}
}

func TestWarnings(t *testing.T) {
	p := newPod(t, func(p *corev1.Pod) {
		p.Name = "a.b"
		p.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "A", Value: "1"}, {Name: "A", Value: "2"}, {Name: "B"}, {Name: "B", Value: "x$(B)"}}
		p.Spec.NodeSelector = map[string]string{"beta.kubernetes.io/os": "linux"}
	})
	want := []string{
		"metadata.name: this is used in the Pod's hostname, which can result in surprising behavior; a DNS label is recommended: [must not contain dots]",
		`spec.nodeSelector[beta.kubernetes.io/os]: deprecated since v1.14; use "kubernetes.io/os" instead`,
		`spec.containers[0].env[1]: hides previous definition of "A", which may be dropped when using apply`,
	}
	if got := warnings(p); strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("%q", got)
	}
}

func TestMergeLabelKeys(t *testing.T) {
	p := newPod(t, func(p *corev1.Pod) {
		p.Labels = map[string]string{"hash": "1"}
		p.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{
			MaxSkew: 1, TopologyKey: "zone", WhenUnsatisfiable: corev1.DoNotSchedule,
			LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "a"}}, MatchLabelKeys: []string{"hash"},
		}}
	})
	check(t, validateCreate(p))
	x := p.Spec.TopologySpreadConstraints[0].LabelSelector.MatchExpressions
	if len(x) != 1 || x[0].Key != "hash" || x[0].Values[0] != "1" {
		t.Errorf("%v", x)
	}
}

func TestQOS(t *testing.T) {
	for spec, want := range map[string]corev1.PodQOSClass{
		"{containers: [{name: a}]}":                                                                                                         corev1.PodQOSBestEffort,
		"{containers: [{name: a, resources: {limits: {cpu: 1}}}]}":                                                                          corev1.PodQOSBurstable,
		"{containers: [{name: a, resources: {limits: {cpu: 1, memory: 1}}}]}":                                                               corev1.PodQOSGuaranteed,
		"{containers: [{name: a, resources: {limits: {cpu: 1, memory: 1}}}, {name: b}]}":                                                    corev1.PodQOSBurstable,
		"{resources: {requests: {cpu: 1, memory: 1}, limits: {cpu: 1, memory: 1}}, containers: [{name: a, resources: {limits: {cpu: 1}}}]}": corev1.PodQOSGuaranteed,
	} {
		p := parse(t, "{spec: "+spec+"}")
		Default(p)
		if got := QOS(p); got != want {
			t.Errorf("%s: %s, want %s", spec, got, want)
		}
	}
}

func BenchmarkCreate(b *testing.B) {
	text := `{metadata: {name: p, namespace: d, labels: {app: a}}, spec: {serviceAccountName: default, containers: [{name: c, image: x, ports: [{containerPort: 80}],
env: [{name: A, value: b}, {name: N, valueFrom: {fieldRef: {fieldPath: metadata.name}}}], resources: {requests: {cpu: 1, memory: 1Gi}, limits: {memory: 1Gi}},
livenessProbe: {httpGet: {port: 80}}, volumeMounts: [{name: v, mountPath: /v}, {name: t, mountPath: /t}]}],
volumes: [{name: v, configMap: {name: m}}, {name: t, projected: {sources: [{serviceAccountToken: {path: token}}, {configMap: {name: ca, items: [{key: a, path: a}]}}]}}],
tolerations: [{key: a, operator: Exists, effect: NoExecute, tolerationSeconds: 300}]}}`
	p, r := parse(b, text), Kind().Resource()
	for b.Loop() {
		q := p.DeepCopy()
		r.Default(q)
		r.PrepareCreate(context.Background(), q)
		if errs := r.Validate(context.Background(), q); len(errs) > 0 {
			b.Fatal(errs)
		}
		r.Warnings(context.Background(), q, nil)
	}
}
