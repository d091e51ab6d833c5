package admissionregistration

import (
	admissionv1 "k8s.io/api/admissionregistration/v1"

	"hyperkube/internal/api"
)

// defaultRule sets the scope of a rule to "*" if it is not set.
func defaultRule(r *admissionv1.Rule) {
	api.SetDefault(&r.Scope, admissionv1.AllScopes)
}

// defaultClientConfig sets the port of a webhook's Service to 443 if it is not set.
func defaultClientConfig(c *admissionv1.WebhookClientConfig) {
	if c.Service != nil {
		api.SetDefault(&c.Service.Port, 443)
	}
}

// defaultMatchResources sets the defaults of the match resources of a policy or binding, which may be nil: the match
// policy Equivalent, and selectors and scopes that match everything.
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
