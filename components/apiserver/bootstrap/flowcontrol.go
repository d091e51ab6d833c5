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

// The default configuration of API Priority and Fairness. Mandatory objects are always reconciled.
// Suggested objects are not reconciled if their annotation apf.kubernetes.io/autoupdate-spec is
// "false".
//
// https://kubernetes.io/docs/concepts/cluster-administration/flow-control/#defaults

// flowGroup is the API group and version of the objects of API Priority and Fairness.
var flowGroup = flowcontrolv1.SchemeGroupVersion

// flowControlObjects returns the default FlowSchemas and PriorityLevelConfigurations, which must
// exist.
func flowControlObjects() []desiredObjects {
	var levels []*flowcontrolv1.PriorityLevelConfiguration
	for _, p := range slices.Concat(defaults.MandatoryPriorityLevelConfigurations, defaults.SuggestedPriorityLevelConfigurations) {
		levels = append(levels, p.DeepCopy())
	}
	var schemas []*flowcontrolv1.FlowSchema
	for _, s := range slices.Concat(defaults.MandatoryFlowSchemas, defaults.SuggestedFlowSchemas) {
		s = s.DeepCopy()
		s.Status.Conditions = []flowcontrolv1.FlowSchemaCondition{levelFoundCondition(s)}
		schemas = append(schemas, s)
	}
	return []desiredObjects{
		{flowGroup.WithResource("prioritylevelconfigurations"), objects(levels), reconcilePriorityLevel},
		{flowGroup.WithResource("flowschemas"), objects(schemas), reconcileFlowSchema},
	}
}

// levelFoundCondition returns the condition of a FlowSchema which says that its priority level
// exists. Otherwise the FlowSchema controller would set it. It is correct from the start, because
// the priority levels are written together with the schemas.
func levelFoundCondition(s *flowcontrolv1.FlowSchema) flowcontrolv1.FlowSchemaCondition {
	return flowcontrolv1.FlowSchemaCondition{
		Type:               flowcontrolv1.FlowSchemaConditionDangling,
		Status:             flowcontrolv1.ConditionFalse,
		LastTransitionTime: metav1.Now(),
		Reason:             "Found",
		Message: fmt.Sprintf("This FlowSchema references the PriorityLevelConfiguration object named %q and it exists",
			s.Spec.PriorityLevelConfiguration.Name),
	}
}

// reconcileFlowSchema returns a copy of existing, the stored FlowSchema, with what must change to match wanted, the
// default of this release: the annotation that records whether the spec is reconciled automatically and, if it is,
// the spec. Mandatory FlowSchemas are always reconciled. It returns nil if nothing changes.
func reconcileFlowSchema(existing, wanted api.Object) api.Object {
	is, want := existing.(*flowcontrolv1.FlowSchema), wanted.(*flowcontrolv1.FlowSchema)
	mandatory := slices.ContainsFunc(defaults.MandatoryFlowSchemas, func(s *flowcontrolv1.FlowSchema) bool { return s.Name == is.Name })
	auto := mandatory || isAutoUpdated(is)
	same := !auto || apiequality.Semantic.DeepEqual(is.Spec, want.Spec)
	if same && hasAutoUpdate(is, auto) {
		return nil
	}
	out := is.DeepCopy()
	setAutoUpdate(out, auto)
	if !same {
		out.Spec = want.Spec
		out.Generation++
	}
	return out
}

// reconcilePriorityLevel returns a changed copy of existing, a stored PriorityLevelConfiguration, or nil if nothing
// changes. It follows the same rules as reconcileFlowSchema, except that users may configure the lending of the level
// "exempt".
func reconcilePriorityLevel(existing, wanted api.Object) api.Object {
	is, want := existing.(*flowcontrolv1.PriorityLevelConfiguration), wanted.(*flowcontrolv1.PriorityLevelConfiguration)
	mandatory := slices.ContainsFunc(defaults.MandatoryPriorityLevelConfigurations,
		func(p *flowcontrolv1.PriorityLevelConfiguration) bool { return p.Name == is.Name })
	auto := mandatory || isAutoUpdated(is)
	spec := want.Spec.DeepCopy()
	if is.Name == flowcontrolv1.PriorityLevelConfigurationNameExempt && is.Spec.Exempt != nil {
		// Operators may configure how much concurrency the exempt level lends.
		spec.Exempt = is.Spec.Exempt
	}
	same := !auto || apiequality.Semantic.DeepEqual(&is.Spec, spec)
	if same && hasAutoUpdate(is, auto) {
		return nil
	}
	out := is.DeepCopy()
	setAutoUpdate(out, auto)
	if !same {
		out.Spec = *spec
		out.Generation++
	}
	return out
}

// isAutoUpdated reports whether the spec of a stored default object, which users may change, is reconciled
// automatically. The annotation apf.kubernetes.io/autoupdate-spec decides. Without a valid annotation, the spec is
// reconciled if it has never been changed.
func isAutoUpdated(obj api.Object) bool {
	if auto, err := strconv.ParseBool(obj.GetAnnotations()[flowcontrolv1.AutoUpdateAnnotationKey]); err == nil {
		return auto
	}
	return obj.GetGeneration() == 1
}

// hasAutoUpdate reports whether obj has the annotation apf.kubernetes.io/autoupdate-spec and its value equals auto.
func hasAutoUpdate(obj api.Object, auto bool) bool {
	is, err := strconv.ParseBool(obj.GetAnnotations()[flowcontrolv1.AutoUpdateAnnotationKey])
	return err == nil && is == auto
}

// setAutoUpdate sets the annotation apf.kubernetes.io/autoupdate-spec of obj to auto: whether its spec is reconciled
// automatically.
func setAutoUpdate(obj api.Object, auto bool) {
	annotations := obj.GetAnnotations()
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[flowcontrolv1.AutoUpdateAnnotationKey] = strconv.FormatBool(auto)
	obj.SetAnnotations(annotations)
}

// ReconcileFlowControl reconciles the default configuration of API Priority and Fairness: it creates missing objects,
// updates those that are reconciled automatically, and deletes automatically reconciled objects that are not defaults
// of this release anymore. It makes up to five attempts if other clients write the same objects. Package fairness
// calls it when one of the objects changes.
func ReconcileFlowControl(ctx context.Context, reg *registry.Registry) error {
	var err error
	for range maxAttempts {
		if err = reconcileFlowControlOnce(ctx, reg); err == nil {
			return nil
		}
		if _, ok := errors.AsType[*store.ConflictError](err); !ok {
			break
		}
	}
	return fmt.Errorf("reconciling default flow control configuration: %w", err)
}

// reconcileFlowControlOnce is one attempt of ReconcileFlowControl.
func reconcileFlowControlOnce(ctx context.Context, reg *registry.Registry) error {
	var ops [][]store.Op
	for _, w := range flowControlObjects() {
		res := reg.Lookup(w.gvr)
		if res == nil {
			continue
		}
		list, err := missing(ctx, res, w, slog.Default())
		if err != nil {
			return err
		}
		old, err := obsoleteDeletions(ctx, res, w)
		if err != nil {
			return err
		}
		ops = append(ops, append(list, old...))
	}
	_, err := commit(ctx, ops)
	return err
}

// obsoleteDeletions returns operations that delete those objects of a resource that are reconciled automatically but
// are not in w, because they were defaults of an earlier release. It skips objects that cannot be decoded.
func obsoleteDeletions(ctx context.Context, res *registry.Resource, w desiredObjects) ([]store.Op, error) {
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
			continue // its owner is unknown
		}
		if obj := o.(api.Object); !known[obj.GetName()] && hasAutoUpdate(obj, true) {
			ops = append(ops, res.Collection.Delete(e))
		}
	}
	return ops, nil
}
