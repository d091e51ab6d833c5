package scheduler

import (
	"errors"
	"fmt"
	"slices"

	configv1 "k8s.io/kube-scheduler/config/v1"

	"hyperkube/components/scheduler/framework"
	"hyperkube/components/scheduler/plugins"
)

// ignoredPlugins are upstream's plugins that a configuration may name without effect: their function is always active
// here, or does not exist.
var ignoredPlugins = []string{
	"PrioritySort", "DefaultBinder",
	"GangScheduling", "DeferredPodScheduling", "TopologyPlacementGenerator", "PodGroupPodsCount",
}

// choosePlugins returns the plugins that a profile enables, with the arguments args. p is the plugins field of the
// profile; nil enables the default plugins. It returns an error for unknown plugins and for plugins that do not
// implement the extension point at which they are enabled.
func choosePlugins(args plugins.Args, p *configv1.Plugins) (plugins.Set, error) {
	all := plugins.With(args)
	if p == nil {
		return all, nil
	}
	known := knownNames(all)
	var errs []error
	for _, point := range []configv1.PluginSet{
		p.MultiPoint, p.PreEnqueue, p.QueueSort, p.PreFilter, p.Filter, p.PostFilter, p.PreScore, p.Score, p.Reserve, p.Permit, p.PreBind, p.Bind, p.PostBind,
	} {
		for _, e := range point.Enabled {
			if !known[e.Name] {
				errs = append(errs, fmt.Errorf("unknown plugin %q", e.Name))
			}
		}
		for _, d := range point.Disabled {
			if d.Name != "*" && !known[d.Name] {
				errs = append(errs, fmt.Errorf("unknown plugin %q", d.Name))
			}
		}
	}
	if err := errors.Join(errs...); err != nil {
		return plugins.Set{}, err
	}
	set := plugins.Set{}
	set.PreEnqueue = pickPlugins("PreEnqueue", all.PreEnqueue, p.MultiPoint, p.PreEnqueue, &errs)
	set.Filter = pickPlugins("Filter", all.Filter, p.MultiPoint, p.Filter, &errs)
	if slices.ContainsFunc(set.Filter, func(f framework.Filter) bool { return f.Name() == all.Devices.Name() }) {
		set.Devices = all.Devices
	}
	set.Score = pickPlugins("Score", all.Score, p.MultiPoint, p.Score, &errs)
	for i := range set.Score {
		w := &set.Score[i]
		for _, e := range slices.Concat(p.MultiPoint.Enabled, p.Score.Enabled) {
			if e.Name != w.Name() {
				continue
			}
			w.Weight = 1
			if e.Weight != nil && *e.Weight != 0 {
				w.Weight = int64(*e.Weight)
			}
			if w.Weight < 0 {
				errs = append(errs, fmt.Errorf("plugin %q: negative weight", e.Name))
			}
		}
	}
	if len(pickPlugins("PostFilter", []framework.Plugin{all.Preemption}, p.MultiPoint, p.PostFilter, &errs)) > 0 {
		set.Preemption = all.Preemption
	}
	return set, errors.Join(errs...)
}

// knownNames returns the names of all plugins in set and of the ignored plugins.
func knownNames(set plugins.Set) map[string]bool {
	known := map[string]bool{set.Preemption.Name(): true}
	for _, p := range set.PreEnqueue {
		known[p.Name()] = true
	}
	for _, p := range set.Filter {
		known[p.Name()] = true
	}
	for _, p := range set.Score {
		known[p.Name()] = true
	}
	for _, name := range ignoredPlugins {
		known[name] = true
	}
	return known
}

// pickPlugins returns those of all, the plugins of an extension point, that a profile enables, in the order of all.
// multi is the profile's multiPoint configuration and own that of the extension point, which takes precedence. Errors
// are appended to errs.
func pickPlugins[P framework.Plugin](point string, all []P, multi, own configv1.PluginSet, errs *[]error) []P {
	for _, e := range own.Enabled {
		// DynamicResources extends most points, and is enabled as a whole with its filter.
		if !slices.Contains(ignoredPlugins, e.Name) && e.Name != (plugins.DynamicResources{}).Name() && !slices.ContainsFunc(all, func(p P) bool { return p.Name() == e.Name }) {
			*errs = append(*errs, fmt.Errorf("plugin %q does not extend %s plugin", e.Name, point))
		}
	}
	named := func(list []configv1.Plugin, name string) bool {
		return slices.ContainsFunc(list, func(p configv1.Plugin) bool { return p.Name == name })
	}
	var out []P
	for _, p := range all {
		on := true
		for _, point := range []configv1.PluginSet{multi, own} {
			if named(point.Disabled, p.Name()) || named(point.Disabled, "*") {
				on = false
			}
			on = on || named(point.Enabled, p.Name())
		}
		if on {
			out = append(out, p)
		}
	}
	return out
}
