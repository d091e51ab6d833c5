package api_test

import (
	"context"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/yaml"

	"hyperkube/internal/api"
	"hyperkube/internal/api/apps"
	"hyperkube/internal/api/authentication"
	"hyperkube/internal/api/authorization"
	"hyperkube/internal/api/autoscaling"
	"hyperkube/internal/api/batch"
	"hyperkube/internal/api/coordination"
	"hyperkube/internal/api/discovery"
	"hyperkube/internal/api/events"
	"hyperkube/internal/api/networking"
	"hyperkube/internal/api/node"
	"hyperkube/internal/api/policy"
	"hyperkube/internal/api/rbac"
	"hyperkube/internal/api/scheduling"
	"hyperkube/internal/api/storage"
)

func resources() []*api.Resource {
	return slices.Concat(apps.Resources(), authentication.Resources(), authorization.Resources(), autoscaling.Resources(),
		batch.Resources(), coordination.Resources(), discovery.Resources(), events.Resources(), networking.Resources(),
		node.Resources(), policy.Resources(), rbac.Resources(), scheduling.Resources(), storage.Resources())
}

// parse decodes an object like a request from a client.
func parse(t *testing.T, text string) (*api.Resource, api.Object) {
	t.Helper()
	var meta metav1.TypeMeta
	if err := yaml.Unmarshal([]byte(text), &meta); err != nil {
		t.Fatal(err)
	}
	for _, r := range resources() {
		if r.GVK() == meta.GroupVersionKind() {
			obj := r.New()
			if err := yaml.UnmarshalStrict([]byte(text), obj); err != nil {
				t.Fatal(err)
			}
			return r, obj
		}
	}
	t.Fatalf("no kind %s", meta.GroupVersionKind())
	return nil, nil
}

// create processes a new object like the API server and returns the validation errors.
func create(r *api.Resource, obj api.Object) field.ErrorList {
	ctx := context.Background()
	r.Default(obj)
	if !r.Review {
		obj.SetUID("a-uid")
	}
	r.PrepareCreate(ctx, obj)
	r.Default(obj)
	return r.Validate(ctx, obj)
}

func texts(errs field.ErrorList) []string {
	var out []string
	for _, e := range errs {
		out = append(out, e.Error())
	}
	return out
}

func TestKindsAreConsistent(t *testing.T) {
	ctx := context.Background()
	for _, r := range resources() {
		t.Run(r.GVK().String(), func(t *testing.T) {
			empty := r.New()
			r.Default(empty)
			again := empty.DeepCopyObject().(api.Object)
			r.Default(again)
			if !reflect.DeepEqual(empty, again) {
				t.Error("defaulting is not idempotent")
			}
			r.PrepareCreate(ctx, empty)
			r.Validate(ctx, empty)
			r.Warnings(ctx, empty, nil)
			if r.Review {
				return
			}
			old := empty.DeepCopyObject().(api.Object)
			r.Update.Prepare(ctx, empty, old)
			r.Update.Validate(ctx, empty, old)
			r.Warnings(ctx, empty, old)
			for _, v := range r.Views {
				v.Prepare(ctx, empty, old)
				v.Validate(ctx, empty, old)
			}
			if r.Scale != nil {
				r.Scale.Set(empty, 7)
				if n, _, _ := r.Scale.Get(empty); n != 7 {
					t.Errorf("scaled to 7, got %d", n)
				}
			}
			cells := r.Row(empty)
			if len(cells) != len(r.Columns) {
				t.Fatalf("%d cells for %d columns", len(cells), len(r.Columns))
			}
			for i, c := range r.Columns {
				if c.Description == "" && c.Name != "Handler" {
					t.Errorf("column %s has no description", c.Name)
				}
				switch v := cells[i].(type) {
				case string, int64, bool:
				default:
					t.Errorf("column %s has a %T", c.Name, v)
				}
			}
			for name := range r.Fields(empty) {
				if !slices.Contains(r.FieldNames, name) && name != "source" {
					t.Errorf("field %s cannot be selected", name)
				}
			}
			if r.StoredAs != nil {
				stored, err := r.StoredAs.ToStored(again)
				if err != nil {
					t.Fatal(err)
				}
				back, err := r.StoredAs.FromStored(stored)
				if err != nil || !reflect.DeepEqual(back, again) {
					t.Errorf("converted and back: %v\n%#v\n%#v", err, back, again)
				}
			}
		})
	}
}

const web = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: default}
spec:
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{name: a, image: "a:1"}, {name: b, image: "b:2"}]}
`

// edit replaces parts of a text. It panics if a part is missing.
func edit(text string, pairs ...string) string {
	for i := 0; i < len(pairs); i += 2 {
		if !strings.Contains(text, pairs[i]) {
			panic(pairs[i])
		}
		text = strings.Replace(text, pairs[i], pairs[i+1], 1)
	}
	return text
}

func TestCreate(t *testing.T) {
	binding := `{apiVersion: rbac.authorization.k8s.io/v1, kind: RoleBinding, metadata: {name: "a:b", namespace: x}, roleRef: {kind: Role, name: r}, subjects: [{kind: User, name: u}]}`
	slice := `{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: s, namespace: x}, addressType: IPv4, endpoints: [{addresses: [10.0.0.1]}], ports: [{port: 80}]}`
	cron := `{apiVersion: batch/v1, kind: CronJob, metadata: {name: c, namespace: x}, spec: {schedule: "*/5 * * * *", jobTemplate: {spec: {template: {spec: {restartPolicy: Never, containers: [{name: a, image: a}]}}}}}}`
	ingress := `{apiVersion: networking.k8s.io/v1, kind: Ingress, metadata: {name: i, namespace: x}, spec: {rules: [{host: a.example.com, http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: s, port: {number: 80}}}}]}}]}}`
	for _, test := range []struct {
		name, text string
		want       []string
	}{
		{"deployment", web, nil},
		{"no selector", edit(web, "  selector: {matchLabels: {app: web}}\n", ""), []string{
			"spec.selector: Required value",
			"spec.template.metadata.labels: Invalid value: {\"app\":\"web\"}: `selector` does not match template `labels`",
		}},
		{"other labels", edit(web, "{labels: {app: web}}", "{labels: {app: other}}"), []string{
			"spec.template.metadata.labels: Invalid value: {\"app\":\"other\"}: `selector` does not match template `labels`",
		}},
		{"strategy", edit(web, "spec:\n", "spec:\n  replicas: -1\n  strategy: {rollingUpdate: {maxSurge: 0, maxUnavailable: 0%}}\n"), []string{
			"spec.replicas: Invalid value: -1: must be greater than or equal to 0",
			"spec.strategy.rollingUpdate.maxUnavailable: Invalid value: \"0%\": may not be 0 when `maxSurge` is 0",
		}},
		{"recreate", edit(web, "spec:\n", "spec:\n  strategy: {type: Recreate, rollingUpdate: {}}\n"), []string{
			"spec.strategy.rollingUpdate: Forbidden: may not be specified when strategy `type` is 'Recreate'",
		}},
		{"restart policy", edit(web, "spec: {containers", "spec: {restartPolicy: Never, containers"), []string{
			`spec.template.spec.restartPolicy: Unsupported value: "Never": supported values: "Always"`,
		}},
		{"role binding", binding, nil},
		{"invalid role", edit(binding, "kind: Role,", "kind: Rule,", "kind: User", "kind: Robot"), []string{
			`roleRef.kind: Unsupported value: "Rule": supported values: "Role", "ClusterRole"`,
			`subjects[0].kind: Unsupported value: "Robot": supported values: "ServiceAccount", "User", "Group"`,
		}},
		{"rule", `{apiVersion: rbac.authorization.k8s.io/v1, kind: Role, metadata: {name: a, namespace: x}, rules: [{nonResourceURLs: [/x], verbs: []}, {verbs: [get]}]}`, []string{
			`rules[0].nonResourceURLs: Invalid value: ["/x"]: namespaced rules cannot apply to non-resource URLs`,
			"rules[1].apiGroups: Required value: resource rules must supply at least one api group",
			"rules[1].resources: Required value: resource rules must supply at least one resource",
			"rules[0].verbs: Required value",
		}},
		{"slice", slice, nil},
		{"invalid slice", edit(slice, "10.0.0.1", "127.0.0.1, nonsense", "[{port: 80}]", "[{port: 80, protocol: ICMP}, {port: 81}]"), []string{
			`ports[0].protocol: Unsupported value: "ICMP": supported values: "SCTP", "TCP", "UDP"`,
			`ports[1].name: Duplicate value: ""`,
			"endpoints[0].addresses[0]: Invalid value: \"127.0.0.1\": may not be in the loopback range (127.0.0.0/8, ::1/128)",
			"endpoints[0].addresses[1]: Invalid value: \"nonsense\": must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)",
		}},
		{"lease", `{apiVersion: coordination.k8s.io/v1, kind: Lease, metadata: {name: l, namespace: x}, spec: {leaseDurationSeconds: 0, leaseTransitions: -1}}`, []string{
			"spec.leaseDurationSeconds: Invalid value: 0: must be greater than 0",
			"spec.leaseTransitions: Invalid value: -1: must be greater than or equal to 0",
		}},
		{"high priority", `{apiVersion: scheduling.k8s.io/v1, kind: PriorityClass, metadata: {name: p}, value: 1000000001}`, []string{
			"value: Forbidden: maximum allowed value of a user defined priority is 1000000000",
		}},
		{"system priority", `{apiVersion: scheduling.k8s.io/v1, kind: PriorityClass, metadata: {name: system-x}, value: 1}`, []string{
			"metadata.name: Forbidden: priority class names with 'system-' prefix are reserved for system use only. error: system-x is not a known system priority class",
		}},
		{"address", `{apiVersion: networking.k8s.io/v1, kind: IPAddress, metadata: {name: "2001:DB8::1"}}`, []string{
			`metadata.name: Invalid value: "2001:DB8::1": must be in canonical form ("2001:db8::1")`,
			"spec.parentRef: Required value",
		}},
		{"range", `{apiVersion: networking.k8s.io/v1, kind: ServiceCIDR, metadata: {name: c}, spec: {cidrs: [10.0.0.0/24, 10.0.1.0/24]}}`, []string{
			`spec.cidrs: Invalid value: ["10.0.0.0/24","10.0.1.0/24"]: may specify no more than one IP for each IP family, i.e 192.168.0.0/24 and 2001:db8::/64`,
		}},
		{"storage class", `{apiVersion: storage.k8s.io/v1, kind: StorageClass, metadata: {name: s}, reclaimPolicy: Burn}`, []string{
			`reclaimPolicy: Unsupported value: "Burn": supported values: "Delete", "Retain"`,
			"provisioner: Required value",
		}},
		{"runtime class", `{apiVersion: node.k8s.io/v1, kind: RuntimeClass, metadata: {name: r}, handler: A_B}`, []string{
			`handler: Invalid value: "A_B": a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')`,
		}},
		{"event", `{apiVersion: events.k8s.io/v1, kind: Event, metadata: {name: e, namespace: x}, regarding: {namespace: other}}`, []string{
			`involvedObject.namespace: Invalid value: "other": does not match event.namespace`,
			"eventTime: Required value",
			`type: Invalid value: "": has invalid value: `,
		}},
		{"access review", `{apiVersion: authorization.k8s.io/v1, kind: SubjectAccessReview, spec: {}}`, []string{
			"spec: Invalid value: null: exactly one of nonResourceAttributes or resourceAttributes must be specified",
			`spec.user: Invalid value: "": at least one of user or group must be specified`,
		}},
		{"local review", `{apiVersion: authorization.k8s.io/v1, kind: LocalSubjectAccessReview, metadata: {namespace: a}, spec: {user: u, resourceAttributes: {namespace: b}}}`, []string{
			`spec.resourceAttributes.namespace: Invalid value: "b": must match metadata.namespace`,
		}},
		{"job", `{apiVersion: batch/v1, kind: Job, metadata: {name: j, namespace: x}, spec: {template: {spec: {restartPolicy: Never, containers: [{name: a, image: a}]}}}}`, nil},
		{"job with restartPolicy Always", `{apiVersion: batch/v1, kind: Job, metadata: {name: j, namespace: x}, spec: {template: {spec: {containers: [{name: a, image: a}]}}}}`, []string{
			`spec.template.spec.restartPolicy: Required value: valid values: "OnFailure", "Never"`,
		}},
		{"cron job", cron, nil},
		{"cron job with invalid schedule", edit(cron, "*/5 * * * *", "* * 32 * *"), []string{
			`spec.schedule: Invalid value: "* * 32 * *": end of range (32) above maximum (31): 32`,
		}},
		{"stateful set", edit(web, "Deployment", "StatefulSet"), nil},
		{"daemon set", edit(web, "Deployment", "DaemonSet"), nil},
		{"budget", `{apiVersion: policy/v1, kind: PodDisruptionBudget, metadata: {name: b, namespace: x}, spec: {minAvailable: 200%, maxUnavailable: -1}}`, []string{
			`spec: Invalid value: {"MinAvailable":"200%","Selector":null,"MaxUnavailable":-1,"UnhealthyPodEvictionPolicy":null}: minAvailable and maxUnavailable cannot be both set`,
			`spec.minAvailable: Invalid value: "200%": must not be greater than 100%`,
			"spec.maxUnavailable: Invalid value: -1: must be greater than or equal to 0",
		}},
		{"ingress", ingress, nil},
		{"ingress with IP address", edit(ingress, "a.example.com", "10.0.0.1", "path: /,", "path: a,"), []string{
			`spec.rules[0].host: Invalid value: "10.0.0.1": must be a DNS name, not an IP address`,
			`spec.rules[0].http.paths[0].path: Invalid value: "a": must be an absolute path`,
		}},
		{"network policy", `{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: n, namespace: x}, spec: {ingress: [{from: [{}], ports: [{port: 70000}]}]}}`, []string{
			"spec.ingress[0].ports[0].port: Invalid value: 70000: must be between 1 and 65535, inclusive",
			"spec.ingress[0].from[0]: Required value: must specify a peer",
		}},
		{"autoscaler", `{apiVersion: autoscaling/v1, kind: HorizontalPodAutoscaler, metadata: {name: h, namespace: x}, spec: {maxReplicas: 0, scaleTargetRef: {kind: Deployment}}}`, []string{
			"spec.maxReplicas: Invalid value: 0: must be greater than or equal to `minReplicas`",
			"spec.scaleTargetRef.name: Required value",
			`spec.scaleTargetRef.apiVersion: Invalid value: "": apiVersion must specify API group`,
			"spec.maxReplicas: Required value",
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			r, obj := parse(t, test.text)
			if got := texts(create(r, obj)); !slices.Equal(got, test.want) {
				t.Errorf("got:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(test.want, "\n"))
			}
		})
	}
}

func TestUpdate(t *testing.T) {
	claims := `{apiVersion: apps/v1, kind: StatefulSet, metadata: {name: s, namespace: x}, spec: {selector: {matchLabels: {a: b}}, serviceName: s,
template: {metadata: {labels: {a: b}}, spec: {containers: [{name: c, image: "a:1"}]}},
volumeClaimTemplates: [{metadata: {name: d}, spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}}]}}`
	binding := `{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRoleBinding, metadata: {name: b}, roleRef: {kind: ClusterRole, name: r}}`
	for _, test := range []struct {
		name, old, new string
		generation     int64
		want           []string
	}{
		{"nothing", web, web, 1, nil},
		{"image", web, edit(web, "a:1", "a:2"), 2, nil},
		{"annotation", web, edit(web, "namespace: default", "namespace: default, annotations: {a: b}"), 2, nil},
		{"label", web, edit(web, "namespace: default", "namespace: default, labels: {a: b}"), 1, nil},
		{"selector", web, edit(web, "{matchLabels: {app: web}}", "{matchExpressions: [{key: app, operator: Exists}]}"), 2, []string{
			`spec.selector: Invalid value: {"matchExpressions":[{"key":"app","operator":"Exists"}]}: field is immutable`,
		}},
		{"set's image", edit(web, "Deployment", "StatefulSet"), edit(web, "Deployment", "StatefulSet", "a:1", "a:2"), 2, nil},
		{"claim templates with a kind", claims, edit(claims, "metadata: {name: d}", "apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: d}"), 1, nil},
		{"set's claims", claims, edit(claims, "1Gi", "2Gi"), 2, []string{
			`spec.volumeClaimTemplates: Invalid value: [{"name":"d","Spec":{"AccessModes":["ReadWriteOnce"],"Selector":null,"Resources":{"Limits":null,"Requests":{"storage":"2Gi"}},"VolumeName":"","StorageClassName":null,"VolumeMode":"Filesystem","DataSource":null,"DataSourceRef":null,"VolumeAttributesClassName":null},"Status":{"Phase":"Pending","AccessModes":null,"Capacity":null,"Conditions":null,"AllocatedResources":null,"AllocatedResourceStatuses":null,"CurrentVolumeAttributesClassName":null,"ModifyVolumeStatus":null,"HealthStatus":null}}]: field is immutable`,
		}},
		{"set's service", edit(web, "Deployment", "StatefulSet"), edit(web, "Deployment", "StatefulSet", "spec:\n", "spec:\n  serviceName: x\n"), 2, []string{
			`spec.serviceName: Invalid value: "x": field is immutable`,
		}},
		{"binding", binding, edit(binding, "name: r", "name: s"), 0, []string{
			`roleRef: Invalid value: {"APIGroup":"rbac.authorization.k8s.io","Kind":"ClusterRole","Name":"s"}: field is immutable`,
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			ctx := context.Background()
			r, old := parse(t, test.old)
			if errs := create(r, old); len(errs) > 0 {
				t.Fatal(errs)
			}
			old.SetResourceVersion("1")
			_, obj := parse(t, test.new)
			r.Default(obj)
			obj.SetUID(old.GetUID())
			obj.SetResourceVersion("1")
			r.Update.Prepare(ctx, obj, old)
			if got := texts(r.Update.Validate(ctx, obj, old)); !slices.Equal(got, test.want) {
				t.Errorf("got:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(test.want, "\n"))
			}
			if obj.GetGeneration() != test.generation {
				t.Errorf("generation %d, want %d", obj.GetGeneration(), test.generation)
			}
		})
	}
}

func TestTables(t *testing.T) {
	for _, test := range []struct{ text, want string }{
		{edit(web, "metadata: {name", "status: {readyReplicas: 1, updatedReplicas: 2, availableReplicas: 1}\nmetadata: {name"), "web|1/1|2|1|5m|a,b|a:1,b:2|app=web"},
		{edit(web, "Deployment", "ReplicaSet", "spec:\n", "spec:\n  replicas: 3\n"), "web|3|0|0|5m|a,b|a:1,b:2|app=web"},
		{`{apiVersion: rbac.authorization.k8s.io/v1, kind: RoleBinding, metadata: {name: b}, roleRef: {kind: Role, name: r}, subjects: [{kind: User, name: u}, {kind: Group, name: g}, {kind: ServiceAccount, namespace: ns, name: s}]}`,
			"b|Role/r|5m|u|g|ns/s"},
		{`{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: s}, addressType: IPv4, endpoints: [{addresses: [10.0.0.1]}, {addresses: [10.0.0.2]}, {addresses: [10.0.0.3]}, {addresses: [10.0.0.4]}], ports: [{port: 80}]}`,
			"s|IPv4|80|10.0.0.1,10.0.0.2,10.0.0.3 + 1 more...|5m"},
		{`{apiVersion: networking.k8s.io/v1, kind: IPAddress, metadata: {name: 10.0.0.1}, spec: {parentRef: {resource: services, namespace: default, name: kubernetes}}}`,
			"10.0.0.1|services/default/kubernetes"},
		{`{apiVersion: storage.k8s.io/v1, kind: StorageClass, metadata: {name: s, annotations: {storageclass.kubernetes.io/is-default-class: "true"}}, provisioner: p}`,
			"s (default)|p|Delete|Immediate|false|5m"},
		{`{apiVersion: scheduling.k8s.io/v1, kind: PriorityClass, metadata: {name: p}, value: 7}`, "p|7|false|5m|PreemptLowerPriority"},
		{`{apiVersion: batch/v1, kind: Job, metadata: {name: j}, spec: {completions: 3}, status: {succeeded: 1}}`, "j|Running|1/3||5m|||<none>"},
		{`{apiVersion: autoscaling/v2, kind: HorizontalPodAutoscaler, metadata: {name: h}, spec: {maxReplicas: 9, scaleTargetRef: {kind: Deployment, name: web}}}`,
			"h|Deployment/web|cpu: <unknown>/80%|1|9|0|5m"},
	} {
		r, obj := parse(t, test.text)
		r.Default(obj)
		obj.SetCreationTimestamp(metav1.Time{Time: time.Now().Add(-5*time.Minute - time.Second)})
		var cells []string
		for _, c := range r.Row(obj) {
			cells = append(cells, strings.ReplaceAll(fmt.Sprint(c), "5m1s", "5m"))
		}
		if got := strings.Join(cells, "|"); got != test.want {
			t.Errorf("%s: %s, want %s", r.Kind, got, test.want)
		}
	}
}

func TestDefaultsOfDeployment(t *testing.T) {
	r, obj := parse(t, web)
	r.Default(obj)
	data, err := json.Marshal(obj)
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{
		`"replicas":1`, `"strategy":{"type":"RollingUpdate","rollingUpdate":{"maxUnavailable":"25%","maxSurge":"25%"}}`,
		`"revisionHistoryLimit":10`, `"progressDeadlineSeconds":600`, `"restartPolicy":"Always"`,
	} {
		if !strings.Contains(string(data), part) {
			t.Errorf("%s is not in %s", part, data)
		}
	}
}
