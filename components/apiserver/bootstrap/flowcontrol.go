package bootstrap

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	defaults "k8s.io/apiserver/pkg/apis/flowcontrol/bootstrap"

	"hyperkube/components/apiserver/registry"
	"hyperkube/internal/api"
	"hyperkube/internal/store"
)

// The configuration of priority and fairness that every cluster has. The
// mandatory objects are kept as they are; the suggested ones are an operator's
// as soon as the annotation apf.kubernetes.io/autoupdate-spec says "false".
//
// https://kubernetes.io/docs/concepts/cluster-administration/flow-control/#defaults

var flowGroup = flowcontrolv1.SchemeGroupVersion

// flowControl is what shall be there.
func flowControl() []want {
	var levels []*flowcontrolv1.PriorityLevelConfiguration
	for _, p := range slices.Concat(defaults.MandatoryPriorityLevelConfigurations, defaults.SuggestedPriorityLevelConfigurations) {
		levels = append(levels, p.DeepCopy())
	}
	var schemas []*flowcontrolv1.FlowSchema
	for _, s := range slices.Concat(defaults.MandatoryFlowSchemas, defaults.SuggestedFlowSchemas) {
		s = s.DeepCopy()
		s.Status.Conditions = []flowcontrolv1.FlowSchemaCondition{levelFound(s)}
		schemas = append(schemas, s)
	}
	return []want{
		{flowGroup.WithResource("prioritylevelconfigurations"), objects(levels), mendLevel},
		{flowGroup.WithResource("flowschemas"), objects(schemas), mendSchema},
	}
}

// levelFound is what the controller of FlowSchemas would write at once: the
// levels are written together with the schemas.
func levelFound(s *flowcontrolv1.FlowSchema) flowcontrolv1.FlowSchemaCondition {
	return flowcontrolv1.FlowSchemaCondition{
		Type:               flowcontrolv1.FlowSchemaConditionDangling,
		Status:             flowcontrolv1.ConditionFalse,
		LastTransitionTime: metav1.Now(),
		Reason:             "Found",
		Message: fmt.Sprintf("This FlowSchema references the PriorityLevelConfiguration object named %q and it exists",
			s.Spec.PriorityLevelConfiguration.Name),
	}
}

func mendSchema(existing, wanted api.Object) api.Object {
	is, want := existing.(*flowcontrolv1.FlowSchema), wanted.(*flowcontrolv1.FlowSchema)
	mandatory := slices.ContainsFunc(defaults.MandatoryFlowSchemas, func(s *flowcontrolv1.FlowSchema) bool { return s.Name == is.Name })
	auto := mandatory || keptUpToDate(is)
	same := !auto || apiequality.Semantic.DeepEqual(is.Spec, want.Spec)
	if same && says(is, auto) {
		return nil
	}
	out := is.DeepCopy()
	say(out, auto)
	if !same {
		out.Spec = want.Spec
		out.Generation++
	}
	return out
}

func mendLevel(existing, wanted api.Object) api.Object {
	is, want := existing.(*flowcontrolv1.PriorityLevelConfiguration), wanted.(*flowcontrolv1.PriorityLevelConfiguration)
	mandatory := slices.ContainsFunc(defaults.MandatoryPriorityLevelConfigurations,
		func(p *flowcontrolv1.PriorityLevelConfiguration) bool { return p.Name == is.Name })
	auto := mandatory || keptUpToDate(is)
	spec := want.Spec.DeepCopy()
	if is.Name == flowcontrolv1.PriorityLevelConfigurationNameExempt && is.Spec.Exempt != nil {
		// How much the exempt level lends is for operators to say.
		spec.Exempt = is.Spec.Exempt
	}
	same := !auto || apiequality.Semantic.DeepEqual(&is.Spec, spec)
	if same && says(is, auto) {
		return nil
	}
	out := is.DeepCopy()
	say(out, auto)
	if !same {
		out.Spec = *spec
		out.Generation++
	}
	return out
}

// keptUpToDate tells whether the spec of a suggested object is Kubernetes' own:
// by its annotation, or, without one, if nobody has changed it.
func keptUpToDate(obj api.Object) bool {
	if auto, err := strconv.ParseBool(obj.GetAnnotations()[flowcontrolv1.AutoUpdateAnnotationKey]); err == nil {
		return auto
	}
	return obj.GetGeneration() == 1
}

func says(obj api.Object, auto bool) bool {
	is, err := strconv.ParseBool(obj.GetAnnotations()[flowcontrolv1.AutoUpdateAnnotationKey])
	return err == nil && is == auto
}

func say(obj api.Object, auto bool) {
	annotations := obj.GetAnnotations()
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[flowcontrolv1.AutoUpdateAnnotationKey] = strconv.FormatBool(auto)
	obj.SetAnnotations(annotations)
}

// KeepFlowControl writes what is missing of the configuration of priority and
// fairness, mends what may be mended, and deletes what an older version
// suggested and nobody has made their own.
func KeepFlowControl(ctx context.Context, reg *registry.Registry) error {
	var err error
	for range attempts {
		if err = keepFlowControl(ctx, reg); err == nil {
			return nil
		}
		if _, ok := errors.AsType[*store.ConflictError](err); !ok {
			break
		}
	}
	return fmt.Errorf("keeping the configuration of priority and fairness: %w", err)
}

func keepFlowControl(ctx context.Context, reg *registry.Registry) error {
	var ops [][]store.Op
	for _, w := range flowControl() {
		res := reg.Lookup(w.gvr)
		if res == nil {
			continue
		}
		list, err := missing(ctx, res, w, slog.Default())
		if err != nil {
			return err
		}
		old, err := outdated(ctx, res, w)
		if err != nil {
			return err
		}
		ops = append(ops, append(list, old...))
	}
	_, err := commit(ctx, ops)
	return err
}

// outdated returns the deletions of objects that are Kubernetes' own and
// suggested no longer.
func outdated(ctx context.Context, res *registry.Resource, w want) ([]store.Op, error) {
	page, err := res.Collection.List(ctx, store.ListOptions{Revision: -1})
	if err != nil {
		return nil, err
	}
	known := map[string]bool{}
	for _, obj := range w.objects {
		known[obj.GetName()] = true
	}
	var ops []store.Op
	for _, e := range page.Entries {
		o, err := e.Object()
		if err != nil {
			continue // nobody can tell whose it is
		}
		if obj := o.(api.Object); !known[obj.GetName()] && says(obj, true) {
			ops = append(ops, res.Collection.Delete(e))
		}
	}
	return ops, nil
}
