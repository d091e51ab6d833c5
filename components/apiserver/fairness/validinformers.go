package fairness

import (
	"errors"
	"log/slog"
	"slices"
	"sync"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/informers/flowcontrol"
	informersv1 "k8s.io/client-go/informers/flowcontrol/v1"
	listersv1 "k8s.io/client-go/listers/flowcontrol/v1"
)

// validInformers wraps informers to hide priority levels on which the flow control library would panic. API validation
// rejects such objects, but they may have been written directly to etcd.
type validInformers struct {
	informers.SharedInformerFactory
	log *slog.Logger
}

// Flowcontrol implements informers.SharedInformerFactory. Its informers hide invalid priority
// levels.
func (s validInformers) Flowcontrol() flowcontrol.Interface {
	return validGroup{s.SharedInformerFactory.Flowcontrol(), s.log}
}

// validGroup returns informers of the group flowcontrol.apiserver.k8s.io that hide invalid priority levels.
type validGroup struct {
	flowcontrol.Interface
	log *slog.Logger
}

// V1 implements flowcontrol.Interface. Its informers hide invalid priority levels.
func (s validGroup) V1() informersv1.Interface { return validVersion{s.Interface.V1(), s.log} }

// validVersion returns informers of flowcontrol.apiserver.k8s.io/v1 that hide invalid priority levels.
type validVersion struct {
	informersv1.Interface
	log *slog.Logger
}

// PriorityLevelConfigurations implements informersv1.Interface. The lister of the informer hides
// invalid priority levels.
func (s validVersion) PriorityLevelConfigurations() informersv1.TypedPriorityLevelConfigurationInformer {
	return validInformer{s.Interface.PriorityLevelConfigurations(), s.log}
}

// validInformer is an informer of PriorityLevelConfigurations whose lister hides invalid ones. Its event handlers get
// all of them.
type validInformer struct {
	informersv1.TypedPriorityLevelConfigurationInformer
	log *slog.Logger
}

// Lister implements informersv1.TypedPriorityLevelConfigurationInformer. The lister omits and logs
// invalid priority levels.
func (s validInformer) Lister() listersv1.PriorityLevelConfigurationLister {
	return &validLister{PriorityLevelConfigurationLister: s.TypedPriorityLevelConfigurationInformer.Lister(), log: s.log, logged: map[types.UID]string{}}
}

// validLister lists PriorityLevelConfigurations without the invalid ones, which it logs. It is safe for concurrent
// use.
type validLister struct {
	listersv1.PriorityLevelConfigurationLister
	log *slog.Logger

	mu     sync.Mutex
	logged map[types.UID]string // resource versions of invalid levels that were already logged, guarded by mu
}

// List implements listersv1.PriorityLevelConfigurationLister. It omits invalid levels and logs each invalid version
// of a level once, as a warning.
func (s *validLister) List(selector labels.Selector) ([]*flowcontrolv1.PriorityLevelConfiguration, error) {
	list, err := s.PriorityLevelConfigurationLister.List(selector)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(list, func(level *flowcontrolv1.PriorityLevelConfiguration) bool {
		err := validateLevel(&level.Spec)
		if err != nil && s.notLogged(level) {
			s.log.Warn("PriorityLevelConfiguration in etcd is invalid and ignored; FlowSchemas that refer to it have no effect: replace or delete the object", "priorityLevel", level.Name, "err", err)
		}
		return err != nil
	}), nil
}

// notLogged reports whether this version of the level has not been logged yet, and records it as
// logged.
func (s *validLister) notLogged(level *flowcontrolv1.PriorityLevelConfiguration) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.logged[level.UID] == level.ResourceVersion {
		return false
	}
	s.logged[level.UID] = level.ResourceVersion
	return true
}

// validateLevel returns an error if the spec of a priority level lacks fields without which the
// flow control library would panic.
func validateLevel(spec *flowcontrolv1.PriorityLevelConfigurationSpec) error {
	switch limited, exempt := spec.Limited, spec.Exempt; {
	case (spec.Type == flowcontrolv1.PriorityLevelEnablementLimited) != (limited != nil):
		return errors.New("spec.limited: must be set if and only if the type is Limited")
	case (spec.Type == flowcontrolv1.PriorityLevelEnablementExempt) != (exempt != nil):
		return errors.New("spec.exempt: must be set if and only if the type is Exempt")
	case limited == nil && exempt == nil:
		return errors.New("spec.type: must be Limited or Exempt")
	case limited != nil && (limited.NominalConcurrencyShares == nil || limited.LendablePercent == nil):
		return errors.New("spec.limited: nominalConcurrencyShares and lendablePercent are required")
	case limited != nil && (limited.LimitResponse.Type == flowcontrolv1.LimitResponseTypeReject) != (limited.LimitResponse.Queuing == nil):
		return errors.New("spec.limited.limitResponse.queuing: must be set unless the type is Reject")
	case limited != nil && limited.LimitResponse.Queuing != nil && (limited.LimitResponse.Queuing.Queues < 1 || limited.LimitResponse.Queuing.HandSize < 1):
		return errors.New("spec.limited.limitResponse.queuing: queues and handSize must be positive")
	case exempt != nil && exempt.LendablePercent == nil:
		return errors.New("spec.exempt: lendablePercent is required")
	}
	return nil
}
