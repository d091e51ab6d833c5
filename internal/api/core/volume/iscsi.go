package volume

import (
	"regexp"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"hyperkube/internal/api/validate"
)

// iscsiForms contains the format of iSCSI names by their prefix (RFC 3720, section 3.2.6).
var iscsiForms = map[string]*regexp.Regexp{
	"iqn": regexp.MustCompile(`iqn\.\d{4}-\d{2}\.([[:alnum:]-.]+)(:[^,;*&$|\s]+)$`),
	"eui": regexp.MustCompile(`^eui.[[:alnum:]]{16}$`),
	"naa": regexp.MustCompile(`^naa.[[:alnum:]]{32}$`),
}

// iscsiName validates an iSCSI name. prefixDetail is the error message for a name without a known prefix.
func iscsiName(e *validate.Errors, name, prefixDetail string, at *field.Path) {
	for prefix, form := range iscsiForms {
		if strings.HasPrefix(name, prefix) {
			if !form.MatchString(name) {
				e.Invalid(at, name, "must be valid format")
			}
			return
		}
	}
	e.Invalid(at, name, prefixDetail)
}
