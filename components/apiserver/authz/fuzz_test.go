package authz

import (
	"testing"

	authorizationcel "k8s.io/apiserver/pkg/authorization/cel"
)

// FuzzAuthorizationConfiguration parses arbitrary files, including CEL match conditions.
func FuzzAuthorizationConfiguration(f *testing.F) {
	const head = "{apiVersion: apiserver.config.k8s.io/v1, kind: AuthorizationConfiguration, authorizers: ["
	f.Add(head + "{type: Node, name: node}, {type: RBAC, name: rbac}]}")
	f.Add(head + `{type: Webhook, name: w, webhook: {authorizedTTL: 5m, unauthorizedTTL: 30s, timeout: 3s, subjectAccessReviewVersion: v1, matchConditionSubjectAccessReviewVersion: v1, failurePolicy: Deny, connectionInfo: {type: KubeConfigFile, kubeConfigFile: /a}, matchConditions: [{expression: "request.user == 'a' && has(request.resourceAttributes)"}]}}]}`)
	f.Add(head + "{type: Webhook, name: w, webhook: {matchConditions: [{expression: '((((((((('}]}}]}")
	f.Add(head + "null]}")
	compiler := authorizationcel.NewDefaultCompiler()
	f.Fuzz(func(_ *testing.T, text string) {
		_, _ = parseConfiguration([]byte(text), compiler)
	})
}
