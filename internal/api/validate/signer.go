package validate

import (
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// The longest name of a signer: a namespace, a name and what joins them.
const (
	maxSignerPath = 253 + 63 + 1
	maxSignerName = 253 + 1 + maxSignerPath
)

// SignerName checks the name of a signer of certificates, such as
// example.com/my-signer.
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
	e.segments(at, domain, validation.IsDNS1123Label)
	if !strings.Contains(domain, ".") {
		e.Invalid(at, domain, "should be a domain with at least two segments separated by dots")
	}
	e.segments(at, path, validation.IsDNS1123Subdomain)
	if len(name) > maxSignerName {
		e.Add(field.ErrorList{field.TooLong(at, "", maxSignerName)})
	}
}

// segments tells of the first segment of a name that is wrong.
func (e *Errors) segments(at *field.Path, name string, check func(string) []string) {
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
