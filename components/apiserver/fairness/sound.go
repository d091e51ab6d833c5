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

// sound are informers by which the library does not see priority levels that it
// would panic on. The API has none such, but who writes straight into etcd may.
type sound struct {
	informers.SharedInformerFactory
	log *slog.Logger
}

// Flowcontrol as informers.SharedInformerFactory.
func (s sound) Flowcontrol() flowcontrol.Interface {
	return soundGroup{s.SharedInformerFactory.Flowcontrol(), s.log}
}

type soundGroup struct {
	flowcontrol.Interface
	log *slog.Logger
}

// V1 as flowcontrol.Interface.
func (s soundGroup) V1() informersv1.Interface { return soundVersion{s.Interface.V1(), s.log} }

type soundVersion struct {
	informersv1.Interface
	log *slog.Logger
}

// PriorityLevelConfigurations as informersv1.Interface.
func (s soundVersion) PriorityLevelConfigurations() informersv1.TypedPriorityLevelConfigurationInformer {
	return soundInformer{s.Interface.PriorityLevelConfigurations(), s.log}
}

type soundInformer struct {
	informersv1.TypedPriorityLevelConfigurationInformer
	log *slog.Logger
}

// Lister as informersv1.TypedPriorityLevelConfigurationInformer.
func (s soundInformer) Lister() listersv1.PriorityLevelConfigurationLister {
	return &soundLister{PriorityLevelConfigurationLister: s.TypedPriorityLevelConfigurationInformer.Lister(), log: s.log, told: map[types.UID]string{}}
}

type soundLister struct {
	listersv1.PriorityLevelConfigurationLister
	log *slog.Logger

	mu   sync.Mutex
	told map[types.UID]string // versions of broken ones that the log tells of, guarded by mu
}

// List as listersv1.PriorityLevelConfigurationLister, of those that are whole.
func (s *soundLister) List(selector labels.Selector) ([]*flowcontrolv1.PriorityLevelConfiguration, error) {
	list, err := s.PriorityLevelConfigurationLister.List(selector)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(list, func(level *flowcontrolv1.PriorityLevelConfiguration) bool {
		err := whole(&level.Spec)
		if err != nil && s.first(level) {
			s.log.Warn("Passing over a PriorityLevelConfiguration that is broken", "name", level.Name, "err", err)
		}
		return err != nil
	}), nil
}

// first tells whether the log does not tell of the level as it is yet.
func (s *soundLister) first(level *flowcontrolv1.PriorityLevelConfiguration) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.told[level.UID] == level.ResourceVersion {
		return false
	}
	s.told[level.UID] = level.ResourceVersion
	return true
}

// whole tells what is missing of a priority level.
func whole(spec *flowcontrolv1.PriorityLevelConfigurationSpec) error {
	switch limited, exempt := spec.Limited, spec.Exempt; {
	case (spec.Type == flowcontrolv1.PriorityLevelEnablementLimited) != (limited != nil):
		return errors.New("spec.limited: there must be one if, and only if, the type is Limited")
	case (spec.Type == flowcontrolv1.PriorityLevelEnablementExempt) != (exempt != nil):
		return errors.New("spec.exempt: there must be one if, and only if, the type is Exempt")
	case limited == nil && exempt == nil:
		return errors.New("spec.type: neither Limited nor Exempt")
	case limited != nil && (limited.NominalConcurrencyShares == nil || limited.LendablePercent == nil):
		return errors.New("spec.limited: nominalConcurrencyShares and lendablePercent are required")
	case limited != nil && (limited.LimitResponse.Type == flowcontrolv1.LimitResponseTypeReject) != (limited.LimitResponse.Queuing == nil):
		return errors.New("spec.limited.limitResponse.queuing: there must be one unless the type is Reject")
	case limited != nil && limited.LimitResponse.Queuing != nil && (limited.LimitResponse.Queuing.Queues < 1 || limited.LimitResponse.Queuing.HandSize < 1):
		return errors.New("spec.limited.limitResponse.queuing: queues and handSize must be positive")
	case exempt != nil && exempt.LendablePercent == nil:
		return errors.New("spec.exempt: lendablePercent is required")
	}
	return nil
}
