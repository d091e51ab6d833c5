package core

import (
	"context"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/randfill"
	"sigs.k8s.io/yaml"

	"hyperkube/internal/api"
)

var ctx = context.Background()

func find(t testing.TB, plural string) *api.Resource {
	t.Helper()
	for _, r := range Resources() {
		if r.Plural == plural {
			return r
		}
	}
	t.Fatalf("no %s", plural)
	return nil
}

func parse[T any](t testing.TB, text string) *T {
	t.Helper()
	obj := new(T)
	if err := yaml.UnmarshalStrict([]byte(text), obj); err != nil {
		t.Fatalf("%v in %s", err, text)
	}
	return obj
}

// create processes a new object like the API server does before storing it.
func create[T any, P interface {
	*T
	api.Object
}](t testing.TB, plural, text string) (P, field.ErrorList) {
	t.Helper()
	obj, r := P(parse[T](t, text)), find(t, plural)
	if obj.GetName() == "" {
		obj.SetName("x")
	}
	if r.Scope == api.Namespaced {
		obj.SetNamespace("default")
	}
	r.Default(obj)
	r.PrepareCreate(ctx, obj)
	return obj, r.Validate(ctx, obj)
}

func check(t *testing.T, errs field.ErrorList, want ...string) {
	t.Helper()
	got := make([]string, len(errs))
	for i, e := range errs {
		got[i] = e.Error()
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("got:\n  %s\nwant:\n  %s", strings.Join(got, "\n  "), strings.Join(want, "\n  "))
	}
}

func cells(t *testing.T, plural string, obj api.Object) string {
	t.Helper()
	r := find(t, plural)
	row := r.Row(obj)
	if len(row) != len(r.Columns) {
		t.Fatalf("%s: %d cells for %d columns", plural, len(row), len(r.Columns))
	}
	texts := make([]string, len(row))
	for i := range row {
		texts[i] = fmt.Sprint(row[i])
	}
	return strings.Join(texts, "|")
}

func TestNames(t *testing.T) {
	want := map[string]string{
		"pods": "pods", "nodes": "minions", "services": "services/specs", "endpoints": "services/endpoints",
		"replicationcontrollers": "controllers", "namespaces": "namespaces", "configmaps": "configmaps", "secrets": "secrets",
		"serviceaccounts": "serviceaccounts", "events": "events", "persistentvolumes": "persistentvolumes",
		"persistentvolumeclaims": "persistentvolumeclaims", "podtemplates": "podtemplates",
		"resourcequotas": "resourcequotas", "limitranges": "limitranges", "componentstatuses": "componentstatuses",
	}
	for _, r := range Resources() {
		if want[r.Plural] != r.StoragePath {
			t.Errorf("%s is stored in %q", r.Plural, r.StoragePath)
		}
		delete(want, r.Plural)
		for _, name := range r.FieldNames {
			if _, ok := r.Fields(r.New())[name]; !ok && name != "status.podIPs" {
				t.Errorf("%s: field %q has no value", r.Plural, name)
			}
		}
		for name := range r.Fields(r.New()) {
			if !strings.Contains(strings.Join(r.FieldNames, " ")+" ", name+" ") {
				t.Errorf("%s: field %q is not in FieldNames", r.Plural, name)
			}
		}
		for _, c := range r.Columns {
			if c.Description == "" {
				t.Errorf("%s: column %q has no description", r.Plural, c.Name)
			}
		}
	}
	if len(want) > 0 {
		t.Errorf("missing: %v", want)
	}
}

// TestRandom checks for random objects of every kind that defaulting is idempotent, nothing panics,
// and old objects are not modified.
func TestRandom(t *testing.T) {
	fill := randfill.NewWithSeed(1).NilChance(0.4).NumElements(1, 2).MaxDepth(12)
	for _, r := range Resources() {
		t.Run(r.Plural, func(t *testing.T) {
			for range 100 {
				obj, old := r.New(), r.New()
				fill.Fill(obj)
				fill.Fill(old)
				r.Default(obj)
				r.Default(old)
				again := obj.DeepCopyObject().(api.Object)
				r.Default(again)
				if !apiequality.Semantic.DeepEqual(obj, again) {
					t.Fatal("defaulting is not idempotent")
				}
				kept := old.DeepCopyObject()
				views := []api.Update{r.Update}
				for _, v := range r.Views {
					views = append(views, v)
				}
				for _, v := range views {
					changed := obj.DeepCopyObject().(api.Object)
					v.Prepare(ctx, changed, old)
					v.Validate(ctx, changed, old)
					r.Warnings(ctx, changed, old)
					scribble(reflect.ValueOf(changed))
				}
				if !reflect.DeepEqual(kept, old) {
					t.Fatalf("the old object was modified:\n%s", cmp.Diff(kept, old))
				}
				cells(t, r.Plural, obj)
				r.Fields(obj)
				r.PrepareCreate(ctx, obj)
				r.Validate(ctx, obj)
				r.Warnings(ctx, obj, nil)
				if r.BeforeDelete != nil {
					r.BeforeDelete(ctx, obj, &metav1.DeleteOptions{})
				}
			}
		})
	}
}

// scribble modifies every reachable string, to detect shared memory.
func scribble(v reflect.Value) {
	switch v.Kind() {
	case reflect.Pointer, reflect.Interface:
		if !v.IsNil() {
			scribble(v.Elem())
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				scribble(v.Field(i))
			}
		}
	case reflect.Slice:
		for i := range v.Len() {
			scribble(v.Index(i))
		}
	case reflect.Map:
		for _, k := range v.MapKeys() {
			v.SetMapIndex(k, reflect.Zero(v.Type().Elem()))
		}
	case reflect.String:
		if v.CanSet() {
			v.SetString("scribbled")
		}
	}
}

func TestNamespace(t *testing.T) {
	ns, errs := create[corev1.Namespace](t, "namespaces", "{metadata: {name: a}}")
	check(t, errs)
	if ns.Labels["kubernetes.io/metadata.name"] != "a" || len(ns.Spec.Finalizers) != 1 || ns.Status.Phase != corev1.NamespaceActive {
		t.Errorf("%+v", ns)
	}
	r := find(t, "namespaces")
	if !r.BeforeDelete(ctx, ns, &metav1.DeleteOptions{}) || ns.Status.Phase != corev1.NamespaceTerminating || !r.Retain(ns) {
		t.Errorf("%+v", ns)
	}
	now := metav1.Now()
	ns.DeletionTimestamp, ns.ResourceVersion = &now, "1"
	done := ns.DeepCopy()
	done.Spec.Finalizers = nil
	r.Views["finalize"].Prepare(ctx, done, ns)
	check(t, r.Views["finalize"].Validate(ctx, done, ns))
	if r.Retain(done) {
		t.Error("retained")
	}
	check(t, r.Views["status"].Validate(ctx, func() api.Object { n := ns.DeepCopy(); n.Status.Phase = "Active"; return n }(), ns),
		"status.Phase: Invalid value: \"Active\": may only be 'Terminating' if `deletionTimestamp` is not empty")
	_, errs = create[corev1.Namespace](t, "namespaces", "{metadata: {name: a.b}, spec: {finalizers: [foo]}}")
	check(t, errs,
		`metadata.name: Invalid value: "a.b": must not contain dots`,
		`spec.finalizers: Invalid value: "foo": name is neither a standard finalizer name nor is it fully qualified`)
}

func TestConfigMap(t *testing.T) {
	old, errs := create[corev1.ConfigMap](t, "configmaps", "{data: {a: b}, binaryData: {c: ''}, immutable: true}")
	check(t, errs)
	if got := cells(t, "configmaps", old); got != "x|2|<unknown>" {
		t.Error(got)
	}
	old.ResourceVersion = "1"
	changed := old.DeepCopy()
	changed.Data["a"], changed.Immutable = "c", nil
	check(t, find(t, "configmaps").Update.Validate(ctx, changed, old),
		"immutable: Forbidden: field is immutable when `immutable` is set",
		"data: Forbidden: field is immutable when `immutable` is set")
	_, errs = create[corev1.ConfigMap](t, "configmaps", "{data: {a: b, 'a b': c}, binaryData: {a: ''}}")
	check(t, errs,
		`data[a]: Invalid value: "a": duplicate of key present in binaryData`,
		`data[a b]: Invalid value: "a b": a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  or 'KEY_NAME',  or 'key-name', regex used for validation is '[-._a-zA-Z0-9]+')`)
}

func TestSecret(t *testing.T) {
	s, errs := create[corev1.Secret](t, "secrets", "{stringData: {a: b}, data: {a: eA==, c: ''}}")
	check(t, errs)
	if s.Type != corev1.SecretTypeOpaque || string(s.Data["a"]) != "b" || s.StringData != nil {
		t.Errorf("%+v", s)
	}
	if got := cells(t, "secrets", s); got != "x|Opaque|2|<unknown>" {
		t.Error(got)
	}
	for text, want := range map[string][]string{
		"{type: kubernetes.io/tls}":                                                    {"data[tls.crt]: Required value", "data[tls.key]: Required value"},
		"{type: kubernetes.io/basic-auth}":                                             {"data[username]: Required value", "data[password]: Required value"},
		"{type: kubernetes.io/basic-auth, stringData: {username: u}}":                  nil,
		"{type: kubernetes.io/ssh-auth}":                                               {"data[ssh-privatekey]: Required value"},
		"{type: kubernetes.io/dockerconfigjson, stringData: {.dockerconfigjson: '{'}}": {`data[.dockerconfigjson]: Invalid value: "<secret contents redacted>": unexpected end of JSON input`},
		"{type: kubernetes.io/service-account-token}":                                  {"metadata.annotations[kubernetes.io/service-account.name]: Required value"},
	} {
		_, errs := create[corev1.Secret](t, "secrets", text)
		check(t, errs, want...)
	}
	changed := s.DeepCopy()
	s.ResourceVersion, changed.ResourceVersion, changed.Type = "1", "1", "other"
	check(t, find(t, "secrets").Update.Validate(ctx, changed, s), `type: Invalid value: "other": field is immutable`)
}

func TestNode(t *testing.T) {
	n, errs := create[corev1.Node](t, "nodes", `
metadata: {labels: {node-role.kubernetes.io/worker: "", node-role.kubernetes.io/control-plane: ""}}
spec: {podCIDR: 10.0.0.0/24, unschedulable: true}
status:
  capacity: {cpu: 2}
  conditions: [{type: Ready, status: "True"}]
  addresses: [{type: Hostname, address: h}, {type: InternalIP, address: 1.2.3.4}]
  nodeInfo: {kubeletVersion: v1.37.0, osImage: Debian, kernelVersion: "6.1", containerRuntimeVersion: c://1}
`)
	check(t, errs)
	if len(n.Spec.PodCIDRs) != 1 || n.Status.Allocatable.Cpu().Value() != 2 {
		t.Errorf("%+v", n)
	}
	if got, want := cells(t, "nodes", n), "x|Ready,SchedulingDisabled|control-plane,worker|<unknown>|v1.37.0|1.2.3.4|<none>|Debian|6.1|c://1"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	n.ResourceVersion = "1"
	changed := n.DeepCopy()
	changed.Spec.PodCIDR, changed.Spec.PodCIDRs = "10.1.0.0/24", []string{"10.1.0.0/24"}
	changed.Spec.Taints = []corev1.Taint{{Key: "a", Effect: "Foo"}, {Key: "a", Effect: "Foo"}}
	check(t, find(t, "nodes").Update.Validate(ctx, changed, n),
		`metadata.taints[0].effect: Unsupported value: "Foo": supported values: "NoSchedule", "PreferNoSchedule", "NoExecute"`,
		`metadata.taints[1].effect: Unsupported value: "Foo": supported values: "NoSchedule", "PreferNoSchedule", "NoExecute"`,
		`metadata.taints[1]: Duplicate value: {"Key":"a","Value":"","Effect":"Foo","TimeAdded":null}: taints must be unique by key and effect pair`,
		`spec.podCIDRs: Forbidden: node updates may not change podCIDR except from "" to valid`)
}

func TestServiceCreate(t *testing.T) {
	s, errs := create[corev1.Service](t, "services", "{spec: {ports: [{port: 80}], sessionAffinity: ClientIP, selector: {b: c, a: b}}}")
	check(t, errs)
	if s.Spec.Ports[0].TargetPort.IntValue() != 80 || s.Spec.Ports[0].Protocol != "TCP" || s.Spec.Type != "ClusterIP" ||
		*s.Spec.InternalTrafficPolicy != "Cluster" || *s.Spec.SessionAffinityConfig.ClientIP.TimeoutSeconds != 10800 {
		t.Errorf("%+v", s.Spec)
	}
	for text, want := range map[string][]string{
		"{spec: {ports: []}}": {"spec.ports: Required value"},
		"{spec: {type: Foo, ports: [{port: 80}]}}": {
			`spec.type: Unsupported value: "Foo": supported values: "ClusterIP", "ExternalName", "LoadBalancer", "NodePort"`,
		},
		"{spec: {ports: [{port: 80}, {port: 80}]}}": {
			"spec.ports[0].name: Required value",
			"spec.ports[1].name: Required value",
			`spec.ports[1]: Duplicate value: {"Name":"","Protocol":"TCP","AppProtocol":null,"Port":80,"TargetPort":0,"NodePort":0}`,
		},
		"{spec: {clusterIP: None, type: NodePort, ports: [{port: 80}]}}": {
			`spec.clusterIPs[0]: Invalid value: "None": may not be set to 'None' for NodePort services`,
		},
		"{spec: {clusterIP: None}}":                        nil,
		"{spec: {type: ExternalName, externalName: a.b.}}": nil,
		"{spec: {type: ExternalName, clusterIP: 1.2.3.4}}": {
			"spec.clusterIPs: Forbidden: may not be set for ExternalName services",
			"spec.externalName: Required value",
		},
		"{spec: {clusterIP: foo, ports: [{port: 80, nodePort: 30000}]}}": {
			"spec.clusterIPs[0]: Invalid value: \"foo\": must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)",
			"spec.ports[0].nodePort: Forbidden: may not be used when `type` is 'ClusterIP'",
		},
		"{spec: {clusterIP: 1.2.3.4, clusterIPs: [1.2.3.4, 1.2.3.5], ipFamilies: [IPv6, IPv6], ports: [{port: 80}]}}": {
			`spec.ipFamilies[1]: Duplicate value: "IPv6"`,
			`spec.clusterIPs: Invalid value: ["1.2.3.4","1.2.3.5"]: may specify no more than one IP for each IP family`,
			"spec.clusterIPs[0]: Invalid value: \"1.2.3.4\": expected an IPv6 value as indicated by `ipFamilies[0]`",
			"spec.clusterIPs[1]: Invalid value: \"1.2.3.5\": expected an IPv6 value as indicated by `ipFamilies[1]`",
		},
		"{spec: {externalIPs: [127.0.0.1], externalTrafficPolicy: Local, loadBalancerSourceRanges: [1.2.3.0/24], ports: [{port: 80}]}}": {
			`spec.externalIPs[0]: Invalid value: "127.0.0.1": may not be in the loopback range (127.0.0.0/8, ::1/128)`,
			"spec.LoadBalancerSourceRanges: Forbidden: may only be used when `type` is 'LoadBalancer'",
		},
		"{spec: {externalTrafficPolicy: Local, ports: [{port: 80}]}}": {
			`spec.externalTrafficPolicy: Invalid value: "Local": may only be set for externally-accessible services`,
		},
	} {
		_, errs := create[corev1.Service](t, "services", text)
		check(t, errs, want...)
	}
}

func TestServiceUpdate(t *testing.T) {
	r := find(t, "services")
	old, errs := create[corev1.Service](t, "services", "{spec: {type: NodePort, ports: [{name: a, port: 80, nodePort: 30001}], clusterIP: 10.0.0.1, ipFamilies: [IPv4], ipFamilyPolicy: SingleStack}}")
	check(t, errs)
	old.ResourceVersion = "1"
	update := func(text string) (*corev1.Service, field.ErrorList) {
		s := parse[corev1.Service](t, text)
		s.ObjectMeta = *old.ObjectMeta.DeepCopy()
		r.Default(s)
		r.Update.Prepare(ctx, s, old)
		return s, r.Update.Validate(ctx, s, old)
	}
	// Allocated values are kept.
	s, errs := update("{spec: {type: NodePort, ports: [{name: a, port: 81}], ipFamilies: [IPv4], ipFamilyPolicy: SingleStack}}")
	check(t, errs)
	if s.Spec.ClusterIP != "10.0.0.1" || s.Spec.ClusterIPs[0] != "10.0.0.1" || s.Spec.Ports[0].NodePort != 30001 {
		t.Errorf("%+v", s.Spec)
	}
	// They are removed when the type does not need them.
	s, errs = update("{spec: {type: ClusterIP, clusterIP: 10.0.0.1, ports: [{name: a, port: 80, nodePort: 30001}], externalTrafficPolicy: Cluster, ipFamilies: [IPv4], ipFamilyPolicy: SingleStack}}")
	check(t, errs)
	if s.Spec.Ports[0].NodePort != 0 || s.Spec.ExternalTrafficPolicy != "" {
		t.Errorf("%+v", s.Spec)
	}
	s, errs = update("{spec: {type: ExternalName, externalName: a.b, clusterIP: 10.0.0.1, clusterIPs: [10.0.0.1], ipFamilies: [IPv4], ipFamilyPolicy: SingleStack}}")
	check(t, errs)
	if s.Spec.ClusterIP != "" || s.Spec.IPFamilies != nil {
		t.Errorf("%+v", s.Spec)
	}
	_, errs = update("{spec: {type: NodePort, clusterIP: 10.0.0.2, ports: [{name: a, port: 80}], ipFamilies: [IPv4], ipFamilyPolicy: SingleStack}}")
	check(t, errs, `spec.clusterIPs[0]: Invalid value: null: primary clusterIP can not be unset`, `spec.clusterIPs: Required value`)
	_, errs = update("{spec: {type: NodePort, clusterIP: 10.0.0.2, clusterIPs: [10.0.0.1], ports: [{name: a, port: 80}], ipFamilies: [IPv4], ipFamilyPolicy: SingleStack}}")
	check(t, errs, `spec.clusterIPs[0]: Invalid value: ["10.0.0.2"]: may not change once set`)
}

func TestServiceRow(t *testing.T) {
	for text, want := range map[string]string{
		"{spec: {type: ClusterIP, clusterIPs: [10.0.0.1], ports: [{port: 80, protocol: TCP}], selector: {b: c, a: b}}}": "ClusterIP|10.0.0.1|<none>|80/TCP|<unknown>|a=b,b=c",
		"{spec: {type: ClusterIP, clusterIPs: [None]}}":                                                                 "ClusterIP|None|<none>|<none>|<unknown>|<none>",
		"{spec: {type: NodePort, clusterIPs: [10.0.0.1], ports: [{port: 80, protocol: TCP, nodePort: 30000}]}}":         "NodePort|10.0.0.1|<none>|80:30000/TCP|<unknown>|<none>",
		"{spec: {type: LoadBalancer}}": "LoadBalancer|<none>|<pending>|<none>|<unknown>|<none>",
		"{spec: {type: LoadBalancer, externalIPs: [9.9.9.9]}, status: {loadBalancer: {ingress: [{hostname: h}, {ip: 1.2.3.4}]}}}": "LoadBalancer|<none>|1.2.3.4,h,9.9.9.9|<none>|<unknown>|<none>",
		"{spec: {type: ExternalName, externalName: a.b}}":                                                                         "ExternalName|<none>|a.b|<none>|<unknown>|<none>",
	} {
		if got := cells(t, "services", parse[corev1.Service](t, text)); got != "|"+want {
			t.Errorf("%s: %s, want %s", text, got, want)
		}
	}
}

func TestEndpoints(t *testing.T) {
	ep, errs := create[corev1.Endpoints](t, "endpoints", "{subsets: [{addresses: [{ip: 1.1.1.1}, {ip: 1.1.1.2}], ports: [{name: a, port: 80}, {name: b, port: 81}]}]}")
	check(t, errs)
	if got := cells(t, "endpoints", ep); got != "x|1.1.1.1:80,1.1.1.2:80,1.1.1.1:81 + 1 more...|<unknown>" {
		t.Error(got)
	}
	_, errs = create[corev1.Endpoints](t, "endpoints", "{subsets: [{}, {notReadyAddresses: [{ip: 127.0.0.1}], ports: [{port: 0, protocol: FOO}]}]}")
	check(t, errs,
		"subsets[0]: Required value: must specify `addresses` or `notReadyAddresses`",
		`subsets[1].notReadyAddresses[0].ip: Invalid value: "127.0.0.1": may not be in the loopback range (127.0.0.0/8, ::1/128)`,
		"subsets[1].ports[0].port: Invalid value: 0: must be between 1 and 65535, inclusive",
		`subsets[1].ports[0].protocol: Unsupported value: "FOO": supported values: "SCTP", "TCP", "UDP"`)
}

func TestEvent(t *testing.T) {
	_, errs := create[corev1.Event](t, "events", "{involvedObject: {namespace: other}}")
	check(t, errs, `involvedObject.namespace: Invalid value: "other": does not match event.namespace`)
	_, errs = create[corev1.Event](t, "events", "{eventTime: '2024-01-01T00:00:00.000000Z', involvedObject: {namespace: default}, reportingComponent: a/b, reportingInstance: i, action: a, reason: ''}")
	check(t, errs, "reason: Required value")
	ago := func(d time.Duration) metav1.Time { return metav1.NewTime(time.Now().Add(-d)) }
	ev := parse[corev1.Event](t, "{metadata: {name: e}, type: Normal, reason: Pulled, message: ' m ', involvedObject: {kind: Pod, name: p, fieldPath: 'spec.containers{c}'}, source: {component: kubelet, host: h}, count: 3}")
	ev.FirstTimestamp, ev.LastTimestamp = ago(5*time.Minute), ago(10*time.Second)
	if got, want := cells(t, "events", ev), "10s|Normal|Pulled|pod/p|spec.containers{c}|kubelet, h|m|5m|3|e"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	ev = parse[corev1.Event](t, "{metadata: {name: e}, reportingComponent: scheduler, involvedObject: {kind: Pod}}")
	ev.EventTime = metav1.MicroTime(ago(2 * time.Hour))
	if got, want := cells(t, "events", ev), "120m|||pod||scheduler||120m|1|e"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

func TestVolumes(t *testing.T) {
	pv, errs := create[corev1.PersistentVolume](t, "persistentvolumes", "{spec: {capacity: {storage: 1Gi}, accessModes: [ReadWriteMany, ReadWriteOnce], hostPath: {path: /x}, storageClassName: s, claimRef: {namespace: ns, name: c}}}")
	check(t, errs)
	if got, want := cells(t, "persistentvolumes", pv), "x|1Gi|RWO,RWX|Retain|Pending|ns/c|s|<unset>||<unknown>|Filesystem"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	_, errs = create[corev1.PersistentVolume](t, "persistentvolumes", "{spec: {local: {path: /x}}}")
	check(t, errs, "spec.accessModes: Required value", "spec.capacity: Required value",
		`spec.capacity: Unsupported value: null: supported values: "storage"`,
		"spec.nodeAffinity: Required value: Local volume requires node affinity")
	pv.ResourceVersion = "1"
	changed := pv.DeepCopy()
	changed.Spec.HostPath.Path = "/y"
	errs = find(t, "persistentvolumes").Update.Validate(ctx, changed, pv)
	if len(errs) != 1 || !strings.HasPrefix(errs[0].Error(), "spec.persistentvolumesource: Forbidden: spec.persistentvolumesource is immutable after creation\n") {
		t.Error(errs)
	}

	pvc, errs := create[corev1.PersistentVolumeClaim](t, "persistentvolumeclaims", "{spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}, dataSource: {kind: PersistentVolumeClaim, name: a}}}")
	check(t, errs)
	if pvc.Spec.DataSourceRef == nil || pvc.Status.Phase != corev1.ClaimPending {
		t.Errorf("%+v", pvc)
	}
	if got, want := cells(t, "persistentvolumeclaims", pvc), "x|Pending|||||<unset>|<unknown>|Filesystem"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	_, errs = create[corev1.PersistentVolumeClaim](t, "persistentvolumeclaims", "{spec: {accessModes: [ReadWriteOncePod, ReadWriteOnce]}}")
	check(t, errs, "spec.accessModes: Forbidden: may not use ReadWriteOncePod with other access modes", "spec.resources[storage]: Required value")
	pvc.ResourceVersion = "1"
	bound := pvc.DeepCopy()
	class := "fast"
	bound.Spec.VolumeName, bound.Spec.StorageClassName = "v", &class
	check(t, find(t, "persistentvolumeclaims").Update.Validate(ctx, bound, pvc))
	changed2 := bound.DeepCopy()
	changed2.Spec.VolumeName = "w"
	errs = find(t, "persistentvolumeclaims").Update.Validate(ctx, changed2, bound)
	if len(errs) != 1 || !strings.HasPrefix(errs[0].Error(), "spec: Forbidden: spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims\n") {
		t.Error(errs)
	}
}

func TestReplicationController(t *testing.T) {
	rc, errs := create[corev1.ReplicationController](t, "replicationcontrollers", "{spec: {template: {metadata: {labels: {a: b}}, spec: {containers: [{name: c, image: i}]}}}}")
	check(t, errs)
	if *rc.Spec.Replicas != 1 || rc.Spec.Selector["a"] != "b" || rc.Labels["a"] != "b" || rc.Generation != 1 || rc.Spec.Template.Spec.DNSPolicy == "" {
		t.Errorf("%+v", rc)
	}
	if got, want := cells(t, "replicationcontrollers", rc), "x|1|0|0|<unknown>|c|i|a=b"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	r := find(t, "replicationcontrollers")
	scaled := rc.DeepCopy()
	r.Scale.Set(scaled, 3)
	r.Update.Prepare(ctx, scaled, rc)
	if spec, _, selector := r.Scale.Get(scaled); spec != 3 || selector != "a=b" || scaled.Generation != 2 {
		t.Error(spec, selector, scaled.Generation)
	}
	_, errs = create[corev1.ReplicationController](t, "replicationcontrollers", "{spec: {selector: {x: y}, template: {metadata: {labels: {a: b}}, spec: {restartPolicy: Never, containers: [{name: c, image: i}]}}}}")
	check(t, errs,
		"spec.template.metadata.labels: Invalid value: {\"a\":\"b\"}: `selector` does not match template `labels`",
		`spec.template.spec.restartPolicy: Unsupported value: "Never": supported values: "Always"`)
}

func TestQuotasAndLimits(t *testing.T) {
	q, errs := create[corev1.ResourceQuota](t, "resourcequotas", "{spec: {hard: {pods: 1, limits.cpu: 2, requests.example.com/gpu: 1}}}")
	check(t, errs)
	q.Status = *parse[corev1.ResourceQuotaStatus](t, "{hard: {pods: 1, limits.cpu: 2, requests.cpu: 1}, used: {pods: 1, limits.cpu: 1}}")
	if got, want := cells(t, "resourcequotas", q), "x|pods: 1/1, requests.cpu: 0/1|limits.cpu: 1/2|<unknown>"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	_, errs = create[corev1.ResourceQuota](t, "resourcequotas", "{spec: {hard: {foo: 1, pods: 1.5, services: 1}, scopes: [BestEffort, NotBestEffort]}}")
	check(t, errs,
		`spec.hard[foo]: Invalid value: "foo": must be a standard resource type or fully qualified`,
		`spec.hard[foo]: Invalid value: "foo": must be a standard resource for quota`,
		`spec.hard[pods]: Invalid value: "1500m": must be an integer`,
		`spec.scopes: Invalid value: ["BestEffort","NotBestEffort"]: unsupported scope applied to resource`,
		`spec.scopes: Invalid value: ["BestEffort","NotBestEffort"]: conflicting scopes`)

	l, errs := create[corev1.LimitRange](t, "limitranges", "{spec: {limits: [{type: Container, max: {cpu: 2}, min: {memory: 1Mi}}]}}")
	check(t, errs)
	if item := l.Spec.Limits[0]; item.Default.Cpu().Value() != 2 || item.DefaultRequest.Cpu().Value() != 2 || item.DefaultRequest.Memory().Value() != 1<<20 {
		t.Errorf("%+v", item)
	}
	_, errs = create[corev1.LimitRange](t, "limitranges", "{spec: {limits: [{type: Pod, max: {cpu: 1}, min: {cpu: 2}, default: {cpu: 1}}]}}")
	check(t, errs,
		"spec.limits[0].default: Forbidden: may not be specified when `type` is 'Pod'",
		`spec.limits[0].min[cpu]: Invalid value: "2": min value 2 is greater than max value 1`)
}
