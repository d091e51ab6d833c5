package audit

import (
	"testing"

	"k8s.io/apiserver/pkg/audit/policy"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
)

// FuzzPolicy parses arbitrary files as a policy and evaluates the policies that are accepted.
func FuzzPolicy(f *testing.F) {
	const head = "{apiVersion: audit.k8s.io/v1, kind: Policy, "
	f.Add(head + "rules: [{level: Metadata}]}")
	f.Add(head + `omitStages: [RequestReceived], rules: [{level: None, users: [a], verbs: [get], resources: [{group: "", resources: ["pods/*", "*/status"], resourceNames: [x]}], namespaces: [""]}, {level: RequestResponse, nonResourceURLs: ["/a*", "*"]}]}`)
	f.Add(head + "rules: [{level: Whatever}]}")
	f.Add("a: &a [x]\nb: &b [*a, *a]\nc: [*b, *b]")
	f.Fuzz(func(_ *testing.T, text string) {
		p, err := policy.LoadPolicyFromBytes([]byte(text))
		if err != nil {
			return
		}
		ask := policy.NewPolicyRuleEvaluator(p)
		who := &user.DefaultInfo{Name: "a", Groups: []string{"g"}}
		ask.EvaluatePolicyRule(&authorizer.AttributesRecord{User: who, Verb: "get", Resource: "pods", Subresource: "log", Name: "x", Namespace: "n", ResourceRequest: true})
		ask.EvaluatePolicyRule(&authorizer.AttributesRecord{User: who, Verb: "get", Path: "/metrics"})
	})
}
