package flowcontrol

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/apis/flowcontrol/bootstrap"

	"hyperkube/internal/api"
	"hyperkube/internal/api/validate"
)

// defaultPrecedence is the matching precedence of FlowSchemas that specify none.
const defaultPrecedence = int32(1000)

func flowSchema() api.Kind[*flowcontrolv1.FlowSchema] {
	return api.Kind[*flowcontrolv1.FlowSchema]{
		Names:   api.Names{Kind: "FlowSchema", Plural: "flowschemas"},
		Group:   group,
		Version: version,
		Scope:   api.Cluster,
		New:     func() *flowcontrolv1.FlowSchema { return &flowcontrolv1.FlowSchema{} },
		NewList: func() runtime.Object { return &flowcontrolv1.FlowSchemaList{} },
		Default: func(s *flowcontrolv1.FlowSchema) {
			if s.Spec.MatchingPrecedence == 0 {
				s.Spec.MatchingPrecedence = defaultPrecedence
			}
		},
		PrepareCreate: func(_ context.Context, s *flowcontrolv1.FlowSchema) {
			s.Status = flowcontrolv1.FlowSchemaStatus{}
			s.Generation = 1
		},
		Validate: validateFlowSchema,
		Update: api.KindUpdate[*flowcontrolv1.FlowSchema]{
			AsNew: true, NewFirst: true,
			Prepare: func(_ context.Context, s, old *flowcontrolv1.FlowSchema) {
				old.Status.DeepCopyInto(&s.Status)
				s.Generation = old.Generation
				if !apiequality.Semantic.DeepEqual(s.Spec, old.Spec) {
					s.Generation++
				}
			},
			Validate: func(ctx context.Context, s, _ *flowcontrolv1.FlowSchema) field.ErrorList {
				return validateFlowSchema(ctx, s)
			},
			ResetFields: [][]string{{"status"}},
		},
		Views: map[string]api.KindUpdate[*flowcontrolv1.FlowSchema]{
			"status": {
				Prepare: func(_ context.Context, s, old *flowcontrolv1.FlowSchema) {
					keepMeta(&s.ObjectMeta, &old.ObjectMeta)
					old.Spec.DeepCopyInto(&s.Spec)
				},
				Validate: func(_ context.Context, s, _ *flowcontrolv1.FlowSchema) field.ErrorList {
					return validateFlowSchemaStatus(s)
				},
				ResetFields: [][]string{{"spec"}, {"metadata"}},
			},
		},
		Columns: []metav1.TableColumnDefinition{
			api.NameColumn,
			api.Column("PriorityLevel", "string", flowcontrolv1.PriorityLevelConfigurationReference{}.SwaggerDoc()["name"]),
			api.Column("MatchingPrecedence", "string", flowcontrolv1.FlowSchemaSpec{}.SwaggerDoc()["matchingPrecedence"]),
			api.Column("DistinguisherMethod", "string", flowcontrolv1.FlowSchemaSpec{}.SwaggerDoc()["distinguisherMethod"]),
			api.AgeColumn,
			api.Column("MissingPL", "string", "references a broken or non-existent PriorityLevelConfiguration"),
		},
		// Sort rows in matching order.
		RowOrder: func(a, b *flowcontrolv1.FlowSchema) int {
			return cmp.Or(cmp.Compare(a.Spec.MatchingPrecedence, b.Spec.MatchingPrecedence), cmp.Compare(a.Name, b.Name))
		},
		Row: func(s *flowcontrolv1.FlowSchema) []any {
			method, missing := "<none>", "?"
			if s.Spec.DistinguisherMethod != nil {
				method = string(s.Spec.DistinguisherMethod.Type)
			}
			for _, c := range s.Status.Conditions {
				if c.Type == flowcontrolv1.FlowSchemaConditionDangling {
					missing = string(c.Status)
				}
			}
			return []any{
				s.Name, s.Spec.PriorityLevelConfiguration.Name, int64(s.Spec.MatchingPrecedence), method,
				api.Age(s.CreationTimestamp), missing,
			}
		},
	}
}

func validateFlowSchema(_ context.Context, s *flowcontrolv1.FlowSchema) field.ErrorList {
	var e validate.Errors
	path := field.NewPath("spec")
	checkFlowSchemaSpec(&e, path, s.Name, &s.Spec)
	for _, fixed := range bootstrap.MandatoryFlowSchemas {
		if fixed.Name == s.Name && !apiequality.Semantic.DeepEqual(s.Spec, fixed.Spec) {
			e.Invalid(path, s.Spec, fmt.Sprintf("spec of '%s' must equal the fixed value", s.Name))
		}
	}
	e.Add(validateFlowSchemaStatus(s))
	return e.List
}

func validateFlowSchemaStatus(s *flowcontrolv1.FlowSchema) field.ErrorList {
	var types []flowcontrolv1.FlowSchemaConditionType
	for _, c := range s.Status.Conditions {
		types = append(types, c.Type)
	}
	return validateConditions(types, field.NewPath("status"))
}

// checkFlowSchemaSpec validates the spec of the FlowSchema name. Only the schema "exempt" may have the highest
// precedence, 1.
func checkFlowSchemaSpec(e *validate.Errors, path *field.Path, name string, spec *flowcontrolv1.FlowSchemaSpec) {
	const most = flowcontrolv1.FlowSchemaMaxMatchingPrecedence
	at, n := path.Child("matchingPrecedence"), spec.MatchingPrecedence
	if n <= 0 {
		e.Invalid(at, n, "must be a positive value")
	}
	if n > most {
		e.Invalid(at, n, fmt.Sprintf("must not be greater than %v", most))
	}
	if n == 1 && name != flowcontrolv1.FlowSchemaNameExempt {
		e.Invalid(at, n, "only the schema named 'exempt' may have matchingPrecedence 1")
	}
	if m := spec.DistinguisherMethod; m != nil {
		methods := []flowcontrolv1.FlowDistinguisherMethodType{flowcontrolv1.FlowDistinguisherMethodByNamespaceType, flowcontrolv1.FlowDistinguisherMethodByUserType}
		if !slices.Contains(methods, m.Type) {
			e.Add(field.ErrorList{field.NotSupported(path.Child("distinguisherMethod", "type"), *m, methods)})
		}
	}
	at = path.Child("priorityLevelConfiguration", "name")
	if level := spec.PriorityLevelConfiguration.Name; level == "" {
		e.Required(at, "must reference a priority level")
	} else {
		e.InvalidAll(at, level, apivalidation.NameIsDNSSubdomain(level, false))
	}
	for i := range spec.Rules {
		checkRule(e, path.Child("rules").Index(i), &spec.Rules[i])
	}
}

// checkRule validates a rule, which requires a subject and at least one resource rule or non-resource rule.
func checkRule(e *validate.Errors, path *field.Path, rule *flowcontrolv1.PolicyRulesWithSubjects) {
	if len(rule.Subjects) == 0 {
		e.Required(path.Child("subjects"), "subjects must contain at least one value")
	}
	for i := range rule.Subjects {
		checkSubject(e, path.Child("subjects").Index(i), &rule.Subjects[i])
	}
	if len(rule.ResourceRules) == 0 && len(rule.NonResourceRules) == 0 {
		e.Required(path, "at least one of resourceRules and nonResourceRules has to be non-empty")
	}
	for i := range rule.ResourceRules {
		checkResourceRule(e, path.Child("resourceRules").Index(i), &rule.ResourceRules[i])
	}
	for i := range rule.NonResourceRules {
		checkNonResourceRule(e, path.Child("nonResourceRules").Index(i), &rule.NonResourceRules[i])
	}
}

func checkSubject(e *validate.Errors, path *field.Path, s *flowcontrolv1.Subject) {
	only := func(kind flowcontrolv1.SubjectKind, name string, there bool) {
		if there && s.Kind != kind {
			e.Forbidden(path.Child(name), fmt.Sprintf("%s is forbidden when subject kind is not '%s'", name, kind))
		}
	}
	switch s.Kind {
	case flowcontrolv1.SubjectKindServiceAccount:
		checkServiceAccount(e, path.Child("serviceAccount"), s.ServiceAccount)
	case flowcontrolv1.SubjectKindUser:
		if s.User == nil {
			e.Required(path.Child("user"), "user is required when subject kind is 'User'")
		} else if s.User.Name == "" {
			e.Required(path.Child("user", "name"), "")
		}
	case flowcontrolv1.SubjectKindGroup:
		if s.Group == nil {
			e.Required(path.Child("group"), "group is required when subject kind is 'Group'")
		} else if s.Group.Name == "" {
			e.Required(path.Child("group", "name"), "")
		}
	default:
		validate.OneOf(e, path.Child("kind"), s.Kind,
			flowcontrolv1.SubjectKindGroup, flowcontrolv1.SubjectKindServiceAccount, flowcontrolv1.SubjectKindUser)
		return
	}
	only(flowcontrolv1.SubjectKindServiceAccount, "serviceAccount", s.ServiceAccount != nil)
	only(flowcontrolv1.SubjectKindUser, "user", s.User != nil)
	only(flowcontrolv1.SubjectKindGroup, "group", s.Group != nil)
}

func checkServiceAccount(e *validate.Errors, path *field.Path, s *flowcontrolv1.ServiceAccountSubject) {
	if s == nil {
		e.Required(path, "serviceAccount is required when subject kind is 'ServiceAccount'")
		return
	}
	if s.Name == "" {
		e.Required(path.Child("name"), "")
	} else if s.Name != flowcontrolv1.NameAll {
		e.InvalidAll(path.Child("name"), s.Name, apivalidation.ValidateServiceAccountName(s.Name, false))
	}
	if s.Namespace == "" {
		e.Required(path.Child("namespace"), "must specify namespace for service account")
	} else {
		e.InvalidAll(path.Child("namespace"), s.Namespace, apivalidation.ValidateNamespaceName(s.Namespace, false))
	}
}

// verbs are the verbs that rules of a FlowSchema may contain, in addition to "*".
var verbs = []string{"create", "delete", "deletecollection", "get", "list", "patch", "proxy", "update", "watch"}

func checkVerbs(e *validate.Errors, path *field.Path, values []string) {
	switch {
	case len(values) == 0:
		e.Required(path, "verbs must contain at least one value")
	case slices.Contains(values, flowcontrolv1.VerbAll):
		if len(values) > 1 {
			e.Invalid(path, values, "if '*' is present, must not specify other verbs")
		}
	case slices.ContainsFunc(values, func(v string) bool { return !slices.Contains(verbs, v) }):
		e.List = append(e.List, field.NotSupported(path, values, verbs))
	}
}

func checkResourceRule(e *validate.Errors, path *field.Path, rule *flowcontrolv1.ResourcePolicyRule) {
	checkVerbs(e, path.Child("verbs"), rule.Verbs)
	all := func(name, what string, given []string) {
		switch {
		case len(given) == 0:
			e.Required(path.Child(name), "resource rules must supply at least one "+what)
		case len(given) > 1 && slices.Contains(given, "*"):
			e.Invalid(path.Child(name), given, "if '*' is present, must not specify other "+what+"s")
		}
	}
	all("apiGroups", "api group", rule.APIGroups)
	all("resources", "resource", rule.Resources)
	at := path.Child("namespaces")
	switch {
	case len(rule.Namespaces) == 0 && !rule.ClusterScope:
		e.Required(at, "resource rules that are not cluster scoped must supply at least one namespace")
	case slices.Contains(rule.Namespaces, flowcontrolv1.NamespaceEvery):
		if len(rule.Namespaces) > 1 {
			e.Invalid(at, rule.Namespaces, "if '*' is present, must not specify other namespaces")
		}
	default:
		for i, ns := range rule.Namespaces {
			for _, msg := range apivalidation.ValidateNamespaceName(ns, false) {
				e.Invalid(at.Index(i), ns, "each member of this list must be '*' or a DNS-1123 label; "+msg)
			}
		}
	}
}

func checkNonResourceRule(e *validate.Errors, path *field.Path, rule *flowcontrolv1.NonResourcePolicyRule) {
	checkVerbs(e, path.Child("verbs"), rule.Verbs)
	at := path.Child("nonResourceURLs")
	switch {
	case len(rule.NonResourceURLs) == 0:
		e.Required(at, "nonResourceURLs must contain at least one value")
	case slices.Contains(rule.NonResourceURLs, flowcontrolv1.NonResourceAll):
		if len(rule.NonResourceURLs) > 1 {
			e.Invalid(at, rule.NonResourceURLs, "if '*' is present, must not specify other non-resource URLs")
		}
	default:
		for i, url := range rule.NonResourceURLs {
			if msg := urlError(url); msg != "" {
				e.Invalid(at.Index(i), url, msg)
			}
		}
	}
}

// urlError returns why a non-resource URL of a rule is invalid, or an empty string. The last path
// segment may be "*".
func urlError(url string) string {
	switch {
	case url == "":
		return "must not be empty"
	case url == "/":
		return ""
	case !strings.HasPrefix(url, "/"):
		return "must start with slash"
	case strings.Contains(url, " "):
		return "must not contain white-space"
	case strings.Contains(url, "//"):
		return "must not contain double slash"
	}
	if n := strings.Count(url, "*"); n > 1 || n == 1 && !strings.HasSuffix(url, "/*") {
		return "wildcard can only do suffix matching"
	}
	return ""
}
