package validate

import (
	"regexp"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

// laterRule identifies the errors of a validation rule that upstream introduced after objects were
// stored. Stored objects that violate the rule may continue to do so, so that their other fields
// can be updated.
type laterRule struct {
	field  *regexp.Regexp
	detail string // substring of the error detail; "" for any
	except string // path of a part to which the rule always applies; "" for none
}

// laterRules are the rules that Tolerate applies. Except for selectors and data sources, they
// belong to pods and pod templates.
var laterRules = []laterRule{
	{field: regexp.MustCompile(`[sS]elector\.matchExpressions\[\d+\]\.values\[`), except: ".volumeClaimTemplate."},
	{field: regexp.MustCompile(`(\.required|\.requiredDuringSchedulingIgnoredDuringExecution)\.nodeSelectorTerms\[\d+\]\.matchExpressions\[\d+\]\.values\[`)},
	{field: regexp.MustCompile(`\.topologySpreadConstraints\[\d+\]\.labelSelector\b`)},
	{field: regexp.MustCompile(`\.dataSource(Ref)?\.apiGroup$`)},
	{field: regexp.MustCompile(`\.image\.reference$`)},
	{field: regexp.MustCompile(`\.volumes\[\d+\]\.projected\.path$|\.volumes\[\d+\]\.path$`), detail: "must"},
	{field: regexp.MustCompile(`\.sysctls\[\d+\]`), detail: "may not be specified when 'host"},
	{field: regexp.MustCompile(`\.volumeDevices$`), detail: "when `hostUsers` is false"},
	{field: regexp.MustCompile(`\.securityContext$`), detail: "CAP_SYS_ADMIN"},
	{field: regexp.MustCompile(`\.annotations\[`), detail: "must be a 32bit integer"},
	{field: regexp.MustCompile(`\.resizePolicy\[`), detail: "for non-sidecar initContainers"},
	{field: regexp.MustCompile(`\.resources\.`), detail: "is not positive integer multiple of"},
}

// matches reports whether an error is one of the rule.
func (l *laterRule) matches(e *field.Error) bool {
	return strings.Contains(e.Detail, l.detail) && l.field.MatchString(e.Field) && (l.except == "" || !strings.Contains(e.Field, l.except))
}

// Tolerate removes from errs, the errors of an updated object, those of each laterRule that the
// stored object violates as well. old returns the errors of the stored object; Tolerate only calls
// it if errs contains an error of a laterRule.
func Tolerate(errs field.ErrorList, old func() field.ErrorList) field.ErrorList {
	var before field.ErrorList
	loaded := false
	for i := range laterRules {
		if !slices.ContainsFunc(errs, laterRules[i].matches) {
			continue
		}
		if !loaded {
			before, loaded = old(), true
		}
		if slices.ContainsFunc(before, laterRules[i].matches) {
			errs = slices.DeleteFunc(errs, laterRules[i].matches)
		}
	}
	return errs
}
