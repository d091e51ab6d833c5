package admissionregistration

import (
	admissionv1 "k8s.io/api/admissionregistration/v1"

	"hyperkube/internal/api"
)

func defaultRule(r *admissionv1.Rule) {
	api.SetDefault(&r.Scope, admissionv1.AllScopes)
}

func defaultClientConfig(c *admissionv1.WebhookClientConfig) {
	if c.Service != nil {
		api.SetDefault(&c.Service.Port, 443)
	}
}

func defaultMatchResources(m *admissionv1.MatchResources) {
	if m == nil {
		return
	}
	api.SetDefault(&m.MatchPolicy, admissionv1.Equivalent)
	selectAll(&m.NamespaceSelector)
	selectAll(&m.ObjectSelector)
	for _, rules := range [][]admissionv1.NamedRuleWithOperations{m.ResourceRules, m.ExcludeResourceRules} {
		for i := range rules {
			defaultRule(&rules[i].Rule)
		}
	}
}
