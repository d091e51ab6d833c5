package validate

import (
	"slices"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

const isImmutable = "field is immutable"

// Errors collects the validation errors of an object. The zero value is ready to use.
type Errors struct {
	// List contains the errors in the order in which they were found, or nil.
	List field.ErrorList
}

// Add appends the errors of another check.
func (e *Errors) Add(more field.ErrorList) { e.List = append(e.List, more...) }

// Required reports a missing value.
func (e *Errors) Required(path *field.Path, detail string) {
	e.List = append(e.List, field.Required(path, detail))
}

// Invalid reports an invalid value.
func (e *Errors) Invalid(path *field.Path, value any, detail string) {
	e.List = append(e.List, field.Invalid(path, value, detail))
}

// InvalidAll reports an invalid value once for each message.
func (e *Errors) InvalidAll(path *field.Path, value any, messages []string) {
	for _, m := range messages {
		e.List = append(e.List, field.Invalid(path, value, m))
	}
}

// Forbidden reports a value that must not be set or changed.
func (e *Errors) Forbidden(path *field.Path, detail string) {
	e.List = append(e.List, field.Forbidden(path, detail))
}

// Duplicate reports a duplicate value.
func (e *Errors) Duplicate(path *field.Path, value any) {
	e.List = append(e.List, field.Duplicate(path, value))
}

// NotFound reports a reference to an object or field that does not exist.
func (e *Errors) NotFound(path *field.Path, value any) {
	e.List = append(e.List, field.NotFound(path, value))
}

// OneOf reports a value that is not one of valid.
func OneOf[T ~string](e *Errors, path *field.Path, value T, valid ...T) {
	if !slices.Contains(valid, value) {
		e.List = append(e.List, field.NotSupported(path, value, valid))
	}
}

// RequiredOneOf is like OneOf for a required value.
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

// QualifiedName checks that a value has the format of a label key.
func (e *Errors) QualifiedName(path *field.Path, value string) {
	for _, m := range validation.IsQualifiedName(value) {
		e.List = append(e.List, field.Invalid(path, value, m).WithOrigin("format=qualified-name"))
	}
}

// NonNegative checks that a number is not negative.
func (e *Errors) NonNegative(path *field.Path, value int64) {
	if value < 0 {
		e.List = append(e.List, field.Invalid(path, value, isNegative).WithOrigin("minimum"))
	}
}

// Declared reports errors that upstream finds with declarative validation. DeclaredLast moves them
// behind the others.
func (e *Errors) Declared(errs ...*field.Error) {
	for _, err := range errs {
		e.List = append(e.List, err.MarkCoveredByDeclarative())
	}
}

// Immutable reports a declaratively validated field that was changed although it is immutable.
func (e *Errors) Immutable(path *field.Path) {
	e.Declared(field.Invalid(path, nil, isImmutable).WithOrigin("immutable"))
}

// Unchanged checks that a declaratively validated immutable value equals the stored one.
func Unchanged[T any](e *Errors, path *field.Path, value, old T) {
	if !apiequality.Semantic.DeepEqual(value, old) {
		e.Immutable(path)
	}
}

// ClearDeclared removes the declarative mark from the errors of a field. If an immutable field has
// changed, upstream skips its declarative validation, and its errors keep their position.
func ClearDeclared(errs field.ErrorList, path *field.Path) {
	at := path.String()
	for _, e := range errs {
		if e.Field == at {
			e.CoveredByDeclarative = false
		}
	}
}

// DeclaredLast moves declarative errors behind the others, as in upstream, and keeps the order
// otherwise.
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

// Distinct removes duplicate errors of several checks. Declarative errors are not compared.
func Distinct(errs field.ErrorList) field.ErrorList {
	return distinct(errs, func(e *field.Error) bool { return !e.CoveredByDeclarative })
}

// DistinctAll is like Distinct, but also compares declarative errors.
func DistinctAll(errs field.ErrorList) field.ErrorList {
	return distinct(errs, func(*field.Error) bool { return true })
}

// distinct removes duplicates among the errors for which counts returns true.
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
