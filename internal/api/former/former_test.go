package former_test

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	rbacv1alpha1 "k8s.io/api/rbac/v1alpha1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"

	"hyperkube/internal/api"
	"hyperkube/internal/api/catalog"
	"hyperkube/internal/api/former"
)

// TestMovedFields checks that in versions without a reader no field was moved or removed.
func TestMovedFields(t *testing.T) {
	present := map[string]*api.Resource{}
	for _, r := range catalog.Resources() {
		if r.StoredAs == nil && !r.Review {
			present[r.Kind] = r
		}
	}
	// Kinds that were moved between groups.
	groups := map[string]bool{"extensions/apps": true, "extensions/networking.k8s.io": true, "events.k8s.io/": true}
	for gvk, old := range scheme.Scheme.AllKnownTypes() {
		r := present[gvk.Kind]
		if r == nil || gvk.Version == runtime.APIVersionInternal || gvk.Group != r.Group && !groups[gvk.Group+"/"+r.Group] || former.Differs(r.GVK(), gvk.GroupVersion()) {
			continue
		}
		sameFields(t, gvk.String(), old, reflect.TypeOf(r.New()).Elem(), map[reflect.Type]bool{})
	}
}

// removedFields contains fields that v1 does not have, because their content is in the stub request.
var removedFields = map[string]bool{"PKIXPublicKey": true, "ProofOfPossession": true}

func sameFields(t *testing.T, at string, old, now reflect.Type, seen map[reflect.Type]bool) {
	t.Helper()
	for old.Kind() == reflect.Pointer {
		old = old.Elem()
	}
	for now.Kind() == reflect.Pointer {
		now = now.Elem()
	}
	if old == now || seen[old] {
		return
	}
	seen[old] = true
	if old.Kind() != now.Kind() {
		t.Errorf("%s: %s is now %s", at, old, now)
		return
	}
	switch old.Kind() {
	case reflect.Slice:
		sameFields(t, at, old.Elem(), now.Elem(), seen)
	case reflect.Map:
		sameFields(t, at, old.Key(), now.Key(), seen)
		sameFields(t, at, old.Elem(), now.Elem(), seen)
	case reflect.Struct:
		for i := range old.NumField() {
			f := old.Field(i)
			n, ok := now.FieldByName(f.Name)
			if !ok && removedFields[f.Name] {
				continue
			}
			if !ok {
				t.Errorf("%s.%s was removed", at, f.Name)
				continue
			}
			name := func(f reflect.StructField) string { return strings.Split(f.Tag.Get("json"), ",")[0] }
			number := func(f reflect.StructField) string {
				wire, rest, _ := strings.Cut(f.Tag.Get("protobuf"), ",")
				no, _, _ := strings.Cut(rest, ",")
				return wire + " " + no
			}
			if name(f) != name(n) || number(f) != number(n) {
				t.Errorf("%s.%s: %s is now %s", at, f.Name, f.Tag, n.Tag)
			}
			sameFields(t, at+"."+f.Name, f.Type, n.Type, seen)
		}
	}
}

func TestDecode(t *testing.T) {
	for _, test := range []struct {
		name, stored, json string
		now                api.Object
		kind               schema.GroupVersionKind
		want               string
	}{
		{"rules of v1alpha1", "rbac.authorization.k8s.io/v1alpha1", `{"rules":[{"verbs":["get"],"apiGroups":["g"],"resources":["r"],"resourceNames":["n"]}]}`,
			&rbacv1.ClusterRole{}, rbacv1.SchemeGroupVersion.WithKind("ClusterRole"),
			`{"metadata":{},"rules":[{"verbs":["get"],"apiGroups":["g"],"resources":["r"],"resourceNames":["n"]}]}`},
		{"all users", "rbac.authorization.k8s.io/v1alpha1", `{"subjects":[{"kind":"User","name":"*"},{"kind":"ServiceAccount","name":"a","namespace":"b","apiVersion":"v1"}],"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"c"}}`,
			&rbacv1.ClusterRoleBinding{}, rbacv1.SchemeGroupVersion.WithKind("ClusterRoleBinding"),
			`{"metadata":{},"subjects":[{"kind":"Group","apiGroup":"rbac.authorization.k8s.io","name":"system:authenticated"},{"kind":"ServiceAccount","name":"a","namespace":"b"}],"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"c"}}`},
		{"no pods", "policy/v1beta1", `{"spec":{"selector":{}}}`, &policyv1.PodDisruptionBudget{}, policyv1.SchemeGroupVersion.WithKind("PodDisruptionBudget"),
			`{"metadata":{},"spec":{"selector":{"matchExpressions":[{"key":"pdb.kubernetes.io/deprecated-v1beta1-empty-selector-match","operator":"Exists"}]}},"status":{"disruptionsAllowed":0,"currentHealthy":0,"desiredHealthy":0,"expectedPods":0}}`},
		{"all pods", "policy/v1beta1", `{"spec":{"selector":{"matchExpressions":[{"key":"pdb.kubernetes.io/deprecated-v1beta1-empty-selector-match","operator":"DoesNotExist"}]}}}`,
			&policyv1.PodDisruptionBudget{}, policyv1.SchemeGroupVersion.WithKind("PodDisruptionBudget"),
			`{"metadata":{},"spec":{"selector":{}},"status":{"disruptionsAllowed":0,"currentHealthy":0,"desiredHealthy":0,"expectedPods":0}}`},
		{"shares with the former name", "flowcontrol.apiserver.k8s.io/v1beta2", `{"spec":{"type":"Limited","limited":{"assuredConcurrencyShares":7}}}`,
			&flowcontrolv1.PriorityLevelConfiguration{}, flowcontrolv1.SchemeGroupVersion.WithKind("PriorityLevelConfiguration"),
			`{"metadata":{},"spec":{"type":"Limited","limited":{"nominalConcurrencyShares":7,"limitResponse":{"type":""}}},"status":{}}`},
		{"zero shares", "flowcontrol.apiserver.k8s.io/v1beta3", `{"metadata":{"annotations":{"flowcontrol.k8s.io/v1beta3-preserve-zero-concurrency-shares":""}},"spec":{"type":"Limited","limited":{}}}`,
			&flowcontrolv1.PriorityLevelConfiguration{}, flowcontrolv1.SchemeGroupVersion.WithKind("PriorityLevelConfiguration"),
			`{"metadata":{},"spec":{"type":"Limited","limited":{"nominalConcurrencyShares":0,"limitResponse":{"type":""}}},"status":{}}`},
		{"an event of the other group", "events.k8s.io/v1", `{"regarding":{"name":"p"},"note":"text","reportingController":"c","eventTime":null}`,
			&corev1.Event{}, corev1.SchemeGroupVersion.WithKind("Event"),
			`{"metadata":{},"involvedObject":{"name":"p"},"message":"text","source":{},"firstTimestamp":null,"lastTimestamp":null,"eventTime":null,"reportingComponent":"c","reportingInstance":""}`},
		{"an empty DaemonSet", "apps/v1", `{}`, &appsv1.DaemonSet{}, appsv1.SchemeGroupVersion.WithKind("DaemonSet"),
			`{"metadata":{"annotations":{"deprecated.daemonset.template.generation":"0"}},"spec":{"selector":null,"template":{"metadata":{},"spec":{"containers":null}},"updateStrategy":{}},"status":{"currentNumberScheduled":0,"numberMisscheduled":0,"desiredNumberScheduled":0,"numberReady":0}}`},
	} {
		t.Run(test.name, func(t *testing.T) {
			version, err := schema.ParseGroupVersion(test.stored)
			if err != nil {
				t.Fatal(err)
			}
			if err := former.Decode(test.kind, version, test.now, func(into runtime.Object) error { return json.Unmarshal([]byte(test.json), into) }); err != nil {
				t.Fatal(err)
			}
			got, err := json.Marshal(test.now)
			if err != nil {
				t.Fatal(err)
			}
			if string(got) != test.want {
				t.Errorf("got  %s\nwant %s", got, test.want)
			}
		})
	}
}

// TestRulesInProtobuf checks that rules with the old protobuf field numbers are decoded.
func TestRulesInProtobuf(t *testing.T) {
	old := &rbacv1alpha1.Role{Rules: []rbacv1alpha1.PolicyRule{{Verbs: []string{"get"}, APIGroups: []string{"g"}, Resources: []string{"r"}, ResourceNames: []string{"n"}}}}
	data, err := old.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	now := &rbacv1.Role{}
	if err := former.Decode(rbacv1.SchemeGroupVersion.WithKind("Role"), rbacv1alpha1.SchemeGroupVersion, now, func(into runtime.Object) error {
		return into.(interface{ Unmarshal(data []byte) error }).Unmarshal(data)
	}); err != nil {
		t.Fatal(err)
	}
	want := []rbacv1.PolicyRule{{Verbs: []string{"get"}, APIGroups: []string{"g"}, Resources: []string{"r"}, ResourceNames: []string{"n"}}}
	if !reflect.DeepEqual(now.Rules, want) {
		t.Errorf("got %v", now.Rules)
	}
}

func TestUnknown(t *testing.T) {
	err := former.Decode(schema.GroupVersionKind{Group: "autoscaling", Version: "v2", Kind: "HorizontalPodAutoscaler"}, schema.GroupVersion{Group: "autoscaling", Version: "v2beta1"}, nil, nil)
	if want := `no kind "HorizontalPodAutoscaler" is registered for version "autoscaling/v2beta1" in scheme "pkg/runtime/scheme.go:111"`; err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

// FuzzDecode checks that arbitrary stored data results in an object or an error.
func FuzzDecode(f *testing.F) {
	type pair struct {
		present schema.GroupVersionKind
		stored  schema.GroupVersion
		make    func() api.Object
	}
	var pairs []pair
	for _, r := range catalog.Resources() {
		for gvk := range scheme.Scheme.AllKnownTypes() {
			if gvk.Kind == r.Kind && former.Differs(r.GVK(), gvk.GroupVersion()) {
				pairs = append(pairs, pair{r.GVK(), gvk.GroupVersion(), r.New})
			}
		}
	}
	f.Add(uint8(0), []byte(`{"spec":{"rules":[{"http":{"paths":[{"backend":{"servicePort":"a"}}]}}],"backend":{}}}`))
	f.Add(uint8(1), []byte(`{"spec":{"devices":[{"name":"a"},{"basic":{"capacity":{"a":{"value":"1"}}}}]}}`))
	f.Fuzz(func(_ *testing.T, which uint8, data []byte) {
		p := pairs[int(which)%len(pairs)]
		_ = former.Decode(p.present, p.stored, p.make(), func(into runtime.Object) error { return json.Unmarshal(data, into) })
	})
}
