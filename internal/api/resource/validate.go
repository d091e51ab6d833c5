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

// checker collects the validation errors of an object.
type checker struct {
	validate.Errors
	// stored is set if the validated value is unchanged, so that limits that were introduced later
	// do not apply.
	stored bool
}

func (c *checker) driver(name string, at *field.Path) {
	if name == "" {
		c.Required(at, "")
		return
	}
	volume.CSIDriverName(&c.Errors, name, at)
}

func (c *checker) pool(name string, at *field.Path) {
	if name == "" {
		c.Required(at, "")
		return
	}
	if len(name) > resourcev1.PoolNameMaxLength {
		c.Add(field.ErrorList{field.TooLong(at, "", resourcev1.PoolNameMaxLength)})
	}
	for part := range strings.SplitSeq(name, "/") {
		c.Subdomain(at, part)
	}
}

func (c *checker) labelValue(value string, at *field.Path) {
	c.InvalidAll(at, value, validation.IsValidLabelValue(value))
}

func (c *checker) taint(t *resourcev1.DeviceTaint, at *field.Path) {
	c.Add(metavalidation.ValidateLabelName(t.Key, at.Child("key")))
	if t.Value != "" {
		c.labelValue(t.Value, at.Child("value"))
	}
}

func (c *checker) tolerations(list []resourcev1.DeviceToleration, at *field.Path) {
	for i := range list {
		t, at := &list[i], at.Index(i)
		switch t.Operator {
		case resourcev1.DeviceTolerationOpExists:
			if t.Value != "" {
				c.Invalid(at.Child("value"), t.Value, "must be empty for operator `Exists`")
			}
		case resourcev1.DeviceTolerationOpEqual:
			c.labelValue(t.Value, at.Child("value"))
		}
	}
}

// selectors validates the selectors. If there are too many, it validates none, because declarative
// validation reports that there are too many.
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

// expression validates a CEL expression that selects devices.
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

func (c *checker) configuration(conf *resourcev1.DeviceConfiguration, at *field.Path) {
	at = at.Child("opaque")
	if conf.Opaque == nil {
		c.Required(at, "")
		return
	}
	c.raw(conf.Opaque.Parameters, at.Child("parameters"), resourcev1.OpaqueParametersMaxLength)
}

// raw checks that data is a JSON object that does not exceed the maximum size in bytes.
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

// names maps the names of a claim's requests to those of their subrequests.
type names map[string][]string

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

// reference validates a reference of the form "request" or "request/subrequest".
func (c *checker) reference(name string, at *field.Path, known names) {
	const wrong = "must be the name of a request in the claim or the name of a request and a subrequest separated by '/'"
	request, sub, hasSub := strings.Cut(name, "/")
	if strings.Contains(sub, "/") {
		c.Invalid(at, name, wrong)
		return
	}
	c.Label(at, request)
	if hasSub {
		c.Label(at, sub)
	}
	subs, ok := known[request]
	if !ok || hasSub && !slices.Contains(subs, sub) {
		c.Invalid(at, name, wrong)
	}
}

func (c *checker) references(list []string, at *field.Path, known names) {
	if len(list) > resourcev1.DeviceRequestsMaxSize {
		return
	}
	for i, name := range list {
		c.reference(name, at.Index(i), known)
	}
}

// claim validates the spec of a claim.
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
			c.references(x.Requests, at.Child("requests"), known)
			if x.MatchAttribute == nil && x.DistinctAttribute == nil {
				c.Required(at, `exactly one of "matchAttribute" or "distinctAttribute" is required, but multiple fields are set`)
			}
		}
	}
	if len(claim.Config) <= resourcev1.DeviceConfigMaxSize {
		for i := range claim.Config {
			at := at.Child("config").Index(i)
			c.references(claim.Config[i].Requests, at.Child("requests"), known)
			c.configuration(&claim.Config[i].DeviceConfiguration, at)
		}
	}
}

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
		c.count(x.AllocationMode, x.Count, at)
		c.tolerations(x.Tolerations, at.Child("tolerations"))
	case len(r.FirstAvailable) <= resourcev1.FirstAvailableDeviceRequestMaxSize:
		for i := range r.FirstAvailable {
			s, at := &r.FirstAvailable[i], at.Child("firstAvailable").Index(i)
			c.Label(at.Child("name"), s.Name)
			c.selectors(s.Selectors, at.Child("selectors"))
			c.count(s.AllocationMode, s.Count, at)
			c.tolerations(s.Tolerations, at.Child("tolerations"))
		}
	}
}

// count checks that the count matches the mode. Declarative validation checks the mode.
func (c *checker) count(mode resourcev1.DeviceAllocationMode, n int64, at *field.Path) {
	switch mode {
	case resourcev1.DeviceAllocationModeAll:
		if n != 0 {
			c.Invalid(at.Child("count"), n, "must not be specified when allocationMode is 'All'")
		}
	case resourcev1.DeviceAllocationModeExactCount:
		if n <= 0 {
			c.Invalid(at.Child("count"), n, "must be greater than zero")
		}
	}
}

// bindingConditions validates the binding conditions and the binding failure conditions.
func (c *checker) bindingConditions(wanted, failures []string, at *field.Path) {
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
			c.Add(metavalidation.ValidateLabelName(name, l.at.Index(i)))
		}
	}
	for i, name := range wanted {
		if slices.Contains(wanted[:i], name) {
			c.Duplicate(at.Child("bindingConditions").Index(i), name)
		}
	}
	for i, name := range failures {
		at := at.Child("bindingFailureConditions").Index(i)
		if slices.Contains(failures[:i], name) {
			c.Duplicate(at, name)
		}
		if slices.Contains(wanted, name) {
			c.Invalid(at, name, "bindingFailureConditions must not overlap with bindingConditions")
		}
	}
	if len(wanted) == 0 && len(failures) > 0 {
		c.Invalid(at.Child("bindingConditions"), wanted, "bindingConditions are required to use bindingFailureConditions")
	}
	if len(failures) == 0 && len(wanted) > 0 {
		c.Invalid(at.Child("bindingFailureConditions"), failures, "bindingFailureConditions are required to use bindingConditions")
	}
}

// skipped checks that skipping the preparation also skips the unpreparation.
func (c *checker) skipped(ops []resourcev1.SkipNodeOperation, at *field.Path) {
	if slices.Contains(ops, resourcev1.SkipNodeOperationNodePrepareResources) &&
		!slices.Contains(ops, resourcev1.SkipNodeOperationNodeUnprepareResources) && !slices.Contains(ops, resourcev1.SkipNodeOperationAll) {
		c.Invalid(at, ops, "NodePrepareResources cannot be skipped unless NodeUnprepareResources is also skipped")
	}
}

// checkClaimStatus validates a status update of a claim.
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

func (c *checker) allocation(a *resourcev1.AllocationResult, at *field.Path, known names) {
	devices := at.Child("devices")
	if len(a.Devices.Results) <= resourcev1.AllocationResultsMaxSize {
		for i := range a.Devices.Results {
			r, at := &a.Devices.Results[i], devices.Child("results").Index(i)
			c.reference(r.Request, at.Child("request"), known)
			c.Label(at.Child("device"), r.Device)
			c.bindingConditions(r.BindingConditions, r.BindingFailureConditions, at)
			c.tolerations(r.Tolerations, at.Child("tolerations"))
			c.skipped(r.SkipNodeOperations, at.Child("skipNodeOperations"))
		}
	}
	// Configurations can come from the class and from the claim.
	if len(a.Devices.Config) <= 2*resourcev1.DeviceConfigMaxSize {
		for i := range a.Devices.Config {
			at := devices.Child("config").Index(i)
			c.references(a.Devices.Config[i].Requests, at.Child("requests"), known)
			c.configuration(&a.Devices.Config[i].DeviceConfiguration, at)
		}
	}
	if a.NodeSelector != nil {
		c.NodeSelector(at.Child("nodeSelector"), a.NodeSelector)
	}
}

func (c *checker) deviceStatus(s *resourcev1.AllocatedDeviceStatus, at *field.Path, have []device) {
	c.driver(s.Driver, at.Child("driver"))
	c.pool(s.Pool, at.Child("pool"))
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
