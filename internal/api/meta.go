package api

import (
	"time"

	"k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/api/validation/path"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// subdomainName returns the error messages of a name that must be a DNS subdomain, the default rule for names.
func subdomainName(name string, prefix bool) []string {
	return validation.NameIsDNSSubdomain(name, prefix)
}

func validateMeta(obj metav1.Object, scope Scope, name func(string, bool) []string) field.ErrorList {
	return clearDeclarative(validation.ValidateObjectMetaAccessor(obj, bool(scope), name, field.NewPath("metadata")))
}

// validatePlainMeta validates metadata without the rules of the kind: names only need to be valid
// path segments. It is used for every update, and for new objects of kinds with PlainMeta.
func validatePlainMeta(obj metav1.Object, scope Scope) field.ErrorList {
	return clearDeclarative(validation.ValidateObjectMetaAccessor(obj, bool(scope), path.ValidatePathSegmentName, field.NewPath("metadata")))
}

// validateMetaUpdate checks the fields of the metadata that an update must not change.
func validateMetaUpdate(obj, old metav1.Object) field.ErrorList {
	return clearDeclarative(validation.ValidateObjectMetaAccessorUpdate(obj, old, field.NewPath("metadata")))
}

// clearDeclarative clears the CoveredByDeclarative mark of errors, because validate.DeclaredLast
// would move marked errors to the end of the list. The kinds in this server have no declarative
// validation of metadata.
func clearDeclarative(errs field.ErrorList) field.ErrorList {
	for _, e := range errs {
		e.CoveredByDeclarative = false
	}
	return errs
}

// NameColumn is the first column of every table.
var NameColumn = metav1.TableColumnDefinition{
	Name: "Name", Type: "string", Format: "name",
	Description: metav1.ObjectMeta{}.SwaggerDoc()["name"],
}

// AgeColumn is the age of an object, computed from its creation timestamp.
var AgeColumn = metav1.TableColumnDefinition{
	Name: "Age", Type: "string",
	Description: metav1.ObjectMeta{}.SwaggerDoc()["creationTimestamp"],
}

// CreatedColumn is the creation time of an object. It is used for kinds without columns in
// upstream.
var CreatedColumn = metav1.TableColumnDefinition{
	Name: "Created At", Type: "date",
	Description: metav1.ObjectMeta{}.SwaggerDoc()["creationTimestamp"],
}

var nameAndAge = []metav1.TableColumnDefinition{NameColumn, AgeColumn}

// Age formats the time since t for tables, e.g. "5d", or "<unknown>" if t is zero.
func Age(t metav1.Time) string {
	if t.IsZero() {
		return "<unknown>"
	}
	return duration.HumanDuration(time.Since(t.Time))
}
