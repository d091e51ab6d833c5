package catalog_test

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/yaml"

	"hyperkube/internal/api"
	"hyperkube/internal/api/catalog"
)

// TestValidationMessages checks validation errors of invalid objects. Messages, fields and order
// are those of upstream, which were recorded by sending the same objects to kube-apiserver.
func TestValidationMessages(t *testing.T) {
	kinds := map[string]*api.Resource{}
	for _, r := range catalog.Resources() {
		kinds[r.Plural+"."+r.Group] = r
	}
	for _, test := range []struct {
		name, resource string
		// old is empty on create.
		old, object string
		want        string
	}{
		{
			"declarative errors come last", "ingressclasses.networking.k8s.io", "",
			`spec: {controller: a.io/b, parameters: {scope: Namespace}}`,
			"spec.parameters.namespace: Required value: `parameters.scope` is set to 'Namespace' | spec.parameters.kind: Required value | spec.parameters.name: Required value",
		},
		{
			"a backend's names fit into paths", "ingresses.networking.k8s.io", "",
			`spec: {defaultBackend: {resource: {kind: a/b, name: nn}}}`,
			`spec.defaultBackend.resource.kind: Invalid value: "a/b": may not contain '/'`,
		},
		{
			"an empty backend", "ingresses.networking.k8s.io", "",
			`spec: {defaultBackend: {}}`,
			`spec.defaultBackend: Invalid value: "": resource or service backend is required`,
		},
		{
			"the last of ports without the first", "networkpolicies.networking.k8s.io", "",
			`spec: {podSelector: {}, policyTypes: [X], ingress: [{ports: [{endPort: 90}]}]}`,
			"spec.ingress[0].ports[0].endPort: Invalid value: 90: may not be specified when `port` is not specified | spec.policyTypes[0]: Unsupported value: \"X\": supported values: \"Ingress\", \"Egress\"",
		},
		{
			"a stored IP block", "networkpolicies.networking.k8s.io",
			`spec: {podSelector: {}, ingress: [{from: [{ipBlock: {cidr: 010.0.0.0/8}}]}]}`,
			`spec: {podSelector: {}, egress: [{to: [{ipBlock: {cidr: 010.0.0.0/8}}]}]}`,
			"",
		},
		{
			"a stored selector that is not valid any more: daemonsets", "daemonsets.apps",
			`spec: {selector: {matchLabels: {a: b}, matchExpressions: [{key: z, operator: NotIn, values: [-b]}]}, template: {metadata: {labels: {a: b}}, spec: {containers: [{name: c, image: x}]}}}`,
			`spec: {selector: {matchLabels: {a: b}, matchExpressions: [{key: z, operator: NotIn, values: [-b]}]}, template: {metadata: {labels: {a: b}}, spec: {containers: [{name: c, image: "z"}]}}}`,
			"",
		},
		{
			"a stored selector that is not valid any more: jobs", "jobs.batch",
			`spec: {manualSelector: true, parallelism: 1, selector: {matchLabels: {a: b}, matchExpressions: [{key: z, operator: NotIn, values: [-b]}]}, template: {metadata: {labels: {a: b}}, spec: {restartPolicy: Never, containers: [{name: c, image: x}]}}}`,
			`spec: {manualSelector: true, parallelism: 2, selector: {matchLabels: {a: b}, matchExpressions: [{key: z, operator: NotIn, values: [-b]}]}, template: {metadata: {labels: {a: b}}, spec: {restartPolicy: Never, containers: [{name: c, image: x}]}}}`,
			"",
		},
		{
			"a stored selector that is not valid any more: poddisruptionbudgets", "poddisruptionbudgets.policy",
			`spec: {minAvailable: 1, selector: {matchLabels: {a: b}, matchExpressions: [{key: z, operator: NotIn, values: [-b]}]}}`,
			`spec: {minAvailable: 2, selector: {matchLabels: {a: b}, matchExpressions: [{key: z, operator: NotIn, values: [-b]}]}}`,
			"",
		},
		{
			"a stored selector that is not valid any more: networkpolicies", "networkpolicies.networking.k8s.io",
			`spec: {podSelector: {matchLabels: {a: b}, matchExpressions: [{key: z, operator: NotIn, values: [-b]}]}}`,
			`spec: {podSelector: {matchLabels: {a: b}, matchExpressions: [{key: z, operator: NotIn, values: [-b]}]}, policyTypes: [Egress]}`,
			"",
		},
		{
			"a stored selector that is not valid any more: csistoragecapacities", "csistoragecapacities.storage.k8s.io",
			`storageClassName: a
nodeTopology: {matchLabels: {a: b}, matchExpressions: [{key: z, operator: NotIn, values: [-b]}]}`,
			`storageClassName: a
nodeTopology: {matchLabels: {a: b}, matchExpressions: [{key: z, operator: NotIn, values: [-b]}]}
capacity: 1Gi`,
			"",
		},
		{
			"an address with another parent", "ipaddresses.networking.k8s.io",
			`spec: {parentRef: {resource: services, name: a}}`,
			`spec: {parentRef: {resource: services}}`,
			"spec.parentRef.name: Required value | spec.parentRef: Invalid value: null: field is immutable",
		},
		{
			"a driver without tokens for secrets", "csidrivers.storage.k8s.io", "",
			`spec: {serviceAccountTokenInSecrets: true}`,
			"spec.serviceAccountTokenInSecrets: Invalid value: true: serviceAccountTokenInSecrets is set but no tokenRequests are specified",
		},
		{
			"a node's driver", "csinodes.storage.k8s.io", "",
			`spec: {drivers: [{name: d.io, nodeID: "", topologyKeys: [a, a]}]}`,
			`spec.drivers[0].nodeID: Required value | spec.drivers[0]: Duplicate value: "a"`,
		},
		{
			"a storage class update", "storageclasses.storage.k8s.io",
			`{provisioner: a.io/b, parameters: {a: b}}`,
			`{provisioner: a.io/c, parameters: {a: c}, reclaimPolicy: X}`,
			`reclaimPolicy: Unsupported value: "X": supported values: "Delete", "Retain" | provisioner: Invalid value: null: field is immutable | parameters: Invalid value: null: field is immutable | reclaimPolicy: Invalid value: null: field is immutable`,
		},
		{
			"empty topologies", "storageclasses.storage.k8s.io", "",
			`{provisioner: a.io/b, allowedTopologies: [{}]}`,
			`allowedTopologies[0].matchLabelExpressions: Duplicate value: ""`,
		},
		{
			"an inline volume of an attachment", "volumeattachments.storage.k8s.io", "",
			`spec: {attacher: A_b, nodeName: nn, source: {inlineVolumeSpec: {accessModes: [ReadWriteOnce], capacity: {storage: 1Gi}, csi: {driver: d.io, volumeHandle: h}}}}`,
			`spec.source.inlineVolumeSpec.capacity: Forbidden: may not be specified in the context of inline volumes | spec.attacher: Invalid value: "A_b": an RFC 1123 subdomain`,
		},
		{
			"a volume attributes class update", "volumeattributesclasses.storage.k8s.io",
			`{driverName: a.io, parameters: {a: b}}`, `{driverName: b.io, parameters: {a: b}}`,
			"driverName: Forbidden: updates to driverName are forbidden.",
		},
		{
			"rules", "clusterroles.rbac.authorization.k8s.io", "",
			`{rules: [{resources: [pods]}], aggregationRule: {clusterRoleSelectors: [{matchLabels: {a: "-"}}]}}`,
			`rules[0].apiGroups: Required value: resource rules must supply at least one api group | aggregationRule.clusterRoleSelectors[0].matchLabels: Invalid value: "-": | aggregationRule.clusterRoleSelectors[0]: Invalid value: null: invalid label selector. | rules[0].verbs: Required value`,
		},
		{
			"another role", "rolebindings.rbac.authorization.k8s.io",
			`roleRef: {kind: Role, name: a}`, `roleRef: {kind: Role, name: b}`,
			`roleRef: Invalid value: {"APIGroup":"rbac.authorization.k8s.io","Kind":"Role","Name":"b"}: field is immutable`,
		},
		{
			"a signer", "clustertrustbundles.certificates.k8s.io", "",
			`{metadata: {name: "A.io:b:x"}, spec: {signerName: A.io/b}}`,
			`spec.signerName: Invalid value: "A.io": validating label "A": | spec.trustBundle`,
		},
		{
			"endpoints without addresses", "endpointslices.discovery.k8s.io", "",
			`{addressType: IPv4, endpoints: [{}, {addresses: ["fd00::1"]}]}`,
			`endpoints[1].addresses: Invalid value: "fd00::1": must be an IPv4 address | endpoints[0].addresses: Required value`,
		},
		{
			"an immutable event", "events.events.k8s.io",
			`{reportingController: a.io/c, reportingInstance: i, action: A, reason: R, type: Normal, note: nn, regarding: {kind: Pod, namespace: default}, eventTime: "2026-01-01T00:00:00.000000Z"}`,
			`{reportingController: a.io/c, reportingInstance: i, action: A, reason: R, type: Normal, note: m, regarding: {kind: Node, namespace: default}, eventTime: "2026-01-01T00:00:00.000000Z"}`,
			`involvedObject: Invalid value: {"Kind":"Node","Namespace":"default","Name":"","UID":"","APIVersion":"","ResourceVersion":"","FieldPath":""}: field is immutable | message: Invalid value: "m": field is immutable`,
		},
		{
			"a priority level without type", "prioritylevelconfigurations.flowcontrol.apiserver.k8s.io", "",
			`spec: {limited: {limitResponse: {queuing: {}}}}`,
			"spec.limited: Forbidden | spec.type: Required value | spec.limited.limitResponse.queuing: Forbidden | spec.limited.limitResponse.type: Required value",
		},
		{
			"overhead of invalid resources", "runtimeclasses.node.k8s.io", "",
			`{overhead: {podFixed: {bogus: 1}}}`,
			`overhead.limits[bogus]: Invalid value: "bogus": must be a standard resource type or fully qualified | overhead.limits[bogus]: Invalid value: "bogus": must be a standard resource for containers | handler: Required value`,
		},
		{
			"metadata of a claim template", "resourceclaimtemplates.resource.k8s.io", "",
			`spec: {metadata: {name: x}, spec: {}}`,
			"spec.metadata.name: Forbidden: cannot be set",
		},
		{
			"a binding without actions", "validatingadmissionpolicybindings.admissionregistration.k8s.io", "",
			`spec: {policyName: p, paramRef: {name: nn}, matchResources: {resourceRules: [{apiGroups: [a], apiVersions: [v1], resources: [b]}]}}`,
			"spec.paramRef.parameterNotFoundAction: Required value | spec.matchResources.resourceRules[0].operations: Required value | spec.validationActions: Required value",
		},
		{
			"a migration without resource name", "storageversionmigrations.storagemigration.k8s.io", "",
			`spec: {resource: {group: A, resource: B}}`,
			`spec.resource.resource: Invalid value: "B": a DNS-1035 label | spec.resource.group: Invalid value: "A": a lowercase RFC 1123 subdomain`,
		},
		{
			"a certificate request without key", "podcertificaterequests.certificates.k8s.io", "",
			`spec: {signerName: a.io/b, podName: p, podUID: a, serviceAccountName: s, serviceAccountUID: b, nodeName: nn, nodeUID: c, maxExpirationSeconds: 3600}`,
			"spec: Invalid value: exactly one of (stubPKCS10Request) or (pkixPublicKey, proofOfPossession) must be set",
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := kinds[test.resource]
			if r == nil {
				t.Fatalf("no %s", test.resource)
			}
			read := func(text string) api.Object {
				obj := r.New()
				data, err := yaml.YAMLToJSON([]byte(text))
				if err != nil {
					t.Fatal(err)
				}
				if err := json.Unmarshal(data, obj); err != nil {
					t.Fatal(err)
				}
				if obj.GetName() == "" {
					obj.SetName("10.0.0.1")
				}
				if r.Scope == api.Namespaced {
					obj.SetNamespace("default")
				}
				obj.SetResourceVersion("1")
				r.Default(obj)
				return obj
			}
			obj := read(test.object)
			var errs field.ErrorList
			if test.old == "" {
				errs = r.Validate(context.Background(), obj)
			} else {
				errs = r.Update.Validate(context.Background(), obj, read(test.old))
			}
			var want []string
			if test.want != "" {
				want = strings.Split(test.want, " | ")
			}
			for i, e := range errs {
				if i >= len(want) || !strings.HasPrefix(e.Error(), want[i]) {
					t.Errorf("%d: %s", i, e)
				}
			}
			if len(errs) != len(want) {
				t.Errorf("%d errors, want %d", len(errs), len(want))
			}
		})
	}
}
