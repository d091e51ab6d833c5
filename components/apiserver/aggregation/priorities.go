package aggregation

import "k8s.io/apimachinery/pkg/runtime/schema"

// Priority determines the position of a group among the groups, and of a version in its group, in
// discovery. Higher values come first.
type Priority struct {
	Group, Version int32
}

// customResources is the default priority, in discovery, of the API groups of custom resources and of their versions.
var customResources = Priority{Group: 1000, Version: 100}

// builtIn returns the priorities, in discovery, of the API groups and versions of Kubernetes, as in upstream. Clients
// prefer the version of a group that discovery lists first.
func builtIn() map[schema.GroupVersion]Priority {
	gv := func(group, version string) schema.GroupVersion {
		return schema.GroupVersion{Group: group, Version: version}
	}
	return map[schema.GroupVersion]Priority{
		gv("", "v1"): {18000, 1},
		// This group has no APIService. It is always the first.
		gv("apiregistration.k8s.io", "v1"):       {20001, 15},
		gv("apps", "v1"):                         {17800, 15},
		gv("events.k8s.io", "v1"):                {17750, 15},
		gv("authentication.k8s.io", "v1"):        {17700, 15},
		gv("authorization.k8s.io", "v1"):         {17600, 15},
		gv("autoscaling", "v2"):                  {17500, 30},
		gv("autoscaling", "v1"):                  {17500, 15},
		gv("batch", "v1"):                        {17400, 15},
		gv("certificates.k8s.io", "v1"):          {17300, 15},
		gv("networking.k8s.io", "v1"):            {17200, 15},
		gv("policy", "v1"):                       {17100, 15},
		gv("rbac.authorization.k8s.io", "v1"):    {17000, 15},
		gv("storage.k8s.io", "v1"):               {16800, 15},
		gv("admissionregistration.k8s.io", "v1"): {16700, 15},
		gv("apiextensions.k8s.io", "v1"):         {16700, 15},
		gv("scheduling.k8s.io", "v1"):            {16600, 15},
		gv("coordination.k8s.io", "v1"):          {16500, 15},
		gv("node.k8s.io", "v1"):                  {16300, 15},
		gv("discovery.k8s.io", "v1"):             {16200, 15},
		gv("resource.k8s.io", "v1"):              {16200, 21},
		gv("flowcontrol.apiserver.k8s.io", "v1"): {16100, 21},
		gv("storagemigration.k8s.io", "v1"):      {15800, 15},
	}
}
