package validate

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Maximum lengths of signer names: the path consists of a namespace, a name and a separator.
const (
	maxSignerPath = 253 + 63 + 1
	maxSignerName = 253 + 1 + maxSignerPath
)

// SignerName validates the name of a certificate signer, such as example.com/my-signer.
func (e *Errors) SignerName(at *field.Path, name string) {
	if name == "" {
		e.Required(at, "")
		return
	}
	domain, path, ok := strings.Cut(name, "/")
	if !ok || strings.Contains(path, "/") {
		e.Invalid(at, name, "must be a fully qualified domain and path of the form 'example.com/signer-name'")
		return
	}
	if len(domain) > validation.DNS1123SubdomainMaxLength {
		e.Add(field.ErrorList{field.TooLong(at, "", validation.DNS1123SubdomainMaxLength)})
	}
	segments(e, at, domain, validation.IsDNS1123Label)
	if !strings.Contains(domain, ".") {
		e.Invalid(at, domain, "should be a domain with at least two segments separated by dots")
	}
	segments(e, at, path, validation.IsDNS1123Subdomain)
	if len(name) > maxSignerName {
		e.Add(field.ErrorList{field.TooLong(at, "", maxSignerName)})
	}
}

// segments splits a name at dots, checks each segment, and adds the errors of the first invalid
// one. check returns the error messages for a segment.
func segments(e *Errors, at *field.Path, name string, check func(string) []string) {
	for part := range strings.SplitSeq(name, ".") {
		msgs := check(part)
		for _, msg := range msgs {
			e.Invalid(at, name, fmt.Sprintf("validating label %q: %s", part, msg))
		}
		if len(msgs) > 0 {
			return
		}
	}
}

// UserAnnotations validates the annotations that a pod passes to the signer of its certificate: their keys, which must
// have a domain prefix, and their total size.
func (e *Errors) UserAnnotations(at *field.Path, annotations map[string]string) {
	for _, k := range slices.Sorted(maps.Keys(annotations)) {
		e.Add(validation.IsDomainPrefixedKey(at, strings.ToLower(k)))
	}
	if apivalidation.ValidateAnnotationsSize(annotations) != nil {
		e.Add(field.ErrorList{field.TooLong(at, "", apivalidation.TotalAnnotationSizeLimitB)})
	}
}
