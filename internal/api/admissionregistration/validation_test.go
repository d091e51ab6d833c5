package admissionregistration

import (
	"context"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/yaml"

	"hyperkube/internal/api"
)

func parse(t *testing.T, text string) (*api.Resource, api.Object) {
	t.Helper()
	var meta metav1.TypeMeta
	if err := yaml.Unmarshal([]byte(text), &meta); err != nil {
		t.Fatal(err)
	}
	for _, r := range Resources() {
		if r.Kind == meta.Kind {
			obj := r.New()
			if err := yaml.UnmarshalStrict([]byte(text), obj); err != nil {
				t.Fatal(err)
			}
			r.Default(obj)
			return r, obj
		}
	}
	t.Fatalf("no kind %s", meta.Kind)
	return nil, nil
}

func texts(errs field.ErrorList) []string {
	var out []string
	for _, e := range errs {
		// Ignore the source excerpt of the compiler after the first line.
		out = append(out, strings.SplitN(e.Error(), "\n", 2)[0])
	}
	return out
}

const (
	webhookText = `{kind: ValidatingWebhookConfiguration, metadata: {name: w}, webhooks: [{name: a.example.com,
clientConfig: {service: {namespace: x, name: y}}, sideEffects: None, admissionReviewVersions: [v1],
rules: [{apiGroups: [""], apiVersions: [v1], resources: [pods], operations: [CREATE]}]}]}`
	policyText = `{kind: ValidatingAdmissionPolicy, metadata: {name: p}, spec: {
matchConstraints: {resourceRules: [{apiGroups: [""], apiVersions: [v1], resources: [pods], operations: [CREATE]}]},
validations: [{expression: "object.x == 1"}]}}`
	mutatingText = `{kind: MutatingAdmissionPolicy, metadata: {name: p}, spec: {
matchConstraints: {resourceRules: [{apiGroups: [""], apiVersions: [v1], resources: [pods], operations: [CREATE]}]},
reinvocationPolicy: Never, mutations: [{patchType: JSONPatch, jsonPatch: {expression: '[JSONPatch{op: "remove", path: "/x"}]'}}]}}`
	bindingText = `{kind: ValidatingAdmissionPolicyBinding, metadata: {name: b}, spec: {policyName: p, validationActions: [Deny]}}`
)

func edit(text string, pairs ...string) string { return strings.NewReplacer(pairs...).Replace(text) }

func TestCreate(t *testing.T) {
	for _, test := range []struct {
		name, text string
		want       []string
	}{
		{"webhook", webhookText, nil},
		{"mutating webhook", edit(webhookText, "Validating", "Mutating"), nil},
		{"empty webhook", `{kind: MutatingWebhookConfiguration, metadata: {name: w}, webhooks: [{name: a, timeoutSeconds: 31, reinvocationPolicy: Often}]}`, []string{
			`webhooks[0].name: Invalid value: "a": should be a domain with at least three segments separated by dots`,
			"webhooks[0].sideEffects: Required value: must specify one of None, NoneOnDryRun",
			"webhooks[0].timeoutSeconds: Invalid value: 31: the timeout value must be between 1 and 30 seconds",
			`webhooks[0].reinvocationPolicy: Unsupported value: "Often": supported values: "IfNeeded", "Never"`,
			"webhooks[0].clientConfig: Required value: exactly one of url or service is required",
			"webhooks[0].admissionReviewVersions: Required value: must specify one of v1, v1beta1",
		}},
		{"rules", edit(webhookText, "[pods]", `["*", pods, "a/*", a/b]`, "[CREATE]", `["*", EAT]`), []string{
			`webhooks[0].rules[0].operations: Invalid value: ["*","EAT"]: if '*' is present, must not specify other operations`,
			`webhooks[0].rules[0].operations[1]: Unsupported value: "EAT": supported values: "*", "CONNECT", "CREATE", "DELETE", "UPDATE"`,
			`webhooks[0].rules[0].resources[3]: Invalid value: "a/b": if 'a/*' is present, must not specify a/b`,
			`webhooks[0].rules[0].resources: Invalid value: ["*","pods","a/*","a/b"]: if '*' is present, must not specify other resources without subresources`,
		}},
		{"url", edit(webhookText, "service: {namespace: x, name: y}", `url: "http://x/"`), []string{
			`webhooks[0].clientConfig.url: Invalid value: "http": 'https' is the only allowed URL scheme; desired format: https://host[/path]`,
		}},
		{"condition", edit(webhookText, "sideEffects", `matchConditions: [{name: "a b", expression: "1"}, {name: "", expression: "params.x"}], sideEffects`), []string{
			`webhooks[0].matchConditions[0].expression: Invalid value: "1": must evaluate to bool but got int`,
			`webhooks[0].matchConditions[0].name: Invalid value: "a b": name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')`,
			`webhooks[0].matchConditions[1].expression: Invalid value: "params.x": compilation failed: ERROR: <input>:1:1: undeclared reference to 'params' (in container '')`,
			"webhooks[0].matchConditions[1].name: Required value",
		}},
		{"policy", policyText, nil},
		{"policy with variables", edit(policyText, "validations", `variables: [{name: a, expression: "1"}, {name: b, expression: "variables.a + 1"}], validations`, "object.x == 1", "variables.b == 2"), nil},
		{"empty policy", `{kind: ValidatingAdmissionPolicy, metadata: {name: p}, spec: {paramKind: {apiVersion: a/b/c}}}`, []string{
			`spec.paramKind.apiVersion: Invalid value: "a/b/c": unexpected GroupVersion string: a/b/c`,
			"spec.paramKind.kind: Required value",
			"spec.matchConstraints: Required value",
			"spec.validations: Required value: validations or auditAnnotations must contain at least one item",
			"spec.auditAnnotations: Required value: validations or auditAnnotations must contain at least one item",
		}},
		{"validation", edit(policyText, `{expression: "object.x == 1"}`, `{expression: "object.x +", message: "a\nb", messageExpression: "1", reason: Because}`), []string{
			`spec.validations[0].expression: Invalid value: "object.x +": compilation failed: ERROR: <input>:1:11: Syntax error: mismatched input '<EOF>' expecting {'[', '{', '(', '.', '-', '!', 'true', 'false', 'null', NUM_FLOAT, NUM_INT, NUM_UINT, STRING, BYTES, IDENTIFIER}`,
			`spec.validations[0].messageExpression: Invalid value: "1": must evaluate to string but got int`,
			`spec.validations[0].message: Invalid value: "a\nb": must not contain line breaks`,
			`spec.validations[0].reason: Unsupported value: "Because": supported values: "Forbidden", "Invalid", "RequestEntityTooLarge"`,
		}},
		{"annotations", edit(policyText, "validations", `auditAnnotations: [{key: a, valueExpression: "1"}, {key: a, valueExpression: ""}], validations`), []string{
			`spec.auditAnnotations[0].valueExpression: Invalid value: "1": must evaluate to one of [string null_type] but got int`,
			"spec.auditAnnotations[1].valueExpression: Required value: valueExpression is not specified",
			`spec.auditAnnotations[1].key: Duplicate value: "a"`,
		}},
		{"mutating policy", mutatingText, nil},
		{"no mutation", edit(mutatingText, "[CREATE]", "[DELETE]", "jsonPatch: {", "applyConfiguration: {"), []string{
			`spec.matchConstraints.resourceRules.operations: Unsupported value: "DELETE": supported values: "*", "CONNECT", "CREATE", "UPDATE"`,
			"spec.mutations[0].jsonPatch: Required value: must be specified when patchType is JSONPatch",
			`spec.mutations[0].applyConfiguration: Invalid value: "{applyConfiguration}": must not be specified when patchType is JSONPatch`,
		}},
		{"no reinvocation", edit(mutatingText, "reinvocationPolicy: Never, ", ""), []string{"spec.reinvocationPolicy: Required value"}},
		{"binding", bindingText, nil},
		{"bad binding", edit(bindingText, "policyName: p,", "paramRef: {},", "[Deny]", "[Deny, Warn, Sing, Deny]"), []string{
			"spec.paramRef: Required value: one of name or selector must be specified",
			"spec.paramRef.parameterNotFoundAction: Required value",
			`spec.validationActions[2]: Unsupported value: "Sing": supported values: "Audit", "Deny", "Warn"`,
			`spec.validationActions[3]: Duplicate value: "Deny"`,
			`spec.validationActions: Invalid value: ["Deny","Warn","Sing","Deny"]: must not contain both Deny and Warn (repeating the same validation failure information in the API response and headers serves no purpose)`,
			"spec.policyName: Required value",
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			r, obj := parse(t, test.text)
			if got := texts(r.Validate(context.Background(), obj)); !slices.Equal(got, test.want) {
				t.Errorf("got:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(test.want, "\n"))
			}
		})
	}
}

func TestUpdate(t *testing.T) {
	// An object that an older server has accepted.
	old := edit(webhookText, "sideEffects: None", `matchConditions: [{name: c, expression: "nonsense"}], sideEffects: Some`, "[v1],\nrules", "[v2],\nrules")
	for _, test := range []struct {
		name, old, new string
		generation     int64
		want           []string
	}{
		{"nothing", webhookText, webhookText, 1, nil},
		{"invalid values of the old object", old, edit(old, "[CREATE]", "[UPDATE]"), 2, nil},
		{"no worse", webhookText, old, 2, []string{
			`webhooks[0].sideEffects: Unsupported value: "Some": supported values: "None", "NoneOnDryRun"`,
			`webhooks[0].matchConditions[0].expression: Invalid value: "nonsense": compilation failed: ERROR: <input>:1:1: undeclared reference to 'nonsense' (in container '')`,
			`webhooks[0].admissionReviewVersions: Invalid value: ["v2"]: must include at least one of v1, v1beta1`,
		}},
		{"policy", policyText, edit(policyText, "== 1", "== 2"), 2, nil},
		{"label of a policy", policyText, edit(policyText, "{name: p}", "{name: p, labels: {a: b}}"), 1, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			ctx := context.Background()
			_, before := parse(t, test.old)
			r, obj := parse(t, test.new)
			r.PrepareCreate(ctx, before)
			for _, o := range []api.Object{before, obj} {
				o.SetUID("u")
				o.SetResourceVersion("1")
			}
			r.Update.Prepare(ctx, obj, before)
			if got := texts(r.Update.Validate(ctx, obj, before)); !slices.Equal(got, test.want) {
				t.Errorf("got:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(test.want, "\n"))
			}
			if obj.GetGeneration() != test.generation {
				t.Errorf("generation %d, want %d", obj.GetGeneration(), test.generation)
			}
		})
	}
}

func TestWarnings(t *testing.T) {
	r, obj := parse(t, edit(webhookText, `[""]`, "[authentication.k8s.io]", "[pods]", "[tokenreviews]"))
	want := "webhooks[0].rules[0]: tokenreviews.authentication.k8s.io is excluded from admission webhooks; this rule will have no effect"
	if got := r.Warnings(context.Background(), obj, nil); len(got) != 1 || got[0] != want {
		t.Errorf("warnings %q", got)
	}
}

func TestTables(t *testing.T) {
	for text, want := range map[string]string{
		webhookText: "1", policyText: "1 <unset>", mutatingText: "1 <unset>", bindingText: "p <unset>",
		edit(bindingText, "policyName", "paramRef: {name: m, namespace: x}, policyName"):          "p x/m",
		edit(policyText, "validations", "paramKind: {apiVersion: a/v1, kind: Limit},validations"): "1 a/v1/Limit",
	} {
		r, obj := parse(t, text)
		row := r.Row(obj)
		if len(row) != len(r.Columns) {
			t.Errorf("%d cells for %d columns", len(row), len(r.Columns))
		}
		var cells []string
		for _, c := range row[1 : len(row)-1] {
			cells = append(cells, strings.TrimSpace(yamlOf(c)))
		}
		if got := strings.Join(cells, " "); got != want {
			t.Errorf("%s: %q, want %q", r.Kind, got, want)
		}
	}
}

func yamlOf(v any) string {
	if s, ok := v.(string); ok {
		return s
	}
	out, _ := yaml.Marshal(v)
	return string(out)
}
