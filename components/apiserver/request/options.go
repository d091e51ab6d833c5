package request

import (
	"fmt"
	"net/url"
	"strconv"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	internalvalidation "k8s.io/apimachinery/pkg/apis/meta/internalversion/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// ListOptions parses the query of a list, watch or deletecollection. It returns a BadRequest error
// for invalid numbers and selectors. It does not check the combination of options; see
// CheckListOptions.
func ListOptions(query url.Values) (*internalversion.ListOptions, error) {
	o := &internalversion.ListOptions{
		Watch:                IsTrue(query, "watch"),
		AllowWatchBookmarks:  IsTrue(query, "allowWatchBookmarks"),
		ResourceVersion:      query.Get("resourceVersion"),
		ResourceVersionMatch: metav1.ResourceVersionMatch(query.Get("resourceVersionMatch")),
		Continue:             query.Get("continue"),
		LabelSelector:        labels.Everything(),
		FieldSelector:        fields.Everything(),
	}
	var err error
	if o.Limit, err = integer(query, "limit"); err != nil {
		return nil, err
	}
	if _, ok := query["timeoutSeconds"]; ok {
		n, err := integer(query, "timeoutSeconds")
		if err != nil {
			return nil, err
		}
		o.TimeoutSeconds = &n
	}
	if _, ok := query["sendInitialEvents"]; ok {
		b := IsTrue(query, "sendInitialEvents")
		o.SendInitialEvents = &b
	}
	// Parse selectors last, because upstream reports errors of the other options first.
	if s := query.Get("labelSelector"); s != "" {
		if o.LabelSelector, err = labels.Parse(s); err != nil {
			return nil, apierrors.NewBadRequest(fmt.Sprintf("unable to parse requirement: %v", strings.TrimPrefix(err.Error(), "unable to parse requirement: ")))
		}
	}
	if s := query.Get("fieldSelector"); s != "" {
		if o.FieldSelector, err = fields.ParseSelector(s); err != nil {
			return nil, apierrors.NewBadRequest(err.Error())
		}
	}
	return o, nil
}

// CheckListOptions returns an Invalid error if options of a list or watch contradict each other.
func CheckListOptions(o *internalversion.ListOptions) error {
	if errs := internalvalidation.ValidateListOptions(o, true); len(errs) > 0 {
		return apierrors.NewInvalid(schema.GroupKind{Group: metav1.GroupName, Kind: "ListOptions"}, "", errs)
	}
	return nil
}

// integer parses a query parameter. It returns 0 if the parameter is missing or empty, and a BadRequest error if it
// is not a number.
func integer(query url.Values, name string) (int64, error) {
	s := query.Get(name)
	if s == "" {
		return 0, nil
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		return 0, apierrors.NewBadRequest(err.Error())
	}
	return n, nil
}

// CreateOptions parses and validates the query of a create request. It returns an Invalid error (422) for invalid
// options.
func CreateOptions(query url.Values) (*metav1.CreateOptions, error) {
	o := &metav1.CreateOptions{
		DryRun:          query["dryRun"],
		FieldManager:    query.Get("fieldManager"),
		FieldValidation: query.Get("fieldValidation"),
	}
	errs := metav1validation.ValidateCreateOptions(o)
	o.SetGroupVersionKind(metav1.SchemeGroupVersion.WithKind("CreateOptions"))
	return o, invalid("CreateOptions", errs)
}

// UpdateOptions parses and validates the query of an update request. It returns an Invalid error (422) for invalid
// options.
func UpdateOptions(query url.Values) (*metav1.UpdateOptions, error) {
	o := &metav1.UpdateOptions{
		DryRun:          query["dryRun"],
		FieldManager:    query.Get("fieldManager"),
		FieldValidation: query.Get("fieldValidation"),
	}
	errs := metav1validation.ValidateUpdateOptions(o)
	o.SetGroupVersionKind(metav1.SchemeGroupVersion.WithKind("UpdateOptions"))
	return o, invalid("UpdateOptions", errs)
}

// PatchOptions parses and validates the query of a patch request. patch is the type of the patch, because some
// options are only allowed for server-side apply. It returns an Invalid error (422) for invalid options.
func PatchOptions(query url.Values, patch types.PatchType) (*metav1.PatchOptions, error) {
	o := &metav1.PatchOptions{
		DryRun:          query["dryRun"],
		FieldManager:    query.Get("fieldManager"),
		FieldValidation: query.Get("fieldValidation"),
	}
	if _, ok := query["force"]; ok {
		b := IsTrue(query, "force")
		o.Force = &b
	}
	errs := metav1validation.ValidatePatchOptions(o, patch)
	o.SetGroupVersionKind(metav1.SchemeGroupVersion.WithKind("PatchOptions"))
	return o, invalid("PatchOptions", errs)
}

// DeleteOptions parses the query of a delete request that has no body, including preconditions. It returns a
// BadRequest error for an invalid number. The caller must validate the result with CheckDeleteOptions.
func DeleteOptions(query url.Values) (*metav1.DeleteOptions, error) {
	o := &metav1.DeleteOptions{DryRun: query["dryRun"]}
	if _, ok := query["gracePeriodSeconds"]; ok {
		n, err := integer(query, "gracePeriodSeconds")
		if err != nil {
			return nil, err
		}
		o.GracePeriodSeconds = &n
	}
	if _, ok := query["orphanDependents"]; ok {
		b := IsTrue(query, "orphanDependents")
		o.OrphanDependents = &b
	}
	if s := query.Get("propagationPolicy"); s != "" {
		p := metav1.DeletionPropagation(s)
		o.PropagationPolicy = &p
	}
	if IsTrue(query, "ignoreStoreReadErrorWithClusterBreakingPotential") {
		yes := true
		o.IgnoreStoreReadErrorWithClusterBreakingPotential = &yes
	}
	uid, revision := types.UID(query.Get("uid")), query.Get("resourceVersion")
	if uid != "" || revision != "" {
		o.Preconditions = &metav1.Preconditions{}
		if uid != "" {
			o.Preconditions.UID = &uid
		}
		if revision != "" {
			o.Preconditions.ResourceVersion = &revision
		}
	}
	return o, nil
}

// CheckDeleteOptions returns an Invalid error if delete options are invalid or contradict each
// other.
func CheckDeleteOptions(o *metav1.DeleteOptions) error {
	return invalid("DeleteOptions", metav1validation.ValidateDeleteOptions(o))
}

// invalid returns an Invalid error (422) about options of the given kind, or nil if there are no
// errors.
func invalid(kind string, errs field.ErrorList) error {
	if len(errs) == 0 {
		return nil
	}
	return apierrors.NewInvalid(schema.GroupKind{Group: metav1.GroupName, Kind: kind}, "", errs)
}

// ResourceVersion parses the query parameter resourceVersion. It returns -1, which means the latest
// version, if the parameter is missing, and a BadRequest error if it is not a number.
func ResourceVersion(s string) (int64, error) {
	if s == "" {
		return -1, nil
	}
	n, err := strconv.ParseUint(s, 10, 63)
	if err != nil {
		errs := field.ErrorList{field.Invalid(field.NewPath("resourceVersion"), s, err.Error())}
		return 0, apierrors.NewBadRequest(fmt.Sprintf("invalid resource version: %v", errs.ToAggregate()))
	}
	return int64(n), nil
}
