package admissionregistration

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	plugincel "k8s.io/apiserver/pkg/admission/plugin/cel"
	"k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	"k8s.io/apiserver/pkg/admission/plugin/webhook/matchconditions"
	"k8s.io/apiserver/pkg/cel"
	"k8s.io/apiserver/pkg/cel/environment"
)

// maxConditions is the maximum number of match conditions of a webhook or policy.
const maxConditions = 64

// stateless returns the shared compiler for CEL expressions that do not use variables of a policy.
// Creating it takes some milliseconds, so it is created when the first expression is compiled.
var stateless = sync.OnceValue(func() plugincel.Compiler {
	return plugincel.NewCompiler(environment.MustBaseEnvSet(environment.DefaultCompatibilityVersion()))
})

// compilerFor returns a compiler for the expressions of a policy with these variables. With
// variables, each policy needs its own compiler, because it stores the compiled variables.
func compilerFor(variables []admissionv1.Variable) (plugincel.Compiler, error) {
	if len(variables) == 0 {
		return stateless(), nil
	}
	c, err := plugincel.NewCompositedCompiler(environment.MustBaseEnvSet(environment.DefaultCompatibilityVersion()))
	if err != nil {
		return nil, fmt.Errorf("making a CEL compiler: %w", err)
	}
	return c, nil
}

// expressions contains the CEL expressions of the stored object by the field that contains them,
// and is empty on create. An expression that is in this list is compiled with the environment for
// stored expressions, which allows more than the one for new expressions, so that objects remain
// valid after a rollback of the server.
type expressions struct {
	conditions, validations, messages, annotations, mutations []string
}

// addConditions adds the expressions of match conditions.
func (e *expressions) addConditions(conditions []admissionv1.MatchCondition) {
	for _, c := range conditions {
		e.conditions = append(e.conditions, c.Expression)
	}
}

// mode returns the environment in which an expression is compiled: the one for stored expressions if known contains it,
// otherwise the one for new expressions.
func mode(known []string, expression string) environment.Type {
	if slices.Contains(known, expression) {
		return environment.StoredExpressions
	}
	return environment.NewExpressions
}

// compile returns an error if the CEL expression e does not compile. vars are the variables that it may use, such as
// params.
func compile(c plugincel.Compiler, e plugincel.ExpressionAccessor, vars plugincel.OptionalVariableDeclarations, m environment.Type, path *field.Path) field.ErrorList {
	if result := c.CompileCELExpression(e, vars, m); result.Error != nil {
		return field.ErrorList{celError(path, e.GetExpression(), result.Error)}
	}
	return nil
}

// celError converts the error of the CEL compiler for an expression to a validation error.
func celError(path *field.Path, expression string, err *cel.Error) *field.Error {
	switch err.Type {
	case cel.ErrorTypeRequired:
		return field.Required(path, err.Detail)
	case cel.ErrorTypeInvalid:
		return field.Invalid(path, expression, err.Detail)
	case cel.ErrorTypeInternal:
		return field.InternalError(path, err)
	}
	return field.InternalError(path, fmt.Errorf("unsupported error type: %w", err))
}

// validateMatchConditions validates the match conditions of a policy or a webhook: their number, unique names, and
// expressions, which must compile. params reports whether expressions may use the variable params; known contains the
// expressions of the stored object.
func validateMatchConditions(conditions []admissionv1.MatchCondition, params bool, known expressions, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if len(conditions) > maxConditions {
		errs = append(errs, field.TooMany(path, len(conditions), maxConditions))
	}
	names := map[string]bool{}
	for i, c := range conditions {
		at := path.Index(i)
		if trimmed := strings.TrimSpace(c.Expression); trimmed == "" {
			errs = append(errs, field.Required(at.Child("expression"), ""))
		} else {
			errs = append(errs, compile(stateless(), &matchconditions.MatchCondition{Expression: trimmed},
				plugincel.OptionalVariableDeclarations{HasParams: params, HasAuthorizer: true},
				mode(known.conditions, trimmed), at.Child("expression"))...)
		}
		if c.Name == "" {
			errs = append(errs, field.Required(at.Child("name"), ""))
			continue
		}
		errs = append(errs, qualifiedName(c.Name, at.Child("name"))...)
		if names[c.Name] {
			errs = append(errs, field.Duplicate(at.Child("name"), c.Name))
		}
		names[c.Name] = true
	}
	return errs
}

// qualifiedName returns the errors of a name that must have the format of a label key.
func qualifiedName(name string, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for _, msg := range validation.IsQualifiedName(name) {
		errs = append(errs, field.Invalid(path, name, msg))
	}
	return errs
}

var (
	identifier = regexp.MustCompile(`^[_a-zA-Z][_a-zA-Z0-9]*$`)
	reserved   = strings.Fields("true false null in as break const continue else for function if import let loop package namespace return var void while")
)

// validateVariables validates the variables of a policy and stores them in the compiler c, in
// order, because a variable can refer to previous ones. params is set if the policy has parameters,
// and known contains the expressions of the stored policy.
func validateVariables(c plugincel.Compiler, variables []admissionv1.Variable, params bool, known expressions, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i, v := range variables {
		at := path.Index(i)
		if strings.TrimSpace(v.Name) == "" {
			errs = append(errs, field.Required(at.Child("name"), "name is not specified"))
		} else if !identifier.MatchString(v.Name) || slices.Contains(reserved, v.Name) {
			errs = append(errs, field.Invalid(at.Child("name"), v.Name, "must be a valid CEL identifier"))
		}
		if strings.TrimSpace(v.Expression) == "" {
			errs = append(errs, field.Required(at.Child("expression"), "expression is not specified"))
			continue
		}
		composed, ok := c.(*plugincel.CompositedCompiler)
		if !ok {
			continue
		}
		result := composed.CompileAndStoreVariable(&validating.Variable{Name: v.Name, Expression: v.Expression},
			plugincel.OptionalVariableDeclarations{HasParams: params, HasAuthorizer: true}, mode(known.validations, v.Expression))
		if result.Error != nil {
			errs = append(errs, celError(at.Child("expression"), v.Expression, result.Error))
		}
	}
	return errs
}
