package flowcontrol

import (
	"context"
	"strings"
	"testing"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apiserver/pkg/apis/flowcontrol/bootstrap"
	"sigs.k8s.io/yaml"

	"hyperkube/internal/api"
)

// check creates an object from YAML and returns the validation errors.
func check(t *testing.T, r *api.Resource, text string) string {
	t.Helper()
	obj := r.New()
	if err := yaml.UnmarshalStrict([]byte(text), obj); err != nil {
		t.Fatal(err)
	}
	ctx := context.Background()
	r.Default(obj)
	r.PrepareCreate(ctx, obj)
	obj.SetUID("u")
	var out []string
	for _, e := range r.Validate(ctx, obj) {
		out = append(out, e.Error())
	}
	return strings.Join(out, "\n")
}

func TestValidation(t *testing.T) {
	schema, level := flowSchema().Resource(), priorityLevel().Resource()
	const rule = `rules: [{subjects: [{kind: User, user: {name: a}}], nonResourceRules: [{verbs: [get], nonResourceURLs: [/a/*]}]}]`
	for _, c := range []struct {
		r          *api.Resource
		text, want string
	}{
		{schema, `{metadata: {name: a}, spec: {priorityLevelConfiguration: {name: x}, ` + rule + `}}`, ""},
		{schema, `{metadata: {name: a}, spec: {matchingPrecedence: 1}}`,
			"spec.matchingPrecedence: Invalid value: 1: only the schema named 'exempt' may have matchingPrecedence 1\n" +
				"spec.priorityLevelConfiguration.name: Required value: must reference a priority level"},
		{schema, `{metadata: {name: a}, spec: {matchingPrecedence: 10001, priorityLevelConfiguration: {name: x}}}`,
			"spec.matchingPrecedence: Invalid value: 10001: must not be greater than 10000"},
		{schema, `{metadata: {name: a}, spec: {priorityLevelConfiguration: {name: x}, rules: [{}]}}`,
			"spec.rules[0].subjects: Required value: subjects must contain at least one value\n" +
				"spec.rules[0]: Required value: at least one of resourceRules and nonResourceRules has to be non-empty"},
		{schema, `{metadata: {name: a}, spec: {priorityLevelConfiguration: {name: x}, rules: [{subjects: [{kind: Group, user: {name: b}}, {kind: X}],
			resourceRules: [{verbs: [fly], apiGroups: ["", "*"], resources: [x], namespaces: [A_]}]}]}}`,
			"spec.rules[0].subjects[0].group: Required value: group is required when subject kind is 'Group'\n" +
				"spec.rules[0].subjects[0].user: Forbidden: user is forbidden when subject kind is not 'User'\n" +
				`spec.rules[0].subjects[1].kind: Unsupported value: "X": supported values: "Group", "ServiceAccount", "User"` + "\n" +
				`spec.rules[0].resourceRules[0].verbs: Unsupported value: ["fly"]: supported values: "create", "delete", "deletecollection", "get", "list", "patch", "proxy", "update", "watch"` + "\n" +
				`spec.rules[0].resourceRules[0].apiGroups: Invalid value: ["","*"]: if '*' is present, must not specify other api groups` + "\n" +
				`spec.rules[0].resourceRules[0].namespaces[0]: Invalid value: "A_": each member of this list must be '*' or a DNS-1123 label; a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')`},
		{level, `{metadata: {name: a}, spec: {type: Limited, limited: {limitResponse: {type: Queue, queuing: {}}}}}`, ""},
		{level, `{metadata: {name: a}, spec: {type: Limited, limited: {nominalConcurrencyShares: -1, lendablePercent: 101, borrowingLimitPercent: -1, limitResponse: {type: Reject, queuing: {}}}}}`,
			"spec.limited.nominalConcurrencyShares: Invalid value: -1: must be a non-negative integer\n" +
				"spec.limited.lendablePercent: Invalid value: 101: must be between 0 and 100, inclusive\n" +
				"spec.limited.borrowingLimitPercent: Invalid value: -1: if specified, must be a non-negative integer\n" +
				"spec.limited.limitResponse.queuing: Forbidden"},
		{level, `{metadata: {name: a}, spec: {type: Limited, limited: {limitResponse: {type: Queue, queuing: {queues: 512, handSize: 8}}}}}`,
			"spec.limited.limitResponse.queuing.handSize: Invalid value: 8: required entropy bits of deckSize 512 and handSize 8 should not be greater than 60"},
		{level, `{metadata: {name: a}, spec: {type: Exempt}}`, "spec.type: Invalid value: \"Exempt\": must be 'Exempt' if and only if `name` is 'exempt'"},
		{level, `{metadata: {name: exempt}, spec: {type: Exempt, exempt: {nominalConcurrencyShares: 3}}}`, ""},
	} {
		if got := check(t, c.r, c.text); got != c.want {
			t.Errorf("%s:\ngot:\n%s\nwant:\n%s", c.text, got, c.want)
		}
	}
}

// TestBootstrap checks that upstream's bootstrap objects are defaulted and valid, so that
// defaulting does not change them.
func TestBootstrap(t *testing.T) {
	ctx := context.Background()
	schema, level := flowSchema(), priorityLevel()
	for _, s := range append(bootstrap.MandatoryFlowSchemas, bootstrap.SuggestedFlowSchemas...) {
		d := s.DeepCopy()
		schema.Default(d)
		if !apiequality.Semantic.DeepEqual(d, s) {
			t.Errorf("defaults change FlowSchema %s", s.Name)
		}
		if errs := schema.Validate(ctx, d); len(errs) > 0 {
			t.Errorf("FlowSchema %s: %v", s.Name, errs)
		}
	}
	for _, p := range append(bootstrap.MandatoryPriorityLevelConfigurations, bootstrap.SuggestedPriorityLevelConfigurations...) {
		d := p.DeepCopy()
		level.Default(d)
		if !apiequality.Semantic.DeepEqual(d, p) {
			t.Errorf("defaults change PriorityLevelConfiguration %s", p.Name)
		}
		if errs := level.Validate(ctx, d); len(errs) > 0 {
			t.Errorf("PriorityLevelConfiguration %s: %v", p.Name, errs)
		}
	}
}

func TestRows(t *testing.T) {
	s := &flowcontrolv1.FlowSchema{}
	s.Name, s.Spec.MatchingPrecedence = "a", 7
	if row := flowSchema().Row(s); row[2] != int64(7) || row[3] != "<none>" || row[5] != "?" {
		t.Errorf("unexpected row %v", row)
	}
	if row := priorityLevel().Row(bootstrap.MandatoryPriorityLevelConfigurationCatchAll); row[2] != int64(5) || row[3] != "<none>" {
		t.Errorf("unexpected row %v", row)
	}
}
