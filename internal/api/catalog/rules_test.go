package catalog

import (
	"context"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"hyperkube/internal/api"
)

// createFromYAML decodes an object and processes it like the API server does on create.
func createFromYAML(t *testing.T, text string) (*api.Resource, api.Object, []string) {
	t.Helper()
	var m metav1.TypeMeta
	if err := yaml.Unmarshal([]byte(text), &m); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	for _, r := range Resources() {
		if r.GVK() != m.GroupVersionKind() {
			continue
		}
		obj := r.New()
		if err := yaml.UnmarshalStrict([]byte(text), obj); err != nil {
			t.Fatal(err)
		}
		ctx := context.Background()
		r.Default(obj)
		obj.SetUID("a-uid")
		r.PrepareCreate(ctx, obj)
		r.Default(obj)
		return r, obj, formatAll(r.Validate(ctx, obj))
	}
	t.Fatalf("no kind %s", m.GroupVersionKind())
	return nil, nil, nil
}

// TestRules checks the validation errors, in upstream's words, of kinds whose packages have no test
// tables. Valid objects have no errors.
func TestRules(t *testing.T) {
	const label = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')"
	for _, tc := range []struct {
		name, text string
		want       []string
	}{
		{"service", `{apiVersion: v1, kind: Service, metadata: {name: s, namespace: x}, spec: {ports: [{port: 80}]}}`, nil},
		{"service without ports", `{apiVersion: v1, kind: Service, metadata: {name: s, namespace: x}, spec: {}}`,
			[]string{"spec.ports: Required value"}},
		{"invalid service", `{apiVersion: v1, kind: Service, metadata: {name: s, namespace: x}, spec: {type: Magic, sessionAffinity: Sometimes, ports: [{port: 0}]}}`, []string{
			`spec.ports[0].port: Invalid value: 0: must be between 1 and 65535, inclusive`,
			`spec.ports[0].targetPort: Invalid value: 0: must be between 1 and 65535, inclusive`,
			`spec.sessionAffinity: Unsupported value: "Sometimes": supported values: "ClientIP", "None"`,
			`spec.type: Unsupported value: "Magic": supported values: "ClusterIP", "ExternalName", "LoadBalancer", "NodePort"`,
		}},
		{"external name", `{apiVersion: v1, kind: Service, metadata: {name: s, namespace: x}, spec: {type: ExternalName}}`,
			[]string{"spec.externalName: Required value"}},
		{"daemon set", `{apiVersion: apps/v1, kind: DaemonSet, metadata: {name: d, namespace: x}, spec: {selector: {matchLabels: {a: b}}, minReadySeconds: -1, template: {metadata: {labels: {a: c}}, spec: {containers: [{name: a, image: a}]}}}}`, []string{
			"spec.template.metadata.labels: Invalid value: {\"a\":\"c\"}: `selector` does not match template `labels`",
			"spec.minReadySeconds: Invalid value: -1: must be greater than or equal to 0",
		}},
		{"stateful set", `{apiVersion: apps/v1, kind: StatefulSet, metadata: {name: d, namespace: x}, spec: {podManagementPolicy: Wild, replicas: -1, selector: {matchLabels: {a: b}}, template: {metadata: {labels: {a: b}}, spec: {containers: [{name: a, image: a}]}}}}`, []string{
			"spec.podManagementPolicy: Invalid value: \"Wild\": must be 'OrderedReady' or 'Parallel'",
			"spec.replicas: Invalid value: -1: must be greater than or equal to 0",
		}},
		{"quota", `{apiVersion: v1, kind: ResourceQuota, metadata: {name: q, namespace: x}, spec: {hard: {pods: "-1", nonsense: "1"}, scopes: [Best]}}`, []string{
			`spec.hard[nonsense]: Invalid value: "nonsense": must be a standard resource type or fully qualified`,
			`spec.hard[nonsense]: Invalid value: "nonsense": must be a standard resource for quota`,
			`spec.hard[pods]: Invalid value: "-1": must be greater than or equal to 0`,
			`spec.scopes: Invalid value: ["Best"]: unsupported scope`,
		}},
		{"limits", `{apiVersion: v1, kind: LimitRange, metadata: {name: l, namespace: x}, spec: {limits: [{type: Container, min: {cpu: "2"}, max: {cpu: "1"}}]}}`, []string{
			`spec.limits[0].min[cpu]: Invalid value: "2": min value 2 is greater than max value 1`,
			`spec.limits[0].defaultRequest[cpu]: Invalid value: "1": min value 2 is greater than default request value 1`,
			`spec.limits[0].default[cpu]: Invalid value: "2": min value 2 is greater than default value 1`,
		}},
		{"endpoints", `{apiVersion: v1, kind: Endpoints, metadata: {name: e, namespace: x}, subsets: [{addresses: [{ip: nonsense}], ports: [{port: 0}]}]}`, []string{
			`subsets[0].addresses[0].ip: Invalid value: "nonsense": must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)`,
			`subsets[0].addresses[0].ip: Invalid value: "nonsense": must be a valid IP address`,
			`subsets[0].ports[0].port: Invalid value: 0: must be between 1 and 65535, inclusive`,
		}},
		{"driver", `{apiVersion: storage.k8s.io/v1, kind: CSIDriver, metadata: {name: d}, spec: {volumeLifecycleModes: [Some]}}`, []string{
			`spec.volumeLifecycleModes: Unsupported value: "Some": supported values: "Persistent", "Ephemeral"`,
		}},
		{"node's drivers", `{apiVersion: storage.k8s.io/v1, kind: CSINode, metadata: {name: n}, spec: {drivers: [{name: d, nodeID: ""}]}}`, []string{
			"spec.drivers[0].nodeID: Required value",
		}},
		{"volume", `{apiVersion: v1, kind: PersistentVolume, metadata: {name: v}, spec: {persistentVolumeReclaimPolicy: Burn}}`, []string{
			"spec.accessModes: Required value",
			"spec.capacity: Required value",
			`spec.capacity: Unsupported value: null: supported values: "storage"`,
			`spec.persistentVolumeReclaimPolicy: Unsupported value: "Burn": supported values: "Delete", "Recycle", "Retain"`,
			"spec: Required value: must specify a volume type",
		}},
		{"volume claim", `{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: c, namespace: x}, spec: {accessModes: [ReadSometimes]}}`, []string{
			`spec.accessModes: Unsupported value: "ReadSometimes": supported values: "ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod"`,
			"spec.resources[storage]: Required value",
		}},
		{"secret", `{apiVersion: v1, kind: Secret, metadata: {name: s, namespace: x}, type: kubernetes.io/tls, data: {"a/b": YQ==}}`, []string{
			`data[a/b]: Invalid value: "a/b": a valid config key must consist of alphanumeric characters, '-', '_' or '.'`,
			"data[tls.crt]: Required value",
			"data[tls.key]: Required value",
		}},
		{"attachment", `{apiVersion: storage.k8s.io/v1, kind: VolumeAttachment, metadata: {name: a}, spec: {attacher: d, nodeName: n, source: {}}}`, []string{
			"spec.source: Required value: must specify exactly one of inlineVolumeSpec and persistentVolumeName",
		}},
		{"policy rule", `{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRole, metadata: {name: r}, rules: [{verbs: [get], nonResourceURLs: [/x], resources: [pods]}]}`, []string{
			`rules[0].nonResourceURLs: Invalid value: ["/x"]: rules cannot apply to both regular resources and non-resource URLs`,
		}},
		{"signing request", `{apiVersion: certificates.k8s.io/v1, kind: CertificateSigningRequest, metadata: {name: r}, spec: {request: YQ==, signerName: unqualified, expirationSeconds: 5, usages: [magic, magic]}}`, []string{
			`spec.request: Invalid value: "YQ==": PEM block type must be CERTIFICATE REQUEST`,
			`spec.usages[0]: Unsupported value: "magic"`,
			`spec.usages[1]: Unsupported value: "magic"`,
			`spec.usages[1]: Duplicate value: "magic"`,
			`spec.signerName: Invalid value: "unqualified": must be a fully qualified domain and path of the form 'example.com/signer-name'`,
			`spec.expirationSeconds: Invalid value: 5: may not specify a duration less than 600 seconds (10 minutes)`,
		}},
		{"trust bundle", `{apiVersion: certificates.k8s.io/v1, kind: ClusterTrustBundle, metadata: {name: b}, spec: {signerName: a.b/c, trustBundle: ""}}`, []string{
			`metadata.name: Invalid value: "b": ClusterTrustBundle for signerName a.b/c must be named with prefix a.b:c:`,
			`spec.trustBundle: Invalid value: "<value omitted>": at least one trust anchor must be provided`,
		}},
		{"trust bundle without signer", `{apiVersion: certificates.k8s.io/v1, kind: ClusterTrustBundle, metadata: {name: "a:b"}, spec: {trustBundle: "-----BEGIN X-----\nYQ==\n-----END X-----\n"}}`, []string{
			`metadata.name: Invalid value: "a:b": ClusterTrustBundle without signer name must not have ":" in its name`,
			`spec.trustBundle: Invalid value: "<value omitted>": entry 0 has bad block type: X`,
		}},
		{"pod's certificate", `{apiVersion: certificates.k8s.io/v1, kind: PodCertificateRequest, metadata: {name: r, namespace: x}, spec: {signerName: kubernetes.io/s, podName: p, podUID: "", serviceAccountName: s, serviceAccountUID: u, nodeName: n, nodeUID: u, maxExpirationSeconds: 86401, unverifiedUserAnnotations: {a: b}}}`, []string{
			`spec.unverifiedUserAnnotations: Invalid value: "a": must be a domain-prefixed key (such as "acme.io/foo")`,
			`spec.podUID: Invalid value: "": must not be empty`,
			`spec.maxExpirationSeconds: Invalid value: 86401: must be in the range [3600, 86400]`,
			`spec: Invalid value: exactly one of (stubPKCS10Request) or (pkixPublicKey, proofOfPossession) must be set`,
		}},
		{"migration", `{apiVersion: storagemigration.k8s.io/v1, kind: StorageVersionMigration, metadata: {name: m}, spec: {}}`,
			[]string{"spec.resource.resource: Required value: resource is required to be set"}},
		{"device class", `{apiVersion: resource.k8s.io/v1, kind: DeviceClass, metadata: {name: c}, spec: {selectors: [{}], config: [{}]}}`, []string{
			"spec.selectors[0].cel: Required value",
			"spec.config[0].opaque: Required value",
		}},
		{"claim", `{apiVersion: resource.k8s.io/v1, kind: ResourceClaim, metadata: {name: c, namespace: x}, spec: {devices: {requests: [{name: a, exactly: {deviceClassName: c}}]}}}`, nil},
		{"empty claim", `{apiVersion: resource.k8s.io/v1, kind: ResourceClaim, metadata: {name: c, namespace: x}, spec: {devices: {requests: [{name: A}]}}}`, []string{
			"spec.devices.requests[0].name: Invalid value: \"A\": " + label,
			"spec.devices.requests[0]: Required value: exactly one of `exactly` or `firstAvailable` is required",
		}},
		{"claim with invalid count and constraint", `{apiVersion: resource.k8s.io/v1, kind: ResourceClaim, metadata: {name: c, namespace: x}, spec: {devices: {requests: [{name: a, exactly: {deviceClassName: c, allocationMode: All, count: 1}}], constraints: [{requests: [b], matchAttribute: x.io/y}]}}}`, []string{
			"spec.devices.requests[0].exactly.count: Invalid value: 1: must not be specified when allocationMode is 'All'",
			"spec.devices.constraints[0].requests[0]: Invalid value: \"b\": must be the name of a request in the claim or the name of a request and a subrequest separated by '/'",
		}},
		{"slice", `{apiVersion: resource.k8s.io/v1, kind: ResourceSlice, metadata: {name: s}, spec: {driver: d, pool: {name: p, resourceSliceCount: 1}, nodeName: n1, devices: [{name: a, attributes: {x: {int: 1}}, capacity: {m: {value: "1"}}}]}}`, nil},
		{"shares of a device, rounded up", `{apiVersion: resource.k8s.io/v1, kind: ResourceSlice, metadata: {name: s}, spec: {driver: d, pool: {name: p, resourceSliceCount: 1}, nodeName: n1, devices: [{name: a, allowMultipleAllocations: true, capacity: {m: {value: "10", requestPolicy: {default: "2", validRange: {min: 100m, max: "10", step: "1"}}}}}]}}`, nil},
		{"values that are the same rounded up", `{apiVersion: resource.k8s.io/v1, kind: ResourceSlice, metadata: {name: s}, spec: {driver: d, pool: {name: p, resourceSliceCount: 1}, nodeName: n1, devices: [{name: a, allowMultipleAllocations: true, capacity: {m: {value: "10", requestPolicy: {default: "1", validValues: ["1", "1.5", "2"]}}}}]}}`, []string{
			`spec.devices[0].capacity[m].requestPolicy.validValues[2]: Duplicate value: "2"`,
		}},
		{"slice without nodes", `{apiVersion: resource.k8s.io/v1, kind: ResourceSlice, metadata: {name: s}, spec: {driver: d, pool: {name: p, generation: -1, resourceSliceCount: 0}, devices: [{name: a}, {name: a}]}}`, []string{
			"spec.pool.resourceSliceCount: Invalid value: 0: must be greater than zero",
			"spec.pool.generation: Invalid value: -1: must be greater than or equal to zero",
			"spec: Required value: exactly one of `nodeName`, `nodeSelector`, `allNodes`, `perDeviceNodeSelection` is required",
			"spec.devices[1]: Duplicate value: \"a\"",
		}},
		{"slice everywhere", `{apiVersion: resource.k8s.io/v1, kind: ResourceSlice, metadata: {name: s}, spec: {driver: d, pool: {name: p, resourceSliceCount: 1}, nodeName: n1, allNodes: true, devices: [{name: a, attributes: {x: {}}, capacity: {"": {value: "1", requestPolicy: {}}}}]}}`, []string{
			"spec: Invalid value: \"{`nodeName`, `allNodes`}\": exactly one of `nodeName`, `nodeSelector`, `allNodes`, `perDeviceNodeSelection` is required, but multiple fields are set",
			`spec.devices[0].capacity: Invalid value: "": a valid C identifier`,
			"spec.devices[0].capacity[].requestPolicy: Forbidden: allowMultipleAllocations must be true",
			"spec.devices[0].attributes[x]: Invalid value: \"\": must specify one of",
		}},
		{"taint rule", `{apiVersion: resource.k8s.io/v1, kind: DeviceTaintRule, metadata: {name: t}, spec: {deviceSelector: {device: A}, taint: {key: k}}}`, []string{
			"spec.deviceSelector.device: Invalid value: \"A\": " + label,
			"spec.taint.effect: Required value",
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, _, got := createFromYAML(t, tc.text)
			ok := len(got) == len(tc.want)
			for i := 0; ok && i < len(got); i++ {
				ok = strings.HasPrefix(got[i], tc.want[i])
			}
			if !ok {
				t.Errorf("got:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(tc.want, "\n"))
			}
		})
	}
}

// TestImmutableFields checks which fields cannot be updated, and when the generation is incremented.
func TestImmutableFields(t *testing.T) {
	ctx := context.Background()
	for _, tc := range []struct {
		name, old, was, is string
		generation         int64
		want               []string
	}{
		{"claim", `{apiVersion: resource.k8s.io/v1, kind: ResourceClaim, metadata: {name: c, namespace: x}, spec: {devices: {requests: [{name: a, exactly: {deviceClassName: c}}]}}}`,
			"name: a,", "name: b,", 0, []string{"spec: Invalid value: "}},
		{"slice's driver", `{apiVersion: resource.k8s.io/v1, kind: ResourceSlice, metadata: {name: s}, spec: {driver: d, pool: {name: p, resourceSliceCount: 1}, nodeName: n1}}`,
			"driver: d", "driver: e", 2, []string{`spec.driver: Invalid value: "e": field is immutable`}},
		{"slice's pool", `{apiVersion: resource.k8s.io/v1, kind: ResourceSlice, metadata: {name: s}, spec: {driver: d, pool: {name: p, resourceSliceCount: 1}, nodeName: n1}}`,
			"resourceSliceCount: 1", "resourceSliceCount: 2", 2, nil},
		{"class", `{apiVersion: resource.k8s.io/v1, kind: DeviceClass, metadata: {name: c}, spec: {selectors: [{cel: {expression: "true"}}]}}`,
			`"true"`, `"false"`, 2, nil},
		{"bundle's signer", `{apiVersion: certificates.k8s.io/v1, kind: ClusterTrustBundle, metadata: {name: "a.b:c:n"}, spec: {signerName: a.b/c}}`,
			"a.b/c", "a.b/d", 0, []string{
				`metadata.name: Invalid value: "a.b:c:n": ClusterTrustBundle for signerName a.b/d must be named with prefix a.b:d:`,
				`spec.signerName: Invalid value: "a.b/d": field is immutable`,
			}},
		{"migration", `{apiVersion: storagemigration.k8s.io/v1, kind: StorageVersionMigration, metadata: {name: m}, spec: {resource: {resource: a}}}`,
			"resource: a", "resource: b", 0, []string{`spec: Invalid value: {"Resource":{"group":"","resource":"b"}}: field is immutable`}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r, old, _ := createFromYAML(t, tc.old)
			old.SetResourceVersion("1")
			_, obj, _ := createFromYAML(t, strings.Replace(tc.old, tc.was, tc.is, 1))
			obj.SetResourceVersion("1")
			r.Update.Prepare(ctx, obj, old)
			got := formatAll(r.Update.Validate(ctx, obj, old))
			ok := len(got) == len(tc.want)
			for i := 0; ok && i < len(got); i++ {
				ok = strings.HasPrefix(got[i], tc.want[i])
			}
			if !ok {
				t.Errorf("got:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(tc.want, "\n"))
			}
			if obj.GetGeneration() != tc.generation {
				t.Errorf("generation %d", obj.GetGeneration())
			}
		})
	}
}

// TestRevisionRequired checks which kinds require a resourceVersion on update.
func TestRevisionRequired(t *testing.T) {
	want := []string{
		"apiservices", "clustertrustbundles", "csidrivers", "csinodes", "csistoragecapacities", "customresourcedefinitions",
		"devicetaintrules", "leases", "mutatingadmissionpolicies", "mutatingadmissionpolicybindings", "mutatingwebhookconfigurations",
		"podcertificaterequests", "poddisruptionbudgets", "runtimeclasses", "storageversionmigrations",
		"validatingadmissionpolicies", "validatingadmissionpolicybindings", "validatingwebhookconfigurations", "volumeattachments",
	}
	var got []string
	for _, r := range Resources() {
		if !r.AllowUnconditionalUpdate {
			got = append(got, r.Plural)
		}
	}
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("need a revision: %q, want %q", got, want)
	}
}
