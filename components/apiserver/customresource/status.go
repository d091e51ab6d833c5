package customresource

import (
	"errors"
	"fmt"
	"slices"

	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	internal "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apimachinery/pkg/api/equality"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/util/webhook"
)

type (
	// crd and condition are short names of the API types for definitions of custom resources and their conditions.
	crd       = apiextensionsv1.CustomResourceDefinition
	condition = apiextensionsv1.CustomResourceDefinitionCondition
)

// takenNames contains the accepted names of all definitions of a group: in resources the plural,
// singular and short names, in kinds the kinds and list kinds. Two definitions cannot have the same
// name.
type takenNames struct{ resources, kinds map[string]bool }

// takenNamesOf returns the accepted names of the definitions of a group, among all definitions by
// name.
func takenNamesOf(group string, all map[string]*crd) takenNames {
	t := takenNames{map[string]bool{}, map[string]bool{}}
	for _, d := range all {
		if d.Spec.Group != group {
			continue
		}
		n := &d.Status.AcceptedNames
		for _, name := range append([]string{n.Plural, n.Singular}, n.ShortNames...) {
			t.resources[name] = true
		}
		t.kinds[n.Kind], t.kinds[n.ListKind] = true, true
	}
	return t
}

// updateStatus sets the desired status of d: the accepted names, the conditions NamesAccepted and Established, and
// conditions about problems. t are the names that definitions of the group, including d, use. It only modifies d and
// writes nothing.
func updateStatus(d *crd, t takenNames) {
	if !equality.Semantic.DeepEqual(d.Spec.Names, d.Status.AcceptedNames) {
		names, accepted := acceptNames(d, t)
		d.Status.AcceptedNames = names
		setCondition(d, accepted)
		if accepted.Status != apiextensionsv1.ConditionTrue && apihelpers.FindCRDCondition(d, apiextensionsv1.Established) == nil {
			setCondition(d, condition{
				Type: apiextensionsv1.Established, Status: apiextensionsv1.ConditionFalse,
				Reason: "NotAccepted", Message: "not all names are accepted",
			})
		}
	}
	establish(d)
	if c := nonStructural(d); c != nil {
		setCondition(d, *c)
	} else {
		removeCondition(d, apiextensionsv1.NonStructuralSchema)
	}
	if c := approvalCondition(d); c != nil {
		setCondition(d, *c)
	}
}

// setCondition sets a condition of d, unless d already has an equivalent one, whose transition time
// is then kept.
func setCondition(d *crd, c condition) {
	if !apihelpers.IsCRDConditionEquivalent(&c, apihelpers.FindCRDCondition(d, c.Type)) {
		apihelpers.SetCRDCondition(d, c)
	}
}

// removeCondition removes the condition of the type what from the status of d, if d has it.
func removeCondition(d *crd, what apiextensionsv1.CustomResourceDefinitionConditionType) {
	if apihelpers.FindCRDCondition(d, what) != nil {
		apihelpers.RemoveCRDCondition(d, what)
	}
}

// acceptNames returns the names that d may use: each requested name if no other definition uses it, otherwise the one
// that was accepted before. Short names are accepted all or none. The condition NamesAccepted is false if a name was
// refused.
func acceptNames(d *crd, t takenNames) (apiextensionsv1.CustomResourceDefinitionNames, condition) {
	want, have := &d.Spec.Names, &d.Status.AcceptedNames
	got := *have.DeepCopy()
	c := condition{
		Type: apiextensionsv1.NamesAccepted, Status: apiextensionsv1.ConditionTrue,
		Reason: "NoConflicts", Message: "no conflicts found",
	}
	refuse := func(reason string, err error) {
		c.Status, c.Reason, c.Message = apiextensionsv1.ConditionFalse, reason, err.Error()
	}
	for _, n := range []struct {
		want, have string
		into       *string
		used       map[string]bool
		reason     string
	}{
		{want.Plural, have.Plural, &got.Plural, t.resources, "PluralConflict"},
		{want.Singular, have.Singular, &got.Singular, t.resources, "SingularConflict"},
	} {
		if err := free(n.want, n.have, n.used); err != nil {
			refuse(n.reason, err)
		} else {
			*n.into = n.want
		}
	}
	if !slices.Equal(want.ShortNames, have.ShortNames) {
		var errs []error
		for _, name := range want.ShortNames {
			if !slices.Contains(have.ShortNames, name) {
				if err := free(name, "", t.resources); err != nil {
					errs = append(errs, err)
				}
			}
		}
		if len(errs) > 0 {
			refuse("ShortNamesConflict", utilerrors.NewAggregate(errs))
		} else {
			got.ShortNames = slices.Clone(want.ShortNames)
		}
	}
	if err := free(want.Kind, have.Kind, t.kinds); err != nil {
		refuse("KindConflict", err)
	} else {
		got.Kind = want.Kind
	}
	if err := free(want.ListKind, have.ListKind, t.kinds); err != nil {
		refuse("ListKindConflict", err)
	} else {
		got.ListKind = want.ListKind
	}
	got.Categories = slices.Clone(want.Categories)
	return got, c
}

// free returns an error if the requested name want is used by another definition. have is the name
// that was accepted before, which is always free.
func free(want, have string, used map[string]bool) error {
	if want != have && used[want] {
		return fmt.Errorf("%q is already in use", want)
	}
	return nil
}

// errBundle is the error for an invalid CA bundle of a conversion webhook. Such a definition does
// not become established.
var errBundle = errors.New("The conversion webhook CABundle is invalid") //nolint:staticcheck // the text is upstream's

// establish sets the condition Established once the names have been accepted: to True, or to False if the CA bundle of
// the conversion webhook is invalid. It never changes a True condition. Whether the resource is served depends on the
// accepted names only, see serveAs.
func establish(d *crd) {
	if !apihelpers.IsCRDConditionTrue(d, apiextensionsv1.NamesAccepted) || apihelpers.IsCRDConditionTrue(d, apiextensionsv1.Established) {
		return
	}
	c := condition{
		Type: apiextensionsv1.Established, Status: apiextensionsv1.ConditionTrue,
		Reason: "InitialNamesAccepted", Message: "the initial names have been accepted",
	}
	if conv := d.Spec.Conversion; conv != nil && conv.Webhook != nil && conv.Webhook.ClientConfig != nil &&
		len(webhook.ValidateCABundle(field.NewPath(""), conv.Webhook.ClientConfig.CABundle)) > 0 {
		c.Status, c.Reason, c.Message = apiextensionsv1.ConditionFalse, "InvalidCABundle", errBundle.Error()
	}
	setCondition(d, c)
}

// nonStructural returns the condition NonStructuralSchema, which lists violations in schemas that were allowed before
// apiextensions.k8s.io/v1. It returns nil if there are none, or if the definition is established without such a
// condition, because validation has rejected new violations since.
func nonStructural(d *crd) *condition {
	c := &condition{Type: apiextensionsv1.NonStructuralSchema, Status: apiextensionsv1.ConditionUnknown}
	if d.Generation > 0 && !d.Spec.PreserveUnknownFields && apihelpers.FindCRDCondition(d, apiextensionsv1.NonStructuralSchema) == nil &&
		apihelpers.IsCRDConditionTrue(d, apiextensionsv1.Established) {
		// Validation has rejected new violations since. Skipping the check avoids compiling all
		// schemas at startup.
		return nil
	}
	var errs field.ErrorList
	if d.Spec.PreserveUnknownFields {
		errs = append(errs, field.Invalid(field.NewPath("spec", "preserveUnknownFields"), true, "must be false"))
	}
	for i := range d.Spec.Versions {
		v := &d.Spec.Versions[i]
		if v.Schema == nil || v.Schema.OpenAPIV3Schema == nil {
			continue
		}
		in := &internal.CustomResourceValidation{}
		if err := apiextensionsv1.Convert_v1_CustomResourceValidation_To_apiextensions_CustomResourceValidation(v.Schema.DeepCopy(), in, nil); err != nil {
			continue
		}
		s, err := structuralschema.NewStructural(in.OpenAPIV3Schema)
		if err != nil {
			c.Reason = "StructuralError"
			c.Message = fmt.Sprintf("failed to check validation schema for version %s: %v", v.Name, err)
			return c
		}
		errs = append(errs, structuralschema.ValidateStructural(field.NewPath("spec", "versions").Index(i).Child("schema", "openAPIV3Schema"), s)...)
	}
	if len(errs) == 0 {
		return nil
	}
	c.Status, c.Reason, c.Message = apiextensionsv1.ConditionTrue, "Violations", errs.ToAggregate().Error()
	return c
}

// approvalCondition returns the condition about the API approval annotation of a definition in a
// group of the Kubernetes community, such as *.k8s.io. It returns nil for other groups.
//
// https://github.com/kubernetes/enhancements/pull/1111
func approvalCondition(d *crd) *condition {
	if !apihelpers.IsProtectedCommunityGroup(d.Spec.Group) {
		return nil
	}
	c := &condition{Type: apiextensionsv1.KubernetesAPIApprovalPolicyConformant, Status: apiextensionsv1.ConditionFalse}
	state, text := apihelpers.GetAPIApprovalState(d.Annotations)
	c.Message = text
	switch state {
	case apihelpers.APIApprovalInvalid:
		c.Reason = "InvalidAnnotation"
	case apihelpers.APIApprovalMissing:
		c.Reason = "MissingAnnotation"
	case apihelpers.APIApproved:
		c.Status, c.Reason = apiextensionsv1.ConditionTrue, "ApprovedAnnotation"
	case apihelpers.APIApprovalBypassed:
		c.Reason = "UnapprovedAnnotation"
	default:
		c.Status, c.Reason = apiextensionsv1.ConditionUnknown, "UnknownAnnotation"
	}
	return c
}
