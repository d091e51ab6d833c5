package scheduler

import (
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	configv1 "k8s.io/kube-scheduler/config/v1"
	"sigs.k8s.io/yaml"

	"hyperkube/components/scheduler/framework"
	"hyperkube/components/scheduler/plugins"
)

// readArgs decodes and validates the pluginConfig of a profile. Plugins without an entry get upstream's default
// arguments. It returns an error for unknown plugins, repeated entries and invalid arguments.
// https://kubernetes.io/docs/reference/config-api/kube-scheduler-config.v1/
func readArgs(list []configv1.PluginConfig) (plugins.Args, error) {
	args := plugins.DefaultArgs()
	known := knownNames(plugins.Default())
	seen := map[string]bool{}
	for i := range list {
		c := &list[i]
		if seen[c.Name] {
			return args, fmt.Errorf("repeated config for plugin %s", c.Name)
		}
		seen[c.Name] = true
		if !known[c.Name] {
			return args, fmt.Errorf("arguments of unknown plugin %q", c.Name)
		}
		if err := readOne(&args, c); err != nil {
			return args, fmt.Errorf("arguments of plugin %q: %w", c.Name, err)
		}
	}
	return args, nil
}

// readOne decodes the arguments of one plugin and sets them in args. If the arguments are empty, or the plugin is an
// ignored one (see ignoredPlugins), it does nothing. It returns an error for a plugin that has no arguments.
func readOne(args *plugins.Args, c *configv1.PluginConfig) error {
	data := c.Args.Raw
	if len(data) == 0 || slices.Contains(ignoredPlugins, c.Name) {
		return nil
	}
	var meta struct{ Kind, APIVersion string }
	if err := yaml.Unmarshal(data, &meta); err != nil {
		return err
	}
	if meta.Kind != "" && meta.Kind != c.Name+"Args" || meta.APIVersion != "" && meta.APIVersion != configv1.SchemeGroupVersion.String() {
		return fmt.Errorf("type is %s of %s, want %sArgs of %s", meta.Kind, meta.APIVersion, c.Name, configv1.SchemeGroupVersion)
	}
	switch c.Name {
	case args.Fit.Name():
		return readFit(&args.Fit, data)
	case args.Spread.Name():
		return readSpread(&args.Spread, data)
	case args.Affinity.Name():
		var a configv1.NodeAffinityArgs
		if err := yaml.UnmarshalStrict(data, &a); err != nil {
			return err
		}
		args.Affinity.Added = a.AddedAffinity
	case args.InterPod.Name():
		var a configv1.InterPodAffinityArgs
		if err := yaml.UnmarshalStrict(data, &a); err != nil {
			return err
		}
		if a.HardPodAffinityWeight != nil {
			if *a.HardPodAffinityWeight < 0 || *a.HardPodAffinityWeight > 100 {
				return errors.New("hardPodAffinityWeight: not in valid range [0-100]")
			}
			args.InterPod.HardWeight = int64(*a.HardPodAffinityWeight)
		}
		args.InterPod.IgnorePreferred = a.IgnorePreferredTermsOfExistingPods
	case args.Balanced.Name():
		var a configv1.NodeResourcesBalancedAllocationArgs
		if err := yaml.UnmarshalStrict(data, &a); err != nil {
			return err
		}
		for _, r := range a.Resources {
			if r.Weight > 1 {
				return fmt.Errorf("resources: weight of %s: only 1 is supported", r.Name)
			}
			args.Balanced.Resources = append(args.Balanced.Resources, corev1.ResourceName(r.Name))
		}
	case args.Volumes.Name():
		var a configv1.VolumeBindingArgs
		if err := yaml.UnmarshalStrict(data, &a); err != nil {
			return err
		}
		if a.BindTimeoutSeconds != nil {
			if *a.BindTimeoutSeconds < 0 {
				return fmt.Errorf("bindTimeoutSeconds: Invalid value: %d: invalid BindTimeoutSeconds, should not be a negative value", *a.BindTimeoutSeconds)
			}
			args.Volumes.BindTimeout = time.Duration(*a.BindTimeoutSeconds) * time.Second
		}
		if len(a.Shape) > 0 {
			var err error
			if args.Volumes.Shape, err = readShape(a.Shape); err != nil {
				return fmt.Errorf("shape: %w", err)
			}
		}
	case args.Devices.Name():
		var a configv1.DynamicResourcesArgs
		if err := yaml.UnmarshalStrict(data, &a); err != nil {
			return err
		}
		if a.FilterTimeout != nil {
			if a.FilterTimeout.Duration < 0 {
				return fmt.Errorf("filterTimeout: Invalid value: %s: must be zero or positive", a.FilterTimeout.Duration)
			}
			args.Devices.FilterTimeout = a.FilterTimeout.Duration
		}
		if a.BindingTimeout != nil {
			if a.BindingTimeout.Duration < time.Second {
				return fmt.Errorf("bindingTimeout: Invalid value: %s: must be at least 1 second", a.BindingTimeout.Duration)
			}
			args.Devices.BindingTimeout = a.BindingTimeout.Duration
		}
	case args.Preemption.Name():
		return readPreemption(&args.Preemption, data)
	default:
		return errors.New("the plugin has no arguments")
	}
	return nil
}

// readPreemption decodes data, the arguments of the DefaultPreemption plugin in YAML or JSON, sets the fields of p
// that they contain, and checks the values.
func readPreemption(p *plugins.DefaultPreemption, data []byte) error {
	var a configv1.DefaultPreemptionArgs
	if err := yaml.UnmarshalStrict(data, &a); err != nil {
		return err
	}
	if a.MinCandidateNodesPercentage != nil {
		p.Percentage = int(*a.MinCandidateNodesPercentage)
	}
	if a.MinCandidateNodesAbsolute != nil {
		p.Absolute = int(*a.MinCandidateNodesAbsolute)
	}
	switch {
	case p.Percentage < 0 || p.Percentage > 100:
		return errors.New("minCandidateNodesPercentage: not in valid range [0, 100]")
	case p.Absolute < 0:
		return errors.New("minCandidateNodesAbsolute: not in valid range [0, inf)")
	case p.Percentage == 0 && p.Absolute == 0:
		return errors.New("cannot have both minCandidateNodesPercentage and minCandidateNodesAbsolute be 0")
	}
	return nil
}

// readFit decodes data, the arguments of the NodeResourcesFit plugin in YAML or JSON, sets the fields of p that they
// contain, and checks the values.
func readFit(p *plugins.NodeResourcesFit, data []byte) error {
	var a configv1.NodeResourcesFitArgs
	if err := yaml.UnmarshalStrict(data, &a); err != nil {
		return err
	}
	p.Ignored, p.IgnoredGroups = map[corev1.ResourceName]bool{}, map[string]bool{}
	for _, name := range a.IgnoredResources {
		p.Ignored[corev1.ResourceName(name)] = true
	}
	for _, group := range a.IgnoredResourceGroups {
		p.IgnoredGroups[group] = true
	}
	s := a.ScoringStrategy
	if s == nil {
		return nil
	}
	for _, r := range s.Resources {
		if r.Weight == 0 {
			r.Weight = 1
		}
		if r.Weight < 1 || r.Weight > 100 {
			return fmt.Errorf("scoringStrategy.resources: weight of %s: resource weight must be in the range [1, 100]", r.Name)
		}
		p.Strategy.Resources = append(p.Strategy.Resources, plugins.WeightedResource{Name: corev1.ResourceName(r.Name), Weight: r.Weight})
	}
	switch s.Type {
	case "", configv1.LeastAllocated:
	case configv1.MostAllocated:
		p.Strategy.Most = true
	case configv1.RequestedToCapacityRatio:
		if s.RequestedToCapacityRatio == nil || len(s.RequestedToCapacityRatio.Shape) == 0 {
			return errors.New("scoringStrategy.requestedToCapacityRatio.shape: at least one point must be specified")
		}
		var err error
		if p.Strategy.Shape, err = readShape(s.RequestedToCapacityRatio.Shape); err != nil {
			return fmt.Errorf("scoringStrategy.requestedToCapacityRatio.shape: %w", err)
		}
	default:
		return fmt.Errorf("scoringStrategy.type: %q is none of LeastAllocated, MostAllocated, RequestedToCapacityRatio", s.Type)
	}
	return nil
}

// readShape converts the points of a scoring function. Scores from 0 to 10 become scores from 0 to framework.MaxScore.
// Utilizations must increase from point to point.
func readShape(points []configv1.UtilizationShapePoint) ([]plugins.Point, error) {
	var out []plugins.Point
	for i, point := range points {
		switch {
		case point.Utilization < 0 || point.Utilization > 100:
			return nil, errors.New("utilization must be between 0 and 100")
		case i > 0 && point.Utilization <= points[i-1].Utilization:
			return nil, errors.New("utilization values must be sorted in increasing order")
		case point.Score < 0 || point.Score > 10:
			return nil, errors.New("score must be between 0 and 10")
		}
		out = append(out, plugins.Point{Utilization: int64(point.Utilization), Score: int64(point.Score) * framework.MaxScore / 10})
	}
	return out, nil
}

// readSpread decodes data, the arguments of the PodTopologySpread plugin in YAML or JSON, sets the fields of p that
// they contain, and checks the values.
func readSpread(p *plugins.PodTopologySpread, data []byte) error {
	var a configv1.PodTopologySpreadArgs
	if err := yaml.UnmarshalStrict(data, &a); err != nil {
		return err
	}
	switch a.DefaultingType {
	case "", configv1.SystemDefaulting:
		if len(a.DefaultConstraints) > 0 {
			return errors.New("defaultingType: when .defaultConstraints are specified, it must be List")
		}
		return nil
	case configv1.ListDefaulting:
	default:
		return fmt.Errorf("defaultingType: %q is none of System, List", a.DefaultingType)
	}
	for i, c := range a.DefaultConstraints {
		switch {
		case c.MaxSkew <= 0:
			return fmt.Errorf("defaultConstraints[%d].maxSkew: not in valid range (0, inf)", i)
		case c.TopologyKey == "":
			return fmt.Errorf("defaultConstraints[%d].topologyKey: can not be empty", i)
		case c.WhenUnsatisfiable != corev1.DoNotSchedule && c.WhenUnsatisfiable != corev1.ScheduleAnyway:
			return fmt.Errorf("defaultConstraints[%d].whenUnsatisfiable: %q is none of DoNotSchedule, ScheduleAnyway", i, c.WhenUnsatisfiable)
		case c.LabelSelector != nil:
			return fmt.Errorf("defaultConstraints[%d].labelSelector: constraint must not define a selector, as they deduced for each pod", i)
		}
	}
	// An empty list is not nil: it disables the system defaults.
	p.Defaults = append([]corev1.TopologySpreadConstraint{}, a.DefaultConstraints...)
	return nil
}
