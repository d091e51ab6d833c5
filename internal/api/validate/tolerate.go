package validate

import (
	"regexp"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

// later is a rule that objects were stored before: those that break it may go
// on to, so that everything else of them can be changed.
type later struct {
	field  *regexp.Regexp
	detail string // what the finding says; "" for anything
	but    string // of what part of an object it holds for all; "" for none
}

// All but the labels of selectors and the sources of claims are about pods and
// their templates.
var laterRules = []later{
	{field: regexp.MustCompile(`[sS]elector\.matchExpressions\[\d+\]\.values\[`), but: ".volumeClaimTemplate."},
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

func (l *later) about(e *field.Error) bool {
	return strings.Contains(e.Detail, l.detail) && l.field.MatchString(e.Field) && (l.but == "" || !strings.Contains(e.Field, l.but))
}

// Tolerate drops the findings on a changed object that come of rules which the
// stored object breaks too, where these rules are younger than objects that
// clusters have. Old tells what is wrong with that; it is called if need be alone.
func Tolerate(errs field.ErrorList, old func() field.ErrorList) field.ErrorList {
	var before field.ErrorList
	asked := false
	for i := range laterRules {
		if !slices.ContainsFunc(errs, laterRules[i].about) {
			continue
		}
		if !asked {
			before, asked = old(), true
		}
		if slices.ContainsFunc(before, laterRules[i].about) {
			errs = slices.DeleteFunc(errs, laterRules[i].about)
		}
	}
	return errs
}
