package flowcontrol

import (
	"context"
	"fmt"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/apis/flowcontrol/bootstrap"
	"k8s.io/apiserver/pkg/util/shufflesharding"

	"hyperkube/internal/api"
	"hyperkube/internal/api/validate"
)

// Defaults and limits of PriorityLevelConfigurations: concurrency shares and the parameters of queues.
const (
	defaultShares      = int32(30)
	defaultHandSize    = int32(8)
	defaultQueues      = int32(64)
	defaultQueueLength = int32(50)
	maxQueues          = int32(10_000_000)
)

func priorityLevel() api.Kind[*flowcontrolv1.PriorityLevelConfiguration] {
	return api.Kind[*flowcontrolv1.PriorityLevelConfiguration]{
		Names:   api.Names{Kind: "PriorityLevelConfiguration", Plural: "prioritylevelconfigurations"},
		Group:   group,
		Version: version,
		Scope:   api.Cluster,
		New:     func() *flowcontrolv1.PriorityLevelConfiguration { return &flowcontrolv1.PriorityLevelConfiguration{} },
		NewList: func() runtime.Object { return &flowcontrolv1.PriorityLevelConfigurationList{} },
		Default: func(p *flowcontrolv1.PriorityLevelConfiguration) { defaultLevel(&p.Spec) },
		PrepareCreate: func(_ context.Context, p *flowcontrolv1.PriorityLevelConfiguration) {
			p.Status = flowcontrolv1.PriorityLevelConfigurationStatus{}
			p.Generation = 1
		},
		Validate: validateLevel,
		Update: api.KindUpdate[*flowcontrolv1.PriorityLevelConfiguration]{
			AsNew: true, NewFirst: true,
			Prepare: func(_ context.Context, p, old *flowcontrolv1.PriorityLevelConfiguration) {
				old.Status.DeepCopyInto(&p.Status)
				p.Generation = old.Generation
				if !apiequality.Semantic.DeepEqual(p.Spec, old.Spec) {
					p.Generation++
				}
			},
			Validate: func(ctx context.Context, p, _ *flowcontrolv1.PriorityLevelConfiguration) field.ErrorList {
				return validateLevel(ctx, p)
			},
			ResetFields: [][]string{{"status"}},
		},
		Views: map[string]api.KindUpdate[*flowcontrolv1.PriorityLevelConfiguration]{
			"status": {
				Prepare: func(_ context.Context, p, old *flowcontrolv1.PriorityLevelConfiguration) {
					keepMeta(&p.ObjectMeta, &old.ObjectMeta)
					old.Spec.DeepCopyInto(&p.Spec)
				},
				Validate: func(_ context.Context, p, _ *flowcontrolv1.PriorityLevelConfiguration) field.ErrorList {
					return validateLevelStatus(p)
				},
				ResetFields: [][]string{{"spec"}, {"metadata"}},
			},
		},
		Columns: levelColumns(),
		Row: func(p *flowcontrolv1.PriorityLevelConfiguration) []any {
			const none = "<none>"
			var shares, queues, hand, length any = none, none, none, none
			if l := p.Spec.Limited; l != nil {
				if l.NominalConcurrencyShares != nil {
					shares = int64(*l.NominalConcurrencyShares)
				}
				if q := l.LimitResponse.Queuing; q != nil {
					queues, hand, length = int64(q.Queues), int64(q.HandSize), int64(q.QueueLengthLimit)
				}
			}
			return []any{p.Name, string(p.Spec.Type), shares, queues, hand, length, api.Age(p.CreationTimestamp)}
		},
	}
}

func levelColumns() []metav1.TableColumnDefinition {
	queuing := flowcontrolv1.QueuingConfiguration{}.SwaggerDoc()
	return []metav1.TableColumnDefinition{
		api.NameColumn,
		api.Column("Type", "string", flowcontrolv1.PriorityLevelConfigurationSpec{}.SwaggerDoc()["type"]),
		api.Column("NominalConcurrencyShares", "string", flowcontrolv1.LimitedPriorityLevelConfiguration{}.SwaggerDoc()["nominalConcurrencyShares"]),
		api.Column("Queues", "string", queuing["queues"]),
		api.Column("HandSize", "string", queuing["handSize"]),
		api.Column("QueueLengthLimit", "string", queuing["queueLengthLimit"]),
		api.AgeColumn,
	}
}

// defaultLevel sets the missing concurrency shares and queue parameters of a priority level.
func defaultLevel(spec *flowcontrolv1.PriorityLevelConfigurationSpec) {
	if e := spec.Exempt; e != nil {
		api.SetDefault(&e.NominalConcurrencyShares, 0)
		api.SetDefault(&e.LendablePercent, 0)
	}
	l := spec.Limited
	if l == nil {
		return
	}
	api.SetDefault(&l.NominalConcurrencyShares, defaultShares)
	api.SetDefault(&l.LendablePercent, 0)
	if q := l.LimitResponse.Queuing; q != nil {
		if q.HandSize == 0 {
			q.HandSize = defaultHandSize
		}
		if q.Queues == 0 {
			q.Queues = defaultQueues
		}
		if q.QueueLengthLimit == 0 {
			q.QueueLengthLimit = defaultQueueLength
		}
	}
}

// zeroShares is the annotation with which v1beta3 clients set the concurrency shares to zero,
// because a zero field meant the default.
const zeroShares = "flowcontrol.k8s.io/v1beta3-preserve-zero-concurrency-shares"

func validateLevel(_ context.Context, p *flowcontrolv1.PriorityLevelConfiguration) field.ErrorList {
	var e validate.Errors
	// Servers with v1beta3 preserved a value of zero with this annotation. It is not valid in v1.
	if _, ok := p.Annotations[zeroShares]; ok {
		e.Forbidden(field.NewPath("metadata", "annotations"), fmt.Sprintf("annotation '%s' is forbidden", zeroShares))
	}
	path := field.NewPath("spec")
	checkLevelSpec(&e, path, p.Name, &p.Spec)
	for _, fixed := range bootstrap.MandatoryPriorityLevelConfigurations {
		if fixed.Name != p.Name {
			continue
		}
		// The exempt settings of the exempt level can be changed.
		want, except := fixed.Spec.DeepCopy(), ""
		if p.Name == flowcontrolv1.PriorityLevelConfigurationNameExempt {
			want.Exempt, except = p.Spec.Exempt, " except the 'spec.exempt' field"
		}
		if !apiequality.Semantic.DeepEqual(&p.Spec, want) {
			e.Invalid(path, p.Spec, fmt.Sprintf("spec of '%s'%s must equal the fixed value", p.Name, except))
		}
	}
	e.Add(validateLevelStatus(p))
	return e.List
}

func validateLevelStatus(p *flowcontrolv1.PriorityLevelConfiguration) field.ErrorList {
	var types []flowcontrolv1.PriorityLevelConfigurationConditionType
	for _, c := range p.Status.Conditions {
		types = append(types, c.Type)
	}
	return validateConditions(types, field.NewPath("status"))
}

// checkLevelSpec validates the spec of the priority level name. The type is Exempt for the level "exempt" and Limited
// for all others, and only the field of the type may be set.
func checkLevelSpec(e *validate.Errors, path *field.Path, name string, spec *flowcontrolv1.PriorityLevelConfigurationSpec) {
	const exempt, limited = flowcontrolv1.PriorityLevelEnablementExempt, flowcontrolv1.PriorityLevelEnablementLimited
	if (name == flowcontrolv1.PriorityLevelConfigurationNameExempt) != (spec.Type == exempt) {
		e.Invalid(path.Child("type"), spec.Type, "must be 'Exempt' if and only if `name` is 'exempt'")
	}
	switch spec.Type {
	case exempt:
		if spec.Exempt != nil {
			at := path.Child("exempt")
			checkShares(e, at.Child("nominalConcurrencyShares"), spec.Exempt.NominalConcurrencyShares)
			checkPercent(e, at.Child("lendablePercent"), spec.Exempt.LendablePercent)
		}
	case limited:
		if spec.Limited != nil {
			checkLimited(e, path.Child("limited"), spec.Limited)
		}
	case "":
	default:
		validate.OneOf(e, path.Child("type"), spec.Type, exempt, limited)
	}
	// Declarative validation of the union: the type selects the member.
	if spec.Exempt != nil && spec.Type != exempt {
		e.Declared(field.Forbidden(path.Child("exempt"), ""))
	}
	switch {
	case spec.Limited != nil && spec.Type != limited:
		e.Declared(field.Forbidden(path.Child("limited"), ""))
	case spec.Limited == nil && spec.Type == limited:
		e.Declared(field.Required(path.Child("limited"), ""))
	}
	if spec.Type == "" {
		e.Declared(field.Required(path.Child("type"), ""))
	}
	if spec.Limited != nil {
		declaredResponse(e, path.Child("limited", "limitResponse"), &spec.Limited.LimitResponse)
	}
}

// declaredResponse checks the rules of a limit response that upstream validates declaratively: the
// type is required, and queuing is set if and only if the type is Queue.
func declaredResponse(e *validate.Errors, path *field.Path, r *flowcontrolv1.LimitResponse) {
	const queue = flowcontrolv1.LimitResponseTypeQueue
	switch {
	case r.Queuing != nil && r.Type != queue:
		e.Declared(field.Forbidden(path.Child("queuing"), ""))
	case r.Queuing == nil && r.Type == queue:
		e.Declared(field.Required(path.Child("queuing"), ""))
	}
	if r.Type == "" {
		e.Declared(field.Required(path.Child("type"), ""))
	}
}

func checkShares(e *validate.Errors, path *field.Path, n *int32) {
	if n != nil && *n < 0 {
		e.Invalid(path, *n, "must be a non-negative integer")
	}
}

func checkPercent(e *validate.Errors, path *field.Path, n *int32) {
	if n != nil && (*n < 0 || *n > 100) {
		e.Invalid(path, *n, "must be between 0 and 100, inclusive")
	}
}

func checkLimited(e *validate.Errors, path *field.Path, l *flowcontrolv1.LimitedPriorityLevelConfiguration) {
	checkShares(e, path.Child("nominalConcurrencyShares"), l.NominalConcurrencyShares)
	at, r := path.Child("limitResponse"), &l.LimitResponse
	switch r.Type {
	case flowcontrolv1.LimitResponseTypeReject, "":
	case flowcontrolv1.LimitResponseTypeQueue:
		if r.Queuing != nil {
			checkQueuing(e, at.Child("queuing"), r.Queuing)
		}
	default:
		validate.OneOf(e, at.Child("type"), r.Type, flowcontrolv1.LimitResponseTypeQueue, flowcontrolv1.LimitResponseTypeReject)
	}
	checkPercent(e, path.Child("lendablePercent"), l.LendablePercent)
	if n := l.BorrowingLimitPercent; n != nil && *n < 0 {
		e.Invalid(path.Child("borrowingLimitPercent"), *n, "if specified, must be a non-negative integer")
	}
}

func checkQueuing(e *validate.Errors, path *field.Path, q *flowcontrolv1.QueuingConfiguration) {
	if q.QueueLengthLimit <= 0 {
		e.Invalid(path.Child("queueLengthLimit"), q.QueueLengthLimit, "must be positive")
	}
	at := path.Child("queues")
	switch {
	case q.Queues <= 0:
		e.Invalid(at, q.Queues, "must be positive")
	case q.Queues > maxQueues:
		e.Invalid(at, q.Queues, fmt.Sprintf("must not be greater than %d", maxQueues))
	}
	at = path.Child("handSize")
	switch {
	case q.HandSize <= 0:
		e.Invalid(at, q.HandSize, "must be positive")
	case q.HandSize > q.Queues:
		e.Invalid(at, q.HandSize, fmt.Sprintf("should not be greater than queues (%d)", q.Queues))
	default:
		if bits := shufflesharding.RequiredEntropyBits(int(q.Queues), int(q.HandSize)); bits > shufflesharding.MaxHashBits {
			e.Invalid(at, q.HandSize, fmt.Sprintf("required entropy bits of deckSize %d and handSize %d should not be greater than %d",
				q.Queues, q.HandSize, shufflesharding.MaxHashBits))
		}
	}
}
