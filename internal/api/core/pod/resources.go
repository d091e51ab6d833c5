package pod

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation/field"
	resourcehelper "k8s.io/component-helpers/resource"

	"hyperkube/internal/api/validate"
)

// checkResources validates the resource requests, limits and claims of a container and adds the errors to c. at is the
// field path of r.
func (c *checker) checkResources(r *corev1.ResourceRequirements, at *field.Path) {
	checkRequirements(&c.Errors, r, validate.ContainerResourceName, at)
	c.checkClaimRefs(r.Claims, at.Child("claims"))
}

func sortedNames(list corev1.ResourceList) []corev1.ResourceName {
	if len(list) == 0 {
		return nil
	}
	return slices.Sorted(maps.Keys(list))
}

// checkRequirements validates the requests and limits of a container or a pod. checkName validates the names of
// resources. A request must not exceed its limit, and must be equal to it for resources that cannot be overcommitted,
// which require a limit. Huge pages require CPU or memory.
func checkRequirements(e *validate.Errors, r *corev1.ResourceRequirements, checkName func(*validate.Errors, *field.Path, corev1.ResourceName), at *field.Path) {
	compute, huge := false, false
	count := func(name corev1.ResourceName) {
		compute = compute || name == corev1.ResourceCPU || name == corev1.ResourceMemory
		huge = huge || validate.IsHugePage(name)
	}
	limits, requests := at.Child("limits"), at.Child("requests")
	for _, name := range sortedNames(r.Limits) {
		count(name)
		checkAmount(e, name, r.Limits[name], checkName, limits.Key(string(name)))
	}
	for _, name := range sortedNames(r.Requests) {
		count(name)
		q := r.Requests[name]
		key := requests.Key(string(name))
		checkName(e, key, name)
		e.Quantity(key, name, q)
		limit, ok := r.Limits[name]
		switch {
		case ok && q.Cmp(limit) != 0 && !validate.IsOvercommitAllowed(name):
			e.Invalid(requests, q.String(), fmt.Sprintf("must be equal to %s limit of %s", name, limit.String()))
		case ok && q.Cmp(limit) > 0:
			e.Invalid(requests, q.String(), fmt.Sprintf("must be less than or equal to %s limit of %s", name, limit.String()))
		case !ok && !validate.IsOvercommitAllowed(name):
			e.Required(limits, "Limit must be set for non overcommitable resources")
		}
		checkHugePages(e, name, q, key)
	}
	if huge && !compute {
		e.Forbidden(at, "HugePages require cpu or memory")
	}
}

func checkAmount(e *validate.Errors, name corev1.ResourceName, q resource.Quantity, checkName func(*validate.Errors, *field.Path, corev1.ResourceName), at *field.Path) {
	checkName(e, at, name)
	e.Quantity(at, name, q)
	checkHugePages(e, name, q, at)
}

// checkHugePages checks that the quantity q of a huge page resource is a multiple of the page size
// in its name. It ignores other resources.
func checkHugePages(e *validate.Errors, name corev1.ResourceName, q resource.Quantity, at *field.Path) {
	if !validate.IsHugePage(name) {
		return
	}
	page, err := resource.ParseQuantity(strings.TrimPrefix(string(name), corev1.ResourceHugePagesPrefix))
	if err != nil || page.Sign() <= 0 || page.MilliValue()%1000 != 0 || q.Value()%page.Value() != 0 {
		e.Invalid(at, q.String(), fmt.Sprintf("%s is not positive integer multiple of %s", q.String(), name))
	}
}

// checkClaimRefs validates the references of a container, at path, to the pod's resource claims.
// Each refers to a whole claim or to one of its requests, which must not be referenced twice.
func (c *checker) checkClaimRefs(claims []corev1.ResourceClaim, path *field.Path) {
	for i, claim := range claims {
		at, before := path.Index(i), claims[:i]
		if claim.Name == "" {
			c.Required(at, "")
			continue
		}
		whole := slices.ContainsFunc(before, func(o corev1.ResourceClaim) bool { return o.Name == claim.Name && o.Request == "" })
		switch {
		case whole:
			c.Duplicate(at, claim.Name)
		case claim.Request != "":
			c.Label(at.Child("request"), claim.Request)
			if slices.Contains(before, claim) {
				c.Duplicate(at, claim.Name+"/"+claim.Request)
			}
		default:
			for _, o := range before {
				if o.Name == claim.Name {
					c.Duplicate(at, claim.Name)
				}
			}
		}
		if !c.claims[claim.Name] {
			err := field.NotFound(at, claim.Name)
			err.Detail = "must be one of the names in pod.spec.resourceClaims"
			if len(c.claims) == 0 {
				err.Detail += " which is empty"
			} else {
				err.Detail += ": " + strings.Join(slices.Sorted(maps.Keys(c.claims)), ", ")
			}
			c.Add(field.ErrorList{err})
		}
	}
}

// checkPodClaims validates the list of resource claims in the pod spec. Each entry must name either
// a ResourceClaim or a ResourceClaimTemplate.
func checkPodClaims(e *validate.Errors, spec *corev1.PodSpec, path *field.Path) {
	for i, claim := range spec.ResourceClaims {
		at := path.Index(i)
		switch {
		case claim.Name == "":
			e.Required(at.Child("name"), "")
		case slices.ContainsFunc(spec.ResourceClaims[:i], func(o corev1.PodResourceClaim) bool { return o.Name == claim.Name }):
			e.Duplicate(at.Child("name"), claim.Name)
		default:
			e.Label(at.Child("name"), claim.Name)
		}
		switch {
		case claim.ResourceClaimName != nil && claim.ResourceClaimTemplateName != nil:
			e.Invalid(at, claim, "at most one of `resourceClaimName` or `resourceClaimTemplateName` may be specified")
		case claim.ResourceClaimName == nil && claim.ResourceClaimTemplateName == nil:
			e.Invalid(at, claim, "must specify one of: `resourceClaimName`, `resourceClaimTemplateName`")
		}
		if name := claim.ResourceClaimName; name != nil {
			e.Subdomain(at.Child("resourceClaimName"), *name)
		}
		if name := claim.ResourceClaimTemplateName; name != nil {
			e.Subdomain(at.Child("resourceClaimTemplateName"), *name)
		}
	}
}

// checkPodResources validates the pod-level resources, which must cover those of the containers
// (KEP-2837).
func (c *checker) checkPodResources(at *field.Path) {
	r := c.spec.Resources
	if r == nil {
		return
	}
	if c.spec.OS != nil && c.spec.OS.Name == corev1.Windows {
		c.Forbidden(at, "may not be set for a windows pod")
		return
	}
	if r.Claims != nil {
		c.Forbidden(at.Child("claims"), "claims may not be set for Resources at pod-level")
	}
	c.checkClaimRefs(r.Claims, at.Child("claims"))
	checkRequirements(&c.Errors, r, validate.PodResourceName, at)
	sum := resourcehelper.AggregateContainerRequests(&corev1.Pod{Spec: *c.spec}, resourcehelper.PodResourcesOptions{})
	for _, name := range sortedNames(sum) {
		need := sum[name]
		if have, ok := r.Requests[name]; ok && need.Cmp(have) > 0 {
			c.Invalid(at.Child("requests").Key(string(name)), have.String(),
				fmt.Sprintf("must be greater than or equal to aggregate container requests of %s", need.String()))
		}
	}
	most := resourcehelper.AggregateContainerLimits(&corev1.Pod{Spec: *c.spec}, resourcehelper.PodResourcesOptions{})
	for _, name := range sortedNames(most) {
		need := most[name]
		if have, ok := r.Limits[name]; ok && validate.IsHugePage(name) && need.Cmp(have) > 0 {
			c.Invalid(at.Child("limits").Key(string(name)), have.String(),
				fmt.Sprintf("must be greater than or equal to aggregate container limits of %s", need.String()))
		}
	}
	for i := range c.spec.Containers {
		limits := c.spec.Containers[i].Resources.Limits
		for _, name := range sortedNames(limits) {
			limit := limits[name]
			if most, ok := r.Limits[name]; ok && limit.Cmp(most) > 0 {
				c.Invalid(at.Child("containers").Index(i).Key(string(name)).Child("limits"), limit.String(),
					fmt.Sprintf("must be less than or equal to pod limits of %s", most.String()))
			}
		}
	}
}
