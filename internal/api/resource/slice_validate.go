package resource

import (
	"context"
	"fmt"
	"maps"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/api/validate/content"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"hyperkube/internal/api/validate"
)

// maxPolicyValues is the maximum number of valid values in the request policy of a device's
// capacity.
const maxPolicyValues = 10

func checkSlice(ctx context.Context, slice, old *resourcev1.ResourceSlice) field.ErrorList {
	var c validate.Errors
	s, at := &slice.Spec, field.NewPath("spec")
	var was *resourcev1.ResourceSliceSpec
	checkDriver(&c, s.Driver, at.Child("driver"))
	pool := at.Child("pool")
	checkPool(&c, s.Pool.Name, pool.Child("name"))
	if s.Pool.ResourceSliceCount <= 0 {
		c.Invalid(pool.Child("resourceSliceCount"), s.Pool.ResourceSliceCount, "must be greater than zero")
	}
	if s.Pool.Generation < 0 {
		c.Invalid(pool.Child("generation"), s.Pool.Generation, "must be greater than or equal to zero")
	}
	if old != nil {
		was = &old.Spec
		c.Add(apivalidation.ValidateImmutableField(s.Pool.Name, was.Pool.Name, pool.Child("name")))
		c.Add(apivalidation.ValidateImmutableField(s.Driver, was.Driver, at.Child("driver")))
		c.Add(apivalidation.ValidateImmutableField(s.NodeName, was.NodeName, at.Child("nodeName")))
	}
	checkSliceNodes(&c, s, at)
	if s.SharedCounters != nil && s.Devices != nil {
		c.Invalid(at, "", "only one of `sharedCounters` or `devices` is allowed")
	}
	most := resourcev1.ResourceSliceMaxDevices
	if hasLists(s) || slices.ContainsFunc(s.Devices, func(d resourcev1.Device) bool { return len(d.Taints) > 0 || len(d.ConsumesCounters) > 0 }) {
		most = resourcev1.ResourceSliceMaxDevicesWithAdvancedFeatures
	}
	checkDevices(&c, s, was, at.Child("devices"), most)
	if len(s.SharedCounters) <= resourcev1.ResourceSliceMaxCounterSets {
		for i, set := range s.SharedCounters {
			checkCounters(&c, set.Counters, at.Child("sharedCounters").Index(i).Child("counters"), resourcev1.ResourceSliceMaxCountersPerCounterSet)
		}
	}
	checkSkipped(&c, s.SkipNodeOperations, at.Child("skipNodeOperations"))
	c.Add(declared(ctx, resourcev1.Validate_ResourceSliceSpec, at, s, was))
	return c.List
}

// checkSliceNodes checks that a slice specifies its nodes in exactly one way.
func checkSliceNodes(e *validate.Errors, s *resourcev1.ResourceSliceSpec, at *field.Path) {
	const which = "exactly one of `nodeName`, `nodeSelector`, `allNodes`, `perDeviceNodeSelection` is required"
	var set []string
	if s.NodeName != nil {
		if *s.NodeName == "" {
			e.Invalid(at.Child("nodeName"), "", "must be either unset or set to a non-empty string")
		} else {
			set = append(set, "`nodeName`")
			checkNodeName(e, *s.NodeName, at.Child("nodeName"))
		}
	}
	if s.NodeSelector != nil {
		set = append(set, "`nodeSelector`")
		e.NodeSelector(at.Child("nodeSelector"), s.NodeSelector)
		if len(s.NodeSelector.NodeSelectorTerms) != 1 {
			e.Invalid(at.Child("nodeSelector", "nodeSelectorTerms"), s.NodeSelector.NodeSelectorTerms, "must have exactly one node selector term")
		}
	}
	for _, f := range []struct {
		name  string
		value *bool
	}{{"allNodes", s.AllNodes}, {"perDeviceNodeSelection", s.PerDeviceNodeSelection}} {
		switch {
		case f.value == nil:
		case *f.value:
			set = append(set, "`"+f.name+"`")
		default:
			e.Invalid(at.Child(f.name), false, "must be either unset or set to true")
		}
	}
	switch {
	case len(set) == 0:
		e.Required(at, which)
	case len(set) > 1:
		e.Invalid(at, "{"+strings.Join(set, ", ")+"}", which+", but multiple fields are set")
	}
}

func checkNodeName(e *validate.Errors, name string, at *field.Path) {
	e.InvalidAll(at, name, apivalidation.NameIsDNSSubdomain(name, false))
}

// checkDevices validates the devices of a ResourceSlice, whose names must be unique. was is the stored spec, or nil. If
// there are more than most devices, it only reports that.
func checkDevices(e *validate.Errors, s, was *resourcev1.ResourceSliceSpec, at *field.Path, most int) {
	if n := len(s.Devices); n > most {
		e.Add(field.ErrorList{field.TooMany(at, n, most)})
		return
	}
	for i := range s.Devices {
		d := &s.Devices[i]
		var before *resourcev1.Device
		if was != nil {
			if j := slices.IndexFunc(was.Devices, func(o resourcev1.Device) bool { return o.Name == d.Name }); j >= 0 {
				before = &was.Devices[j]
			}
		}
		checkDevice(e, d, before, at.Index(i), ptr.Deref(s.PerDeviceNodeSelection, false))
	}
	seen := map[string]bool{}
	for i, d := range s.Devices {
		if seen[d.Name] {
			e.Duplicate(at.Index(i), d.Name)
		}
		seen[d.Name] = true
	}
}

// checkDevice validates one device of a ResourceSlice. before is the stored device with the same
// name, or nil if it is new; its unchanged capacities and taints are not validated. ownNodes is set
// if each device of the slice selects its nodes.
func checkDevice(e *validate.Errors, d, before *resourcev1.Device, at *field.Path, ownNodes bool) {
	e.Label(at.Child("name"), d.Name)
	if n := len(d.Attributes) + len(d.Capacity); n > resourcev1.ResourceSliceMaxAttributesAndCapacitiesPerDevice {
		e.Invalid(at, n, fmt.Sprintf("the total number of attributes and capacities must not exceed %d", resourcev1.ResourceSliceMaxAttributesAndCapacitiesPerDevice))
	}
	values := 0
	for _, a := range d.Attributes {
		values += max(1, len(a.BoolValues)+len(a.IntValues)+len(a.StringValues)+len(a.VersionValues))
	}
	if values > resourcev1.ResourceSliceMaxAttributeValuesPerDevice {
		e.Invalid(at, values, fmt.Sprintf("the total number of attribute values must not exceed %d", resourcev1.ResourceSliceMaxAttributeValuesPerDevice))
	}
	for _, name := range slices.Sorted(maps.Keys(d.Attributes)) {
		checkQualifiedName(e, string(name), at.Child("attributes"))
		checkAttribute(e, d.Attributes[name], at.Child("attributes").Key(shortened(string(name))))
	}
	if before == nil || !apiequality.Semantic.DeepEqual(before.Capacity, d.Capacity) {
		shared := ptr.Deref(d.AllowMultipleAllocations, false)
		for _, name := range slices.Sorted(maps.Keys(d.Capacity)) {
			at := at.Child("capacity")
			checkQualifiedName(e, string(name), at)
			capacity := d.Capacity[name]
			policy := at.Key(shortened(string(name))).Child("requestPolicy")
			switch {
			case capacity.RequestPolicy == nil:
			case shared:
				checkPolicy(e, capacity.Value, capacity.RequestPolicy, policy)
			default:
				e.Forbidden(policy, "allowMultipleAllocations must be true")
			}
		}
	}
	if before == nil || !apiequality.Semantic.DeepEqual(before.Taints, d.Taints) {
		if n := len(d.Taints); n > resourcev1.DeviceTaintsMaxLength {
			e.Add(field.ErrorList{field.TooMany(at.Child("taints"), n, resourcev1.DeviceTaintsMaxLength)})
		} else {
			for i := range d.Taints {
				checkTaint(e, &d.Taints[i], at.Child("taints").Index(i))
			}
		}
	}
	if len(d.ConsumesCounters) <= resourcev1.ResourceSliceMaxDeviceCounterConsumptionsPerDevice {
		for i, x := range d.ConsumesCounters {
			checkCounters(e, x.Counters, at.Child("consumesCounters").Index(i).Child("counters"), resourcev1.ResourceSliceMaxCountersPerDeviceCounterConsumption)
		}
	}
	checkDeviceNodes(e, d, at, ownNodes)
	checkBindingConditions(e, d.BindingConditions, d.BindingFailureConditions, at)
	checkNodeAllocatable(e, d, at.Child("nodeAllocatableResources"))
}

func checkCounters(e *validate.Errors, all map[string]resourcev1.Counter, at *field.Path, most int) {
	if n := len(all); n > most {
		e.Add(field.ErrorList{field.TooMany(at, n, most)})
	}
}

// checkDeviceNodes validates the node selection of a device. If the slice has
// perDeviceNodeSelection, each device must select its nodes in exactly one way, and otherwise not
// at all.
func checkDeviceNodes(e *validate.Errors, d *resourcev1.Device, at *field.Path, perDevice bool) {
	const which = "exactly one of `nodeName`, `nodeSelector`, or `allNodes` is required when `perDeviceNodeSelection` is set to true in the ResourceSlice spec"
	if !perDevice {
		if d.NodeName != nil || d.NodeSelector != nil || d.AllNodes != nil {
			e.Invalid(at, nil, "`nodeName`, `nodeSelector` and `allNodes` can only be set if `perDeviceNodeSelection` is set to true in the ResourceSlice spec")
		}
		return
	}
	var set []string
	if d.NodeName != nil {
		if *d.NodeName == "" {
			e.Invalid(at.Child("nodeName"), "", "must not be empty")
		} else {
			set = append(set, "`nodeName`")
			checkNodeName(e, *d.NodeName, at.Child("nodeName"))
		}
	}
	if d.NodeSelector != nil {
		set = append(set, "`nodeSelector`")
		e.NodeSelector(at.Child("nodeSelector"), d.NodeSelector)
	}
	if d.AllNodes != nil {
		if *d.AllNodes {
			set = append(set, "`allNodes`")
		} else {
			e.Invalid(at.Child("allNodes"), false, "must be either unset or set to true")
		}
	}
	switch {
	case len(set) == 0:
		e.Required(at, which)
	case len(set) > 1:
		e.Invalid(at, "{"+strings.Join(set, ", ")+"}", which)
	}
}

// shortened returns key, or its beginning and end if it exceeds the maximum length of a key, so
// that error paths stay short.
func shortened(key string) string {
	const most = resourcev1.DeviceMaxDomainLength + 1 + resourcev1.DeviceMaxIDLength
	if len(key) <= most {
		return key
	}
	left := most - len("...")
	return key[:(left+1)/2] + "..." + key[len(key)-left/2:]
}

// checkQualifiedName validates the name of a device's attribute or capacity: a C identifier with an
// optional domain.
func checkQualifiedName(e *validate.Errors, name string, at *field.Path) {
	domain, id, ok := strings.Cut(name, "/")
	switch {
	case !ok:
		checkIdentifier(e, name, at)
		return
	case strings.Contains(id, "/"):
		return // accepted by upstream, so drivers may use it
	}
	if domain == "" {
		e.Invalid(at, "", "the domain must not be empty")
	} else {
		checkDriver(e, domain, at)
	}
	if id == "" {
		e.Invalid(at, "", "the name must not be empty")
	} else {
		checkIdentifier(e, id, at)
	}
}

func checkIdentifier(e *validate.Errors, id string, at *field.Path) {
	if len(id) > resourcev1.DeviceMaxIDLength {
		e.Add(field.ErrorList{field.TooLong(at, "", resourcev1.DeviceMaxIDLength)})
	}
	e.InvalidAll(at, id, content.IsCIdentifier(id))
}

// semver matches a version number in the format of semver.org 2.0.0, which the version attribute of a device must
// have.
var semver = regexp.MustCompile(`^(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)` +
	`(-(0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*)(\.(0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*))*)?` +
	`(\+[0-9a-zA-Z-]+(\.[0-9a-zA-Z-]+)*)?$`)

// checkAttribute validates the values of a device's attribute. That exactly one value is set is
// checked by declarative validation.
func checkAttribute(e *validate.Errors, a resourcev1.DeviceAttribute, at *field.Path) {
	length := func(value string, at *field.Path) {
		if len(value) > resourcev1.DeviceAttributeMaxValueLength {
			e.Add(field.ErrorList{field.TooLong(at, "", resourcev1.DeviceAttributeMaxValueLength)})
		}
	}
	version := func(value string, at *field.Path) {
		if !semver.MatchString(value) {
			e.Invalid(at, value, "must be a string compatible with semver.org spec 2.0.0")
		}
		length(value, at)
	}
	if a.StringValue != nil {
		length(*a.StringValue, at.Child("string"))
	}
	if a.VersionValue != nil {
		version(*a.VersionValue, at.Child("version"))
	}
	empty := func(name string, is bool, value any) {
		if is {
			e.Invalid(at.Child(name), value, "must not be empty if specified")
		}
	}
	empty("bools", a.BoolValues != nil && len(a.BoolValues) == 0, a.BoolValues)
	empty("ints", a.IntValues != nil && len(a.IntValues) == 0, a.IntValues)
	empty("strings", a.StringValues != nil && len(a.StringValues) == 0, a.StringValues)
	empty("versions", a.VersionValues != nil && len(a.VersionValues) == 0, a.VersionValues)
	for i, v := range a.VersionValues {
		version(v, at.Child("versions").Index(i))
	}
}

// checkPolicy validates the request policy p of a capacity that can be shared by allocations. It
// specifies either valid values or a valid range, and a default.
func checkPolicy(e *validate.Errors, capacity resource.Quantity, p *resourcev1.CapacityRequestPolicy, at *field.Path) {
	switch {
	case len(p.ValidValues) > 0 && p.ValidRange != nil:
		e.Forbidden(at, `exactly one policy can be specified, cannot specify "validValues" and "validRange" at the same time`)
	case len(p.ValidValues) > 0 && p.Default == nil:
		e.Required(at.Child("default"), "required when validValues is defined")
	case len(p.ValidValues) > 0:
		checkPolicyValues(e, *p.Default, capacity, p.ValidValues, at.Child("validValues"))
	case p.ValidRange != nil && p.Default == nil:
		e.Required(at.Child("default"), "required when validRange is defined")
	case p.ValidRange != nil:
		checkPolicyRange(e, *p.Default, capacity, p.ValidRange, at.Child("validRange"))
	}
}

// checkPolicyValues validates the values that can be requested of a capacity. They must be sorted, unique as integers,
// and not larger than the capacity, and must contain the default.
func checkPolicyValues(e *validate.Errors, byDefault, capacity resource.Quantity, values []resource.Quantity, at *field.Path) {
	for i := 1; i < len(values); i++ {
		if values[i-1].Cmp(values[i]) > 0 {
			e.Invalid(at.Index(i), values[i].String(), "values must be sorted in ascending order")
		}
	}
	found := false
	if n := len(values); n > maxPolicyValues {
		e.Add(field.ErrorList{field.TooMany(at, n, maxPolicyValues)})
	} else {
		seen := map[string]bool{}
		for i, v := range values {
			if v.Cmp(capacity) > 0 {
				e.Invalid(at.Index(i), v.String(), fmt.Sprintf("option is larger than capacity value: %s", capacity.String()))
			}
			found = found || v.Cmp(byDefault) == 0
			key := strconv.FormatInt(v.Value(), 10)
			if seen[key] {
				e.Duplicate(at.Index(i), key)
			}
			seen[key] = true
		}
	}
	if !found {
		e.Invalid(at, byDefault.String(), "default value is not valid according to the requestPolicy")
	}
}

// checkPolicyRange validates the range that can be requested of a capacity. The minimum is required; the default must
// be in the range, and the maximum at most the capacity. With a step, the default and the maximum must be the minimum
// plus a multiple of the step.
func checkPolicyRange(e *validate.Errors, byDefault, capacity resource.Quantity, r *resourcev1.CapacityRequestPolicyRange, at *field.Path) {
	if r.Min == nil {
		e.Required(at.Child("min"), "required when validRange is defined")
		return
	}
	compare := func(field string, shown, a, b resource.Quantity, text string) {
		if a.Cmp(b) > 0 {
			e.Invalid(at.Child(field), shown.String(), fmt.Sprintf(text, b.String()))
		}
	}
	compare("min", *r.Min, *r.Min, capacity, "min is larger than capacity value: %s")
	if byDefault.Cmp(*r.Min) < 0 {
		e.Invalid(at.Child("default"), byDefault.String(), fmt.Sprintf("default is less than min: %s", r.Min.String()))
	}
	if r.Max != nil {
		compare("max", *r.Min, *r.Min, *r.Max, "min is larger than max: %s")
		compare("max", *r.Max, *r.Max, capacity, "max is larger than capacity value: %s")
		compare("default", byDefault, byDefault, *r.Max, "default is more than max: %s")
	}
	if r.Step == nil {
		return
	}
	if r.Step.Sign() <= 0 {
		e.Invalid(at.Child("step"), r.Step.String(), "must be greater than zero")
		return
	}
	sum := r.Min.DeepCopy()
	sum.Add(*r.Step)
	if sum.Cmp(capacity) > 0 {
		e.Invalid(at.Child("step"), r.Step.String(), fmt.Sprintf("one step %s is larger than capacity value: %s", sum.String(), capacity.String()))
	}
	type named struct {
		q    *resource.Quantity
		name string
	}
	bounds := slices.DeleteFunc([]named{{&byDefault, "default"}, {r.Min, "min"}, {r.Max, "max"}, {r.Step, "step"}}, func(n named) bool { return n.q == nil })
	before := len(e.List)
	for _, n := range bounds {
		switch {
		case n.q.Sign() < 0:
			e.Invalid(at.Child(n.name), n.q.String(), apivalidation.IsNegativeErrorMsg)
		case n.q.CmpInt64(math.MaxInt64) > 0:
			e.Invalid(at.Child(n.name), n.q.String(), "must not be larger than 9223372036854775807")
		}
	}
	if len(e.List) > before {
		return
	}
	// The values are rounded up to integers, because DRAFractionalCapacityRange is disabled.
	step, from := r.Step.Value(), r.Min.Value()
	for _, q := range []*resource.Quantity{&byDefault, r.Max} {
		if q != nil && (q.Value()-from)%step != 0 {
			e.Invalid(at.Child("step"), q.String(), fmt.Sprintf("value is not a multiple of a given step (%s) from (%s)", r.Step.String(), r.Min.String()))
		}
	}
}

// checkNodeAllocatable validates which node resources, such as CPU and memory, an allocation of the
// device consumes.
func checkNodeAllocatable(e *validate.Errors, d *resourcev1.Device, at *field.Path) {
	for _, name := range slices.Sorted(maps.Keys(d.NodeAllocatableResources)) {
		r, at := d.NodeAllocatableResources[name], at.Key(string(name))
		if validate.IsExtended(name) || !isNodeResource(name) {
			e.Invalid(at, name, "must be a node allocatable resource name")
		}
		if r.Mapping == nil && r.Overhead == nil {
			e.Required(at, "at least one of mapping or overhead must be set")
		}
		if m := r.Mapping; m != nil {
			checkMapping(e, m, d, at.Child("mapping"))
		}
		o := r.Overhead
		if o == nil {
			continue
		}
		at = at.Child("overhead")
		if o.PerPod == nil && o.PerContainer == nil {
			e.Invalid(at, "", "at least one of perPod or perContainer must be set")
		}
		if o.PerPod != nil && o.PerPod.Sign() < 0 {
			e.Invalid(at.Child("perPod"), o.PerPod.String(), "must be non-negative")
		}
		if o.PerContainer != nil && o.PerContainer.Sign() < 0 {
			e.Invalid(at.Child("perContainer"), o.PerContainer.String(), "must be non-negative")
		}
	}
}

// isNodeResource reports whether name is a resource of nodes that devices can consume: CPU, memory, ephemeral storage
// or huge pages.
func isNodeResource(name corev1.ResourceName) bool {
	switch name {
	case corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage:
		return true
	}
	return validate.IsHugePage(name)
}

// checkMapping validates how a device maps to an allocatable resource of the node. A capacity key must be that of a
// capacity of d and requires a multiplier, and multipliers must be positive.
func checkMapping(e *validate.Errors, m *resourcev1.NodeAllocatableMapping, d *resourcev1.Device, at *field.Path) {
	positive := func(q *resource.Quantity, name string) {
		if q != nil && q.Sign() <= 0 {
			e.Invalid(at.Child(name), q.String(), "must be positive")
		}
	}
	if m.CapacityKey != nil {
		if *m.CapacityKey == "" {
			e.Invalid(at.Child("capacityKey"), "", "capacityKey must not be an empty string")
		} else if _, ok := d.Capacity[*m.CapacityKey]; !ok {
			e.NotFound(at.Child("capacityKey"), *m.CapacityKey)
		}
		if m.CapacityMultiplier == nil {
			e.Required(at.Child("capacityMultiplier"), "capacityMultiplier is required when capacityKey is set")
		}
		positive(m.CapacityMultiplier, "capacityMultiplier")
	} else if m.CapacityMultiplier != nil {
		e.Required(at.Child("capacityKey"), "capacityKey is required when capacityMultiplier is set")
	}
	positive(m.DeviceMultiplier, "deviceMultiplier")
}
