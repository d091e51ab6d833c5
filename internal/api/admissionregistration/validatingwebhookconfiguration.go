package admissionregistration

import (
	"context"
	"reflect"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"hyperkube/internal/api"
)

func validatingWebhookConfiguration() api.Kind[*admissionv1.ValidatingWebhookConfiguration] {
	type configuration = admissionv1.ValidatingWebhookConfiguration
	return api.Kind[*configuration]{
		Names:   api.Names{Kind: "ValidatingWebhookConfiguration", Plural: "validatingwebhookconfigurations", Categories: []string{"api-extensions"}},
		Group:   group,
		Version: version,
		Scope:   api.Cluster,
		New:     func() *configuration { return &configuration{} },
		NewList: func() runtime.Object { return &admissionv1.ValidatingWebhookConfigurationList{} },

		AnyFinalizers: true,
		Default: func(c *configuration) {
			for i := range c.Webhooks {
				h := &c.Webhooks[i]
				api.SetDefault(&h.FailurePolicy, admissionv1.Fail)
				api.SetDefault(&h.MatchPolicy, admissionv1.Equivalent)
				selectAll(&h.NamespaceSelector)
				selectAll(&h.ObjectSelector)
				api.SetDefault(&h.TimeoutSeconds, 10)
				defaultClientConfig(&h.ClientConfig)
				for j := range h.Rules {
					defaultRule(&h.Rules[j].Rule)
				}
			}
		},
		PrepareCreate: firstGeneration[*configuration],
		Validate: func(_ context.Context, c *configuration) field.ErrorList {
			return append(validateHooks(validatingHooks(c.Webhooks), leniency{}), notStatic(c.Name)...)
		},
		Warnings: func(_ context.Context, c, _ *configuration) []string {
			return warnVirtual(validatingHooks(c.Webhooks))
		},
		ForbidUnconditionalUpdate: true,
		Update: api.KindUpdate[*configuration]{
			AsNew: true,
			Prepare: func(_ context.Context, c, old *configuration) {
				prepareGeneration(c, old, reflect.DeepEqual(c.Webhooks, old.Webhooks))
			},
			Validate: func(_ context.Context, c, old *configuration) field.ErrorList {
				hooks := validatingHooks(c.Webhooks)
				return validateHooks(hooks, leniencyOf(hooks, validatingHooks(old.Webhooks)))
			},
		},
		Columns: webhookColumns,
		Row: func(c *configuration) []any {
			return []any{c.Name, int64(len(c.Webhooks)), api.Age(c.CreationTimestamp)}
		},
	}
}
