package validate

import (
	"slices"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

const isImmutable = "field is immutable"

// Errors collects what is wrong with an object. The zero value is ready.
type Errors struct {
	// List is in the order of finding; nil when all is well.
	List field.ErrorList
}

// Add appends findings of another check.
func (e *Errors) Add(more field.ErrorList) { e.List = append(e.List, more...) }

// Required reports a value that is missing.
func (e *Errors) Required(path *field.Path, detail string) {
	e.List = append(e.List, field.Required(path, detail))
}

// Invalid reports a value that is not allowed.
func (e *Errors) Invalid(path *field.Path, value any, detail string) {
	e.List = append(e.List, field.Invalid(path, value, detail))
}

// InvalidAll reports a value once for each message; none means it is fine.
func (e *Errors) InvalidAll(path *field.Path, value any, messages []string) {
	for _, m := range messages {
		e.List = append(e.List, field.Invalid(path, value, m))
	}
}

// Forbidden reports a value that may not be there, or not change.
func (e *Errors) Forbidden(path *field.Path, detail string) {
	e.List = append(e.List, field.Forbidden(path, detail))
}

// Duplicate reports a value that is there already.
func (e *Errors) Duplicate(path *field.Path, value any) {
	e.List = append(e.List, field.Duplicate(path, value))
}

// NotFound reports a reference to what does not exist.
func (e *Errors) NotFound(path *field.Path, value any) {
	e.List = append(e.List, field.NotFound(path, value))
}

// OneOf reports a value that is not among the valid ones.
func OneOf[T ~string](e *Errors, path *field.Path, value T, valid ...T) {
	if !slices.Contains(valid, value) {
		e.List = append(e.List, field.NotSupported(path, value, valid))
	}
}

// RequiredOneOf is OneOf for a value that must be set.
func RequiredOneOf[T ~string](e *Errors, path *field.Path, value T, valid ...T) {
	if value == "" {
		e.Required(path, "")
		return
	}
	OneOf(e, path, value, valid...)
}

// Label checks that a value is a DNS label.
func (e *Errors) Label(path *field.Path, value string) {
	for _, m := range validation.IsDNS1123Label(value) {
		e.List = append(e.List, field.Invalid(path, value, m).WithOrigin("format=dns-label"))
	}
}

// Subdomain checks that a value is a DNS subdomain.
func (e *Errors) Subdomain(path *field.Path, value string) {
	e.InvalidAll(path, value, validation.IsDNS1123Subdomain(value))
}

// QualifiedName checks that a value has the form of a label's key.
func (e *Errors) QualifiedName(path *field.Path, value string) {
	for _, m := range validation.IsQualifiedName(value) {
		e.List = append(e.List, field.Invalid(path, value, m).WithOrigin("format=qualified-name"))
	}
}

// NonNegative checks a number that may be zero or more.
func (e *Errors) NonNegative(path *field.Path, value int64) {
	if value < 0 {
		e.List = append(e.List, field.Invalid(path, value, isNegative).WithOrigin("minimum"))
	}
}

// Declared reports findings that upstream makes from the declarations of its
// types rather than by hand: DeclaredLast moves them behind the others.
func (e *Errors) Declared(errs ...*field.Error) {
	for _, err := range errs {
		e.List = append(e.List, err.MarkCoveredByDeclarative())
	}
}

// Immutable reports a declared value that has changed though it may not.
func (e *Errors) Immutable(path *field.Path) {
	e.Declared(field.Invalid(path, nil, isImmutable).WithOrigin("immutable"))
}

// Unchanged reports a declared value that differs from the stored one.
func Unchanged[T any](e *Errors, path *field.Path, value, old T) {
	if !apiequality.Semantic.DeepEqual(value, old) {
		e.Immutable(path)
	}
}

// Undeclared takes the findings of a field for such as are made by hand: that a
// field has changed ends what is declared of its value, which is then told in
// its place among the others.
func Undeclared(errs field.ErrorList, path *field.Path) {
	at := path.String()
	for _, e := range errs {
		if e.Field == at {
			e.CoveredByDeclarative = false
		}
	}
}

// DeclaredLast puts findings that are marked as declared behind those that are
// not, as upstream tells them, and leaves the order alone otherwise.
func DeclaredLast(errs field.ErrorList) field.ErrorList {
	declared := func(e *field.Error) bool { return e.CoveredByDeclarative }
	if len(errs) < 2 || !slices.ContainsFunc(errs, declared) {
		return errs
	}
	out := make(field.ErrorList, 0, len(errs))
	for _, e := range errs {
		if !declared(e) {
			out = append(out, e)
		}
	}
	for _, e := range errs {
		if declared(e) {
			out = append(out, e)
		}
	}
	return out
}

// Distinct tells what several checks have found only once, where it was found
// first. Declared findings are not checked twice.
func Distinct(errs field.ErrorList) field.ErrorList {
	return distinct(errs, func(e *field.Error) bool { return !e.CoveredByDeclarative })
}

// Once is Distinct for declared findings as well.
func Once(errs field.ErrorList) field.ErrorList {
	return distinct(errs, func(*field.Error) bool { return true })
}

// distinct looks at those findings that count alone.
func distinct(errs field.ErrorList, counts func(*field.Error) bool) field.ErrorList {
	if len(errs) < 2 {
		return errs
	}
	seen := make(map[string]bool, len(errs))
	return slices.DeleteFunc(errs, func(e *field.Error) bool {
		if !counts(e) {
			return false
		}
		text := e.Error()
		if seen[text] {
			return true
		}
		seen[text] = true
		return false
	})
}
