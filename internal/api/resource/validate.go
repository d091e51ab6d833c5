package resource

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	resourcev1 "k8s.io/api/resource/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/cel"
	"k8s.io/apiserver/pkg/cel/environment"
	dracel "k8s.io/dynamic-resource-allocation/cel"

	"hyperkube/internal/api/core/volume"
	"hyperkube/internal/api/validate"
)

// checker collects the validation errors of a claim, template or class. Its methods are the checks
// that depend on stored; the other checks are functions.
type checker struct {
	validate.Errors
	// stored is set if the validated value is unchanged, so that limits that were introduced later
	// do not apply.
	stored bool
}

func checkDriver(e *validate.Errors, name string, at *field.Path) {
	if name == "" {
		e.Required(at, "")
		return
	}
	volume.CSIDriverName(e, name, at)
}

func checkPool(e *validate.Errors, name string, at *field.Path) {
	if name == "" {
		e.Required(at, "")
		return
	}
	if len(name) > resourcev1.PoolNameMaxLength {
		e.Add(field.ErrorList{field.TooLong(at, "", resourcev1.PoolNameMaxLength)})
	}
	for part := range strings.SplitSeq(name, "/") {
		e.Subdomain(at, part)
	}
}

func checkLabelValue(e *validate.Errors, value string, at *field.Path) {
	e.InvalidAll(at, value, validation.IsValidLabelValue(value))
}

func checkTaint(e *validate.Errors, t *resourcev1.DeviceTaint, at *field.Path) {
	e.Add(metavalidation.ValidateLabelName(t.Key, at.Child("key")))
	if t.Value != "" {
		checkLabelValue(e, t.Value, at.Child("value"))
	}
}

func checkTolerations(e *validate.Errors, list []resourcev1.DeviceToleration, at *field.Path) {
	for i := range list {
		t, at := &list[i], at.Index(i)
		switch t.Operator {
		case resourcev1.DeviceTolerationOpExists:
			if t.Value != "" {
				e.Invalid(at.Child("value"), t.Value, "must be empty for operator `Exists`")
			}
		case resourcev1.DeviceTolerationOpEqual:
			checkLabelValue(e, t.Value, at.Child("value"))
		}
	}
}

// selectors validates the CEL selectors of a request or class. If there are more than allowed, it
// validates none, because declarative validation reports that.
func (c *checker) selectors(list []resourcev1.DeviceSelector, at *field.Path) {
	if len(list) > resourcev1.DeviceSelectorsMaxSize {
		return
	}
	for i, s := range list {
		cel := at.Index(i).Child("cel")
		if s.CEL == nil {
			c.Required(cel, "")
			continue
		}
		c.expression(s.CEL.Expression, cel.Child("expression"))
	}
}

// expression compiles a CEL expression that selects devices, and adds an error if it is invalid,
// too long or too expensive. Stored expressions are not compiled.
func (c *checker) expression(text string, at *field.Path) {
	if c.stored {
		return
	}
	if len(text) > resourcev1.CELSelectorExpressionMaxLength {
		c.Add(field.ErrorList{field.TooLong(at, "", resourcev1.CELSelectorExpressionMaxLength)})
		return
	}
	env := environment.NewExpressions
	result := dracel.GetCompiler(dracel.Features{EnableConsumableCapacity: true}).CompileCELExpression(text, dracel.Options{EnvType: &env})
	if result.Error != nil {
		var err *cel.Error
		switch {
		case !errors.As(result.Error, &err):
			c.Add(field.ErrorList{field.InternalError(at, fmt.Errorf("unsupported error type: %w", result.Error))})
		case err.Type == cel.ErrorTypeRequired:
			c.Required(at, err.Detail)
		case err.Type == cel.ErrorTypeInvalid:
			c.Invalid(at, text, err.Detail)
		default:
			c.Add(field.ErrorList{field.InternalError(at, err)})
		}
		return
	}
	if result.MaxCost > resourcev1.CELSelectorExpressionMaxCost {
		c.Forbidden(at, "too complex, exceeds cost limit")
	}
}

// configuration validates the configuration of a device for its driver, which must be opaque.
func (c *checker) configuration(conf *resourcev1.DeviceConfiguration, at *field.Path) {
	at = at.Child("opaque")
	if conf.Opaque == nil {
		c.Required(at, "")
		return
	}
	c.raw(conf.Opaque.Parameters, at.Child("parameters"), resourcev1.OpaqueParametersMaxLength)
}

// raw checks that data is a JSON object of at most most bytes. The size of unchanged data is not
// checked.
func (c *checker) raw(data runtime.RawExtension, at *field.Path, most int) {
	if len(data.Raw) == 0 {
		c.Required(at, "")
		return
	}
	if !c.stored && len(data.Raw) > most {
		c.Add(field.ErrorList{field.TooLong(at, "", most)})
		return
	}
	var v any
	if err := json.Unmarshal(data.Raw, &v); err != nil {
		c.Invalid(at, "<value omitted>", fmt.Sprintf("error parsing data as JSON: %v", err))
		return
	}
	if v == nil {
		c.Required(at, "")
	} else if _, ok := v.(map[string]any); !ok {
		c.Invalid(at, "<value omitted>", "must be a valid JSON object")
	}
}

// names maps the name of each request of a claim to the names of its subrequests (firstAvailable).
type names map[string][]string

// requestNames returns the names of a claim's requests and subrequests.
func requestNames(claim *resourcev1.DeviceClaim) names {
	all := names{}
	for _, r := range claim.Requests {
		var subs []string
		for _, s := range r.FirstAvailable {
			subs = append(subs, s.Name)
		}
		all[r.Name] = subs
	}
	return all
}

// checkReference validates name, a reference to a request of the same claim in the form "request"
// or "request/subrequest". known contains the claim's requests.
func checkReference(e *validate.Errors, name string, at *field.Path, known names) {
	const wrong = "must be the name of a request in the claim or the name of a request and a subrequest separated by '/'"
	request, sub, hasSub := strings.Cut(name, "/")
	if strings.Contains(sub, "/") {
		e.Invalid(at, name, wrong)
		return
	}
	e.Label(at, request)
	if hasSub {
		e.Label(at, sub)
	}
	subs, ok := known[request]
	if !ok || hasSub && !slices.Contains(subs, sub) {
		e.Invalid(at, name, wrong)
	}
}

func checkReferences(e *validate.Errors, list []string, at *field.Path, known names) {
	if len(list) > resourcev1.DeviceRequestsMaxSize {
		return
	}
	for i, name := range list {
		checkReference(e, name, at.Index(i), known)
	}
}

// claim validates the devices of a claim's or claim template's spec. Lists that are too long are
// not validated, because declarative validation reports them.
func (c *checker) claim(claim *resourcev1.DeviceClaim, at *field.Path) {
	known := requestNames(claim)
	if len(claim.Requests) <= resourcev1.DeviceRequestsMaxSize {
		for i := range claim.Requests {
			c.request(&claim.Requests[i], at.Child("requests").Index(i))
		}
	}
	if len(claim.Constraints) <= resourcev1.DeviceConstraintsMaxSize {
		for i, x := range claim.Constraints {
			at := at.Child("constraints").Index(i)
			checkReferences(&c.Errors, x.Requests, at.Child("requests"), known)
			if x.MatchAttribute == nil && x.DistinctAttribute == nil {
				c.Required(at, `exactly one of "matchAttribute" or "distinctAttribute" is required, but multiple fields are set`)
			}
		}
	}
	if len(claim.Config) <= resourcev1.DeviceConfigMaxSize {
		for i := range claim.Config {
			at := at.Child("config").Index(i)
			checkReferences(&c.Errors, claim.Config[i].Requests, at.Child("requests"), known)
			c.configuration(&claim.Config[i].DeviceConfiguration, at)
		}
	}
}

// request validates a device request, which has either exactly or firstAvailable. A list of alternatives that is too
// long is not validated, because declarative validation reports it.
func (c *checker) request(r *resourcev1.DeviceRequest, at *field.Path) {
	c.Label(at.Child("name"), r.Name)
	switch {
	case r.Exactly == nil && len(r.FirstAvailable) == 0:
		c.Required(at, "exactly one of `exactly` or `firstAvailable` is required")
	case r.Exactly != nil && len(r.FirstAvailable) > 0:
		c.Invalid(at, nil, "exactly one of `exactly` or `firstAvailable` is required, but multiple fields are set")
	case r.Exactly != nil:
		x, at := r.Exactly, at.Child("exactly")
		if x.DeviceClassName == "" {
			c.Required(at.Child("deviceClassName"), "")
		} else {
			c.Subdomain(at.Child("deviceClassName"), x.DeviceClassName)
		}
		c.selectors(x.Selectors, at.Child("selectors"))
		checkCount(&c.Errors, x.AllocationMode, x.Count, at)
		checkTolerations(&c.Errors, x.Tolerations, at.Child("tolerations"))
	case len(r.FirstAvailable) <= resourcev1.FirstAvailableDeviceRequestMaxSize:
		for i := range r.FirstAvailable {
			s, at := &r.FirstAvailable[i], at.Child("firstAvailable").Index(i)
			c.Label(at.Child("name"), s.Name)
			c.selectors(s.Selectors, at.Child("selectors"))
			checkCount(&c.Errors, s.AllocationMode, s.Count, at)
			checkTolerations(&c.Errors, s.Tolerations, at.Child("tolerations"))
		}
	}
}

// checkCount checks that the number of devices, n, fits the allocation mode. The mode itself is
// checked by declarative validation.
func checkCount(e *validate.Errors, mode resourcev1.DeviceAllocationMode, n int64, at *field.Path) {
	switch mode {
	case resourcev1.DeviceAllocationModeAll:
		if n != 0 {
			e.Invalid(at.Child("count"), n, "must not be specified when allocationMode is 'All'")
		}
	case resourcev1.DeviceAllocationModeExactCount:
		if n <= 0 {
			e.Invalid(at.Child("count"), n, "must be greater than zero")
		}
	}
}

// checkBindingConditions validates the conditions wanted, which must be true before a pod is bound
// to a node, and failures, whose truth makes the binding fail. The lists must not overlap, and
// either both or none must be empty. at is the path of the device.
func checkBindingConditions(e *validate.Errors, wanted, failures []string, at *field.Path) {
	for _, l := range []struct {
		list []string
		at   *field.Path
		most int
	}{
		{wanted, at.Child("bindingConditions"), resourcev1.BindingConditionsMaxSize},
		{failures, at.Child("bindingFailureConditions"), resourcev1.BindingFailureConditionsMaxSize},
	} {
		if len(l.list) > l.most {
			continue
		}
		for i, name := range l.list {
			e.Add(metavalidation.ValidateLabelName(name, l.at.Index(i)))
		}
	}
	for i, name := range wanted {
		if slices.Contains(wanted[:i], name) {
			e.Duplicate(at.Child("bindingConditions").Index(i), name)
		}
	}
	for i, name := range failures {
		at := at.Child("bindingFailureConditions").Index(i)
		if slices.Contains(failures[:i], name) {
			e.Duplicate(at, name)
		}
		if slices.Contains(wanted, name) {
			e.Invalid(at, name, "bindingFailureConditions must not overlap with bindingConditions")
		}
	}
	if len(wanted) == 0 && len(failures) > 0 {
		e.Invalid(at.Child("bindingConditions"), wanted, "bindingConditions are required to use bindingFailureConditions")
	}
	if len(failures) == 0 && len(wanted) > 0 {
		e.Invalid(at.Child("bindingFailureConditions"), failures, "bindingFailureConditions are required to use bindingConditions")
	}
}

// checkSkipped checks that a driver that skips the preparation of claims on nodes also skips the
// unpreparation.
func checkSkipped(e *validate.Errors, ops []resourcev1.SkipNodeOperation, at *field.Path) {
	if slices.Contains(ops, resourcev1.SkipNodeOperationNodePrepareResources) &&
		!slices.Contains(ops, resourcev1.SkipNodeOperationNodeUnprepareResources) && !slices.Contains(ops, resourcev1.SkipNodeOperationAll) {
		e.Invalid(at, ops, "NodePrepareResources cannot be skipped unless NodeUnprepareResources is also skipped")
	}
}

// checkClaimStatus validates a status update of a claim. An allocation is immutable: it can only be
// added and removed. old is the stored claim.
func checkClaimStatus(ctx context.Context, claim, old *resourcev1.ResourceClaim) field.ErrorList {
	var c checker
	status, was := &claim.Status, &old.Status
	at := field.NewPath("status")
	reserved := at.Child("reservedFor")
	if len(status.ReservedFor) <= resourcev1.ResourceClaimReservedForMaxSize {
		for i, r := range status.ReservedFor {
			for _, f := range []struct{ name, value string }{{"resource", r.Resource}, {"name", r.Name}, {"uid", string(r.UID)}} {
				if f.value == "" {
					c.Required(reserved.Index(i).Child(f.name), "")
				}
			}
		}
	}
	have := allocated(claim)
	for i := range status.Devices {
		c.deviceStatus(&status.Devices[i], at.Child("devices").Index(i), have)
	}
	if len(status.ReservedFor) > 0 {
		switch {
		case status.Allocation == nil:
			c.Forbidden(reserved, "may not be specified when `allocated` is not set")
		case claim.DeletionTimestamp != nil && slices.ContainsFunc(status.ReservedFor, func(r resourcev1.ResourceClaimConsumerReference) bool {
			return !slices.Contains(was.ReservedFor, r)
		}):
			c.Forbidden(reserved, "new entries may not be added while `deallocationRequested` or `deletionTimestamp` are set")
		}
	}
	// An allocation is immutable; it can only be added and removed.
	if status.Allocation != nil && was.Allocation == nil {
		c.allocation(status.Allocation, at.Child("allocation"), requestNames(&claim.Spec.Devices))
	}
	c.Add(declared(ctx, resourcev1.Validate_ResourceClaimStatus, at, status, was))
	return c.List
}

// allocation validates a new allocation of a claim. known contains the claim's requests.
func (c *checker) allocation(a *resourcev1.AllocationResult, at *field.Path, known names) {
	devices := at.Child("devices")
	if len(a.Devices.Results) <= resourcev1.AllocationResultsMaxSize {
		for i := range a.Devices.Results {
			r, at := &a.Devices.Results[i], devices.Child("results").Index(i)
			checkReference(&c.Errors, r.Request, at.Child("request"), known)
			c.Label(at.Child("device"), r.Device)
			checkBindingConditions(&c.Errors, r.BindingConditions, r.BindingFailureConditions, at)
			checkTolerations(&c.Errors, r.Tolerations, at.Child("tolerations"))
			checkSkipped(&c.Errors, r.SkipNodeOperations, at.Child("skipNodeOperations"))
		}
	}
	// Configurations can come from the class and from the claim.
	if len(a.Devices.Config) <= 2*resourcev1.DeviceConfigMaxSize {
		for i := range a.Devices.Config {
			at := devices.Child("config").Index(i)
			checkReferences(&c.Errors, a.Devices.Config[i].Requests, at.Child("requests"), known)
			c.configuration(&a.Devices.Config[i].DeviceConfiguration, at)
		}
	}
	if a.NodeSelector != nil {
		c.NodeSelector(at.Child("nodeSelector"), a.NodeSelector)
	}
}

// deviceStatus validates the status of a device, which must be one of have, the devices that are allocated to the
// claim.
func (c *checker) deviceStatus(s *resourcev1.AllocatedDeviceStatus, at *field.Path, have []device) {
	checkDriver(&c.Errors, s.Driver, at.Child("driver"))
	checkPool(&c.Errors, s.Pool, at.Child("pool"))
	c.Label(at.Child("device"), s.Device)
	d := deviceOf(s)
	if !slices.Contains(have, d) {
		c.Invalid(at, d.forError(), "must be an allocated device in the claim")
	}
	conditions := at.Child("conditions")
	if n := len(s.Conditions); n > resourcev1.AllocatedDeviceStatusMaxConditions {
		c.Add(field.ErrorList{field.TooMany(conditions, n, resourcev1.AllocatedDeviceStatusMaxConditions)})
	}
	c.Add(validate.Conditions(s.Conditions, conditions))
	if s.Data != nil && len(s.Data.Raw) > 0 {
		c.raw(*s.Data, at.Child("data"), resourcev1.AllocatedDeviceStatusDataMaxLength)
	}
	if n := s.NetworkData; n != nil && len(n.IPs) <= resourcev1.NetworkDeviceDataMaxIPs {
		for i, ip := range n.IPs {
			c.Add(validation.IsValidInterfaceAddress(at.Child("networkData", "ips").Index(i), ip))
		}
	}
}
