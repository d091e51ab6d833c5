package validate

import (
	"slices"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

const isImmutable = "field is immutable"

// Errors collects the validation errors of an object. The methods named like an error type
// (Required, Invalid, …) add an error with upstream's type and message; the others check a value
// and add an error if it is invalid. The zero value is ready to use.
type Errors struct {
	// List contains the errors in the order in which they were found, or nil.
	List field.ErrorList
}

// Add appends the errors more, which another check has returned.
func (e *Errors) Add(more field.ErrorList) { e.List = append(e.List, more...) }

// Required adds an error for a missing value. detail may be empty.
func (e *Errors) Required(path *field.Path, detail string) {
	e.List = append(e.List, field.Required(path, detail))
}

// Invalid adds an error for an invalid value. detail says what is valid.
func (e *Errors) Invalid(path *field.Path, value any, detail string) {
	e.List = append(e.List, field.Invalid(path, value, detail))
}

// InvalidAll adds one error per message for an invalid value, and none if messages is empty.
func (e *Errors) InvalidAll(path *field.Path, value any, messages []string) {
	for _, m := range messages {
		e.List = append(e.List, field.Invalid(path, value, m))
	}
}

// Forbidden adds an error for a value that must not be set or changed.
func (e *Errors) Forbidden(path *field.Path, detail string) {
	e.List = append(e.List, field.Forbidden(path, detail))
}

// Duplicate adds an error for a value that occurs twice in a list.
func (e *Errors) Duplicate(path *field.Path, value any) {
	e.List = append(e.List, field.Duplicate(path, value))
}

// NotFound adds an error for a reference to an object or field that does not exist.
func (e *Errors) NotFound(path *field.Path, value any) {
	e.List = append(e.List, field.NotFound(path, value))
}

// OneOf adds an error if value is not one of valid.
func OneOf[T ~string](e *Errors, path *field.Path, value T, valid ...T) {
	if !slices.Contains(valid, value) {
		e.List = append(e.List, field.NotSupported(path, value, valid))
	}
}

// RequiredOneOf adds an error if value is empty or not one of valid.
func RequiredOneOf[T ~string](e *Errors, path *field.Path, value T, valid ...T) {
	if value == "" {
		e.Required(path, "")
		return
	}
	OneOf(e, path, value, valid...)
}

// Label checks that a value is a DNS label, such as my-name.
func (e *Errors) Label(path *field.Path, value string) {
	for _, m := range validation.IsDNS1123Label(value) {
		e.List = append(e.List, field.Invalid(path, value, m).WithOrigin("format=dns-label"))
	}
}

// Subdomain checks that a value is a DNS subdomain.
func (e *Errors) Subdomain(path *field.Path, value string) {
	e.InvalidAll(path, value, validation.IsDNS1123Subdomain(value))
}

// QualifiedName checks that a value has the format of a label key: a name with an optional domain.
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

// Declared adds errors that upstream finds with declarative validation. It marks them, so that
// DeclaredLast moves them behind the others.
func (e *Errors) Declared(errs ...*field.Error) {
	for _, err := range errs {
		e.List = append(e.List, err.MarkCoveredByDeclarative())
	}
}

// Immutable adds an error for a changed field that is immutable, and whose immutability upstream
// validates declaratively.
func (e *Errors) Immutable(path *field.Path) {
	e.Declared(field.Invalid(path, nil, isImmutable).WithOrigin("immutable"))
}

// Unchanged adds an error if value, a field of the updated object, differs from old, the field of
// the stored object. Upstream validates the immutability of the field declaratively.
func Unchanged[T any](e *Errors, path *field.Path, value, old T) {
	if !apiequality.Semantic.DeepEqual(value, old) {
		e.Immutable(path)
	}
}

// ClearDeclared removes the declarative mark from the errors of the field at path. It is called if
// an immutable field has changed: upstream then skips its declarative validation, so that
// DeclaredLast must not move its errors.
func ClearDeclared(errs field.ErrorList, path *field.Path) {
	at := path.String()
	for _, e := range errs {
		if e.Field == at {
			e.CoveredByDeclarative = false
		}
	}
}

// DeclaredLast moves errors with the declarative mark behind the others, as in upstream's
// responses. It keeps the order otherwise and does not modify errs.
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

// Distinct removes errors with the same text as an earlier one, which occur if two checks find the
// same problem. Declarative errors are kept. It modifies errs.
func Distinct(errs field.ErrorList) field.ErrorList {
	return distinct(errs, func(e *field.Error) bool { return !e.CoveredByDeclarative })
}

// DistinctAll is like Distinct, but also removes duplicate declarative errors.
func DistinctAll(errs field.ErrorList) field.ErrorList {
	return distinct(errs, func(*field.Error) bool { return true })
}

// distinct removes errors with the same text as an earlier one. Errors for which counts returns
// false are kept and not compared.
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
